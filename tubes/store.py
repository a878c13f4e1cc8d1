"""What a store is: the only part that opens and commits transactions.

A store retries conflicts, translates foreign errors, keeps the catalogue of tubes, the sessions and the
counters, and wakes waiters. It knows nothing of states and verbs; those are the drivers'.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

Known = tuple[int | None, Collection[Any]]
"""What is known of a session: when it is over, ``None`` while it has connections; and these."""


class Store(Protocol):
    """The seam between the framework and a database. ``tx`` is the store's own open transaction.

    Optional attributes:

    - ``next_dues(tx, tubes)`` returns, for many tubes at once, by id, when something is next due in each;
    - ``holders(tx, tubes)`` returns in the same way which sessions may hold tasks in each;
    - ``tallies(tx, tubes)`` returns in the same way how many tasks are in each state, and how many calls there
      were, as ``count`` of a driver and ``calls`` do;
    - ``are_started(tx, tubes)`` tells in the same way of which its own drivers' ``start`` would do nothing;
    - ``exiting()`` is called as the interpreter ends, before ``close``;
    - ``migrate_sql(namespace)`` is for ``tubes migrate --sql``;
    - ``default_durability``, if that is not ``full``;
    - ``longest_wait()``, if ``transact`` keeps no order of commits: a tube with callbacks then does one call at
      a time, and this returns the most seconds that a call waits for those before it;
    - ``checks``: see ``tubes.doctor``.
    """

    waiters: Waiters
    counts: Counts
    clock: Clock
    session: str
    """The session of this connection, as stored (32 hexadecimal digits). Read it inside a transaction."""

    lost_sessions: set[str]
    """The sessions that this connection lost because it was taken for dead."""

    session_ttr_ms: int
    """How long this session outlives its last connection."""

    reconnects: bool
    """Whether a store that cannot be reached may come back by itself, so that waiters go on waiting."""

    set_aside: set[str]
    """Ended sessions that are skipped for now but kept: they may hold tasks that cannot be released yet."""

    def transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run ``work`` in a transaction and commit it.

        ``work`` may run again after a conflict, so it must have no other effect. ``on_commit`` is called once
        with what ``work`` returned, in the order of the commits.
        """
        ...

    def transaction(self, on_commit: Callable[[], None]) -> AbstractContextManager[Any]:
        """Open a transaction that lasts as long as the ``with`` block; an exception rolls it back."""
        ...

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        """Return the unit of the transaction that the user has open on a connection of their own.

        The first call in a transaction makes the unit, by ``open(tx)``. From then on the store calls its
        ``undo_to`` when a savepoint is rolled back, and ``ended`` when the transaction ends, after any
        commit. BadOption for what is not a connection to this very store, or cannot carry a transaction.
        """
        ...

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        """Run ``work`` once, in an open transaction. A failure undoes ``work``, or spoils the transaction."""
        ...

    def connection(self, unit: Unit) -> Any:
        """Return the connection of a unit's transaction in the form that users get, or raise NotSupported."""
        ...

    def read(self, work: Callable[[Any], T]) -> T:
        """Run ``work``, which only reads, on committed data."""
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
        """Keep others from putting or taking there until this transaction ends, if they otherwise could."""
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

    def deaths_suspected(self, *, thoroughly: bool = False, allow_recent: bool = False) -> bool:
        """Tell cheaply whether a session may have ended that is not in ``set_aside``.

        ``thoroughly``: also whether unknown sessions hold tasks, at the cost of reading all taken ones.
        ``allow_recent``: an answer that others got a moment ago will do, since this is asked again and again.
        """
        ...

    def ended_sessions(self, now: int, *, thoroughly: bool) -> Sequence[str]:
        """Notice dead connections, end the sessions whose grace is over, and return all ended ones.

        It runs in transactions of its own: many processes look at once, so none may wait for another while it
        has something locked. ``thoroughly``: also return unknown sessions that hold tasks.
        """
        ...

    def forget_sessions(self, sessions: Sequence[str]) -> None:
        """Remove ended sessions, whose tasks have been released, in a transaction of its own."""
        ...

    def known_sessions(self, tx: Any) -> Mapping[str, Known]:
        """All sessions, those of the dead too, until they are forgotten."""
        ...

    def over_at(self, tx: Any, session: str) -> float:
        """When one is over, in ms: never (``inf``) while it has connections; an unknown one always was (0)."""
        ...

    # Waking

    def call(self, key: Key, count: int, leases: Iterable[Lease] = ()) -> None:
        """Wake at most ``count`` waiters for a tube's tasks, or for room in it, here and in other processes.

        ``leases`` are the next leases of the ready tasks, as far as they are known: see ``Waiters.call``.
        """
        ...

    def call_instead(self, key: Key, count: int) -> None:
        """Wake ``count`` others in place of waiters that were called here and leave empty-handed."""
        ...

    # Counters

    def add_calls(self, deltas: list[Deltas]) -> None:
        """Store counts. If it raises, what it leaves in ``deltas`` is not stored."""
        ...

    def calls(self, tx: Any, tube: int) -> Mapping[str, int]: ...

    # Life

    def tidy(self) -> None:
        """Clear away what changes leave behind. Called in the background, every second or so."""
        ...

    def leave(self) -> bool:
        """Leave the session, which ends with its last connection; return whether this one may have left."""
        ...

    def close(self) -> None:
        """Give everything back: files, locks, connections. Idempotent."""
        ...

    def refresh(self) -> None:
        """Raise StoreUnavailable when closed; in a forked child, open everything again if not yet done."""
        ...

    def before_fork(self) -> None:
        """Called before the process forks: come to rest, so that the child inherits nothing in use."""
        ...

    def after_fork(self) -> None:
        """Called in the parent after the fork: go on."""
        ...

    def forked(self) -> None:
        """Called in a forked child: leave all of the parent's alone; the next call begins a new session."""
        ...


class Unit(OfOneProcess):
    """A transaction that spans several calls, which pass it as ``unit=``. Threads that share it take turns.

    Its changes reach the listeners after the commit; after a rollback they hear nothing.
    """

    def __init__(
        self, store: Store, tx: Any, ended: Callable[[Unit, bool], None], *, is_joined: bool = False
    ) -> None:
        self.tx = tx
        self.is_open: bool = True
        self._is_joined = is_joined
        """Whether it is on the user's connection, whose database driver waits and handles signals itself."""
        self._store = store
        self._ended = ended
        self._changes: list[tuple[Steps, Sequence[Change]]] = []
        self._lock = threading.RLock()

    @property
    def connection(self) -> Any:
        """The transaction's connection, for your own statements: in SQL stores, a SQLAlchemy ``Connection``.

        Only the unit commits it and rolls it back; savepoints (``begin_nested``) are yours.
        """
        return self._in_turn(self._connection)

    def check(self, store: Store) -> None:
        """Raise BadOption unless this is an open transaction of that store."""
        if self._store is not store:
            raise BadOption("this transaction belongs to another queue", option="unit")
        if not self.is_open:
            raise BadOption("this transaction is over", option="unit")

    def run(self, step: Callable[[Any], Sequence[Change]], tube: Steps) -> Sequence[Change]:
        """Run a driver's step in this transaction, and keep the changes that it made."""
        return self._in_turn(self._run, step, tube)

    def read(self, look: Callable[[Any], T]) -> T:
        """Read what is committed, and what this transaction has done."""
        return self._in_turn(self._read, look)

    def turn(self) -> AbstractContextManager[object]:
        """Keep other threads' calls out during a ``with`` block, as each call does by itself."""
        return self._lock

    def end(self) -> None:
        """Wait for calls under way, then accept no more."""
        with self._lock:
            self.is_open = False

    def forked(self) -> None:
        """Called in a forked child: close it. A thread of the parent's, not here, may have held the lock."""
        self.is_open = False
        self._lock = threading.RLock()

    def changes(self) -> Sequence[tuple[Steps, Sequence[Change]]]:
        """All changes so far, in order."""
        return self._changes

    # Called by the store, for a transaction that the user ends

    def mark(self) -> int:
        """Return the present position, which ``undo_to`` can go back to."""
        return len(self._changes)

    def undo_to(self, mark: int) -> None:
        """Forget the changes since a mark: they were rolled back."""
        del self._changes[mark:]

    def ended(self, *, committed: bool) -> None:
        """The transaction is over: committed or rolled back."""
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
    """Raise BadOption unless the caller has passed an open transaction of that store."""
    if not isinstance(unit, Unit):
        raise BadOption(f"pass the unit from queue.transaction(), not {shown(unit)}", option="unit")
    unit.check(store)
