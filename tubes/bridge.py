"""Runs blocking calls for an event loop in a few threads, where a call that waits for a signal steps aside.

Each call is a greenlet of its thread. When it would block on a ``Signal`` it is parked, and the thread goes
on with other calls; so a thousand waiting takes need no thread of their own. The code that runs there is the
synchronous API's and knows nothing of all this: while it holds a lock, its thread does nothing else.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from tubes.clock import Signal, parking, real_monotonic
from tubes.errors import StoreUnavailable
from tubes.interrupts import ARE_GREENLETS
from tubes.logs import Log
from tubes.stacks import whole_stacks
from tubes.waiting import arrival, arrivals

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds to wait for a cancelled call that cannot be interrupted, since the database is working on it."""

HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()

LETS_GO_AFTER = 0.25
"""Without a GIL: seconds after which a thread runs again while calls are under way, with an answer perhaps.

If one thread made an object and another let it go, such a Python frees it only when the first runs again.
"""

STALE_NAPS = 64
"""How many ended waits may stay in the list of timeouts before it is cleared of them."""

log = Log("tubes.aio")


def is_in_loop() -> bool:
    """Whether an event loop runs, so that somebody can wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Crew:
    """The threads of one queue: up to ``most`` that any call may use, and one for each open transaction.

    Calls to each server that may hang by itself have as many of their own, so that they hold up no others.
    """

    def __init__(self, most: int) -> None:
        if ARE_GREENLETS:  # each would have to be a greenlet in another, and would miss its wake-ups
            raise RuntimeError(
                "tubes.aio needs Python's own threads, which monkey patching by gevent or eventlet has "
                "replaced: use tubes.connect in your greenlets"
            )
        self.is_closed = False
        self._most = most
        self._workers: dict[Hashable, list[Worker]] = {}
        """By the server that their calls wait for; ``None``: for all other calls."""
        self._spare: list[Worker] = []
        """Those that are reserved no more. They may still be at a call, and are then not reserved again."""
        self._reserved: WeakKeyDictionary[Any, Worker] = WeakKeyDictionary()
        """By asyncio task. The entry of a task left behind by its loop goes with the last reference to it."""
        self._pid = os.getpid()

    async def run(
        self,
        work: Callable[[], T],
        *,
        undo: Callable[[T], object] | None = None,
        otherwise: Callable[[], object] | None = None,
        worker: Worker | None = None,
        server: Hashable = None,
    ) -> T:
        """Run ``work`` in a thread. If this is cancelled, ``work`` stops waiting; ``undo`` gets its result.

        If it is cancelled before the thread has begun ``work``, ``otherwise`` is run instead. Without a
        ``worker`` it is the one that the current task has reserved, else one of those for calls to
        ``server``.
        """
        call = Call(worker or self._own() or self._free(server), work, undo, otherwise)
        try:
            result = await call.answer
        except asyncio.CancelledError:
            await call.abandon()
            raise
        call.receive()
        return result

    def has_reserved(self) -> bool:
        """Whether the current task has a thread to itself."""
        return self._own() is not None

    @contextmanager
    def reserved(self) -> Iterator[Worker]:
        """Reserve a thread for the current task: all its calls go there meanwhile, and nobody else's do."""
        self._check_open()
        own = self._own()
        if own is not None:
            yield own
            return
        task = asyncio.current_task()
        worker = self._reserved[task] = self._spare_one() or _hired()
        try:
            yield worker
        finally:
            self._reserved.pop(task, None)
            if self.is_closed:
                worker.stop()  # at once: the loop may be over before its calls are
            else:
                self._spare.append(worker)

    async def close(self, work: Callable[[], None]) -> None:
        """Run ``work`` as the last call, which must end the others. Then end the threads.

        All that happens even if this is cancelled.
        """
        with ExitStack() as ending:
            try:
                worker = ending.enter_context(self.reserved())
            except StoreUnavailable:
                worker = self._free(None)  # no new thread can be started: take turns in an old one
                ending.callback(worker.stop)
            self.is_closed = True
            others = [each for each in self._all() if each is not worker]

            def close() -> None:
                try:
                    work()
                finally:
                    for each in others:
                        each.leave_behind()
                        each.stop()
                    for each in others:
                        each.join()

            await self.run(close, otherwise=close, worker=worker)

    def _spare_one(self) -> Worker | None:
        for worker in self._spare[::-1]:
            if not worker.under_way:
                with suppress(ValueError):  # or the loop of another thread has just taken it
                    self._spare.remove(worker)
                    return worker
        return None

    def disband(self) -> None:
        """End the threads, each when its calls are over, without waiting for that."""
        self.is_closed = True
        for each in self._all():
            each.stop()

    def _all(self) -> list[Worker]:
        """All workers but the reserved ones."""
        return [*chain.from_iterable(self._workers.values()), *self._spare]

    def _own(self) -> Worker | None:
        task = asyncio.current_task()
        return None if task is None else self._reserved.get(task)

    def _free(self, server: Hashable) -> Worker:
        """A worker that has nothing to do, or else the one with the shortest line."""
        self._check_open()
        workers = self._workers.setdefault(server, [])
        for worker in workers:
            if worker.is_idle:
                return worker
        if len(workers) < self._most:
            try:
                workers.append(_hired())
                return workers[-1]
            except StoreUnavailable:  # no new thread can be started: calls take turns in the others
                if not workers:
                    raise
        return min(workers, key=Worker.line_length)

    def _check_open(self) -> None:
        """Raise StoreUnavailable when closed; in a forked child, forget the parent's threads: it has none."""
        if self.is_closed:
            raise StoreUnavailable("this queue is closed")
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._workers, self._spare, self._reserved = {}, [], WeakKeyDictionary()


def _hired() -> Worker:
    try:
        return Worker()
    except RuntimeError as error:
        raise StoreUnavailable(f"cannot start a thread for this call: {error}") from error


class Worker:
    """A thread that runs calls one after another; while one waits for a signal, it runs the next."""

    def __init__(self) -> None:
        self.is_idle = True
        self.under_way: set[Call[Any]] = set()
        """The calls that are not over; cancelled ones may go on for a while."""
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._naps: list[tuple[float, int, Nap]] = []
        self._numbers = itertools.count()
        self._ended_naps = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="tubes-aio", daemon=True)
        with whole_stacks():
            self._thread.start()

    def post(self, work: Callable[[], object]) -> None:
        """Have something done by the thread, in turn."""
        self.is_idle = False
        self._inbox.put(work)

    def rest(self) -> None:
        """A call is over. Its caller is told after this, so that its next call can get this warm thread."""
        self.is_idle = self._inbox.empty()

    def line_length(self) -> int:
        """How much is in line."""
        return self._inbox.qsize()

    def when_clear(self, then: Callable[[], object]) -> None:
        """Do something, in the event loop, when no call is under way any more."""
        under_way = [*self.under_way]
        if under_way:
            under_way[0].settled.add_done_callback(lambda _: self.when_clear(then))
        else:
            then()

    async def settled(self) -> None:
        """Wait for the calls that are under way now."""
        under_way = [*self.under_way]
        if under_way:
            await asyncio.wait([call.settled for call in under_way])

    def forget(self, call: Call[Any]) -> None:
        """A call is over, and nothing is left to undo. A thread that is to end may be waiting for that."""
        self.under_way.discard(call)
        if self._is_over:
            self._inbox.put(lambda: None)

    def leave_behind(self) -> None:
        """Wait no more for the calls of loops that do not run: perhaps nobody ever receives their answers."""
        for call in [*self.under_way]:
            if not call.loop.is_running():
                self.forget(call)

    def stop(self) -> None:
        """End the thread when its calls are over, and results that nobody received are undone."""
        self.post(self._stop)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def begin(self, work: Callable[[], object], context: Context | None = None) -> greenlet:
        """Run a call, in its caller's context, until it ends or waits. Only within the thread."""
        begun = greenlet(work)
        begun.gr_context = context
        begun.switch()
        return begun

    def _stop(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        parking.park = self._park
        while self.under_way or not self._is_over:
            self.rest()
            try:
                work = self._inbox.get(timeout=self._until_next())
            except Empty:
                pass
            else:
                self.is_idle = False
                work()
                del work  # the last call refers to its transaction, which ends with the last reference to it
            self._end_late_naps()

    def _park(self, signal: Signal, timeout: float | None) -> bool:
        """Let other calls run until the signal is set or the time is over; tell whether it was set."""
        if timeout is not None and timeout <= 0:
            return signal.is_set
        sleeper = getcurrent()
        nap = Nap(sleeper)
        signal.on_set = lambda: self._inbox.put(nap.end)
        try:
            if not signal.is_set:
                if timeout is not None:
                    heapq.heappush(self._naps, (real_monotonic() + timeout, next(self._numbers), nap))
                # The thread's main greenlet. If a name referred to it, greenlet would search for references
                # at the thread's end, for 5 ms
                assert sleeper.parent is not None
                sleeper.parent.switch()
            return signal.is_set
        finally:
            signal.on_set = None
            nap.is_over = True
            if timeout is not None:
                self._forget_ended_naps()

    def _until_next(self) -> float:
        longest = LETS_GO_AFTER if self.under_way and not HAS_GIL else threading.TIMEOUT_MAX
        return min(max(self._naps[0][0] - real_monotonic(), 0.0), longest) if self._naps else longest

    def _end_late_naps(self) -> None:
        while self._naps and (self._naps[0][2].is_over or self._naps[0][0] <= real_monotonic()):
            heapq.heappop(self._naps)[2].end()

    def _forget_ended_naps(self) -> None:
        self._ended_naps += 1
        if self._ended_naps > max(STALE_NAPS, len(self._naps) // 2):
            self._ended_naps = 0
            self._naps = [entry for entry in self._naps if not entry[2].is_over]
            heapq.heapify(self._naps)


class Nap:
    """The wait of one call."""

    __slots__ = ("_sleeper", "is_over")

    def __init__(self, sleeper: greenlet) -> None:
        self._sleeper = sleeper
        self.is_over = False

    def end(self) -> None:
        """Go on with the call, unless that has happened."""
        if not self.is_over:
            self._sleeper.switch()


class Parcel(Generic[T]):
    """What a call returned, on its way through the event loop to the caller. If it is lost, it is undone.

    A loop that is closed drops what it still has to do, and tells nobody. So the loop alone refers to this
    object: if it is freed before it has arrived (see ``Call.receive``), nobody is left to receive it.
    """

    __slots__ = ("_call", "result")

    def __init__(self, call: Call[T], result: T) -> None:
        self._call = call
        self.result = result

    def __del__(self) -> None:
        self._call.take_back()


class Call(Generic[T]):
    """One call on its way to a thread and back. What nobody is left to receive is undone.

    event loop                            the thread, a Worker
    Crew.run makes it ─────────────────▶  _begin, a greenlet: _do
    and awaits `answer`                   the work; while it waits, the thread goes on with others
    _succeed, or _fail  ◀───────────────  _tell, with a Parcel or the error
    receive: it has arrived

    abandon: it was cancelled ─────────▶  _interrupt ends its wait, or undoes what it brought
    awaits `settled`, not for long  ◀───  _make_good, _tell
    """

    def __init__(
        self,
        worker: Worker,
        work: Callable[[], T],
        undo: Callable[[T], object] | None,
        otherwise: Callable[[], object] | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._context.run(arrival.set, next(arrivals))
        self.answer: asyncio.Future[T] = self.loop.create_future()
        self.settled: asyncio.Future[None] = self.loop.create_future()
        self._worker = worker
        self._work = work
        self._undo = undo
        self._otherwise = otherwise
        self._greenlet: greenlet | None = None
        self._brought: list[T] = []
        """What it returned, until that has arrived or is being undone."""
        try:
            worker.under_way.add(self)
            worker.post(self._begin)
        except BaseException:  # what a signal's handler raises
            worker.forget(self)
            raise

    async def abandon(self) -> None:
        """The caller was cancelled: end the call's wait, take back what it got, and wait a while for that."""
        if self.answer.cancelled():
            self._worker.post(self._interrupt)
        elif self.answer.exception() is None:  # it came at the same moment
            self.take_back()
        else:
            return
        await asyncio.wait({self.settled}, timeout=PATIENCE)

    # In the thread

    def _begin(self) -> None:
        if self.answer.cancelled():
            self._worker.begin(lambda: self._make_good(self._otherwise))
        else:
            self._greenlet = self._worker.begin(self._do, self._context)

    def _do(self) -> None:
        try:
            result = self._work()
        except BaseException as error:
            self._worker.rest()
            self._worker.forget(self)
            self._tell(self._fail, error)
        else:
            self._brought.append(result)
            self._worker.rest()
            if not self._tell(self._succeed, Parcel(self, result)):
                self.take_back()

    def _interrupt(self) -> None:
        """The thread is at other work than this call, so the call is waiting, unless it is over.

        If it is over, its result may never arrive, nor be dropped: a signal's handler that raises in the loop
        breaks off the delivery, and the traceback refers to all that the loop was at.
        """
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw(asyncio.CancelledError())
        else:
            self._undo_brought()

    def _tell(self, what: Callable[..., None], *args: Any) -> bool:
        """Have something done by the event loop; tell whether there still is one."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *args)
        return not self.loop.is_closed()  # it may have been closed before it could drop what it got

    def take_back(self) -> None:
        """Undo what was done, unless it has arrived or is being undone. Any thread may ask for it."""
        if self._brought:
            self._worker.post(self._undo_brought)

    def _undo_brought(self) -> None:
        if self._brought:
            result = self._brought.pop()
            undo = None if self._undo is None else partial(self._undo, result)
            self._worker.begin(lambda: self._make_good(undo))

    def _make_good(self, work: Callable[[], object] | None) -> None:
        """Do what a cancellation asks for."""
        try:
            if work is not None:
                work()
        except Exception:
            log.exception("what a cancelled call did could not be undone")
        finally:
            self._worker.forget(self)
            self._tell(self._settle)

    # In the event loop

    def _succeed(self, parcel: Parcel[T]) -> None:
        if not self.answer.done():
            self.answer.set_result(parcel.result)
            self.loop.call_soon(lambda: parcel)  # the loop keeps it until the caller has been woken

    def receive(self) -> None:
        """The answer has arrived. Until the last line, it is taken back if a signal's handler raises."""
        self._worker.forget(self)
        self._settle()
        self._brought.clear()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):  # a future refuses it, and a coroutine cannot raise it
            error, cause = RuntimeError("the call raised StopIteration"), error
            error.__cause__ = cause
        if not self.answer.done():
            self.answer.set_exception(error)
        self._settle()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)
