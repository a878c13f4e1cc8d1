"""Runs the suites, which are written for the synchronous API, through the asyncio API."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ClassVar, cast
from weakref import WeakValueDictionary

from hypothesis import settings

from tubes import aio
from tubes.queue import Queue, Tubes
from tubes.testing.agreement import shortened

TURNS = 10
"""Turns of the event loop that end even nested callbacks, which call a tube whose callbacks call a tube."""


class ThroughAsyncio:
    """A mixin to name before a kit, whose tests then use ``tubes.aio``.

    >>> class TestLifoAwaited(ThroughAsyncio, ConformanceKit):  # doctest: +SKIP
    ...     type = "lifo"
    """

    @staticmethod
    def _connect(url: str, **options: Any) -> Queue:
        return connect_awaited(url, **options)

    def machine_settings(self) -> settings:
        """Few sequences: the logic is that of the synchronous API, which has its own run of the kit."""
        return shortened(super().machine_settings())  # type: ignore[misc]  # the kit's


def connect_awaited(url: str, **options: Any) -> Queue:
    """Connect through ``tubes.aio``; return an object that can be used like a Queue, and blocks like one."""
    return cast(Queue, _Blocking.of(_perform(_connected(url, options))))


async def _connected(url: str, options: dict[str, Any]) -> aio.Queue:
    return await aio.connect(url, **options)


Call = tuple[Coroutine[Any, Any, Any], Future[Any]]
"""What to await, and where its answer goes."""


_running: set[asyncio.Task[Any] | None] = set()
"""Keeps the tasks alive: a loop refers to a waiting task only weakly, so it could be garbage-collected."""


class Performer:
    """An asyncio task that awaits what one thread gives it, so that one thread is one caller in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inbox: asyncio.Queue[Call | None] = asyncio.Queue()
        asyncio.run_coroutine_threadsafe(self._run(self._inbox), loop)

    def perform(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have ``work`` awaited in the loop; wait for its answer."""
        answer: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, (work, answer))
        return answer.result()

    @staticmethod
    async def _run(inbox: asyncio.Queue[Call | None]) -> None:
        task = asyncio.current_task()
        _running.add(task)
        try:
            while (given := await inbox.get()) is not None:
                await _answered(*given)
                del given
        finally:
            _running.discard(task)

    def __del__(self) -> None:  # its thread has ended
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)


async def _answered(work: Coroutine[Any, Any, Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(await work)
    except BaseException as error:
        answer.set_exception(error)


class _Local(threading.local):
    performer: Performer | None = None


_local = _Local()
_loops: list[asyncio.AbstractEventLoop] = []
_making = threading.Lock()


def running_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, one for all tests."""
    with _making:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            thread = threading.Thread(target=_loops[0].run_forever, name="kit-loop", daemon=True)
            thread.start()
            atexit.register(_end, _loops[0], thread)
        return _loops[0]


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    _local.performer = None
    loop.call_soon_threadsafe(loop.call_soon, loop.stop)
    thread.join(1)


def _perform(work: Coroutine[Any, Any, Any]) -> Any:
    if _local.performer is None:
        _local.performer = Performer(running_loop())
    return _local.performer.perform(work)


def _is_in_callback() -> bool:
    return bool(_loops) and asyncio._get_running_loop() is _loops[0]


class _Blocking:
    """Has the attributes of an object of ``tubes.aio``, its coroutine functions turned into blocking ones.

    In a callback, which the loop calls, such a call goes to the plain object.
    """

    _all: ClassVar[WeakValueDictionary[Any, _Blocking]] = WeakValueDictionary()

    def __init__(self, awaited: Any) -> None:
        self._awaited = awaited

    @classmethod
    def of(cls, awaited: Any) -> Any:
        """Wrap a tube or a queue; everything else stays as it is."""
        if isinstance(awaited, aio.Tube):
            return cls._all.setdefault(awaited, BlockingTube(awaited))
        if isinstance(awaited, aio.Queue):
            return cls._all.setdefault(awaited, BlockingQueue(awaited))
        return awaited

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._awaited, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_in_callback():
                return getattr(self._awaited._plain, name)(*args, **kwargs)
            args = tuple(arg._awaited if isinstance(arg, _Blocking) else arg for arg in args)
            return _Blocking.of(_perform(self._and_callbacks(found(*args, **kwargs))))

        return call

    async def _and_callbacks(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        finally:
            for _ in range(TURNS if self._has_callbacks() else 0):
                await asyncio.sleep(0)

    def _has_callbacks(self) -> bool:
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self._awaited)


class BlockingTube(_Blocking):
    """A tube of ``tubes.aio`` that can be used like a plain one."""

    @property
    def _queue(self) -> Any:
        return _Blocking.of(self._awaited._queue)

    def _has_callbacks(self) -> bool:
        return bool(self._awaited._plain._listeners)

    def next_due_ms(self) -> int | None:
        """What the plain tube says, for tests that move the clock to that instant."""
        due: int | None = self._awaited._plain.next_due_ms()
        return due


class BlockingQueue(_Blocking):
    """A queue of ``tubes.aio`` that can be used like a plain one."""

    @property
    def tube(self) -> Tubes:
        return Tubes(cast(Queue, self))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        block = self._awaited.transaction()
        unit = _perform(block.__aenter__())
        try:
            yield unit
        except BaseException as error:
            if not _perform(self._and_callbacks(block.__aexit__(type(error), error, error.__traceback__))):
                raise
        else:
            _perform(self._and_callbacks(block.__aexit__(None, None, None)))

    def _has_callbacks(self) -> bool:
        return any(tube._listeners for tube in self._awaited._plain._open_tubes)

    def __enter__(self) -> BlockingQueue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
