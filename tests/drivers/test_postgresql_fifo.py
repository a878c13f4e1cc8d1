"""The type fifo on PostgreSQL."""

from postgres_kit import PostgresKit


class TestPostgresFifo(PostgresKit):
    type = "fifo"
    topics = ("agreement", "ordering", "ownership")
