"""A Queue: one connection to a store, with the tubes in it, a session, and the background sweep."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Literal, get_args
from uuid import UUID

from tubes import options as checked
from tubes import processes
from tubes.clock import Clock, SystemClock, real_monotonic
from tubes.driver import Driver, TubeRecord
from tubes.errors import (
    BadOption,
    NoSuchTube,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TubeBusy,
    TubeExists,
    TubesWarning,
    UnknownDriver,
    shown,
)
from tubes.events import Deliveries, Listener, check_listener
from tubes.feature_options import differing_options
from tubes.interrupts import check_thread, guarded, is_interrupted, is_raised_by_handler
from tubes.logs import Log
from tubes.making import make_driver, options_to_store, start_driver, stop_driver
from tubes.open_tubes import OpenTubes, apart_from_others
from tubes.options import Seconds
from tubes.registry import find_driver, find_store
from tubes.rescuer import Rescuer
from tubes.stats import FLUSH_AFTER, statistics
from tubes.store import Store, Unit
from tubes.sweeper import SWEEP_EVERY, Sweeper
from tubes.task import State
from tubes.transactions import Transactions
from tubes.tube import Tube
from tubes.waiting import room, seconds_until

UNKNOWN_EVERY = 10.0
"""Seconds between two background looks for tasks of unknown sessions, each of which reads all taken tasks.

Such tasks exist only if a server has lost part of what it stored, or a client of your own breaks the rules.
"""

LONGEST_WAIT = 2_000_000.0
"""The longest ``busy_timeout``, in seconds, that every store supports: 23 days, practically for ever."""

Durability = Literal["full", "normal", "off"]
"""What is safe once a call has returned; see ``connect``."""

log = Log("tubes.queue")


def connect(
    url: str,
    *,
    clock: Clock | None = None,
    sweep: bool = True,
    durability: Durability | None = None,
    session_ttr: Seconds = 0,
    namespace: str = "tubes",
    migrate: bool | None = None,
    busy_timeout: Seconds = 5,
) -> Queue:
    """Open a queue: ``sqlite:///file.db`` (relative), ``sqlite:////abs/file.db``, ``sqlite://`` (in memory).

    Or on a server: ``postgresql+psycopg://user@host/database``, ``redis://host:6379/0`` (``rediss://``,
    ``unix://``).

    ``durability``: ``full`` (what ``put`` returned survives a power cut), ``normal`` (survives a crash of the
    process, a power cut may lose the last moments) or ``off``; by default ``full``, and in Redis ``normal``.
    ``session_ttr``: seconds for which this session keeps its tasks after its last connection has gone.
    ``namespace``: prefix of the tables or keys, so that several queues can share one database. ``migrate``:
    bring the schema up to date, the default for a SQLite file. ``busy_timeout``: seconds to wait for a lock
    that others hold, then StoreBusy; for an answer of Redis, then OutcomeUnknown. ``sweep=False``: no
    background sweep; takes still settle what is due, and ``queue.sweep()`` does so at once. ``clock``:
    for tests.

    Raises StoreUnavailable if the store cannot be used, SchemaMismatch if its schema is another version's.
    """
    check_thread()
    scheme = url.partition(":")[0] if isinstance(url, str) else ""
    if not scheme or ":" not in url:
        is_text = url is None or isinstance(url, str)  # SQLAlchemy's URL prints like a str, but is not one
        given = shown(url) if is_text else f"a value of type {type(url).__name__}"
        if "@" in given or "=" in given:
            given = "this"  # there may be a password in it, as in what libpq connects by
        raise BadOption(f"pass a store's URL, such as sqlite:///tasks.db, not {given}", option="url")
    if durability not in (None, *get_args(Durability)):
        raise BadOption(
            f"durability must be full, normal or off, not {shown(durability)}",
            option="durability",
            value=durability,
        )
    if clock is None:
        clock = SystemClock()
    elif isinstance(clock, type) or not isinstance(clock, Clock):
        raise BadOption(
            "a clock must be an object with now_ms(), monotonic() and wait(), such as "
            f"tubes.testing.FakeClock(), not {shown(clock)}",
            option="clock",
            value=clock,
        )
    checked.check_flag("sweep", sweep)
    if migrate is not None:
        checked.check_flag("migrate", migrate)
    open_store = find_store(scheme)
    store = open_store(
        url,
        clock=clock,
        durability=durability or getattr(open_store, "default_durability", "full"),
        session_ttr_ms=checked.milliseconds("session_ttr", session_ttr),
        namespace=checked.tube_name(namespace, option="namespace", what="namespace"),
        migrate=migrate,
        busy_timeout=min(checked.seconds("busy_timeout", busy_timeout), LONGEST_WAIT),
    )
    queue: Queue | None = None
    try:
        queue = Queue(store, sweep=sweep)
        queue._open_tubes.open_all()
        if sweep:
            guarded(queue.sweep_in_background)
        return queue
    except BaseException:  # also what a signal's handler raises: nobody else would close the queue
        with suppress(Exception):  # what it could not give back, others rescue
            (queue or store).close()
        raise


class Tubes:
    """``queue.tube``: tubes by name, as attributes or items."""

    def __init__(self, queue: Queue) -> None:
        self.__queue = queue

    def __getitem__(self, name: str) -> Tube:
        return self.__queue.get_tube(name)

    def __getattr__(self, name: str) -> Tube:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.__queue.get_tube(name)
        except NoSuchTube as error:
            raise AttributeError(str(error)) from error

    def __contains__(self, name: object) -> bool:
        return name in self.__queue.tubes()

    def __iter__(self) -> Iterator[str]:
        return iter(self.__queue.tubes())

    def __len__(self) -> int:
        return len(self.__queue.tubes())

    def __dir__(self) -> list[str]:
        return self.__queue.tubes()


class Queue(processes.OfOneProcess):
    """A connection to a store. Threads may share it; a forked child gets a session of its own.

    Use it as a context manager, or call ``close``: its session then ends, and what it holds is released.
    """

    def __init__(self, store: Store, *, sweep: bool = True) -> None:
        self.store = store
        self.clock: Clock = store.clock
        self.tube: Tubes = Tubes(self)
        self.deliveries: Deliveries = Deliveries()
        self._open_tubes = OpenTubes(self)
        self.rescuer: Rescuer = Rescuer(store, self._open_tubes)
        self._transactions = Transactions(self)
        self.is_closed: bool = False
        self._sweeps = sweep
        self._lock = threading.RLock()
        self._sweeper = Sweeper(self._background)
        self._look_for_unknown_at = 0.0
        self._next_sweep_ms: float = math.inf
        processes.opened(self)

    # Tubes

    def create_tube(
        self,
        name: str,
        type: str,
        *,
        if_not_exists: bool = False,
        temporary: bool = False,
        on_task_change: Listener | None = None,
        **options: Any,
    ) -> Tube:
        """Create a tube, or with ``if_not_exists`` open the one that is there (with its stored options).

        Options, by type (seconds): ``ttl``, ``ttr``, ``pri``: defaults of its tasks; ``capacity``: the most
        stored tasks, 0 for no limit. ``temporary``: its tasks do not outlive the last process that has the
        file open; on a server they do, but not a restart of the server.

        Raises TubeExists, UnknownDriver, NotSupported, BadOption (Tarantool: ``queue.create_tube``).
        """
        self.check_open()
        name = checked.tube_name(name)
        if not isinstance(type, str):
            raise UnknownDriver(type, why=": pass a type's name")
        definition = find_driver(type)
        if on_task_change is not None:
            check_listener(on_task_change)
        checked.check_flag("temporary", temporary)
        checked.check_flag("if_not_exists", if_not_exists)
        stored = options_to_store(self.store, definition, type, name, options)
        is_warned = _may_lose_tasks(stored) and name not in self.tubes()
        if is_warned:  # before anything is made: a filter may turn the warning into an error
            _warn_of_no_ttr(name)

        made: list[Driver] = []

        def step(tx: Any) -> TubeRecord:
            tx.begin()
            record = self._record(tx, name)
            is_there = record is not None and self.store.has_tube(tx, record)
            if record is not None and not is_there:
                record = self._record(tx, name)  # a drop was cut short, and has been completed just now
            if record is None:
                record = self.store.add_tube(tx, name, type, stored, temporary)
                made.append(make_driver(self.store, definition, record))
                made[-1].create_space(tx, record)
                start_driver(record, partial(made[-1].start, tx))  # if it cannot start, no tube is made
                return record
            if not if_not_exists:
                raise TubeExists(name)
            if record.type != type:
                raise TubeExists(name, f" as a {record.type}, not a {type}")
            made.append(make_driver(self.store, definition, record))
            if not is_there:
                made[-1].start(tx)  # it has an entry only: it was never fully made, or its data was lost
            return record

        try:
            record = guarded(self.store.transact, step)
            tube = self._open_tubes.open(record, made.pop())
        finally:
            for unused in made:  # those of steps that were rolled back
                stop_driver(unused)
        if on_task_change is not None:
            tube.on_task_change(on_task_change)
        if _may_lose_tasks(record.options) and not is_warned:  # the tube existed, with its own options
            _warn_of_no_ttr(name)
        others = differing_options(options, stored, record.options)
        if others:
            _warn_of_others(name, others)
        return tube

    def get_tube(self, name: str) -> Tube:
        """Return a tube that exists; NoSuchTube if not, UnknownDriver if its type is not registered."""
        if not isinstance(name, str):
            raise BadOption(f"pass a tube's name, not {shown(name)}", option="name", value=name)
        tube = self._open_tubes.get(name)
        if tube is not None and self.store.read(lambda tx: self.store.has_tube(tx, tube.record)):
            return tube
        self.check_open()
        records = {record.name: record for record in self.records()}
        if name not in records:
            raise NoSuchTube(name, records)
        return self._open_tubes.open(_readable(records[name]))

    def tubes(self) -> list[str]:
        """The names of all tubes in the store, in the order of their creation (``queue.tube()``)."""
        return [record.name for record in self.records()]

    def records(self) -> Sequence[TubeRecord]:
        """All tubes as the catalogue has them, including those whose type is not registered here."""
        return self.store.read(self.store.tubes)

    def drop_tube(self, tube: Tube | str) -> None:
        """Remove a tube and its tasks; TubeBusy while tasks are taken or consumers of this process wait."""
        dropped = tube if isinstance(tube, Tube) else self.get_tube(tube)
        if dropped._queue is not self:  # its id may belong to another tube here
            raise BadOption(f"{dropped!r} belongs to another queue", option="tube", value=dropped)
        if guarded(self.store.waiters.count, dropped.record.id):
            raise TubeBusy(dropped.name, "consumers are waiting")

        def empty(tx: Any) -> None:
            taken = dropped._checked.count(tx).get(State.TAKEN, 0)
            if taken:
                raise TubeBusy(dropped.name, f"{taken} of its tasks are taken")
            dropped.driver.drop(tx)

        emptied = dropped.place.as_part(empty)

        def step(tx: Any) -> None:
            tx.begin()
            self.store.lock_tube(tx, dropped.record)
            if not self.store.has_tube(tx, dropped.record):
                raise NoSuchTube(dropped.name)
            emptied(tx)
            self.store.remove_tube(tx, dropped.record)

        def drop() -> None:
            self.store.transact(step)
            self._open_tubes.forget(dropped)
            for key in dropped.record.id, room(dropped.record.id):
                self.store.call(key, 2**31)  # all waiters: they find it gone

        guarded(drop)

    def statistics(self, name: str | None = None) -> dict[str, Any]:
        """Statistics of one tube, or by name of all whose type is known here (Tarantool: ``queue.statistics``).

        The statistics of all leave out tubes on a server of their own that is away, such as one of type
        ``redis``, and tubes whose driver fails.
        """
        if name is not None:
            return self.get_tube(name).statistics()
        stats: dict[str, Any] = {}
        tubes = self._open_tubes.open_all()
        told = guarded(self._statistics_told, tubes)
        for tube in tubes:
            if tube.record.id in told:
                stats[tube.name] = told[tube.record.id]
                continue
            try:
                tube.place.check_reachable()  # else every tube on a node that hangs would cost a wait
                stats[tube.name] = tube.statistics()
            except NoSuchTube:  # dropped elsewhere since
                pass
            except StoreError:
                if not tube.place.is_apart:
                    raise
            except Exception as error:
                if is_raised_by_handler(error):
                    raise
                log.exception("the driver of %r cannot count its tasks", tube)
        return stats

    def _statistics_told(self, tubes: Sequence[Tube]) -> Mapping[int, Any]:
        """The statistics of those tubes of which the store tells them together, by id."""
        told = partial(self._open_tubes.asked_of_many, "tallies", tubes)
        unstored, tallies = self.store.counts.with_pending(told)
        return {
            id: statistics(states, Counter(calls) + Counter(unstored.get(id, {})))
            for id, (states, calls) in tallies.items()
        }

    # Sessions

    def identify(self, session: UUID | str | None = None) -> UUID:
        """Return this connection's session; given another session's UUID, join that one first.

        What the old session held is released, unless it has other connections or a session_ttr. BadOption for
        what is not a UUID, NoSuchSession for one that is unknown or over (Tarantool: ``queue.identify``).
        """
        self.check_open()
        if session is not None:
            try:
                wanted = session if isinstance(session, UUID) else UUID(session)
            except (ValueError, TypeError, AttributeError) as error:
                raise BadOption(f"a session is a UUID, not {shown(session)}", option="session") from error
            guarded(self.store.join, wanted.hex)
            self.rescuer.rescue()
        return UUID(self.store.session)

    def configure(self, **settings: Any) -> None:
        """Change settings of this session: ``session_ttr``, in seconds (Tarantool: ``queue.cfg``)."""
        checked.check_names(settings, (), ("session_ttr",), "configure")
        if "session_ttr" in settings:
            ttr_ms = checked.milliseconds("session_ttr", settings["session_ttr"])
            guarded(self.store.set_session_ttr, ttr_ms)

    # Transactions

    def transaction(self) -> AbstractContextManager[Unit]:
        """Make several calls one: each takes ``unit=``. Commits when the block ends, rolls back if it raises.

        Callbacks and wake-ups come after the commit, and never after a rollback. Statements of your own go
        through ``unit.connection``. On SQLite other threads' writes wait.
        """
        return self._transactions.block()

    def join_transaction(self, connection: Any) -> Unit:
        """Return the unit of the transaction that is open on the user's connection, which the user commits.

        Verbs call this for ``connection=``; until the commit, the unit may be passed to others as ``unit=``.
        """
        return self._transactions.join(connection)

    # Time

    def sweep(self) -> int:
        """Do what is due now: delays, ttl and ttr, dead sessions, counts; return the number of changes."""
        changed, _, failed = self._sweep(thoroughly=True)
        _raise_one(failed)
        return changed

    def _sweep(self, *, thoroughly: bool) -> tuple[int, list[int], list[Exception]]:
        """Do what is due.

        Return the number of changes, when something is next due in each tube, and the errors of single tubes.
        """
        self.check_open()
        if thoroughly:
            self.store.set_aside.clear()
        are_suspected = partial(
            self.store.deaths_suspected, thoroughly=thoroughly, allow_recent=not thoroughly
        )
        changed = self.rescuer.rescue() if guarded(are_suspected) else 0
        failed: list[Exception] = []
        dues: list[int] = []
        tubes = self._open_tubes.open_all()
        seen = self._open_tubes.asked_of_many("next_dues", [tube for tube in tubes if tube.features.timed])
        for tube in tubes:
            with apart_from_others(tube, failed):
                changed += tube.rescue(thoroughly=thoroughly)  # what an earlier one has left
            with apart_from_others(tube, failed):  # a damaged task may be in the way of one of the two
                expired, due = tube.expire(seen)
                changed += expired
                if due is not None:
                    dues.append(due)
        self.flush_counts()
        return changed, dues, failed

    def due_at(self, due_ms: int) -> None:
        """Have the sweeper come in time for a task that is due then."""
        if due_ms < self._next_sweep_ms and self._sweeps:
            self._next_sweep_ms = due_ms
            self._sweeper.nudge((due_ms - self.clock.now_ms()) / 1000)

    def sweep_in_background(self) -> None:
        """Start the sweeper's thread.

        A process that only looks or listens needs it too, and a woken consumer should not pay for its start.
        """
        self._sweeper.nudge()

    def counted(self) -> None:
        """Have new counts stored a second from now, or when the process ends."""
        processes.see_to_exit()
        self._sweeper.nudge(FLUSH_AFTER)

    def flush_counts(self) -> None:
        """Store the calls that this process has counted."""
        if self.store.counts.is_dirty:
            guarded(self.store.counts.flush, self.store.add_calls)

    def _background(self) -> float | None:
        began = self.clock.now_ms()
        self._next_sweep_ms = began + SWEEP_EVERY * 1000
        try:
            self.store.prove_life()
            self.store.tidy()
            if not self._sweeps:
                self.flush_counts()
                return None
            with suppress(StoreError):  # the sweep tries again, and says so
                self.flush_counts()
            is_thorough = real_monotonic() >= self._look_for_unknown_at
            if is_thorough:
                self._look_for_unknown_at = real_monotonic() + UNKNOWN_EVERY
            _, dues, failed = self._sweep(thoroughly=is_thorough)
        except StoreUnavailable:
            self._look_for_unknown_at = 0.0  # look once the server is back: it may have lost something
            if self.is_closed:  # while it swept
                return None
            raise
        if not self.is_closed:
            _raise_one(failed)
        ended = self.clock.now_ms()
        return min((seconds_until(due, began, ended) for due in dues), default=None)

    # Life

    def close(self) -> None:
        """End waiting takes, this session and its background work. Calling it again is harmless.

        What the session holds goes back to ready at once (or after its session_ttr), unless other connections
        share it.
        """
        guarded(self._close)

    def _close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.store.waiters.wake_all()
        # A sweep may be waiting for the call that a handler interrupted, or for this thread's own transaction
        is_waited_for = not (is_interrupted() or self._transactions.is_inside())
        try:
            self._sweeper.stop(wait=is_waited_for)
        finally:  # a signal's handler may end that wait
            self._leave()
        self.deliveries.deliver()

    def _leave(self) -> None:
        try:
            self._end_session()
        finally:
            self.store.close()
            self._open_tubes.close()
            processes.closed(self)

    def _end_session(self) -> None:
        """Store the counts, and release what the session holds. What fails here, others do later."""
        try:
            self.flush_counts()
        except StoreBusy:
            if not self.store.reconnects:  # a file is locked, and all the rest would wait for it again
                return
        except StoreError:
            pass
        with suppress(StoreError):
            if self.store.leave():
                self.rescuer.rescue(thoroughly=False)
                self.flush_counts()

    def check_open(self) -> None:
        """Raise StoreUnavailable when this queue was closed."""
        if self.is_closed:
            raise StoreUnavailable("this queue is closed")
        self.store.refresh()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue on {self.store}{' (closed)' if self.is_closed else ''}>"

    def forked(self) -> None:
        """Called in a forked child: neither use nor close anything of the parent's again."""
        self.store.forked()
        self._transactions.forked()
        self._lock = threading.RLock()
        self._open_tubes.forked()
        self.deliveries = Deliveries()
        self._sweeper = Sweeper(self._background)
        self._next_sweep_ms = math.inf

    # Within

    def _record(self, tx: Any, name: str) -> TubeRecord | None:
        record = self.store.tube_named(tx, name)
        return None if record is None else _readable(record)


def _raise_one(failed: Sequence[Exception]) -> None:
    """Raise one of these errors, a driver's own fault first: a server that is away shows in calls anyhow."""
    for error in sorted(failed, key=lambda error: isinstance(error, StoreError)):
        raise error


def _readable(record: TubeRecord) -> TubeRecord:
    if record.unreadable:
        raise StoreError(f"the catalogue's entry of tube {record.name!r} cannot be read: {record.unreadable}")
    return record


def _may_lose_tasks(options: Mapping[str, Any]) -> bool:
    return options.get("ttl_ms") is not None and options.get("ttr_ms") is None


def _warn_of_others(name: str, options: Sequence[str]) -> None:
    warnings.warn(  # without the values: a type's own option may be a URL with a password
        f"tube {name!r} already exists with a different {', '.join(options)}, which it keeps; "
        "to use other values, give them with each put, or create a tube of another name",
        TubesWarning,
        stacklevel=3,
    )


def _warn_of_no_ttr(name: str) -> None:
    warnings.warn(
        f"tube {name!r} has a ttl and no ttr: a task still being worked on when its ttl is over "
        "vanishes; give a ttr, or a ttl longer than any task takes",
        TubesWarning,
        stacklevel=3,
    )


processes.register()  # after all imports: see there
