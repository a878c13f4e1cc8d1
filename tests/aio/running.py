"""How a coroutine function becomes a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tubes import aio

P = ParamSpec("P")

PATIENCE = 30.0
"""Real seconds within which what must happen has to happen."""


def awaited(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return run


def connect(url: str, **settings: Any) -> aio.Connecting:
    """Connect as the tests need it: no fsync, no background sweep, and with tables."""
    return aio.connect(url, **{"durability": "off", "sweep": False, "migrate": True, **settings})


async def until(happened: Callable[[], Any]) -> None:
    """Wait for what another thread must do soon."""
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


def threads_since(before: list[threading.Thread]) -> set[threading.Thread]:
    """The threads alive now that were not then; a count would be wrong if others ended meanwhile."""
    return {*threading.enumerate()} - {*before}


async def in_line(tube: aio.Tube, count: int) -> None:
    """Wait until that many takes are waiting."""
    waiters, id = tube._plain._queue.store.waiters, tube.record.id
    await until(lambda: waiters.count(id) == count)
