"""The type limfifottl on PostgreSQL."""

from postgres_kit import PostgresKit


class TestPostgresLimfifottl(PostgresKit):
    type = "limfifottl"
    topics = ("agreement", "capacity", "timing")
