"""The type utube on PostgreSQL."""

from postgres_kit import PostgresKit


class TestPostgresUtube(PostgresKit):
    type = "utube"
    topics = ("agreement", "groups", "ordering")
