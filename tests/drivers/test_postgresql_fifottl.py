"""The type fifottl on PostgreSQL."""

from postgres_kit import PostgresKit


class TestPostgresFifottl(PostgresKit):
    type = "fifottl"
    topics = ("agreement", "ordering", "timing")
