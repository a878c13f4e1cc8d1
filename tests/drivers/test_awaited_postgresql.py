"""Through the asyncio door, on PostgreSQL: two types that have every feature between them.

The door knows nothing of types. The other three are in tests/soak/test_awaited.py.
"""

from postgres_kit import PostgresKit

from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedPostgresLimfifottl(ThroughAsyncio, PostgresKit):
    type = "limfifottl"


class TestAwaitedPostgresUtubettl(ThroughAsyncio, PostgresKit):
    type = "utubettl"
