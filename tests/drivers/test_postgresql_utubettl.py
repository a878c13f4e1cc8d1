"""The type utubettl on PostgreSQL."""

from postgres_kit import PostgresKit


class TestPostgresUtubettl(PostgresKit):
    type = "utubettl"
