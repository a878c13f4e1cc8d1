"""All types through the asyncio door, on a SQLite file and in memory."""

from tubes.testing import ConformanceKit, PrivateKit
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedFifo(ThroughAsyncio, ConformanceKit):
    type = "fifo"


class TestAwaitedFifottl(ThroughAsyncio, ConformanceKit):
    type = "fifottl"


class TestAwaitedLimfifottl(ThroughAsyncio, ConformanceKit):
    type = "limfifottl"


class TestAwaitedUtube(ThroughAsyncio, ConformanceKit):
    type = "utube"


class TestAwaitedUtubettl(ThroughAsyncio, ConformanceKit):
    type = "utubettl"


class TestAwaitedMemory(ThroughAsyncio, PrivateKit):
    type = "fifottl"
    url = "sqlite://"
