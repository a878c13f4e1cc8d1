"""Through the asyncio door, on a SQLite file and in memory: types that have every feature between them, and lack each.

The door knows nothing of types. The others are in tests/soak/test_awaited.py.
"""

from tubes.testing import ConformanceKit, PrivateKit
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedLimfifottl(ThroughAsyncio, ConformanceKit):
    type = "limfifottl"


class TestAwaitedUtubettl(ThroughAsyncio, ConformanceKit):
    type = "utubettl"


class TestAwaitedMemory(ThroughAsyncio, PrivateKit):
    type = "fifo"
    url = "sqlite://"
