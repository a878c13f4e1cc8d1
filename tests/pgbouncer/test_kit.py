"""The conformance kit through PgBouncer, for two types that have every feature between them."""

from postgres_kit import PostgresKit


class TestLimfifottl(PostgresKit):
    type = "limfifottl"


class TestUtubettl(PostgresKit):
    type = "utubettl"
