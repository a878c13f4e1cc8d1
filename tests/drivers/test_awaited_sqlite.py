"""Through the asyncio API, on a SQLite file and in memory: the types with the most and the fewest features.

The API knows nothing of types, except that a put waits for room. The rest is in tests/soak/test_awaited.py.
"""

from tubes.testing import ConformanceKit, PrivateKit
from tubes.testing.capacity import Capacity
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedLimfifottl(ThroughAsyncio, Capacity):
    type = "limfifottl"


class TestAwaitedUtubettl(ThroughAsyncio, ConformanceKit):
    type = "utubettl"
    topics = ("agreement", "api", "changes", "ownership", "timing")


class TestAwaitedMemory(ThroughAsyncio, PrivateKit):
    type = "fifo"
    url = "sqlite://"
    topics = ("agreement",)
