"""How calls join a transaction that is open on a SQLAlchemy connection, and learn how it ends.

SQLAlchemy's events come before what they announce: ``commit`` is sent while the database knows nothing of it
yet, and may still refuse. Only the functions of the engine's dialect are called at the very moment. So the
dialect of an engine whose connections are joined is watched: its ``do_commit`` and the like do what they did,
and then tell the units of the transaction. These are kept in the ``info`` of the database connection, which
all SQLAlchemy objects on it share.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from tubes.errors import BadOption, StoreError, StoreUnavailable, shown
from tubes.interrupts import guarded, is_raised_by_handler
from tubes.logs import Log
from tubes.store import Store, Unit

from .statements import Row, Statement
from .tx import SqlTx

KEY = "tubes"
"""The key of the units in a connection's ``info``."""

ENDING = "tubes_ending"
"""The key in its place while they are told of the end of the connection's transaction."""

OPTIONS = {"stream_results": False, "yield_per": None, "schema_translate_map": None}
"""Undoes options that the user's connection may have, and that our statements are not written for."""

log = Log("tubes.joined")

_watched: weakref.WeakSet[Dialect] = weakref.WeakSet()
_watching = threading.Lock()


def _forked() -> None:
    global _watching
    _watching = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)


class JoinedTx(SqlTx):
    """A transaction of the user's, as the drivers' steps see it. What it executes goes through SQLAlchemy."""

    def __init__(self, connection: sa.Connection) -> None:
        self.is_open = True
        self.use(connection)

    def use(self, connection: sa.Connection) -> None:
        """Execute on this from now on.

        Held weakly: a connection that nobody closed goes back to its pool when the user's last reference is gone.
        """
        self._connection = weakref.ref(connection)

    @property
    def connection(self) -> sa.Connection:
        connection = self._connection()
        if connection is None or connection.closed:
            raise BadOption("the connection of this transaction is closed", option="connection")
        return connection

    def begin(self) -> None:
        """It is open already."""

    def execute(self, text: str, given: Any = None) -> sa.CursorResult[Any]:
        return self.connection.exec_driver_sql(text, given, OPTIONS)

    def _run(self, statement: Statement, given: Row) -> sa.CursorResult[Any]:
        return self.execute(statement.text, statement.bind(given))

    def run(self, statement: Statement, *given: Any) -> int:
        return self._run(statement, given).rowcount

    def many(self, statement: Statement, given: Sequence[Row]) -> None:
        for row in given:
            self.run(statement, *row)

    def insert(self, statement: Statement, given: Sequence[Row]) -> Sequence[int]:
        return [self.only_insert(statement, row) for row in given]

    def only_rows(self, statement: Statement, *given: Any) -> list[Row]:
        return [_plain(row) for row in self._run(statement, given)]

    def only_run(self, statement: Statement, *given: Any) -> int:
        return self.run(statement, *given)


def _plain(row: Sequence[Any]) -> Row:
    """The row with bytes as bytes: psycopg2 has them as a memoryview."""
    return tuple([bytes(value) if type(value) is memoryview else value for value in row])


class Joined:
    """The units that take part in one transaction on one connection, one per queue."""

    def __init__(self, stands: Callable[[Any], bool]) -> None:
        self.units: dict[Store, Unit] = {}
        self._stands = stands
        self.is_dead = False
        """Whether the database has been seen to roll back this transaction: what is open now is another."""
        self.is_lent = False
        """Whether it is a queue's own transaction, lent to the user, who cannot end it."""
        self._savepoints: list[tuple[str, dict[Unit, int]]] = []

    def stands(self, connection: Any) -> bool:
        """Whether it can still be committed: a database may silently roll back by itself."""
        return not self.is_dead and self._stands(connection)

    def is_over(self, connection: Any) -> bool:
        """Whether releasing a savepoint committed on SQLite, since there was no transaction around it."""
        return not (self.is_dead or self._stands(connection))

    def savepoint(self, name: str) -> None:
        self._savepoints.append((name, {unit: unit.mark() for unit in self.units.values()}))

    def undo_to(self, name: str) -> None:
        marks = self.release(name)
        for unit in self.units.values():
            unit.undo_to(marks.get(unit, 0))
        self._savepoints.append((name, marks))

    def release(self, name: str) -> dict[Unit, int]:
        """Drop a savepoint and those inside it; return its marks. One that is older than all our units has none."""
        while self._savepoints:
            found, marks = self._savepoints.pop()
            if found == name:
                return marks
        return {}

    def ended(self, *, committed: bool) -> None:
        for unit in self.units.values():
            unit.tx.is_open = False
        interruption: BaseException | None = None
        for unit in self.units.values():
            try:
                unit.ended(committed=committed)
            except BaseException as error:
                if isinstance(error, Exception) and not is_raised_by_handler(error):
                    log.exception("what was committed could not be published")
                else:  # a Ctrl-C or an alarm in one queue's callback must not stop the others
                    interruption = error
        if interruption is not None:
            raise interruption


def join(
    given: Any,
    database: str,
    store: Store,
    begin: Callable[[sa.Connection], JoinedTx],
    open: Callable[[Any], Unit],
    stands: Callable[[Dialect, Any], bool],
) -> Unit:
    """Return the unit of a store in the transaction on a connection, a new one if the store has none there.

    ``begin`` checks that the store can join it; ``stands`` tells whether it can still be committed.
    """
    try:
        connection = connection_of(given)
        if connection.dialect.name != database:
            raise BadOption(
                f"a {connection.dialect.name} connection cannot be joined: this queue is on {database}",
                option="connection",
            )
        if getattr(connection.get_transaction(), "_is_prepared", False):  # the first phase of two is done
            raise BadOption(
                "this transaction is prepared: nothing more can be part of it", option="connection"
            )
        if connection.dialect.is_async and not sa.util.concurrency.in_greenlet():
            raise BadOption(
                "pass an async connection through tubes.aio, or call inside run_sync (in its greenlet)",
                option="connection",
            )
        if ENDING in connection.info:  # not over yet to SQLAlchemy, which would roll back what is done now
            raise BadOption("a callback cannot use the connection whose commit calls it", option="connection")
        joined: Joined | None = connection.info.get(KEY)
        if joined is not None and (known := joined.units.get(store)) is not None:
            if isinstance(known.tx, JoinedTx):
                known.tx.use(connection)
            return known
        if joined is not None and joined.is_lent:
            raise BadOption("this connection belongs to a unit of another queue", option="connection")
        watch(connection.dialect)
        if joined is None:  # from now on it may be lost, even while begin looks at it
            joined = connection.info[KEY] = Joined(partial(stands, connection.dialect))
        tx = begin(connection)
    except sa.exc.InvalidRequestError as error:  # a Session that has failed, for one
        raise unusable(error) from error
    unit = joined.units[store] = open(tx)
    return unit


def connection_of(given: Any) -> sa.Connection:
    """The Connection of what a user passes as ``connection=``."""
    from sqlalchemy import orm  # its import takes a seventh of connect's time: only for those who join

    registry = getattr(given, "registry", None)
    if isinstance(registry, sa.util.ScopedRegistry):  # scoped_session, async_scoped_session
        given = registry()
    for twin in ("sync_session", "sync_connection"):  # by name, since their module needs greenlet
        if hasattr(given, twin):
            given = getattr(given, twin)
            if given is None:
                raise BadOption("this AsyncConnection is not started: await it first", option="connection")
    if isinstance(given, orm.Session):
        try:
            given = given.connection()
        except sa.exc.UnboundExecutionError as error:
            raise BadOption(
                "this Session has several engines: pass session.connection(...) of one of them",
                option="connection",
            ) from error
        except sa.exc.DBAPIError as error:
            if error.statement and not error.connection_invalidated:  # that of a begin_nested, begun only now
                raise StoreError(f"this Session cannot begin its savepoint: {error.orig}") from error
            raise StoreUnavailable(f"this Session cannot connect: {error.orig}") from error
        except (sa.exc.TimeoutError, OSError) as error:  # no free connection; from asyncpg, if nobody answers
            raise StoreUnavailable(f"this Session cannot connect: {error}") from error
    if not isinstance(given, sa.Connection):
        raise BadOption(
            f"connection must be a SQLAlchemy Connection or Session, or its async twin, not {shown(given)}",
            option="connection",
        )
    # of a proxy that passes for it, such as werkzeug's, the connection itself: entering it does nothing else
    connection: sa.Connection = given.__enter__()
    if connection.closed:
        raise BadOption("this connection is closed", option="connection")
    if connection.invalidated and connection.get_transaction() is not None:
        raise StoreUnavailable("this connection was lost, and its transaction with it: roll it back")
    return connection


def driver_connection(dialect: Any, pooled: Any) -> Any:
    """The database driver's own connection, even if it is detached from its pool."""
    return dialect.get_driver_connection(pooled.dbapi_connection)


def autocommits() -> BadOption:
    """The error for a connection whose statements are committed one by one."""
    return BadOption(
        "an AUTOCOMMIT connection has no transaction to join: leave out connection=", option="connection"
    )


def read_only(what: str) -> BadOption:
    """The error for a connection that cannot write."""
    return BadOption(f"this connection is read-only: it cannot change {what}", option="connection")


def unusable(error: sa.exc.InvalidRequestError) -> BadOption:
    """Our error for what SQLAlchemy refuses to do with the user's connection in its present state."""
    return BadOption(f"this connection cannot be used: {error}", option="connection")


def watch(dialect: Dialect) -> None:
    """Have a dialect tell our units of what it has done."""
    if dialect not in _watched:
        guarded(_watch, dialect)  # a signal's handler that joins would wait for the lock


def _watch(dialect: Dialect) -> None:
    with _watching:
        if dialect not in _watched:
            watch_savepoints(dialect)
            _watch_ends(dialect)
            if not sa.event.contains(sa.Pool, "invalidate", _lost):
                sa.event.listen(sa.Pool, "invalidate", _lost)
            _watched.add(dialect)


def _lost(_connection: Any, record: Any, _error: Any) -> None:
    """Called before SQLAlchemy closes a broken or interrupted connection: no dialect ends its transaction."""
    joined: Joined | None = record.info.get(KEY)
    if joined is not None and not joined.is_lent:
        del record.info[KEY]
        _roll_back(record.driver_connection)
        joined.ended(committed=False)


def _roll_back(raw: Any) -> None:
    """Roll back on SQLite: an unread result would keep a closed connection open, and the file locked."""
    if isinstance(raw, sqlite3.Connection):
        with suppress(sqlite3.Error):
            raw.rollback()
    elif type(raw).__module__.startswith("aiosqlite"):
        rolling_back = raw.rollback()
        with suppress(Exception):
            rolling_back.send(None)  # hands it to the connection's thread, which closes it after that
        rolling_back.close()


def _watch_ends(dialect: Dialect) -> None:
    commit, roll_back = dialect.do_commit, dialect.do_rollback
    commit_twophase, roll_back_twophase = dialect.do_commit_twophase, dialect.do_rollback_twophase

    def do_commit(connection: Any) -> None:
        def commit_or_nothing() -> None:
            try:
                commit(connection)
            except Exception:  # SQLite keeps what it could not commit; SQLAlchemy assumes a rollback
                with suppress(Exception):
                    roll_back(connection)
                raise

        if KEY not in connection.info:
            return commit(connection)
        end = partial(_end, connection, commit_or_nothing, may_commit=True)
        if isinstance(connection.dbapi_connection, sqlite3.Connection):
            guarded(end)  # it cannot be broken off: a signal would get through only after it
        else:
            end()

    def do_rollback(connection: Any) -> None:
        _end(connection, partial(roll_back, connection))

    def do_commit_twophase(
        connection: sa.Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        end = partial(commit_twophase, connection, xid, is_prepared=is_prepared, recover=recover)
        _end(connection.connection, end, may_commit=True, is_prepared=is_prepared)

    def do_rollback_twophase(connection: sa.Connection, *given: Any, **named: Any) -> None:
        _end(connection.connection, partial(roll_back_twophase, connection, *given, **named))

    told = (do_commit, do_rollback, do_commit_twophase, do_rollback_twophase)
    vars(dialect).update({function.__name__: function for function in told})


def _end(
    connection: Any, end: Callable[[], None], *, may_commit: bool = False, is_prepared: bool = False
) -> None:
    """End the transaction on a database connection, and then tell the units that were part of it.

    They are taken out first: whatever comes of this, they are not part of the next transaction.
    """
    info: dict[str, Any] = connection.info
    joined: Joined | None = info.pop(KEY, None)
    if joined is None:
        return end()
    committed = False
    try:
        stands = may_commit and (is_prepared or joined.stands(connection))
        end()
        committed = stands
    finally:
        info[ENDING] = True
        try:
            guarded(partial(joined.ended, committed=committed))
        finally:
            info.pop(ENDING, None)


def watch_savepoints(dialect: Dialect) -> None:
    """Have a dialect tell our units of savepoints."""

    def told(
        does: Callable[[sa.Connection, str], None],
        tell: Callable[[Joined, str], object],
        *,
        may_commit: bool = False,
    ) -> Any:
        def do(connection: sa.Connection, name: str) -> None:
            does(connection, name)
            joined: Joined | None = connection.info.get(KEY)
            if joined is None:
                return
            tell(joined, name)
            if may_commit and joined.is_over(connection.connection):
                del connection.info[KEY]
                guarded(partial(joined.ended, committed=True))

        return do

    vars(dialect).update(
        do_savepoint=told(dialect.do_savepoint, Joined.savepoint),
        do_rollback_to_savepoint=told(dialect.do_rollback_to_savepoint, Joined.undo_to),
        do_release_savepoint=told(
            dialect.do_release_savepoint, Joined.release, may_commit=dialect.name == "sqlite"
        ),
    )
