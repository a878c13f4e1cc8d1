"""The types that tests/drivers does not send through the asyncio door."""

from postgres_kit import PostgresKit

from tubes.testing import ConformanceKit
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedFifottl(ThroughAsyncio, ConformanceKit):
    type = "fifottl"


class TestAwaitedUtube(ThroughAsyncio, ConformanceKit):
    type = "utube"


class TestAwaitedPostgresFifo(ThroughAsyncio, PostgresKit):
    type = "fifo"


class TestAwaitedPostgresFifottl(ThroughAsyncio, PostgresKit):
    type = "fifottl"


class TestAwaitedPostgresUtube(ThroughAsyncio, PostgresKit):
    type = "utube"
