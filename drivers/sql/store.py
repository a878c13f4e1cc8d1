"""What the two SQL stores have in common: the catalogue of tubes, the sessions as they are stored, and wake-ups."""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, TypeVar

from sqlalchemy.engine import Dialect
from tubes.migrations.running import schema_sql

from tubes.clock import Clock
from tubes.doctor import Check
from tubes.driver import Driver, TubeRecord, TubeType
from tubes.errors import NoSuchSession
from tubes.options import check_stored_options
from tubes.stats import Deltas
from tubes.store import Known
from tubes.waiting import Key, Lease

from ..examining import FeaturesOf, IsAlive
from ..renewal import Renewable
from .driver import SqlDriver, earliest
from .examiner import Examined, sql_checks
from .statements import Row, Statement, Statements

T = TypeVar("T")


class SqlStore(Renewable):
    """The part of ``tubes.store.Store`` that is the same on either database.

    Its looks read with ``only_rows``, so that a step that only looks opens no transaction. A step that also
    writes calls ``begin`` first, if what it reads must still hold when it writes.
    """

    dialect: ClassVar[Dialect]
    clock: Clock
    session: str
    session_ttr_ms: int
    _own_ttr_ms: int
    """The ttr of a session that begins here: a joined one has its own."""
    set_aside: set[str]
    _namespace: str
    _what: str
    """The database, as messages name it."""
    _connection: int
    """The number of this store's connection in the session, by which others know that it lives."""
    _sql: Statements
    _call_others: Callable[[Key, int], None]
    """Calls up to that many waiters for that key, in other processes."""

    def __repr__(self) -> str:
        return self._what

    @classmethod
    def migrate_sql(cls, namespace: str) -> str:
        """Return the SQL that makes the tables of a namespace, for `tubes migrate --sql`."""
        return str(schema_sql(namespace, cls.dialect.name))

    def _sql_of(self, tube: TubeRecord) -> Statements:
        """The statements for a tube's tasks."""
        return self._sql

    @abstractmethod
    def read(self, work: Callable[[Any], T]) -> T: ...

    @abstractmethod
    def transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T: ...

    def _transact_unsynced(self, work: Callable[[Any], T]) -> T:
        """Like ``transact``; but a power cut may undo it, where the store can spare the wait for the disk.

        For counts, and to end and forget sessions: what is undone of these is done again by whoever looks for
        the dead.
        """
        return self.transact(work)

    @abstractmethod
    def _end_lonely(self, tx: Any, now: int) -> None:
        """End the sessions that have no connection left."""

    def _notice_the_dead(self, tx: Any, now: int) -> None:
        """End the sessions left without a connection; SQLite's store removes dead connections first."""
        self._end_lonely(tx, now)

    # Tubes

    def realise(self, type: TubeType, tube: TubeRecord) -> Driver:
        return SqlDriver(type, tube, self._sql_of(tube))

    def tubes(self, tx: Any) -> Sequence[TubeRecord]:
        return [_record(*row) for row in tx.only_rows(self._sql.tubes)]

    def tube_named(self, tx: Any, name: str) -> TubeRecord | None:
        return next((_record(*row) for row in tx.only_rows(self._sql.tube_named, name)), None)

    def add_tube(
        self, tx: Any, name: str, type: str, options: Mapping[str, Any], temporary: bool
    ) -> TubeRecord:
        tx.run(self._sql.add_tube, name, type, json.dumps(dict(options)), temporary)
        id = tx.rows(self._sql.tube_named, name)[0][0]
        return TubeRecord(id, name, type, dict(options), temporary)

    def remove_tube(self, tx: Any, tube: TubeRecord) -> None:
        tx.run(self._sql.remove_tube, tube.id)  # waits for those who are counting calls of it
        tx.run(self._sql.remove_calls, tube.id)

    def has_tube(self, tx: Any, tube: TubeRecord) -> bool:
        return bool(tx.only_rows(self._sql.has_tube, tube.id))

    def next_dues(self, tx: Any, tubes: Sequence[TubeRecord]) -> Mapping[int, int | None]:
        """When something is next due in each of these tubes, by their ids."""
        return {id: earliest(dues) for id, *dues in self._rows_of_each(tx, tubes, lambda sql: sql.next_dues)}

    def _rows_of_each(
        self, tx: Any, tubes: Sequence[TubeRecord], look: Callable[[Statements], Statement]
    ) -> Iterator[Row]:
        """The rows of these tubes in a look into all, whose first column is the tube's id.

        It takes one statement for each table of tasks.
        """
        sql_of = {tube.id: self._sql_of(tube) for tube in tubes}
        for sql in {*sql_of.values()}:
            yield from (row for row in tx.only_rows(look(sql)) if sql_of.get(row[0]) is sql)

    def calls(self, tx: Any, tube: int) -> Mapping[str, int]:
        rows = tx.only_rows(self._sql.calls, tube)
        return {event: count for event, count in rows if isinstance(count, int)}  # SQLite stores any type

    def add_calls(self, deltas: list[Deltas]) -> None:
        if any(calls for _, calls in deltas):
            self._transact_unsynced(lambda tx: self._add_calls(tx, deltas))

    def _add_calls(self, tx: Any, deltas: list[Deltas]) -> None:
        rows = [(tube, event, count) for tube, calls in deltas for event, count in calls.items()]
        tx.many(self._sql.add_calls, sorted(rows))  # or two who count at once could wait for each other

    # Examining

    def checks(self, features: FeaturesOf, *, deep: bool) -> Iterable[Check]:
        """What ``tubes.doctor`` looks at."""
        store = Examined(self.dialect, self._namespace, features, self.tubes, self.known_sessions)
        sql, (is_alive, watch) = self.migrate_sql(self._namespace), self.who_lives(deep)
        return sql_checks(store, self.read, deep=deep, sql=sql, is_alive=is_alive, watch=watch)

    @abstractmethod
    def who_lives(self, deep: bool) -> tuple[IsAlive, Callable[[], float]]:
        """Tell whether a connection's process lives; and the instant when that is known of all."""

    # Sessions

    def set_session_ttr(self, ttr_ms: int) -> None:
        def stored(_: int) -> None:
            self.session_ttr_ms = self._own_ttr_ms = ttr_ms

        self.transact(lambda tx: int(tx.run(self._sql.set_session, ttr_ms, self.session)), stored)

    def join(self, session: str) -> None:
        def step(tx: Any) -> tuple[int, int]:
            if session == self.session:
                return self._connection, self.session_ttr_ms
            tx.begin()
            now = self.clock.now_ms()  # its grace may have ended while others had the file locked
            self._notice_the_dead(tx, now)
            # On a server, this locks it before anybody can find it without a connection
            revived = tx.rows(self._sql.revive_session, session, now)
            if not revived:
                raise NoSuchSession(uuid.UUID(session))
            connection = self._move_connection(tx, session)
            self._end_lonely(tx, now)
            return connection, int(revived[0][0])

        def joined(found: tuple[int, int]) -> None:  # before anybody else's step can run
            self.session, (self._connection, self.session_ttr_ms) = session, found

        self.transact(step, joined)

    def _move_connection(self, tx: Any, session: str) -> int:
        """Make this store's connection part of a session; return its number."""
        tx.run(self._sql.move_connection, session, self._connection)
        return self._connection

    def ended_sessions(self, now: int, *, thoroughly: bool) -> Sequence[str]:
        def step(tx: Any) -> list[str]:
            tx.begin()
            self._notice_the_dead(tx, now)
            ended = [session for (session,) in tx.rows(self._sql.ended, now)]
            return [*ended, *self._orphans(tx)] if thoroughly else ended

        return self._transact_unsynced(step)

    def holders(self, tx: Any, tubes: Sequence[TubeRecord]) -> Mapping[int, set[str]]:
        """The sessions that hold tasks, by the tubes' ids."""
        holders: dict[int, set[str]] = {tube.id: set() for tube in tubes}
        for id, owner in self._rows_of_each(tx, tubes, lambda sql: sql.holders):
            if owner is not None:
                holders[id].add(owner)
        return holders

    def _orphans(self, tx: Any) -> list[str]:
        """Unknown sessions that hold tasks: a process took these after it was taken for dead."""
        held = set[str]().union(*self.holders(tx, self.tubes(tx)).values()) - self.set_aside
        known = tx.only_rows(self._sql.sessions) if held else ()  # read last: one may just have begun
        return [*held.difference(session for session, _ in known)]

    def _is_any_over(self, tx: Any, *, thoroughly: bool) -> bool:
        """Whether a session is over, or on a server has no connection, but for those set aside.

        ``thoroughly``: or whether an unknown one holds tasks.
        """
        over = tx.only_rows(self._sql.over, self.clock.now_ms())
        is_over = any(session not in self.set_aside for (session,) in over)
        return is_over or (thoroughly and bool(self._orphans(tx)))

    def _is_known(self, tx: Any) -> bool:
        """Whether nobody has taken this connection for dead."""
        return bool(tx.only_rows(self._sql.has_connection, self._connection))

    def forget_sessions(self, sessions: Sequence[str]) -> None:
        rows = [(session,) for session in sessions]
        self._transact_unsynced(lambda tx: tx.many(self._sql.remove_session, rows))

    def known_sessions(self, tx: Any) -> Mapping[str, Known]:
        connections: dict[str, list[int]] = {}
        for id, session in tx.only_rows(self._sql.connections):
            connections.setdefault(session, []).append(id)
        return {id: (ends, connections.get(id, ())) for id, ends in tx.only_rows(self._sql.sessions)}

    def over_at(self, tx: Any, session: str) -> float:
        for (ends,) in tx.only_rows(self._sql.session, session):
            return inf if ends is None else float(ends)
        return 0

    def _leave(self) -> None:
        def step(tx: Any) -> None:
            tx.begin()
            tx.run(self._sql.remove_connection, self._connection)
            self._end_lonely(tx, self.clock.now_ms())

        self._transact_unsynced(step)

    # Waking

    def call(self, key: Key, count: int, leases: Iterable[Lease] = ()) -> None:
        if self.waiters.line:
            count -= self.waiters.call(key, count, leases)
        if count > 0:
            self._call_others(key, count)

    def call_instead(self, key: Key, count: int) -> None:
        self.call(key, count)


@lru_cache(maxsize=10_000)  # a process that sweeps reads all entries every second
def _record(id: int, name: Any, type: Any, options: Any, temporary: object) -> TubeRecord:
    """A row of the catalogue. If SQLite has something other than text in it, that is shown as it is."""
    if not (isinstance(name, str) and isinstance(type, str)):
        return TubeRecord(id, str(name), str(type), {}, bool(temporary), "its name or its type is not text")
    try:
        return TubeRecord(id, name, type, check_stored_options(json.loads(options)), bool(temporary))
    except (TypeError, ValueError, RecursionError) as error:
        return TubeRecord(id, name, type, {}, bool(temporary), str(error))
