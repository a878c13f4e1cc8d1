"""Plays a scenario on the real queue: a store, a connection for each session, and a clock moved by hand.

Tarantool's notions are staged like this: each session's name has a ``Queue`` of its own on the same store,
with the recording callback on each of its tubes, since every connection reports the changes that it made
itself. One more, ``home``, does what no session does, and sweeps. A background call is a thread; after each
step, and at each instant at which something is due, the stage waits until all of them have ended or wait on
the clock.
"""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from oracle.model import ABSENT, CALLED
from oracle.outcome import Failed, Outcome, Seen, Stats, Step, Told

import tubes
from tubes.clock import Signal
from tubes.options import LARGEST_ID, Seconds, milliseconds
from tubes.testing import FakeClock
from tubes.waiting import Key, Lease, Waiters

START_MS = 1_700_000_000_000
PATIENCE = 20.0
"""Real seconds after which a thread that neither ends nor waits on the clock is given up."""

KINDS: Sequence[tuple[type[Exception], str]] = (
    (tubes.NotTaken, "not_taken"),
    (tubes.TaskNotFound, "not_found"),
    (tubes.NoSuchTube, "no_tube"),
    (tubes.NoSuchSession, "unknown_session"),
    (tubes.UnknownDriver, "unknown_type"),
    (tubes.TubeExists, "exists"),
    (tubes.TubeFull, "full"),
    (tubes.BadOption, "bad"),
)


class Stuck(AssertionError):
    """A call waits when it must not, or does not end."""


class Call(threading.Thread):
    """A call that may wait; its events come in ``turn``."""

    def __init__(
        self,
        label: str | None,
        work: Callable[[], Any],
        turn: AbstractContextManager[Any],
        at_end: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self.label = label
        self.result: Any = None
        self.is_over = False
        self._work = work
        self._turn = turn
        self._at_end = at_end

    def run(self) -> None:
        try:
            with self._turn:
                self.result = self._work()
        finally:
            self._at_end()
        self.is_over = True


class FiberClock(FakeClock):
    """A woken thread goes on when the call that woke it is over, and alone, until it waits again or ends.

    If the time of several is over at one moment, the one that came first goes first. A wait lasts from when
    its thread read the time, since the clock may be moved before it begins: the listener to the file wakes
    the first in line now and then, which looks, and waits for what is left.
    """

    def __init__(self, start_ms: int, turn: AbstractContextManager[Any] | None) -> None:
        super().__init__(start_ms)
        self._turn = turn
        self._mine = threading.local()
        self._came: dict[Signal, int] = {}

    def advance(self, seconds: Seconds) -> None:
        """Let ``seconds`` pass; whoever has waited long enough is woken by ``wake_next``."""
        passed = milliseconds("seconds", seconds)
        with self._lock:
            self._now_ms += passed
            self._passed_ms += passed

    def wake_next(self) -> bool:
        """Of those that have waited long enough, wake the one that came first; tell whether there was one."""
        with self._lock:
            over = [
                signal
                for signal, deadline in self._waits.items()
                if deadline <= self._passed_ms and not signal.is_set
            ]
            if not over:
                return False
            first = min(over, key=self._came.__getitem__)
            self._late.add(first)
            first.set()
            return True

    def monotonic(self) -> float:
        now = self._mine.read = super().monotonic()
        return now

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        self.give_up_turn()
        if timeout is not None:
            now = super().monotonic()
            timeout -= now - getattr(self._mine, "read", now)
        self._came.setdefault(signal, len(self._came))
        is_set = super().wait(signal, timeout)
        if self._turn is not None:
            self._turn.__enter__()
            self._mine.has_turn = True
        return is_set

    def give_up_turn(self) -> None:
        """A thread that has waited calls this at its end."""
        if self._turn is not None and getattr(self._mine, "has_turn", False):
            self._mine.has_turn = False
            self._turn.__exit__(None, None, None)


def wake_one_by_one(waiters: Waiters) -> None:
    """Let threads called together go one after the other, as fibers do: each wakes the next when it leaves.

    Otherwise they would race for the first task, if only for microseconds.
    """

    def call(key: Key, count: int = 1, leases: Iterable[Lease] = ()) -> int:
        waiting = waiters.uncalled(key)
        return max(Waiters.call(waiters, key, min(count, 1), leases), min(count, waiting))

    vars(waiters)["call"] = call


class Stage:
    """Plays one scenario in the empty store at ``url``."""

    are_fibers = True
    """Whether each call has a thread of its own, so that only one need go on at a time."""

    def __init__(self, url: str, connect: Callable[..., tubes.Queue] = tubes.connect) -> None:
        self._turn: AbstractContextManager[Any] = threading.RLock()  # a woken thread reports after its waker
        self._notes: AbstractContextManager[Any] = self._turn
        self.clock = FiberClock(START_MS, self._turn if self.are_fibers else None)
        self._url = url
        self._connect = connect
        self._session_ttr = 0.0
        self._queues: dict[str, tubes.Queue] = {}
        self._numbers: dict[uuid.UUID, str] = {}
        self._ids: dict[str, list[int]] = {}
        self._last_ids: dict[str, int] = {}
        self._silent: set[str] = set()
        self._raises: dict[str, frozenset[str]] = {}
        self._calls: list[Call] = []
        self._events: list[Told] = []
        self._woke: list[tuple[str, Any]] = []
        self._began = 0
        self._is_over = False
        self._timed: dict[str, tubes.Tube] = {}
        self._tubes: dict[tuple[tubes.Queue, str], tubes.Tube] = {}
        self._home = self._open()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over = True
        for queue in (*self._queues.values(), self._home):
            queue.close()
        for call in self._calls:
            call.join(PATIENCE)
        vars(self._waiters(self._home)).pop("call", None)

    @property
    def now(self) -> int:
        """Milliseconds since the scenario began."""
        return self.clock.now_ms() - START_MS

    def perform(self, step: Step, instants: Sequence[int], *, waits: bool) -> Outcome:
        """Do what a step says; tell what it shows. ``instants`` are those at which something must happen."""
        self._events, self._woke, self._began = [], [], self.now
        op = step["op"]
        result = self._perform(step, instants, waits)
        self._settle()
        self._run_due()
        return Outcome(
            result=result,
            events=self._events,
            woke=self._woke,
            took=0 if op == "sleep" else self.now - self._began,
            is_sorted=op == "sleep",
            stats=self._statistics(),
            are_threads=not self.are_fibers,
        )

    def finish(self, instants: Sequence[int]) -> Outcome:
        """Let the background calls that are left end."""
        self._events, self._woke, self._began = [], [], self.now
        if instants:
            self._pass_time(max(instants), instants)
        return Outcome(
            None, self._events, self._woke, None, self._statistics(), True, are_threads=not self.are_fibers
        )

    # Connections

    def _open(self) -> tubes.Queue:
        queue = self._connect(
            self._url, clock=self.clock, sweep=False, durability="off", session_ttr=self._session_ttr
        )
        wake_one_by_one(self._waiters(queue))
        for name in queue.tubes():
            self._listen(queue, name)
        return queue

    def _waiters(self, queue: tubes.Queue) -> Waiters:
        return queue.store.waiters

    def _queue(self, step: Step) -> tubes.Queue:
        name = step.get("s")
        if name is None:
            return self._home
        if name not in self._queues:
            self._queues[name] = self._open()
        return self._queues[name]

    def _listen(self, queue: tubes.Queue, name: str) -> None:
        """Set the callback of a tube in one connection."""
        tube = queue.tube[name]
        tube.on_task_change(None if name in self._silent else self._callback(queue, name))

    def _callback(self, queue: tubes.Queue, name: str) -> Callable[[tubes.Task, tubes.Event], None]:
        def on_task_change(task: tubes.Task, event: tubes.Event) -> None:
            with self._turn:
                self._note(name, task, event)

        return on_task_change

    def _note(self, name: str, task: tubes.Task, event: tubes.Event) -> None:
        if self._is_over:
            return
        self._events.append(Told(name, event.value, self._seen(task), self.now - self._began))
        if CALLED.get(event.value, {event.value}) & self._raises.get(name, frozenset()):
            raise RuntimeError("callback failed")

    # Tasks

    def _seen(self, task: tubes.Task) -> Seen:
        """A task by its place among the puts of its tube.

        Ids must grow, and never come again: in Redis those of a tube's name, elsewhere those of the store.
        """
        counter = task.tube if self._url.startswith(("redis", "unix")) else ""
        with self._notes:
            ids = self._ids.setdefault(task.tube, [])
            if task.id not in ids:
                last = self._last_ids.get(counter, 0)
                assert task.id > last, f"id {task.id} came after {last}"
                ids.append(task.id)
                self._last_ids[counter] = task.id
            return Seen(ids.index(task.id), task.state.value, task.data)

    def _id(self, step: Step) -> Any:
        key = step["id"]
        if isinstance(key, bool) or not isinstance(key, int) or key < 0:
            return key
        ids = self._ids.get(step.get("tube", "t"), [])
        return ids[key] if key < len(ids) else min(ABSENT * ABSENT + key, LARGEST_ID)

    # Steps

    def _perform(self, step: Step, instants: Sequence[int], waits: bool) -> Any:
        if step["op"] == "sleep":
            self._pass_time(self.now + round(step["seconds"] * 1000), instants)
            return None
        queue, label = self._queue(step), step.get("bg")

        def work() -> Any:
            result = self._attempt(step, queue)
            return Failed("disconnected") if result is None and queue.is_closed and label else result

        if label is None and not self._may_wait(step):
            with self._turn:
                return work()
        call = Call(label, work, nullcontext() if waits else self._turn, self.clock.give_up_turn)
        self._calls.append(call)
        call.start()
        self._settle()
        if label is not None:
            return None
        if not waits and not call.is_over:
            raise Stuck(f"{step} waits")
        self._pass_time(None, instants, lambda: call.is_over)
        return call.result

    def _may_wait(self, step: Step) -> bool:
        if step["op"] not in ("put", "take"):
            return False
        timeout = (step.get("opts") or {}).get("timeout", 0) if step["op"] == "put" else step.get("timeout")
        return timeout is None or (isinstance(timeout, (int, float)) and timeout > 0)

    def _attempt(self, step: Step, queue: tubes.Queue) -> Any:
        """Do it; an error is a result, too."""
        try:
            result = getattr(self, f"do_{step['op']}")(step, queue)
        except tubes.TubeBusy as error:
            return Failed("has_consumers" if "consumers" in str(error) else "has_taken")
        except tubes.StoreUnavailable:
            if queue.is_closed:
                return None
            raise
        except tubes.TubeError as error:
            if isinstance(error, tubes.NotSupported) and error.option is None:
                return Failed("unsupported")
            for known, kind in KINDS:
                if isinstance(error, known):
                    return Failed(kind)
            raise
        return self._seen(result) if isinstance(result, tubes.Task) else result

    def _tube(self, step: Step, queue: tubes.Queue) -> tubes.Tube:
        known = queue, step.get("tube", "t")
        if known not in self._tubes:
            self._tubes[known] = queue.tube[known[1]]
        return self._tubes[known]

    def do_create(self, step: Step, queue: tubes.Queue) -> Any:
        name = step["tube"]
        is_new = name not in queue.tubes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tubes.TubesWarning)
            tube = queue.create_tube(name, step["driver"], **(step.get("opts") or {}))
        if is_new:
            self._tubes.clear()
            if tube.features.timed:
                self._timed[name] = self._home.tube[name]
            self._silent.discard(name)
            self._raises.pop(name, None)
            self._ids.pop(name, None)
            for every in (*self._queues.values(), self._home):
                self._listen(every, name)
        return {"type": tube.type}

    def do_drop(self, step: Step, queue: tubes.Queue) -> Any:
        tube = self._tube(step, queue)
        tube.drop()
        self._tubes.clear()
        self._timed.pop(tube.name, None)
        return True

    def do_exists(self, step: Step, queue: tubes.Queue) -> Any:
        return step.get("tube", "t") in queue.tubes()

    def do_statistics(self, step: Step, queue: tubes.Queue) -> Any:
        stats = queue.statistics(step.get("tube", "t"))
        return Stats(stats["tasks"], stats["calls"])

    def do_set_callback(self, step: Step, queue: tubes.Queue) -> None:
        name = self._tube(step, queue).name
        self._raises[name] = frozenset(step.get("raise_on", ()))
        (self._silent.discard if step["mode"] == "record" else self._silent.add)(name)
        for every in (*self._queues.values(), self._home):
            self._listen(every, name)

    def do_put(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).put(step.get("data"), **(step.get("opts") or {}))

    def do_take(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).take(step.get("timeout"))

    def do_ack(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).ack(self._id(step))

    def do_release(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).release(self._id(step), **(step.get("opts") or {}))

    def do_touch(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).touch(self._id(step), step.get("delta"))

    def do_bury(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).bury(self._id(step))

    def do_delete(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).delete(self._id(step))

    def do_peek(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).peek(self._id(step))

    def do_kick(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).kick(*([] if step.get("count") is None else [step["count"]]))

    def do_release_all(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).release_all()

    def do_truncate(self, step: Step, queue: tubes.Queue) -> Any:
        return self._tube(step, queue).truncate()

    def do_connect(self, step: Step, queue: tubes.Queue) -> None:
        """The queue is open already."""

    def do_disconnect(self, step: Step, queue: tubes.Queue) -> None:
        queue.close()
        del self._queues[step["s"]]

    def do_identify(self, step: Step, queue: tubes.Queue) -> Any:
        wanted = step.get("as")
        if wanted is None:
            session = queue.identify()
        else:
            named = {name: known for known, name in self._numbers.items()}
            unknown: Any = "no UUID" if wanted == "<malformed>" else uuid.uuid4()
            session = queue.identify(named.get(wanted, unknown))
            queue.configure(session_ttr=self._session_ttr)  # one setting for all in Tarantool
        return self._numbers.setdefault(session, f"S{len(self._numbers) + 1}")

    def do_cfg(self, step: Step, queue: tubes.Queue) -> None:
        options = {"session_ttr" if name == "ttr" else name: value for name, value in step["opts"].items()}
        for every in (self._home, *self._queues.values()):
            every.configure(**options)
        self._session_ttr = options.get("session_ttr", self._session_ttr)

    # Statistics

    def _statistics(self) -> dict[str, Stats]:
        return {
            name: Stats(stats["tasks"], stats["calls"]) for name, stats in self._home.statistics().items()
        }

    # Time

    def _pass_time(
        self, until: int | None, instants: Sequence[int], stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Move the clock from one instant at which something is due to the next."""
        while not stop():
            later = [at for at in (*instants, *self._dues()) if at > self.now]
            then = min(later, default=until)
            if then is None:
                raise Stuck("a call waits for what does not come")
            if until is not None and then > until:
                then = until
            if then == self.now:
                return
            self.clock.advance((then - self.now) / 1000)
            self._settle()
            while self.clock.wake_next():
                self._settle()
            with self._turn:
                self._home.sweep()
            self._settle()

    def _dues(self) -> list[int]:
        dues = (tube.next_due_ms() for tube in self._timed.values())
        return [due - START_MS for due in dues if due is not None]

    def _run_due(self) -> None:
        """Let the timers do what is due already."""
        while any(due <= self.now for due in self._dues()):
            with self._turn:
                self._home.sweep()
            self._settle()

    def _settle(self) -> None:
        """Wait until every background call has ended or waits on the clock, and note those that ended."""
        give_up = time.monotonic() + PATIENCE
        while self.clock.waiting != (running := sum(not call.is_over for call in self._calls)):
            if time.monotonic() > give_up:
                raise Stuck(f"{running} calls run, {self.clock.waiting} wait")
            time.sleep(0.0002)
        self._hear()
        over = [call for call in self._calls if call.is_over]
        for call in over:
            call.join()
            self._calls.remove(call)
        over.sort(key=self._place)
        self._woke += [(call.label, call.result) for call in over if call.label is not None]

    def _hear(self) -> None:
        """Wait for callbacks: nothing to do here, as whoever makes a change calls them before it goes on."""

    def _place(self, call: Call) -> int:
        """The place of a call among those that ended at one moment: closed queues' first, then by event."""
        if call.result == Failed("disconnected"):
            return -1
        shown = [told.task for told in self._events]
        return shown.index(call.result) if call.result in shown else len(shown)
