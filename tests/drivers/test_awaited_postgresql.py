"""All types through the asyncio door, on PostgreSQL."""

from postgres_kit import PostgresKit

from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedPostgresFifo(ThroughAsyncio, PostgresKit):
    type = "fifo"


class TestAwaitedPostgresFifottl(ThroughAsyncio, PostgresKit):
    type = "fifottl"


class TestAwaitedPostgresLimfifottl(ThroughAsyncio, PostgresKit):
    type = "limfifottl"


class TestAwaitedPostgresUtube(ThroughAsyncio, PostgresKit):
    type = "utube"


class TestAwaitedPostgresUtubettl(ThroughAsyncio, PostgresKit):
    type = "utubettl"
