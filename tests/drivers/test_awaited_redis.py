"""Through the asyncio API, on Redis: the type with the most features.

The other four are in tests/soak/test_awaited.py.
"""

from redis_kit import RedisKit

from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedRedisUtubettl(ThroughAsyncio, RedisKit):
    type = "utubettl"
    topics = ("agreement", "timing")
