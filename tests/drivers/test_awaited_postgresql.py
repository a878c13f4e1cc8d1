"""Through the asyncio API, on PostgreSQL: the type with the most features.

The API knows nothing of types. The other four are in tests/soak/test_awaited.py.
"""

from postgres_kit import PostgresKit

from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedPostgresUtubettl(ThroughAsyncio, PostgresKit):
    type = "utubettl"
    topics = ("agreement", "timing")
