"""The PostgreSQL store.

Every step takes as few round trips as it can. The server's clock is the clock of record.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, TypeVarTuple

try:
    import psycopg

    if tuple(map(int, psycopg.__version__.split(".")[:2])) < (3, 2):  # without it nothing is cancelled
        raise ImportError(f"psycopg is {psycopg.__version__}, but tubes needs 3.2 or newer")
except ImportError as error:
    raise ImportError(f"{error}; pip install 'tubes-queue[postgres]'") from error
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg as dialects
from tubes.migrations import postgresql as migrations
from tubes.migrations.running import in_the_way

from tubes.clock import Clock, ServerClock, SystemClock, pause, real_monotonic
from tubes.driver import TubeRecord
from tubes.errors import (
    BadOption,
    Conflict,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TubeError,
    store_works,
)
from tubes.interrupts import guarded, interruptible
from tubes.store import Unit
from tubes.task import State

from ..examining import IsAlive
from ..forks import cut_off
from ..polling import check_poll
from ..retries import MOST_LOSSES, MOST_TRIES, Lost, pause_after
from ..watch import BEATS, Beats, Watch
from . import postgresql_joined
from .driver import totals
from .joined import join, unusable
from .postgresql_errors import LOCK_NOT_AVAILABLE, RETRIED, UNIQUE, translated
from .postgresql_joined import Identity, PostgresJoinedTx, identity_query, refused_to_user
from .postgresql_shared import Server, Shared, milliseconds
from .postgresql_temporary import empty_temporary
from .postgresql_tx import COMMIT_UNSYNCED, PostgresTx
from .postgresql_url import conninfo, parsed
from .postgresql_vacuum import Vacuum
from .postgresql_wire import Refused, Wire
from .statements import SESSION_ENDED, Row, Statement, Statements, statements
from .store import SqlStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IN_THE_WAY = ("42P07", "42723", "42710", "42703")
"""SQLSTATEs that say that a table, a function or a table's type of ours cannot be made: the name is taken.

The last: something has the version table's name and is no such table.
"""

LOCK_WAIT = 0.1
"""Seconds that a drop waits for the table's lock before it lets those behind it pass."""

ENDS_WITHIN = 1.0
"""Seconds that a server may take to end an autovacuum, once it knows that somebody waits for it."""

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


DIALECT: Any = dialects.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


class PostgresStore(SqlStore):
    """``postgresql+psycopg://user:password@host/database?dead_after=15&pooled=auto``.

    ``dead_after``: seconds without a sign of life after which a process is taken for dead; of two processes'
    values, the longer one counts. ``pooled``: whether a pooler in between may give each transaction another
    of the server's connections; ``auto`` finds out. Everything else in the query is for libpq.
    """

    dialect = DIALECT
    reconnects = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: str,
        session_ttr_ms: int,
        namespace: str,
        migrate: bool | None,
        busy_timeout: float,
    ) -> None:
        check_poll()
        super().__init__()
        self._url, self._dead_after, pooled = parsed(url)
        self._what = f"PostgreSQL database {migrations.shown(self._url)}"
        self.clock = ServerClock() if type(clock) is SystemClock else clock
        self._durability = durability
        self._namespace = namespace
        self._busy_timeout = busy_timeout
        self._own_ttr_ms = session_ttr_ms
        self._server = Server(conninfo(self._url), self._what, namespace, self._dead_after, pooled)
        self._sql = statements(DIALECT, namespace)
        self._sql_temporary = statements(DIALECT, namespace, temporary=True)
        self._whereabouts = Statement(identity_query(namespace), DIALECT)
        self._identity: Identity | None = None
        self._vacuum = Vacuum(namespace)
        self._share()
        self._open(migrate=bool(migrate))

    def _open(self, *, migrate: bool = False) -> None:
        self._order = threading.RLock()  # a signal handler may run in the middle of a commit
        self._resuming = threading.RLock()  # the same
        self.lost_sessions: set[str] = set()
        self._beats: Beats[int] = Beats(self._dead_after)
        self.set_aside: set[str] = set()
        self.waiters, self.counts = self._shared.waiters, self._shared.counts
        with_ready = self._sql.with_ready, self._sql_temporary.with_ready
        try:
            self._insist(self._get_ready, migrate)
            self._listener = guarded(self._shared.enter, self._busy_timeout, self._beat, with_ready)
            self._share()  # the last of the others may have left meanwhile, and closed the pool
        except BaseException:
            self._close()
            raise
        self._call_others = self._listener.notify

    def _share(self) -> None:
        self._shared = guarded(Shared.of, self._server)
        self._pool = guarded(self._shared.pool, self._durability, self._busy_timeout)

    def _get_ready(self, migrate: bool) -> None:
        self._bring_up(migrate)
        with self._pool.lent() as wire:
            empty_temporary(wire, self._namespace)
            self._learn_time(wire)
        self._begin_session()

    def _bring_up(self, migrate: bool) -> None:
        with self._pool.lent() as wire:
            try:
                migrations.bring_up(wire, self._url, self._namespace, self._what, migrate=migrate)
            except Refused as error:
                if error.code not in IN_THE_WAY:
                    raise
                raise in_the_way(str(error).splitlines()[0], self._namespace, self._what) from error

    # Transactions

    def transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        self.refresh()
        return guarded(self._insist, self._try, work, on_commit)

    def _transact_unsynced(self, work: Callable[[Any], T]) -> T:
        """Else rows of counts, which all processes write to, stay locked for as long as the server's disk takes."""
        if self._durability != "full":
            return self.transact(work)

        def unsynced(tx: Any) -> T:
            tx.begin()
            tx.commit_by = COMMIT_UNSYNCED
            return work(tx)

        return self.transact(unsynced)

    def read(self, work: Callable[[Any], T]) -> T:
        self.refresh()
        return guarded(self._insist, self._look, work)

    def _insist(self, attempt: Callable[[*Ts], T], *given: *Ts) -> T:
        """Make an attempt, and make it again after a conflict or on another connection."""
        tries = losses = 0
        while True:
            tries += 1
            if tries > 1:
                self.refresh()  # a signal handler may have forked meanwhile
            try:
                return attempt(*given)
            except Refused as error:
                if error.code not in (*RETRIED, SESSION_ENDED):
                    raise translated(error, self._what) from error
                if tries >= MOST_TRIES:
                    raise Conflict(f"{self._what}: conflicted with others {tries} times: {error}") from error
                if error.code == SESSION_ENDED:
                    self._resume()
            except Lost as error:
                losses += 1
                if losses >= MOST_LOSSES:
                    raise StoreUnavailable(f"{self._what} cannot be used: {error}") from error
                self._pool.forget_idle()
            pause_after(tries)

    def _look(self, work: Callable[[Any], T]) -> T:
        """Run ``work``, which only reads, on one snapshot."""
        with self._pool.lent() as wire:
            tx = PostgresTx(wire, SNAPSHOT)
            tx.looked = {}
            result = work(tx)
            if tx.is_open:
                tx.commit()
            return result

    def _try(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None) -> T:
        """Run ``work`` and commit it, once. If it raises Refused or Lost, nothing was done."""
        wire = self._pool.borrow()
        try:
            tx = PostgresTx(wire)
            if on_commit is not None:
                tx.begin()
            result = work(tx)
            if on_commit is not None:
                with self._order:  # so that callbacks get in line in the order of the commits
                    tx.commit()
                    on_commit(result)
            elif tx.is_open:
                tx.commit()
            if wire.in_transaction:  # which is rolled back below, whatever the server has answered
                raise StoreUnavailable(
                    f"{self._what} cannot be used: a transaction is open that tubes has not begun, so this was not "
                    "committed; does a proxy in between begin its own?"
                )
            return result
        except Lost as error:
            if tx.may_be_done(error):
                raise self._unknown(error) from error
            raise
        finally:
            self._pool.give_back(wire)

    @contextmanager
    def transaction(self, on_commit: Callable[[], None]) -> Iterator[Any]:
        self.refresh()
        tx: PostgresTx | None = None
        try:
            with self._pool.lent() as wire:
                tx = PostgresTx(wire)
                tx.begin()
                try:
                    yield tx
                finally:
                    if tx.lender is not None:
                        tx.lender.take_back()
                if wire.is_inherited:
                    raise StoreUnavailable(
                        "this transaction belongs to the parent process: a forked child cannot commit it"
                    )
                if self._is_closed:
                    raise StoreUnavailable("this queue is closed")
                with self._order:
                    tx.commit()
                    on_commit()
        except Refused as error:
            raise translated(error, self._what) from error
        except Lost as error:
            if tx is not None and tx.may_be_done(error):
                raise self._unknown(error) from error
            raise StoreUnavailable(f"{self._what}: the connection was lost: {error}") from error

    def _unknown(self, error: Lost) -> OutcomeUnknown:
        return OutcomeUnknown(f"{self._what}: the connection died in a commit: {error}")

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        def begin(joined: sa.Connection) -> PostgresJoinedTx:
            tx, identity = postgresql_joined.begin(joined, self._namespace, self._what)
            if identity != self._identity and identity != self._identify():
                raise BadOption(
                    f"this connection does not see the tables of this queue, which are in {self._what}: "
                    "check its server, database and search_path",
                    option="connection",
                )
            return tx

        return join(connection, "postgresql", self, begin, open, postgresql_joined.stands)

    def _identify(self) -> Identity:
        """Which tables this store sees now: the server may have been restarted."""
        (started, database, table), *_ = self.read(lambda tx: tx.only_rows(self._whereabouts))
        self._identity = (started, database, table)
        return self._identity

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        tx.is_halfway = False
        try:
            return self._within(tx, work)
        except BaseException as error:
            # The server knows nothing of such an error, and would commit what the step did before it
            if tx.is_halfway and (store_works(error) or not isinstance(error, TubeError)):
                tx.spoil()
            raise

    def _within(self, tx: Any, work: Callable[[Any], T]) -> T:
        try:
            return work(tx)
        except (sa.exc.DBAPIError, Refused) as error:
            refused = error if isinstance(error, Refused) else refused_to_user(error)
            if refused.code == SESSION_ENDED:
                self._resume()
            raise translated(refused, self._what) from error
        except Lost as error:
            raise StoreUnavailable(f"{self._what}: the connection was lost: {error}") from error
        except sa.exc.InvalidRequestError as error:
            raise unusable(error) from error
        except UnicodeError as error:  # of the user's driver
            raise StoreError(
                f"this connection's client_encoding cannot represent all characters: {error}"
            ) from error

    def connection(self, unit: Unit) -> sa.Connection:
        if isinstance(unit.tx, PostgresJoinedTx):
            return unit.tx.connection
        lent: sa.Connection = self.within(unit.tx, lambda tx: tx.open_lender().lend(self, unit))
        return lent

    def _sql_of(self, tube: TubeRecord) -> Statements:
        return self._sql_temporary if tube.temporary else self._sql

    # The catalogue

    def add_tube(
        self, tx: Any, name: str, type: str, options: Mapping[str, Any], temporary: bool
    ) -> TubeRecord:
        try:
            return super().add_tube(tx, name, type, options, temporary)
        except Refused as error:
            if error.code != UNIQUE:
                raise
            raise Refused(RETRIED[0], "another process has just created it") from error

    def tallies(
        self, tx: Any, tubes: Sequence[TubeRecord]
    ) -> dict[int, tuple[Mapping[State, int], Mapping[str, int]]]:
        """How many tasks are in each state in these tubes, and how many calls there were, by their ids."""
        found: dict[int, tuple[Mapping[State, int], Mapping[str, int]]] = {}
        for sql in {*map(self._sql_of, tubes)}:
            ids = [(tube.id,) for tube in tubes if self._sql_of(tube) is sql]
            counts, calls = tx.only_rows_each(sql.count, ids), tx.only_rows_each(sql.calls, ids)
            found |= {id: (totals(of), dict(by)) for (id,), of, by in zip(ids, counts, calls, strict=True)}
        there = {tube.id for tube in self.tubes(tx)}  # one that was just dropped has no tasks and no calls
        return {id: tally for id, tally in found.items() if id in there}

    def has_tube(self, tx: Any, tube: TubeRecord) -> bool:
        looked: Collection[int] = getattr(tx, "looked", None) or ()
        return tube.id in looked or super().has_tube(tx, tube)

    def lock_tube(self, tx: Any, tube: TubeRecord) -> None:
        """Wait for all who are writing a task, in any tube: one put or taken now would be lost with the tube.

        It waits for a moment, again and again, since whoever asks for the table after it waits, too. It
        waits longer once, for a vacuum: the server ends an autovacuum when somebody has waited that long, but
        not a user's vacuum, nor one against wraparound.
        """
        sql = self._sql_of(tube)
        until = real_monotonic() + self._busy_timeout
        tx.run(sql.mark)
        ends_after: list[Row] = []
        while True:
            left = until - real_monotonic()
            patience = min(LOCK_WAIT, left)
            if not ends_after and (ends_after := tx.rows(sql.vacuum_ends_after)):
                patience = min(ends_after[0][0] / 1000 + ENDS_WITHIN, left)
            tx.rows(sql.set_lock_timeout, milliseconds(patience))
            try:
                tx.run(sql.lock_tasks)
            except Refused as error:
                if error.code != LOCK_NOT_AVAILABLE or left <= patience:
                    raise
                tx.run(sql.back_to_mark)
                interruptible(pause, LOCK_WAIT)
            else:
                tx.run(sql.end_mark)
                tx.rows(sql.set_lock_timeout, milliseconds(self._busy_timeout))
                return

    # Sessions

    def _begin_session(self) -> None:
        """Begin a session, and add its connection, which beats from now on."""
        session = uuid.uuid4().hex

        def step(tx: Any) -> int:
            tx.run(self._sql.add_session, session, self._own_ttr_ms)
            return self._add_connection(tx, session)

        try:
            self._call_roll()
            self._connection = self.transact(step)
        except OutcomeUnknown as error:  # if the session was stored, nobody lives in it, and others end it
            raise StoreUnavailable(str(error)) from error
        self.session, self.session_ttr_ms = session, self._own_ttr_ms

    def _call_roll(self) -> None:
        """Call the roll, see ``watch``. In a step of its own: an open transaction would hold up all beats."""
        self.transact(lambda tx: tx.only_run(self._sql.call_roll))
        self._beats.absent = dict(self.read(lambda tx: tx.only_rows(self._sql.absent, BEATS)))

    def _add_connection(self, tx: Any, session: str) -> int:
        now, host = self.clock.now_ms(), socket.gethostname()
        row = (session, host, os.getpid(), now, int(self._beats.every * 1000))
        (id,) = tx.insert(self._sql.add_connection, [row])
        return int(id)

    def join(self, session: str) -> None:
        self._remove_dead()
        with self._resuming:  # else _resume could find that the old session is over, and begin a new one
            super().join(session)

    def _move_connection(self, tx: Any, session: str) -> int:
        is_known = tx.run(self._sql.move_connection, session, self._connection)  # 0: taken for dead
        return self._connection if is_known else self._add_connection(tx, session)

    def prove_life(self) -> None:
        if self._is_closed or self._is_stale or self._left:
            return
        if self._listener.is_late:  # so its work is done here, on a connection that works
            self.transact(lambda tx: tx.only_run(self._sql.beat, self._connection))
            self.waiters.wake_one_each()
        if not self.read(self._is_known):
            self._resume()

    def _resume(self) -> None:
        """Go on in a new session if this process was taken for dead: what it held is others' by now."""
        with self._resuming:
            if self._left or self._is_closed:
                return
            session = self.session
            ends = self.read(lambda tx: tx.only_rows(self._sql.session, session))
            lives = ends == [(None,)] and self.read(self._is_known)
            if not lives and session == self.session:  # else a signal handler has done it meanwhile
                self.lost_sessions.add(session)
                guarded(self._insist, self._learn_time_again)
                self._begin_session()

    def _beat(self, wire: Wire) -> None:
        """Called by the listener, on its own connection, every few seconds."""
        if self._left:
            return
        try:
            if not wire.execute(self._sql.beat.text, (self._connection,)).count:
                self._resume()
            self._see(wire.execute(self._sql.beats.text, ()).rows)
        except BaseException:  # also if the server's disk is full or it is read-only: then nobody can beat
            self._beats.forget()
            raise
        if wire.pooled:  # connections to a pooler outlive the server
            empty_temporary(wire, self._namespace)
        self._learn_time(wire)

    def _learn_time_again(self) -> None:
        """A process taken for dead may be in a virtual machine that was frozen, and its clock with it."""
        with self._pool.lent() as wire:
            self._learn_time(wire)

    def _learn_time(self, wire: Wire) -> None:
        if isinstance(self.clock, ServerClock):
            micros = "SELECT (extract(epoch from clock_timestamp()) * 1000000.0)::bigint"
            self.clock.ask(lambda: wire.execute(micros, ()).rows[0][0] / 1000)

    def _dead(self, tx: Any) -> list[tuple[int, int]]:
        """The other connections that are dead by their beats, see ``watch``, each with its last beat."""
        return [(id, beat) for id, beat in self._see(tx.only_rows(self._sql.beats)) if id != self._connection]

    def _see(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        every = {id: every_ms / 1000 for id, _, every_ms in rows}
        return self._beats.see({id: beat for id, beat, _ in rows}, every)

    def deaths_suspected(self, *, thoroughly: bool = False, allow_recent: bool = False) -> bool:
        if self._is_closed or self._is_stale:
            return False

        def look(tx: Any) -> bool:
            return bool(self._dead(tx)) or self._is_any_over(tx, thoroughly=thoroughly)

        return self._beats.suspects(lambda: self.read(look), thoroughly=thoroughly, away=StoreUnavailable)

    def ended_sessions(self, now: int, *, thoroughly: bool) -> Sequence[str]:
        self._remove_dead()
        return super().ended_sessions(now, thoroughly=thoroughly)

    def _remove_dead(self) -> None:
        """Remove dead connections.

        In a transaction of its own: one that waited with these rows locked would hold up the beats of the
        living.
        """
        if dead := self.read(self._dead):
            self.transact(lambda tx: tx.many(self._sql.remove_dead, dead))

    def _end_lonely(self, tx: Any, now: int) -> None:
        """In two steps, since a statement does not see what was committed while it was under way.

        Whoever joins a session keeps it locked until the new connection is committed. The first look skips
        such sessions and locks the others. The second sees the connection of anybody who has just joined one.
        """
        if lonely := [session for (session,) in tx.rows(self._sql.lonely)]:
            tx.run(self._sql.end_if_lonely, now, json.dumps(lonely))

    # Tidying

    def tidy(self) -> None:
        """Vacuum the tables of tasks for which that pays."""
        if self._is_closed or self._is_stale or self._left:
            return
        with suppress(Lost, Refused), self._pool.lent() as wire:  # whoever uses the next one deals with that
            self._vacuum.run(wire)

    def who_lives(self, deep: bool) -> tuple[IsAlive, Callable[[], float]]:
        """Only a deep look checks the beats: that takes time."""
        watch = Watch(self._beats, self._dead, self._connection)
        return watch.is_alive if deep else lambda tx, connection: True, watch.until

    # Life

    def _close(self) -> None:
        for end in guarded(self._shared.leave, self._beat):
            end()

    def forked(self) -> None:
        cut_off()
        super().forked()
        self._share()  # if a signal handler has forked, a call under way goes on in the child
