"""The asyncio API: the same verbs as ``tubes.Queue`` and ``tubes.Tube``, awaited.

>>> import asyncio, tubes.aio
>>> async def main():
...     async with tubes.aio.connect("sqlite://") as queue:
...         jobs = await queue.create_tube("jobs", "fifo")
...         await jobs.put({"hello": "world"})
...         task = await jobs.take(timeout=15)
...         return (await jobs.ack(task)).data
>>> asyncio.run(main())
{'hello': 'world'}

There is no second implementation: a verb here runs the plain verb of the same name through ``tubes.bridge``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

from tubes import queue as plain
from tubes.bridge import Crew, Worker, is_in_loop
from tubes.clock import Clock
from tubes.driver import Driver, Features, TubeRecord
from tubes.errors import BadOption, shown
from tubes.events import Listener
from tubes.logs import Log
from tubes.processes import OfOneProcess
from tubes.store import Store, Unit, check_unit
from tubes.task import Event, Task
from tubes.tube import Tube as PlainTube

__all__ = ["Queue", "Tube", "connect"]

P = ParamSpec("P")
T = TypeVar("T")
Self_contra = TypeVar("Self_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)
Undo = Callable[[PlainTube, Any, Any], object]

MOST_THREADS = 8
"""Most threads for a queue's calls, and as many for each server that may hang by itself; more take turns."""

MOST_TRANSACTIONS = 12
"""Most transactions of a queue that are open or begin at once in one event loop, each in a thread of its own.

On PostgreSQL each has a connection while it is open; a queue has 16, and other calls need some too.
"""

log = Log("tubes.events")


class Verb(Protocol[Self_contra, P, T_co]):
    """The type of an awaited verb: a method. Not every type checker binds a Callable that a class holds."""

    @overload
    def __get__(
        self, instance: None, owner: type, /
    ) -> Callable[Concatenate[Self_contra, P], Coroutine[Any, Any, T_co]]: ...
    @overload
    def __get__(
        self, instance: Self_contra, owner: type | None = None, /
    ) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def _of_tube(method: Callable[Concatenate[PlainTube, P], T], undo: Undo | None = None) -> Verb[Tube, P, T]:
    """Make the awaited form of a Tube's verb. ``undo`` undoes a cancelled call, in the same unit."""

    @wraps(method)
    async def verb(self: Tube, /, *args: P.args, **kwargs: P.kwargs) -> T:
        tube, unit, connection = self._plain, kwargs.get("unit"), kwargs.get("connection")
        if connection is not None:
            return await _in_their_greenlet(method, tube, args, kwargs, connection)
        return await self._queue.run(
            partial(method, tube, *args, **kwargs),
            undo=None if undo is None else lambda taken: undo(tube, taken, unit),
            unit=unit,
            server=tube.place.server,
        )

    return cast("Verb[Tube, P, T]", verb)


async def _in_their_greenlet(
    method: Callable[..., T], tube: PlainTube, args: Any, kwargs: dict[str, Any], connection: Any
) -> T:
    """Run a plain verb where the user's connection is: in the event loop, in a greenlet of SQLAlchemy's."""
    registry = getattr(connection, "registry", None)
    if callable(registry):  # an async_scoped_session, which has no run_sync itself
        connection = registry()
    if not hasattr(connection, "run_sync"):
        raise BadOption(
            f"pass an AsyncConnection or AsyncSession here, not {shown(connection)}",
            option="connection",
        )
    if getattr(connection, "sync_connection", connection) is None:
        raise BadOption("this AsyncConnection is not started: await it first", option="connection")
    answer: T = await connection.run_sync(
        lambda joined: method(tube, *args, **(kwargs | {"connection": joined}))
    )
    return answer


def _of_queue(
    method: Callable[Concatenate[plain.Queue, P], T],
) -> Verb[Queue, P, T]:
    """Make the awaited form of a Queue's verb."""

    @wraps(method)
    async def verb(self: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(partial(method, self._plain, *args, **kwargs))

    return cast("Verb[Queue, P, T]", verb)


def _opening(
    method: Callable[Concatenate[plain.Queue, P], PlainTube],
) -> Verb[Queue, P, Tube]:
    """Make the awaited form of a Queue's verb that returns a tube."""

    @wraps(method)
    async def verb(self: Queue, /, *args: P.args, **kwargs: P.kwargs) -> Tube:
        if "on_task_change" in kwargs:
            kwargs["on_task_change"] = self._callbacks.bound(kwargs["on_task_change"])
        return self._opened(await self.run(partial(method, self._plain, *args, **kwargs)))

    return cast("Verb[Queue, P, Tube]", verb)


def _like(method: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a method that is written out here the docstring of the plain one."""

    def documented(own: Callable[P, T]) -> Callable[P, T]:
        own.__doc__ = method.__doc__
        return own

    return documented


class Tube(OfOneProcess):
    """A named queue of tasks, as ``tubes.Tube`` with every verb awaited.

    A cancelled ``take`` gives back what it took. Any other cancelled verb may or may not have been done, and
    is not undone; only the store knows.
    """

    def __init__(self, queue: Queue, tube: PlainTube) -> None:
        self._queue = queue
        self._plain = tube

    @property
    def name(self) -> str:
        """The tube's name."""
        return self._plain.name

    @property
    def type(self) -> str:
        """The name of the tube's type, as given to ``create_tube``."""
        return self._plain.type

    @property
    def record(self) -> TubeRecord:
        """The tube as the store's catalogue has it: id, stored options, whether it is temporary."""
        return self._plain.record

    @property
    def features(self) -> Features:
        """What the tube's type can do."""
        return self._plain.features

    @property
    def driver(self) -> Driver:
        """What the tube's type does."""
        return self._plain.driver

    put = _of_tube(PlainTube.put)
    put_many = _of_tube(PlainTube.put_many)
    take = _of_tube(
        PlainTube.take, lambda tube, task, unit: tube.give_back([] if task is None else [task], unit)
    )
    take_many = _of_tube(PlainTube.take_many, PlainTube.give_back)
    ack = _of_tube(PlainTube.ack)
    ack_many = _of_tube(PlainTube.ack_many)
    release = _of_tube(PlainTube.release)
    touch = _of_tube(PlainTube.touch)
    bury = _of_tube(PlainTube.bury)
    delete = _of_tube(PlainTube.delete)
    kick = _of_tube(PlainTube.kick)
    peek = _of_tube(PlainTube.peek)
    tasks = _of_tube(PlainTube.tasks)
    release_all = _of_tube(PlainTube.release_all)
    truncate = _of_tube(PlainTube.truncate)
    drop = _of_tube(PlainTube.drop)
    statistics = _of_tube(PlainTube.statistics)

    @_like(PlainTube.on_task_change)
    def on_task_change(self, callback: Listener | None) -> Listener | None:
        old = self._plain.on_task_change(self._queue._callbacks.bound(callback))
        return old.listener if isinstance(old, OnLoop) else old

    @_like(PlainTube.add_listener)
    def add_listener(self, listener: Listener) -> Callable[[], None]:
        return self._plain.add_listener(self._queue._callbacks.bound(listener))

    def __repr__(self) -> str:
        return repr(self._plain)


class Tubes:
    """``await queue.tube.NAME``, ``await queue.tube["NAME"]``: tubes by name."""

    def __init__(self, queue: Queue) -> None:
        self.__queue = queue

    def __getitem__(self, name: str) -> Coroutine[Any, Any, Tube]:
        return self.__queue.get_tube(name)

    def __getattr__(self, name: str) -> Coroutine[Any, Any, Tube]:
        if name.startswith(("__", "_ipython_", "_repr_")):  # what Python or a notebook asks for
            raise AttributeError(name)
        return self.__queue.get_tube(name)

    __contains__ = __iter__ = None  # else Python asks for [0], [1] and so on, and each is a coroutine

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await self.__queue.tubes():
            yield name


class Queue(OfOneProcess):
    """A connection to a store, as ``tubes.Queue`` with every verb awaited. ``connect`` makes it.

    Any number of asyncio tasks may share it. Their calls run in a few threads; a call that waits needs none.
    """

    def __init__(self, queue: plain.Queue, crew: Crew) -> None:
        self.tube: Tubes = Tubes(self)
        self._plain = queue
        self._crew = crew
        self._callbacks = Callbacks()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        """Limits transactions in each loop that has used the queue: a semaphore belongs to one loop."""
        self._units: dict[Unit, Worker] = {}
        self._tubes: WeakValueDictionary[PlainTube, Tube] = WeakValueDictionary()

    @property
    def store(self) -> Store:
        """The store that it is connected to."""
        return self._plain.store

    @property
    def clock(self) -> Clock:
        """The clock of record."""
        return self._plain.clock

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._crew.is_closed

    create_tube = _opening(plain.Queue.create_tube)  # type: ignore[arg-type]  # an option called self: no
    get_tube = _opening(plain.Queue.get_tube)
    tubes = _of_queue(plain.Queue.tubes)
    records = _of_queue(plain.Queue.records)
    statistics = _of_queue(plain.Queue.statistics)
    identify = _of_queue(plain.Queue.identify)
    configure = _of_queue(plain.Queue.configure)  # type: ignore[arg-type]  # the same
    sweep = _of_queue(plain.Queue.sweep)

    @_like(plain.Queue.drop_tube)
    async def drop_tube(self, tube: Tube | str) -> None:
        known, server = (tube._plain, tube._plain.place.server) if isinstance(tube, Tube) else (tube, None)
        await self.run(partial(self._plain.drop_tube, known), server=server)

    @asynccontextmanager
    @_like(plain.Queue.transaction)
    async def transaction(self) -> AsyncIterator[Unit]:
        async with self._thread() as worker:
            block = self._plain.transaction()
            run = partial(self._crew.run, worker=worker)
            roll_back = partial(_roll_back, block)
            unit = await run(block.__enter__, undo=lambda _: roll_back())
            self._units[unit] = worker
            try:
                yield unit
                await worker.settled()  # what a cancelled take took goes back in this transaction or never
            except BaseException as error:
                if not is_in_loop():  # the loop is over: the block ends with the last reference to it
                    raise
                leave = partial(block.__exit__, type(error), error, error.__traceback__)
                if not await run(leave, otherwise=roll_back):
                    raise
            else:
                await run(partial(block.__exit__, None, None, None), otherwise=roll_back)
            finally:
                del self._units[unit]

    @asynccontextmanager
    async def _thread(self) -> AsyncIterator[Worker]:
        """A thread for a transaction, which counts as open while anything is under way there.

        A transaction inside another of the same asyncio task shares its place, or such tasks would wait for
        each other.
        """
        if self._crew.has_reserved():
            with self._crew.reserved() as worker:
                yield worker
            return
        loop = asyncio.get_running_loop()
        places = self._places.setdefault(loop, asyncio.Semaphore(MOST_TRANSACTIONS))
        await places.acquire()
        own = None
        try:
            with self._crew.reserved() as own:
                yield own
        finally:
            if own is None:
                places.release()
            else:
                own.when_clear(places.release)

    async def run_sync(self, work: Callable[[Any], T], *, unit: Unit) -> T:
        """Return ``work(unit.connection)``, called in the transaction's thread: statements of your own.

        It sees your context variables, as in ``asyncio.to_thread``.
        """
        check_unit(unit, self.store)
        return await self.run(lambda: work(unit.connection), unit=unit)

    @_like(plain.Queue.close)
    async def close(self) -> None:
        if not self._crew.is_closed:
            await self._crew.close(self._plain.close)
            await self._callbacks.finish()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._plain)

    # Called by the tubes

    async def run(
        self,
        work: Callable[[], T],
        *,
        undo: Callable[[T], object] | None = None,
        unit: Any = None,
        server: Hashable = None,
    ) -> T:
        """Run a plain call in a thread: that of its unit, or one of those for calls to that server."""
        worker = self._units.get(unit) if isinstance(unit, Unit) else None
        return await self._crew.run(work, undo=undo, worker=worker, server=server)

    def _opened(self, tube: PlainTube) -> Tube:
        """The awaited form of a tube: always the same object while anybody has it."""
        return self._tubes.setdefault(tube, Tube(self, tube))


def _roll_back(block: Any) -> None:
    with suppress(asyncio.CancelledError):
        block.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)


class Connecting:
    """What ``connect`` returns: await it, or open it by ``async with``, which also closes the queue."""

    def __init__(self, connect: Callable[[], plain.Queue]) -> None:
        self._connect = connect
        self._queue: Queue | None = None
        self._is_entered = False

    def __await__(self) -> Generator[Any, Any, Queue]:
        return self._open().__await__()

    async def __aenter__(self) -> Queue:
        if self._is_entered:  # only one of the two queues would be closed
            raise RuntimeError("this `async with` is open already: call tubes.aio.connect() once for each")
        self._is_entered = True
        try:
            self._queue = await self
        except BaseException:
            self._is_entered = False
            raise
        return self._queue

    async def __aexit__(self, *exc: object) -> None:
        queue, self._queue, self._is_entered = self._queue, None, False
        if queue is not None:
            await queue.close()

    async def _open(self) -> Queue:
        crew = Crew(MOST_THREADS)
        try:
            return Queue(await crew.run(self._connect, undo=plain.Queue.close), crew)
        except BaseException:
            crew.disband()
            raise


def _connecting(connect: Callable[P, plain.Queue]) -> Callable[P, Connecting]:
    @wraps(connect)
    def opening(*args: P.args, **kwargs: P.kwargs) -> Connecting:
        return Connecting(partial(connect, *args, **kwargs))

    return opening


connect = _connecting(plain.connect)


_callback: ContextVar[Any] = ContextVar("_callback", default=None)
"""The call of a callback that this code is part of, as is each asyncio task that it begins: ``gather`` does."""


class Callbacks:
    """Calls the user's callbacks in the event loop, in commit order.

    What a coroutine function returns is awaited before the next callback is called. The verb that made the
    change does not wait for that; ``close`` does. All callbacks see the context variables that ``connect``
    saw, since one call may deliver another's change.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[Listener, Task, Event]] = deque()
        self._context = copy_context()
        self._called: Any = None
        """The call whose answer is being awaited, or was last."""
        self._awaited: asyncio.Future[Any] | None = None

    def bound(self, listener: Any) -> Any:
        """A callback in a form that any thread may call. What is not callable stays as it is."""
        return OnLoop(self, listener) if callable(listener) else listener

    def post(self, listener: Listener, task: Task, event: Event) -> None:
        """Have a callback called, in order. Any thread may ask for it."""
        with suppress(RuntimeError):  # the loop is over: there is nobody to call
            self._loop.call_soon_threadsafe(self._add, listener, task, event, context=self._context)

    async def finish(self) -> None:
        """Wait for the callbacks under way, unless one of them has called this, or from another loop."""
        if asyncio.get_running_loop() is not self._loop:
            return
        while self._awaited is not None and _callback.get() is not self._called:
            await asyncio.wait({self._awaited})

    def _add(self, listener: Listener, task: Task, event: Event) -> None:
        self._line.append((listener, task, event))
        if self._awaited is None:
            self._call()

    def _call(self) -> None:
        while self._line:
            call = listener, task, event = self._line.popleft()
            _callback.set(call)
            try:
                answer = listener(task, event)
            except (Exception, asyncio.CancelledError):  # this is not a task: nobody cancels it
                log.exception("callback %r failed on %s of %r", listener, event, task)
                continue
            if inspect.isawaitable(answer):
                self._called, self._awaited = call, asyncio.ensure_future(answer)
                self._awaited.add_done_callback(partial(self._ended, listener, task, event))
                return

    def _ended(self, listener: Listener, task: Task, event: Event, answer: asyncio.Future[Any]) -> None:
        self._awaited = None
        if not answer.cancelled() and answer.exception() is not None:
            log.error("callback %r failed on %s of %r", listener, event, task, exc_info=answer.exception())
        self._call()


class OnLoop:
    """A user's callback as the plain tube knows it."""

    def __init__(self, callbacks: Callbacks, listener: Listener) -> None:
        self._callbacks = callbacks
        self.listener = listener

    def __call__(self, task: Task, event: Event) -> None:
        self._callbacks.post(self.listener, task, event)
