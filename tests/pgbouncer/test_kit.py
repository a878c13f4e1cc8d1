"""The conformance kit through PgBouncer."""

from postgres_kit import PostgresKit


class TestFifo(PostgresKit):
    type = "fifo"


class TestFifottl(PostgresKit):
    type = "fifottl"


class TestLimfifottl(PostgresKit):
    type = "limfifottl"


class TestUtube(PostgresKit):
    type = "utube"


class TestUtubettl(PostgresKit):
    type = "utubettl"
