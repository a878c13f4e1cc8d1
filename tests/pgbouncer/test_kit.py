"""The conformance kit through PgBouncer, for the type with the most features."""

from postgres_kit import PostgresKit


class TestUtubettl(PostgresKit):
    type = "utubettl"
