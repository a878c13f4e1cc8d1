"""The user's verbs: a Tube checks arguments, runs driver steps through the store, and publishes changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

from tubes import options as checked
from tubes.driver import (
    STEP_LIMIT,
    Change,
    Driver,
    Features,
    NewTask,
    Ref,
    TasksLocked,
    TubeRecord,
    ack_and_take_of,
    new_item,
    new_ref,
)
from tubes.errors import (
    BadOption,
    LeaseLost,
    NoSuchTube,
    NotSupported,
    NotTaken,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TaskNotFound,
    TubeError,
    TubeFull,
)
from tubes.events import Listener, check_listener
from tubes.feature_options import PutOptions, ReleaseOptions, TaskSettings, release_delay
from tubes.interrupts import guarded, interruptible
from tubes.options import Seconds
from tubes.payload import encode, encode_many
from tubes.place import place_of
from tubes.processes import OfOneProcess
from tubes.stats import statistics
from tubes.store import Unit, check_unit
from tubes.task import ACK, STATES, TAKE, Event, State, Task, milliseconds
from tubes.unknown import Taken, UnknownTakes
from tubes.waiting import LEASES_KEPT, Lease, room, seconds_until

if TYPE_CHECKING:
    from tubes.queue import Queue

T = TypeVar("T")

RECONNECT_AFTER = 0.25
"""Seconds between two looks of a waiting take while the store cannot be reached."""

BURY_TRIES = 100
"""So often a bury begins anew because the task was kicked meanwhile, until the driver is taken for broken."""

NONE_SEEN: Mapping[int, int | None] = {}

_READY_EVENTS = {Event.PUT, Event.RELEASE, Event.KICK, Event.DELAY, Event.TTR}
_FREEING_EVENTS = {Event.ACK, Event.DELETE, Event.TTL}


def _is_change(answer: object) -> bool:
    return isinstance(answer, Change) and isinstance(answer.event, Event)


def _taken(task: Task) -> Taken:
    return "" if task.owner is None else task.owner.hex, milliseconds(task.updated_at)


class Tube(OfOneProcess):
    """A named queue of tasks. ``queue.create_tube`` and ``queue.tube["NAME"]`` hand these out.

    Every verb takes a task by its id or as the Task that a call returned. By Task, it is meant as it was when
    it was taken: if it has been given to somebody else since, the verb raises LeaseLost. By id, only the
    session is asked (``ack``, ``release``, ``touch``), or nobody (``bury``, ``delete``).
    """

    def __init__(self, queue: Queue, record: TubeRecord, driver: Driver) -> None:
        self._queue = queue
        self._store = queue.store
        self._clock = queue.clock
        self._record = record
        self._id = record.id
        self.driver = driver
        self.place = place_of(queue.store, record, driver)
        self._own_ack_and_take = ack_and_take_of(driver)
        self._callback: Listener | None = None
        self._others: list[Listener] = []
        self._unknown = UnknownTakes(self._clock.monotonic)
        features = driver.features
        self._settings = TaskSettings(features, record)
        self._is_timed = features.timed
        self.ended: set[str] = set()
        """Ended sessions whose tasks are still to be released here."""
        self._set_listeners()
        self._capacity = record.options.get("capacity", 0)
        self._waking = frozenset(
            _READY_EVENTS | (_FREEING_EVENTS | {Event.BURY} if features.grouped else set())
        )
        self._room = room(record.id)
        self._making_room = frozenset(_FREEING_EVENTS) if features.bounded else frozenset()

    # What it is

    @property
    def name(self) -> str:
        """The tube's name."""
        return self._record.name

    @property
    def type(self) -> str:
        """The name of the tube's type, as given to ``create_tube``."""
        return self._record.type

    @property
    def record(self) -> TubeRecord:
        """The tube as the store's catalogue has it: id, stored options, whether it is temporary."""
        return self._record

    @property
    def features(self) -> Features:
        """What the tube's type can do."""
        return self.driver.features

    def __repr__(self) -> str:
        return f"<Tube {self.name} ({self.type})>"

    # Putting

    def put(self, data: Any, **options: Unpack[PutOptions]) -> Task:
        """Store a task and return it: ready, or delayed.

        ``data`` is anything that JSON can carry, or bytes; anything else is a TypeError. Options (seconds):
        ``pri`` (0 first), ``ttl`` (``None``: lives for ever), ``ttr`` (a taken task comes back after it), ``delay``
        (added to the ttl), ``utube`` (the sub-queue), ``timeout`` (how long to wait for room, default 0; then
        TubeFull). What is not given comes from the tube, then from the type. An option that the type does not
        support is NotSupported, an unknown one BadOption (Tarantool: ``tube:put``).
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
        driver, clock = self.driver, self._clock

        def step(tx: Any) -> Sequence[Change]:
            return driver.put(tx, items, now=clock.now_ms())

        try:
            changes = self._run(step, unit)
        except NoSuchTube as error:  # the store knows the tube by its number only
            raise NoSuchTube(self.name) from error.__cause__
        return changes or guarded(self._put_when_room, step, len(items), timeout, unit)

    def _put_when_room(
        self, step: Callable[[Any], Sequence[Change]], wanted: int, timeout: float | None, unit: Unit | None
    ) -> Sequence[Change]:
        """Put where what is over has made room, or comes to make some within ``timeout``."""
        if 0 < self._capacity < wanted:
            self._check_exists(unit)
            raise TubeFull(self.name, self._capacity, wanted)
        expired = 0  # what is over takes no room
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
            raise RuntimeError(f"the driver of {self!r} tells of nothing that it has stored")
        if timeout == 0.0:
            raise TubeFull(self.name, self._capacity, wanted)
        return self._wait_and_put(step, wanted, timeout)

    def _wait_and_put(
        self, step: Callable[[Any], Sequence[Change]], wanted: int, timeout: float | None
    ) -> Sequence[Change]:
        """Stand in line for room. Who is first in it tries, and sees to what is due, which may make some."""
        waiters, deadline = self._store.waiters, self._deadline(timeout)
        signal = waiters.enter(self._room)
        is_called = False
        try:
            while True:
                pause = remaining = self._remaining(deadline)
                is_first, is_called = waiters.heed(self._room, signal)
                tried = self._clock.now_ms()
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
                if is_first:
                    pause = self._until_due(tried, remaining)
                interruptible(self._clock.wait, signal, pause)
        finally:
            is_called |= waiters.leave(self._room, signal)
            waiters.wake_first(self._room)
            if is_called:
                self._store.call_instead(self._room, 1)
            self._queue.deliveries.deliver()  # only now: a callback holds up nobody who waits for room

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
        they came. With ``ack=task`` the last task is acked in the same commit: when that is refused
        (NotTaken, LeaseLost) nothing is taken; when nothing is ready, the ack stands and the wait begins
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

        Who waits behind others in this process gets one, so that there is something left for them.
        """
        return self._take(checked.whole("limit", limit, least=1), timeout, None, unit, connection)

    def _take(
        self,
        limit: int,
        timeout: Seconds | None,
        ack: Task | int | None,
        unit: Unit | None,
        connection: Any,
    ) -> list[Task]:
        wait = checked.timeout_seconds(timeout)
        if wait != 0.0 and (unit is not None or connection is not None):
            raise BadOption("a take inside a transaction cannot wait: pass timeout=0", option="timeout")
        unit = self._unit(unit, connection)
        kept: list[Task] = []
        try:
            if unit is None:
                guarded(self._take_or_wait, limit, kept, wait, ack)
            else:
                self._take_now(limit, kept, ack, unit)
            return kept
        except BaseException as error:
            # Interrupted between the commit and the return: nobody has these. Where there was no commit, nothing
            # answers to them, and this does nothing.
            if kept and not isinstance(error, StoreError):
                self.give_back(kept, unit)
            raise

    def _take_or_wait(self, limit: int, kept: list[Task], wait: float | None, ack: Task | int | None) -> None:
        self._queue.rescuer.look(self)
        try:
            self._take_now(limit, kept, ack)
            if not kept and wait != 0.0:
                try:
                    self._wait_and_take(limit, kept, wait)
                except StoreError as error:
                    is_over = self._queue.is_closed and isinstance(error, StoreUnavailable)
                    if ack is None and not is_over:
                        raise
                    kept.clear()  # closed meanwhile; or the ack stands, so that the next call has the error
        finally:
            self._queue.deliveries.deliver()  # who waited stands in line no more: a callback holds up nobody

    def _take_now(
        self, limit: int, kept: list[Task], ack: Task | int | None = None, unit: Unit | None = None
    ) -> None:
        """Try once; what was taken is in ``kept`` before it is committed, so that no interrupt can lose it.

        The callbacks of that are the caller's to deliver, where it is no unit's.
        """
        driver, store, clock, queue = self.driver, self._store, self._clock, self._queue
        run = self._commit if unit is None else partial(self._run, unit=unit)
        is_realised = self.place.is_realised
        to_ack = None if ack is None else self._ref(ack)
        is_acked = False
        owner, now = "", 0

        def step(tx: Any) -> Sequence[Change]:
            nonlocal owner, now
            kept.clear()
            if queue.is_closed:
                if to_ack is not None:
                    queue.check_open()
                return ()
            owner, now = store.session, clock.now_ms()
            if to_ack is None:
                changes = driver.take(tx, limit, owner=owner, now=now)
            else:
                changes = self._ack_and_take(tx, to_ack, limit, owner, now)
            if not is_realised:
                self._checked(changes)
            for event, raw, _ in changes:
                if event is TAKE:
                    kept.append(self._task(raw))
            return changes

        if self._unknown and unit is None:
            self._give_back_unknown()
        try:
            changes = run(step)
            if to_ack is not None and not any(event is ACK for event, _, _ in changes):
                raise self._not_taken(to_ack)
            if kept:
                return
            is_acked, to_ack = to_ack is not None, None
            settled = len(changes) - is_acked
            while not kept and settled:  # more may be due than one step settles
                settled = len(run(step))
            if not kept and unit is None and queue.rescuer.rescue_for(self):
                run(step)
            if not kept:
                self._check_exists(unit)
        except Exception as error:
            # A step of one statement has committed what it took, if what came after that failed, such as decoding
            if isinstance(error, OutcomeUnknown):
                self._unknown.add(owner, now if error.at_ms is None else error.at_ms)
            elif unit is None and not isinstance(error, TubeError):
                self._unknown.add(owner, now)
            if not (is_acked and unit is None and isinstance(error, StoreError)):
                raise
            kept.clear()  # the ack stands: this is an error of the look for more, and the next call has it

    def _ack_and_take(self, tx: Any, ref: Ref, limit: int, owner: str, now: int) -> Sequence[Change]:
        """Ack, and take in the same step. A refused ack is not among the changes, and then nothing is taken."""
        driver = self.driver
        if self._own_ack_and_take is not None:
            return self._own_ack_and_take(tx, (ref,), limit, owner=owner, now=now)
        tx.begin()
        acked = driver.ack(tx, (ref,), owner=owner, now=now)
        if not acked:
            return acked
        taken = driver.take(tx, limit, owner=owner, now=now)
        if not self.place.is_realised:
            self._checked(acked)
            self._checked(taken)
        return [*acked, *taken]

    def _wait_and_take(self, limit: int, kept: list[Task], timeout: float | None) -> None:
        """Stand in line for tasks; see ``Waiters`` for who takes and who looks when.

        ``calls``: what it was called for and has not come to. Where it leaves without, others are called instead.
        """
        waiters, clock, key = self._store.waiters, self._clock, self._id
        deadline = self._deadline(timeout)
        self._queue.sweep_in_background()
        signal = waiters.enter(key)
        calls = 0
        try:
            while True:
                remaining = self._remaining(deadline)
                is_first, is_called = waiters.heed(key, signal)
                calls = int(is_called)
                due = None
                try:
                    most = limit if is_first else 1  # who came earlier was called for one of the others
                    if is_called:
                        self._take_now(most, kept)
                    if not kept and (is_first or is_called or remaining == 0.0):
                        due = self._look_and_take(most, kept, is_last=remaining == 0.0)
                except (StoreUnavailable, StoreBusy, OutcomeUnknown):
                    if not self.place.reconnects or self._queue.is_closed or remaining == 0.0:
                        raise
                    kept.clear()  # whether that is taken nobody knows; it is looked for, see _give_back_unknown
                    due = RECONNECT_AFTER
                if kept or self._queue.is_closed:
                    return
                calls = 0
                if is_first:
                    waiters.looked_in_vain(key, signal)
                if remaining == 0.0:
                    return
                self._queue.deliveries.deliver()  # what was due
                pause = self._remaining(deadline)  # a look takes time
                if is_first and due is not None:  # the first in line sees to what is due, the others wait on
                    pause = due if pause is None else min(pause, due)
                interruptible(clock.wait, signal, pause)
        finally:
            calls += waiters.leave(key, signal, [(task.id, task.attempts) for task in kept])
            waiters.wake_first(key)  # there may be more where this came from, and it sees to what is due now
            if calls > len(kept):
                self._store.call_instead(key, calls - len(kept))

    def _look_and_take(self, limit: int, kept: list[Task], *, is_last: bool) -> float | None:
        """Take where there is something to do; if nothing came of it, return the seconds until there may be."""
        if self._unknown:
            self._give_back_unknown()
        is_ready, due = self._look()
        tried = self._clock.now_ms()
        is_anything_due = is_ready or (due is not None and due <= tried) or self.ended
        if is_anything_due or self._store.deaths_suspected(lately=not is_last):
            self._take_now(limit, kept)
            if not kept:
                due = self._look()[1]
        return None if due is None else seconds_until(due, tried, self._clock.now_ms())

    def _look(self) -> tuple[bool, int | None]:
        """Without a write: whether a task is ready, and the instant of the next thing that time does here."""
        driver = self.driver

        def look(tx: Any) -> tuple[bool, int | None]:
            is_ready = driver.can_take(tx)
            if not (is_ready or self.place.has_tube(tx)):
                raise NoSuchTube(self.name)
            return is_ready, driver.next_due(tx)

        return self.place.read(look)

    def _give_back(self, tasks: Sequence[Task], unit: Unit | None = None) -> None:
        def release(session: str, refs: Sequence[Ref], tx: Any) -> Sequence[Change]:
            return self.driver.release(tx, refs, delay_ms=0, owner=session, now=self._clock.now_ms())

        of_session: dict[str, list[Ref]] = {}
        for task in tasks:
            of_session.setdefault(_taken(task)[0], []).append(Ref(task.id, task.token))
        for session, refs in of_session.items():
            self._run(partial(release, session, refs), unit)

    def _give_back_unknown(self) -> None:
        """Release what was taken, maybe, by takes of which nobody knows how they ended: nobody was told of these tasks.

        They are known by session and millisecond of the take. Should another thread have taken one in that very
        millisecond, it loses its lease.
        """
        unknown, after = self._unknown.due(), -1
        while unknown:
            tasks = self.tasks(State.TAKEN, after=after, limit=STEP_LIMIT)
            self._give_back([task for task in tasks if _taken(task) in unknown])
            if len(tasks) < STEP_LIMIT:
                self._unknown.looked_for(unknown)
                return
            after = tasks[-1].id

    # Finishing and giving back

    def ack(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Finish a task that this session holds; it is gone. Returns it, done.

        NotTaken when this session does not hold it, LeaseLost when it did and has lost it (Tarantool:
        ``tube:ack``).
        """
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        store = self._store
        changes = self._run(
            lambda tx: self.driver.ack(tx, (ref,), owner=store.session, now=self._clock.now_ms()), unit
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    def ack_many(
        self, tasks: Iterable[Task | int], *, unit: Unit | None = None, connection: Any = None
    ) -> list[Task]:
        """Finish those of these tasks that this session holds, in one commit; return those."""
        name, ref = self._record.name, self._ref
        refs = [
            new_ref((task.id, task.token, task)) if type(task) is Task and task.tube == name else ref(task)
            for task in checked.iterated("tasks", tasks)
        ]
        unit = self._unit(unit, connection)
        store = self._store
        changes = self._run(
            lambda tx: self.driver.ack(tx, refs, owner=store.session, now=self._clock.now_ms()), unit
        )
        if refs and not changes:
            self._check_exists(unit)
        return self._tasks(changes)

    def release(self, task: Task | int, **options: Unpack[ReleaseOptions]) -> Task:
        """Give back a task that this session holds: to its old place, or after ``delay`` seconds.

        The delay is added to its ttl. NotTaken and LeaseLost as for ``ack``; options of another type and unknown
        ones as for ``put`` (Tarantool: ``tube:release``).
        """
        delay_ms = release_delay(options, self.features, f"release in {self._described()}")
        ref = self._ref(task)
        unit = self._unit(options.get("unit"), options.get("connection"))
        store = self._store
        changes = self._run(
            lambda tx: self.driver.release(
                tx, (ref,), delay_ms=delay_ms, owner=store.session, now=self._clock.now_ms()
            ),
            unit,
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    def touch(
        self, task: Task | int, delta: Seconds | None, *, unit: Unit | None = None, connection: Any = None
    ) -> Task | None:
        """Add ``delta`` seconds to the ttr, the ttl and the deadline of a task that this session holds.

        By 0 or ``None`` it does nothing and returns ``None``. NotTaken and LeaseLost as for ``ack``; NotSupported
        for a task of this session's where the type has no ttr (Tarantool: ``tube:touch``).
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
            lambda tx: self.driver.touch(tx, (ref,), delta_ms, owner=store.session, now=self._clock.now_ms()),
            unit,
        )
        return self._one(changes) if changes else self._refuse(ref, unit)

    # Administration: asks for no ownership

    def bury(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Put a task aside until it is kicked. Burying a buried one is harmless.

        TaskNotFound when there is none; LeaseLost when a Task that was taken is no longer held by that take,
        NotTaken when that take was another session's (Tarantool: ``tube:bury``).
        """
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        for _ in range(BURY_TRIES):
            changes = self._run(
                lambda tx: self.driver.bury(tx, (ref,), owner=None, now=self._clock.now_ms()), unit
            )
            if changes:
                return self._one(changes)
            stored = self.peek(ref.id, unit=unit)
            if stored.state is State.BURIED:
                return stored
            if ref.token is not None:
                raise self._not_taken(ref)
            # it was buried then, and has been kicked since
        raise RuntimeError(
            f"the driver of {self!r} does not bury what is {stored.state.name.lower()}: {stored}"
        )

    def delete(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Remove a task in any state. TaskNotFound, LeaseLost, NotTaken as for ``bury`` (``tube:delete``)."""
        ref = self._ref(task)
        unit = self._unit(unit, connection)
        changes = self._run(
            lambda tx: self.driver.delete(tx, (ref,), owner=None, now=self._clock.now_ms()), unit
        )
        if changes:
            return self._one(changes)
        self.peek(ref.id, unit=unit)
        raise self._not_taken(ref)

    def kick(self, count: int = 1, *, unit: Unit | None = None, connection: Any = None) -> int:
        """Make up to ``count`` buried tasks ready again; return how many (Tarantool: ``tube:kick``)."""
        most = checked.whole("count", count)
        unit = self._unit(unit, connection)
        kicked = 0
        while kicked < most:
            limit = min(most - kicked, STEP_LIMIT)
            changes = self._run(lambda tx, n=limit: self.driver.kick(tx, n, now=self._clock.now_ms()), unit)  # type: ignore[misc]
            kicked += len(changes)
            if len(changes) < limit:
                break
        if not kicked:
            self._check_exists(unit)
        return kicked

    def peek(self, task: Task | int, *, unit: Unit | None = None, connection: Any = None) -> Task:
        """Return a task as it is now, or raise TaskNotFound (Tarantool: ``tube:peek``)."""
        id = self._ref(task).id
        unit = self._unit(unit, connection)
        raws = self._read(lambda tx: self.driver.peek(tx, (id,)), unit)
        if not raws:
            self._check_exists(unit)
            raise TaskNotFound(self.name, id)
        return self._task(raws[0])

    def tasks(self, state: State | str, *, after: int = -1, limit: int = 100) -> list[Task]:
        """Return up to ``limit`` tasks in a state, by id, from the one after ``after`` on."""
        if not isinstance(state, str) or state not in STATES:
            known = ", ".join(f"{state.value!r} ({state.name})" for state in State)
            raise BadOption(f"a state is one of {known}, not {state!r}", option="state", value=state)
        wanted = State(state)
        after = checked.whole("after", after, least=-1)
        limit = checked.whole("limit", limit)
        raws = self._read(lambda tx: self.driver.tasks_by_state(tx, wanted, after=after, limit=limit))
        if not raws:
            self._check_exists()
        return [self._task(raw) for raw in raws]

    def release_all(self) -> int:
        """Release every taken task, whoever holds it; return how many (Tarantool: ``tube:release_all``)."""
        released = 0
        while count := self._release_some(None):
            released += count
            if count < STEP_LIMIT:  # not until there are none: others may go on taking
                break
        if not released:
            self._check_exists()
        return released

    def truncate(self) -> int:
        """Remove all tasks, silently: no events, no counts; return how many (Tarantool: ``tube:truncate``)."""
        removed = 0
        while True:
            count = guarded(self.place.transact, lambda tx: self.driver.truncate(tx, STEP_LIMIT))
            removed += count
            if count < STEP_LIMIT:
                self._store.wake(self._room, removed)
                if not removed:
                    self._check_exists()
                return removed

    def drop(self) -> None:
        """Remove the tube. TubeBusy while tasks are taken or consumers wait (Tarantool: ``tube:drop``)."""
        self._queue.drop_tube(self)

    def statistics(self) -> dict[str, dict[str, int]]:
        """``tasks`` by state and ``calls`` by event, of all processes (Tarantool: ``queue.statistics``).

        Tasks are exact now; calls of other processes are at most a second old.
        """
        return guarded(self._statistics)

    def _statistics(self) -> dict[str, dict[str, int]]:
        count = self.place.as_part(self.driver.count)

        def look(tx: Any) -> tuple[Mapping[State, int], Mapping[str, int]]:
            states = count(tx)
            calls = self._store.calls(tx, self._id)
            if not (calls or any(states.values()) or self._store.has_tube(tx, self._record)):
                raise NoSuchTube(self.name)
            return states, calls

        counts, flushes = self._store.counts, -1
        while counts.flushes != flushes:  # else one may have stored some meanwhile of what was not stored yet
            unstored, flushes = counts.pending(self._id)
            states, calls = self._store.read(look)
        return statistics(states, Counter(calls) + Counter(unstored))

    # Callbacks

    def on_task_change(self, callback: Listener | None) -> Listener | None:
        """Call ``callback(task, event)`` after every change that this process makes; return the old one.

        It runs after the commit, outside every lock, one at a time in commit order, and may call the tube
        again. If it raises, that is logged and changes nothing (Tarantool: ``tube:on_task_change``).
        """
        if callback is not None:
            check_listener(callback)
        old, self._callback = self._callback, callback
        self._set_listeners()
        return old

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Add one more callback beside ``on_task_change``'s; return a function that removes it."""
        check_listener(listener)
        self._others.append(listener)
        self._set_listeners()
        added = [listener]

        def remove() -> None:
            if added:
                self._others.remove(added.pop())
                self._set_listeners()

        return remove

    def _set_listeners(self) -> None:
        """Again where another thread has changed them meanwhile: who comes last has seen what all have done."""
        listeners: tuple[Listener, ...] | None = None
        while listeners != (given := self._given_listeners()):
            self._listeners = listeners = given

    def _given_listeners(self) -> tuple[Listener, ...]:
        own = () if self._callback is None else (self._callback,)
        return (*own, *self._others)

    # Called by the queue, and by `tubes.aio`

    def give_back(self, tasks: Sequence[Task], unit: Unit | None = None) -> None:
        """Release what was taken for somebody who is gone; where that fails, the next take or sweep does it.

        What was taken in a transaction goes back in it. One that is over was rolled back, or has waited for this; one
        in which it fails cannot be committed.
        """
        if unit is not None and not unit.is_open:
            return
        try:
            self._give_back(tasks, unit)
        except StoreError:
            if unit is None:
                for task in tasks:
                    self._unknown.add(*_taken(task))

    def expire(self, seen: Mapping[int, int | None] = NONE_SEEN) -> tuple[int, int | None]:
        """Do what time asks for, and what a rescue has left; return how many tasks that changed, and what is due next.

        ``seen``: what is due next in several tubes, by their ids; one that is not there is asked.
        """
        expired = self.rescue()
        if self._unknown:
            self._give_back_unknown()
        due = seen[self._id] if self._id in seen and not expired else self.next_due_ms()
        while due is not None and due <= self._clock.now_ms():
            changes = self._run(self._expiry)
            expired += len(changes)
            if not changes:
                break
            due = self.next_due_ms()
        return expired, due

    def rescue(self) -> int:
        """Release what the sessions in ``ended`` hold; return how many tasks that were.

        What others have locked stays there for the next time: who takes does not wait for them.
        """
        self.place.check_reachable()
        released = 0
        for session in [*self.ended]:
            with suppress(TasksLocked):
                while count := self._release_some(session):
                    released += count
                self.ended.discard(session)
        return released

    def next_due_ms(self) -> int | None:
        """The instant of the next thing that time does here."""
        return self.place.read(self.driver.next_due) if self.features.timed else None

    def _release_some(self, owner: str | None) -> int:
        """Release up to ``STEP_LIMIT`` of the tasks that a session holds; ``None``: that anybody holds."""
        return len(
            self._run(lambda tx: self.driver.release_owner(tx, owner, STEP_LIMIT, now=self._clock.now_ms()))
        )

    def publish(self, changes: Sequence[Change]) -> None:
        """Tell the framework's own listeners: counts, waiting consumers, the sweeper."""
        queue, store = self._queue, self._store
        waking = 0
        first_due: int | None = None
        tally: dict[Event, int] = {}
        for event, _, due in changes:
            tally[event] = tally.get(event, 0) + 1
            if due is not None and (first_due is None or due < first_due):
                first_due = due
        for event, count in tally.items():
            if event in self._waking:
                waking += count
            if event in self._making_room:
                store.wake(self._room, count)
        if waking:
            store.wake(self._id, waking, self._next_leases(changes, waking))
        for event, count in tally.items():
            if store.counts.add(self._id, event, count):
                queue.counted()
        if first_due is not None and self._is_timed:
            queue.due_at(first_due)

    def _next_leases(self, changes: Sequence[Change], waking: int) -> Sequence[Lease]:
        """Of the tasks that are ready now, where somebody waits here who may not be called for them."""
        waiting = len(self._store.waiters.line.get(self._id, ()))
        if not waiting or waking > waiting + LEASES_KEPT:
            return ()
        ready = (self._task(raw) for event, raw, _ in changes if event in self._waking)
        return [(task.id, task.attempts + 1) for task in ready]

    def line_up(self, changes: Sequence[Change]) -> None:
        """Put changes in the line of the user's callbacks; called in commit order."""
        listeners = self._listeners
        if listeners:
            for event, raw, _ in changes:
                self._queue.deliveries.add(listeners, self._task(raw), event)

    def doubt(self, changes: Sequence[Change]) -> None:
        """Nobody knows whether these are committed: what was taken is looked for, and given back."""
        for event, raw, _ in changes:
            if event is TAKE:
                self._unknown.add(*_taken(self._task(raw)))

    # Within

    def _unit(self, unit: Unit | None, connection: Any) -> Unit | None:
        """The transaction that a call is a part of; ``None``: it is one by itself."""
        if not self.place.is_transactional and not (unit is None and connection is None):
            raise NotSupported(
                f"{self._described()} keeps its tasks where there are no transactions over several calls",
                option="unit" if connection is None else "connection",
            )
        if connection is not None:
            if unit is not None:
                raise BadOption("unit= and connection= name two transactions: pass one", option="connection")
            return self._queue.join_transaction(connection)
        if unit is not None:
            check_unit(unit, self._store)
            self._queue.check_open()
        return unit

    def _run(self, step: Callable[[Any], Sequence[Change]], unit: Unit | None = None) -> Sequence[Change]:
        """Run a step, commit, publish. In a unit: run it there; the unit publishes after its commit."""
        if unit is not None:
            return unit.run(step if self.place.is_realised else self._checking(step), self)
        return guarded(self._commit_and_deliver, step)

    def _read(self, look: Callable[[Any], T], unit: Unit | None = None) -> T:
        """Look at the tasks that are committed; in a unit also at what it has done."""
        return self.place.read(look) if unit is None else unit.read(look)

    def _commit(self, step: Callable[[Any], Sequence[Change]]) -> Sequence[Change]:
        """Run a step by itself, commit, publish. Callbacks are lined up by then; the caller delivers."""
        if not self.place.is_realised:
            step = self._checking(step)
        changes = self.place.transact(step, self.line_up if self._listeners else None)
        if changes:
            self.publish(changes)
        return changes

    def _checking(self, step: Callable[[Any], Sequence[Change]]) -> Callable[[Any], Sequence[Change]]:
        """The same step, of a driver of somebody's own: what it answers is looked at before that is committed."""
        return lambda tx: self._checked(step(tx))

    def _checked(self, changes: Sequence[Change]) -> Sequence[Change]:
        """What a step has answered. A wrong answer undoes the step, so that nobody has to guess what is stored."""
        is_list = isinstance(changes, Sequence)
        wrong = [change for change in changes if not _is_change(change)] if is_list else [changes]
        if wrong:
            raise RuntimeError(
                f"the driver of {self!r} must answer a step with a list of Change, not with {wrong[0]!r}"
            )
        return changes

    def _commit_and_deliver(self, step: Callable[[Any], Sequence[Change]]) -> Sequence[Change]:
        changes = self._commit(step)
        self._queue.deliveries.deliver()
        return changes

    def _expiry(self, tx: Any) -> Sequence[Change]:
        return self.driver.expire(tx, STEP_LIMIT, now=self._clock.now_ms())

    def _task(self, raw: Any) -> Task:
        return raw if type(raw) is Task else self.driver.normalize_task(raw)

    def _one(self, changes: Sequence[Change]) -> Task:
        return self._task(changes[0][1])

    def _tasks(self, changes: Sequence[Change]) -> list[Task]:
        return [self._task(raw) for _, raw, _ in changes]

    def _ref(self, task: Task | int) -> Ref:
        if isinstance(task, Task):
            if task.tube != self._record.name:
                raise BadOption(f"{task!r} is not a task of tube {self.name!r}", value=task)
            return new_ref((task.id, task.token, task))
        return Ref(checked.whole("task id", task))

    def _refuse(self, ref: Ref, unit: Unit | None) -> NoReturn:
        self._check_exists(unit)
        raise self._not_taken(ref)

    def _not_taken(self, ref: Ref) -> NotTaken:
        known = ref.task
        if known is not None and ref.token is not None and known.owner is not None:
            if known.owner.hex in (self._store.session, *self._store.lost_sessions):
                with suppress(StoreError):  # this thread's own transaction may be in the way
                    self._store.prove_life()  # it may be that this process was taken for dead
                return LeaseLost(self.name, ref.id, ref.token)
        return NotTaken(self.name, ref.id)

    def _check_held(self, ref: Ref, unit: Unit | None) -> None:
        for raw in self._read(lambda tx: self.driver.peek(tx, (ref.id,)), unit):
            task = self._task(raw)
            is_ours = task.owner is not None and task.owner.hex == self._store.session
            if is_ours and ref.token in (None, task.token):
                return
        self._refuse(ref, unit)

    def _check_exists(self, unit: Unit | None = None) -> None:
        read = self._store.read if unit is None else unit.read
        if not read(lambda tx: self._store.has_tube(tx, self._record)):
            raise NoSuchTube(self.name)

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock.monotonic() + timeout

    def _remaining(self, deadline: float | None) -> float | None:
        if deadline is None:
            return None
        left = deadline - self._clock.monotonic()
        return left if left > 1e-6 else 0.0  # sums of floats are that exact

    def _until_due(self, tried: int, remaining: float | None) -> float | None:
        due = self.next_due_ms()
        if due is None:
            return remaining
        pause = seconds_until(due, tried, self._clock.now_ms())
        return pause if remaining is None else min(pause, remaining)

    def _described(self) -> str:
        return f"{self.type} tube {self.name!r}"
