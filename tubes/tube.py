"""The user's verbs: a Tube checks arguments, runs driver steps through the store, and publishes changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tubes import options as checked
from tubes.driver import (
    STEP_LIMIT,
    Change,
    Driver,
    NewTask,
    Ref,
    TubeRecord,
    new_item,
)
from tubes.errors import (
    BadOption,
    NoSuchTube,
    NotSupported,
    StoreBusy,
    StoreUnavailable,
    TaskNotFound,
    TubeFull,
    shown,
)
from tubes.events import Listener, check_listener
from tubes.feature_options import PutOptions, ReleaseOptions, TaskSettings, release_delay
from tubes.interrupts import guarded, interruptible
from tubes.options import Seconds
from tubes.payload import encode, encode_many
from tubes.stats import statistics
from tubes.steps import Step
from tubes.store import Unit
from tubes.taking import RECONNECT_AFTER, Takes
from tubes.task import STATES, State, Task
from tubes.waiting import Deadline, seconds_until

if TYPE_CHECKING:
    from tubes.queue import Queue

BURY_TRIES = 100
"""Times that a bury starts over because the task was kicked meanwhile, before the driver counts as broken."""


class Tube(Takes):
    """A named queue of tasks. ``queue.create_tube`` and ``queue.tube["NAME"]`` hand these out.

    Every verb takes a task by its id or as the Task that a call returned. A Task that was taken stands for
    that take: if it has been given to somebody else since, the verb raises LeaseLost. By id, ``ack``,
    ``release`` and ``touch`` check only the session; ``bury`` and ``delete`` check nothing.
    """

    def __init__(self, queue: Queue, record: TubeRecord, driver: Driver) -> None:
        super().__init__(queue, record, driver)
        self._settings = TaskSettings(driver.features, record)
        self._capacity = record.options.get("capacity", 0)

    # Putting

    def put(self, data: Any, **options: Unpack[PutOptions]) -> Task:
        """Store a task and return it: ready, or delayed.

        ``data`` is anything that JSON can carry, or bytes; anything else is a TypeError. Options (seconds):
        ``pri`` (0 first), ``ttl`` (``None``: lives for ever), ``ttr`` (a taken task comes back after it),
        ``delay`` (added to the ttl), ``utube`` (the sub-queue), ``timeout`` (how long to wait for room,
        default 0; then TubeFull). What is not given comes from the tube, then from the type. An option that
        the type does not support is NotSupported, an unknown one BadOption (Tarantool: ``tube:put``).
        """
        carried = encode(data)
        if not options:
            return self._one(self._put((new_item(carried + self._settings.defaults),), 0.0, None))
        item = new_item(carried + self._settings.of(options))
        return self._one(self._put((item,), *self._put_manner(options)))

    def put_many(self, datas: Iterable[Any], **options: Unpack[PutOptions]) -> list[Task]:
        """Store several tasks in one commit, all with the same options: all of them, or none."""
        manner = self._put_manner(options)
        settings = self._settings.of(options)
        items = [new_item(carried + settings) for carried in encode_many(checked.payloads(datas))]
        return self._tasks(self._put(items, *manner)) if items else []

    def _put_manner(self, options: PutOptions) -> tuple[float | None, Unit | None]:
        timeout = checked.timeout_seconds(options["timeout"]) if "timeout" in options else 0.0
        unit, connection = options.get("unit"), options.get("connection")
        if timeout != 0.0 and (unit is not None or connection is not None):
            raise BadOption("a put inside a transaction cannot wait: leave out timeout", option="timeout")
        return timeout, self._unit(unit, connection)

    def _put(self, items: Sequence[NewTask], timeout: float | None, unit: Unit | None) -> Sequence[Change]:
        driver, clock = self._checked, self._clock

        def step(tx: Any) -> Sequence[Change]:
            return driver.put(tx, items, now=clock.now_ms())

        try:
            changes = self._run(step, unit)
        except NoSuchTube as error:  # the store knows the tube by its id only
            raise NoSuchTube(self.name) from error.__cause__
        return changes or guarded(self._put_when_room, step, len(items), timeout, unit)

    def _put_when_room(
        self, step: Step, wanted: int, timeout: float | None, unit: Unit | None
    ) -> Sequence[Change]:
        """Put if expired tasks make room; if they make none, wait up to ``timeout`` for some."""
        if 0 < self._capacity < wanted:
            self._check_exists(unit)
            raise TubeFull(self.name, self._capacity, wanted)
        expired = 0  # expired tasks must not take up room
        if unit is None:
            expired, _ = self.expire()
        else:
            while count := len(self._run(self._expiry, unit)):
                expired += count
        if expired:
            changes = self._run(step, unit)
            if changes:
                return changes
        self._check_exists(unit)
        if not self.features.bounded:
            raise RuntimeError(f"the driver of {self!r} returned no change for what it stored")
        if timeout == 0.0:
            raise TubeFull(self.name, self._capacity, wanted)
        return self._wait_and_put(step, wanted, timeout)

    def _wait_and_put(self, step: Step, wanted: int, timeout: float | None) -> Sequence[Change]:
        """Stand in line for room. The first in line tries, and settles what is due, which may make room."""
        waiters, deadline = self._store.waiters, Deadline(self._clock, timeout)
        signal = waiters.enter(self._room)
        is_called = False
        try:
            while True:
                remaining = deadline.left()
                is_first, is_newly_called = waiters.heed(self._room, signal)
                is_called |= is_newly_called
                tried = self._clock.now_ms()
                try:
                    if is_first or remaining == 0.0:
                        self.expire()
                        changes = self._commit(step)
                        is_called = False
                        if changes:
                            return changes
                        self._check_exists()
                    self._queue.check_open()
                    if remaining == 0.0:
                        raise TubeFull(self.name, self._capacity, wanted)
                    pause = self._until_due(tried, remaining) if is_first else remaining
                except (StoreUnavailable, StoreBusy):  # nothing is stored; it waits on, as a take does
                    if not self.place.reconnects or self._queue.is_closed or remaining == 0.0:
                        raise
                    pause = RECONNECT_AFTER if remaining is None else min(RECONNECT_AFTER, remaining)
                interruptible(self._clock.wait, signal, pause)
        finally:
            is_called |= waiters.leave(self._room, signal)
            waiters.wake_first(self._room)
            if is_called:
                self._store.call_instead(self._room, 1)
            self._queue.deliveries.deliver()  # only now: a callback must not hold up others waiting for room

    def _until_due(self, tried: int, remaining: float | None) -> float | None:
        due = self.next_due_ms()
        if due is None:
            return remaining
        pause = seconds_until(due, tried, self._clock.now_ms())
        return pause if remaining is None else min(pause, remaining)

    # Taking

    def take(
        self,
        timeout: Seconds | None = None,
        *,
        ack: Task | int | None = None,
        unit: Unit | None = None,
        connection: Any = None,
    ) -> Task | None:
        """Take the next task, or return ``None`` when none came within ``timeout`` seconds.

        ``None`` waits for ever, 0 tries once. Waiting consumers of a process are served in the order in which
        they came. With ``ack=task`` that task is acked in the same commit: if the ack is refused (NotTaken,
        LeaseLost), nothing is taken; if nothing is ready, the ack stands and the wait begins
        (Tarantool: ``tube:take``).
        """
        taken = self._take(1, timeout, ack, unit, connection)
        return taken[0] if taken else None

    def take_many(
        self,
        limit: int,
        timeout: Seconds | None = None,
        *,
        unit: Unit | None = None,
        connection: Any = None,
    ) -> list[Task]:
        """Take up to ``limit`` tasks that are ready now, in order; wait for the first as ``take`` does.

        A consumer that waits behind others in this process gets only one, so that some are left for them.
        """
        return self._take(checked.whole("limit", limit, least=1), timeout, None, unit, connection)

    # Finishing and giving back

    def ack(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Finish a task that this session holds: it is removed. Returns it, done.

        NotTaken when this session does not hold it, LeaseLost when it did and has lost it (Tarantool:
        ``tube:ack``).
        """
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        store = self._store
        changes = self._run(
            lambda tx: self._checked.ack(tx, (ref,), owner=store.session, now=self._clock.now_ms()), unit
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    def ack_many(
        self, tasks: Iterable[Task | int], *, unit: Unit | None = None, connection: Any = None
    ) -> list[Task]:
        """Finish those of the tasks that this session holds, in one commit; return them."""
        refs = [*map(self._ref, checked.iterated("tasks", tasks))]
        unit = self._unit(unit, connection)
        store = self._store
        changes = self._run(
            lambda tx: self._checked.ack(tx, refs, owner=store.session, now=self._clock.now_ms()), unit
        )
        if refs and not changes:
            self._check_exists(unit)
        return self._tasks(changes)

    def release(self, task: Task | int, **options: Unpack[ReleaseOptions]) -> Task:
        """Give back a task that this session holds: to its old place, or after ``delay`` seconds.

        The delay is added to its ttl. NotTaken and LeaseLost as for ``ack``; NotSupported and BadOption as
        for ``put`` (Tarantool: ``tube:release``).
        """
        delay_ms = release_delay(options, self.features, f"release in {self._described()}")
        ref = self._ref(task)
        unit = self._unit(options.get("unit"), options.get("connection"))
        store = self._store
        changes = self._run(
            lambda tx: self._checked.release(
                tx, (ref,), delay_ms=delay_ms, owner=store.session, now=self._clock.now_ms()
            ),
            unit,
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    def touch(
        self, task: Task | int, delta: Seconds | None, *, unit: Unit | None = None, connection: Any = None
    ) -> Task | None:
        """Add ``delta`` seconds to the ttr, the ttl and the deadline of a task that this session holds.

        With 0 or ``None`` it does nothing and returns ``None``. NotTaken and LeaseLost as for ``ack``;
        NotSupported if this session holds the task but the type has no ttr (Tarantool: ``tube:touch``).
        """
        delta_ms = checked.optional_milliseconds("delta", delta)
        if not delta_ms:
            return None
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        if not self.features.timed:
            self._check_held(ref, unit)
            raise NotSupported(f"{self._described()} does not support touch")
        store = self._store
        changes = self._run(
            lambda tx: self._checked.touch(
                tx, (ref,), delta_ms, owner=store.session, now=self._clock.now_ms()
            ),
            unit,
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    def _check_held(self, ref: Ref, unit: Unit | None) -> None:
        for raw in self._read(lambda tx: self._checked.peek(tx, (ref.id,)), unit):
            task = self._task(raw)
            is_ours = task.owner is not None and task.owner.hex == self._store.session
            if is_ours and ref.token in (None, task.token):
                return
        self._refuse(ref, unit)

    # Administration: ownership is not checked

    def bury(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Put a task aside until it is kicked. Burying a buried one is harmless.

        TaskNotFound when there is none. Given a taken Task whose take no longer holds it: LeaseLost if that
        take was this session's, NotTaken if it was another's (Tarantool: ``tube:bury``).
        """
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        for _ in range(BURY_TRIES):
            changes = self._run(
                lambda tx: self._checked.bury(tx, (ref,), owner=None, now=self._clock.now_ms()), unit
            )
            if changes:
                return self._one(changes)
            stored = self.peek(ref.id, unit=unit)
            if stored.state is State.BURIED:
                return stored
            if ref.token is not None:
                raise self._not_taken(ref)
            # it was buried at that moment, and has been kicked since
        raise RuntimeError(
            f"the driver of {self!r} does not bury a {stored.state.name.lower()} task: {stored}"
        )

    def delete(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Remove a task in any state. TaskNotFound, LeaseLost, NotTaken as for ``bury`` (``tube:delete``)."""
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        changes = self._run(
            lambda tx: self._checked.delete(tx, (ref,), owner=None, now=self._clock.now_ms()), unit
        )
        if changes:
            return self._one(changes)
        if ref.token is not None:
            self.peek(ref.id, unit=unit)
            raise self._not_taken(ref)
        self._check_exists(unit)
        raise TaskNotFound(self.name, ref.id)

    def kick(self, count: int = 1, *, unit: Unit | None = None, connection: Any = None) -> int:
        """Make up to ``count`` buried tasks ready again; return how many (Tarantool: ``tube:kick``)."""
        most = checked.whole("count", count)
        unit = self._unit(unit, connection)

        def kick(limit: int) -> int:
            return len(self._run(lambda tx: self._checked.kick(tx, limit, now=self._clock.now_ms()), unit))

        return self._step_by_step(kick, most, unit)

    def peek(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Return a task as it is now, or raise TaskNotFound (Tarantool: ``tube:peek``)."""
        id = self._ref(task).id
        unit = self._unit(unit, connection)
        raws = self._read(lambda tx: self._checked.peek(tx, (id,)), unit)
        if not raws:
            self._check_exists(unit)
            raise TaskNotFound(self.name, id)
        return self._task(raws[0])

    def tasks(self, state: State | str, *, after: int = -1, limit: int = 100) -> list[Task]:
        """Return up to ``limit`` tasks in a state whose id is above ``after``, in the order of their ids."""
        if not isinstance(state, str) or state not in STATES:
            known = ", ".join(f"{state.value!r} ({state.name})" for state in State)
            raise BadOption(f"a state is one of {known}, not {shown(state)}", option="state", value=state)
        wanted = State(state)
        after = checked.whole("after", after, least=-1)
        limit = checked.whole("limit", limit)
        raws = self._read(lambda tx: self._checked.tasks_by_state(tx, wanted, after=after, limit=limit))
        if not raws:
            self._check_exists()
        return [self._task(raw) for raw in raws]

    def release_all(self) -> int:
        """Release every taken task, whoever holds it; return how many (Tarantool: ``tube:release_all``)."""
        return self._step_by_step(lambda limit: self._release_some(None))

    def truncate(self) -> int:
        """Remove all tasks silently: no events, no counts; return how many (Tarantool: ``tube:truncate``)."""
        return self._step_by_step(lambda limit: guarded(self._truncate_some, limit))

    def _truncate_some(self, limit: int) -> int:
        count = self.place.transact(lambda tx: self._checked.truncate(tx, limit))
        self._store.call(self._room, count)
        return count

    def _step_by_step(
        self, step: Callable[[int], int], most: int = checked.LARGEST_ID, unit: Unit | None = None
    ) -> int:
        """Repeat a step on up to so many tasks until it finds fewer; return how many it found in all.

        It does not go on until there are none, which might never come: others may go on taking, or putting.
        """
        done = 0
        while done < most:
            limit = min(most - done, STEP_LIMIT)
            count = step(limit)
            done += count
            if count < limit:
                break
        if not done:
            self._check_exists(unit)
        return done

    def drop(self) -> None:
        """Remove the tube. TubeBusy while tasks are taken or consumers wait (Tarantool: ``tube:drop``)."""
        self._queue.drop_tube(self)

    def statistics(self) -> dict[str, dict[str, int]]:
        """``tasks`` by state and ``calls`` by event, of all processes (Tarantool: ``queue.statistics``).

        Tasks are exact now; calls of other processes are at most a second old.
        """
        return guarded(self._statistics)

    def _statistics(self) -> dict[str, dict[str, int]]:
        count = self.place.as_part(self._checked.count)

        def look(tx: Any) -> tuple[Mapping[State, int], Mapping[str, int]]:
            states = count(tx)
            calls = self._store.calls(tx, self._id)
            if not (calls or any(states.values()) or self._store.has_tube(tx, self._record)):
                raise NoSuchTube(self.name)
            return states, calls

        unstored, (states, calls) = self._store.counts.with_pending(lambda: self._store.read(look))
        return statistics(states, Counter(calls) + Counter(unstored.get(self._id, {})))

    # Callbacks

    def on_task_change(self, callback: Listener | None) -> Listener | None:
        """Call ``callback(task, event)`` after every change made through this queue; return the old one.

        Callbacks run after the commit, outside every lock, one at a time in commit order, and may call the
        tube again. An error in one is logged and changes nothing (Tarantool: ``tube:on_task_change``).
        """
        if callback is not None:
            check_listener(callback)
        old, self._callback = self._callback, callback
        return old

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Add one more callback beside ``on_task_change``'s; return a function that removes it."""
        check_listener(listener)
        self._others.append(listener)
        added = [listener]

        def remove() -> None:
            if added:
                self._others.remove(added.pop())

        return remove
