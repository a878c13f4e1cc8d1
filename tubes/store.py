"""What a store is: the only one that opens and commits transactions.

A store retries conflicts, translates foreign errors, keeps the catalogue of tubes, the sessions and the
counters, and wakes those who wait. It knows nothing of states and verbs; those are the drivers'.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from tubes.clock import Clock
from tubes.errors import BadOption, shown
from tubes.interrupts import guarded
from tubes.processes import OfOneProcess
from tubes.stats import Counts, Deltas
from tubes.waiting import Key, Lease, Waiters

if TYPE_CHECKING:
    from tubes.driver import Change, Driver, TubeRecord, TubeType
    from tubes.steps import Steps

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class Store(Protocol):
    """The seam between the framework and a database. ``tx`` is the store's own open transaction.

    A store may also have ``next_dues(tx, tubes)``, which tells of many tubes at once when time does something next in
    each, by their ids; ``holders(tx, tubes)``, in the same way, which sessions may hold tasks there; ``exiting()``,
    called as the interpreter ends, before ``close``; ``migrate_sql(namespace)``, for ``tubes migrate --sql``;
    ``default_durability``, where that is not ``full``; and ``checks``, see ``tubes.doctor``.
    """

    waiters: Waiters
    counts: Counts
    clock: Clock
    session: str
    """The session of this connection, as stored (32 hexadecimal digits). Read it inside a transaction."""

    lost_sessions: set[str]
    """Those that this connection had until it was taken for dead."""

    session_ttr_ms: int
    """How long this session outlives its last connection."""

    reconnects: bool
    """Whether a store that cannot be reached may come back by itself, so that who waits goes on waiting."""

    set_aside: set[str]
    """Ended sessions that are not looked for now, and not forgotten: they may hold what cannot be released yet."""

    def transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run ``work`` in a transaction and commit it.

        ``work`` may run again after a conflict, so it must have no other effect. ``on_commit`` is called once
        with its answer, in the order of the commits.
        """
        ...

    def transaction(self, on_commit: Callable[[], None]) -> AbstractContextManager[Any]:
        """Open a transaction that lasts as long as the ``with`` block; an exception rolls it back."""
        ...

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        """Return the unit of the transaction that the user has open on a connection of their own.

        ``open`` makes one of a ``tx``, for the first call in a transaction. From then on the store has the unit follow
        it: ``undo_to`` at the rollback of a savepoint, and ``ended`` at its end, never before a commit is done.
        BadOption for what is no connection to this very store, or cannot carry a transaction.
        """
        ...

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        """Run ``work`` as a part of an open transaction, once. What fails leaves nothing, or spoils all of it."""
        ...

    def connection(self, unit: Unit) -> Any:
        """Return the user's form of the connection that a unit's transaction is on, or raise NotSupported."""
        ...

    def read(self, work: Callable[[Any], T]) -> T:
        """Run ``work``, which only reads, on what is committed."""
        ...

    def realise(self, type: TubeType, tube: TubeRecord) -> Driver:
        """Make the driver of a tube whose type is a TubeType."""
        ...

    # The catalogue of tubes

    def tubes(self, tx: Any) -> Sequence[TubeRecord]:
        """All tubes, in the order of their creation."""
        ...

    def tube_named(self, tx: Any, name: str) -> TubeRecord | None: ...

    def add_tube(
        self, tx: Any, name: str, type: str, options: Mapping[str, Any], temporary: bool
    ) -> TubeRecord: ...

    def remove_tube(self, tx: Any, tube: TubeRecord) -> None: ...

    def has_tube(self, tx: Any, tube: TubeRecord) -> bool: ...

    def lock_tube(self, tx: Any, tube: TubeRecord) -> None:
        """Let nobody else put or take there until this transaction is over, where others can."""
        ...

    # Sessions

    def join(self, session: str) -> None:
        """Make this connection part of an existing session, or raise NoSuchSession."""
        ...

    def set_session_ttr(self, ttr_ms: int) -> None:
        """Set how long this session outlives its last connection."""
        ...

    def prove_life(self) -> None:
        """Renew this connection's proof of life; begin a new session if it was taken for dead meanwhile."""
        ...

    def deaths_suspected(self, *, thoroughly: bool = False, lately: bool = False) -> bool:
        """Tell cheaply whether a session may have ended, but for those set aside.

        ``thoroughly``: also whether tasks are held by sessions that nobody knows, at the cost of reading what is
        taken. ``lately``: what others have seen a moment ago will do, since this is asked again and again.
        """
        ...

    def ended_sessions(self, now: int, *, thoroughly: bool) -> Sequence[str]:
        """Notice dead connections, end the sessions whose grace is over, and return all ended ones.

        In transactions of its own: so many look at once that none may wait for another with anything locked.
        ``thoroughly``: also those that hold tasks and that nobody knows.
        """
        ...

    def forget_sessions(self, tx: Any, sessions: Sequence[str]) -> None:
        """Remove ended sessions; their tasks are released."""
        ...

    # Waking

    def wake(self, key: Key, count: int, leases: Iterable[Lease] = ()) -> None:
        """Wake up to ``count`` of those who wait for that, here and in other processes: for tasks of a tube, or room.

        ``leases`` are the next ones of what is ready, as far as they are known: see ``Waiters.wake``.
        """
        ...

    def call_instead(self, key: Key, count: int) -> None:
        """Wake others in the place of so many that were called here and leave without what they were called for."""
        ...

    # Counters

    def add_calls(self, deltas: list[Deltas]) -> None:
        """Store counts. Where it raises, what it leaves in ``deltas`` is not stored."""
        ...

    def calls(self, tx: Any, tube: int) -> Mapping[str, int]: ...

    # Life

    def tidy(self) -> None:
        """Clear away what changes leave behind. Called in the background, every second or so."""
        ...

    def leave(self) -> bool:
        """End this connection's part in its session, which ends with its last one; tell whether that may be done."""
        ...

    def close(self) -> None:
        """Give everything back: files, locks, connections. Idempotent."""
        ...

    def refresh(self) -> None:
        """Raise StoreUnavailable when closed; in a forked child, begin anew if that has not been done."""
        ...

    def before_fork(self) -> None:
        """Called before the process forks: come to rest, so that a child inherits nothing in use."""
        ...

    def after_fork(self) -> None:
        """Called after it in the parent: go on."""
        ...

    def forked(self) -> None:
        """Called in a forked child: leave all of the parent's alone, and begin a session of its own."""
        ...


class Unit(OfOneProcess):
    """A transaction that spans several calls: they pass it as ``unit=``. Threads that share it wait for each other.

    Its changes reach the listeners after the commit; a rollback emits nothing.
    """

    def __init__(
        self, store: Store, tx: Any, ended: Callable[[Unit, bool], None], *, is_joined: bool = False
    ) -> None:
        self.tx = tx
        self.is_open = True
        self._is_joined = is_joined
        """Whether it is on a connection of the user's, whose driver waits in its own way and sees to signals itself."""
        self._store = store
        self._ended = ended
        self._changes: list[tuple[Steps, Sequence[Change]]] = []
        self._lock = threading.RLock()

    @property
    def connection(self) -> Any:
        """The transaction's connection, for statements of your own: in SQL stores, a SQLAlchemy ``Connection``.

        It belongs to the unit, which alone commits it and rolls it back; savepoints (``begin_nested``) are yours.
        """
        return self._in_turn(self._connection)

    def check(self, store: Store) -> None:
        """Raise BadOption unless this is an open transaction of that store."""
        if self._store is not store:
            raise BadOption("this transaction is another queue's", option="unit")
        if not self.is_open:
            raise BadOption("this transaction is over", option="unit")

    def run(self, step: Callable[[Any], Sequence[Change]], tube: Steps) -> Sequence[Change]:
        """Run a driver's step in it, and keep the changes that it made."""
        return self._in_turn(self._run, step, tube)

    def read(self, look: Callable[[Any], T]) -> T:
        """Look at what is committed, and at what this transaction has done."""
        return self._in_turn(self._read, look)

    def turn(self) -> AbstractContextManager[object]:
        """Keep the calls of other threads out meanwhile, as each call does."""
        return self._lock

    def end(self) -> None:
        """Accept no more calls, when those under way are done."""
        with self._lock:
            self.is_open = False

    def forked(self) -> None:
        """Called in a forked child: the parent's other threads, which may have been in a call, are not there."""
        self.is_open = False
        self._lock = threading.RLock()

    def changes(self) -> Sequence[tuple[Steps, Sequence[Change]]]:
        """All changes so far, in order."""
        return self._changes

    # Called by the store of a transaction that the user ends

    def mark(self) -> int:
        """How far it is: what ``undo_to`` takes it back to."""
        return len(self._changes)

    def undo_to(self, mark: int) -> None:
        """Forget the changes since a mark: they were rolled back."""
        del self._changes[mark:]

    def ended(self, *, committed: bool) -> None:
        """It is over; its changes are committed, or there are none."""
        if self.is_open:
            self.is_open = False
            self._ended(self, committed)

    # Within

    def _in_turn(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return self._alone(work, *args) if self._is_joined else guarded(self._alone, work, *args)

    def _alone(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        with self._lock:
            return work(*args)

    def _connection(self) -> Any:
        self.check(self._store)
        return self._store.connection(self)

    def _run(self, step: Callable[[Any], Sequence[Change]], tube: Steps) -> Sequence[Change]:
        changes = self._read(step)
        if changes:
            self._changes.append((tube, changes))
        return changes

    def _read(self, look: Callable[[Any], T]) -> T:
        self.check(self._store)
        return self._store.within(self.tx, look)


def check_unit(unit: Any, store: Store) -> None:
    """Raise BadOption unless a caller has passed an open transaction of that store."""
    if not isinstance(unit, Unit):
        raise BadOption(f"a unit is what queue.transaction() gives, not {shown(unit)}", option="unit")
    unit.check(store)
