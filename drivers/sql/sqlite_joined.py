"""Joining the user's own transaction on a queue's SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

import sqlalchemy as sa

from tubes.errors import BadOption, StoreError, TubeError

from .joined import KEY, Joined, JoinedTx, autocommits, driver_connection, read_only, unusable
from .sqlite_errors import ENDED, base_code, translated
from .sqlite_shared import SharedFile
from .sqlite_tx import in_savepoint
from .statements import Row, Statement

T = TypeVar("T")


class SqliteJoinedTx(JoinedTx):
    """It holds the file's write lock, or gets it with its first write.

    A step that reads before it writes gets the lock first: in a transaction that has only read, SQLite does
    not wait for it, but fails the write at once.
    """

    def __init__(self, connection: sa.Connection, namespace: str, *, is_locked: bool) -> None:
        super().__init__(connection)
        self._lock = f'UPDATE "{namespace}_tube" SET id = id WHERE 0'
        self._is_locked = is_locked

    def use(self, connection: sa.Connection) -> None:
        super().use(connection)
        self.thread = get_ident()
        """The thread whose call outside this transaction would wait for itself."""
        if not sa.event.contains(connection, "before_cursor_execute", _notice_its_end):
            sa.event.listen(connection, "before_cursor_execute", _notice_its_end)

    def begin(self) -> None:
        """Get the lock, unless it is held already."""
        if not self._is_locked:
            self.execute(self._lock)
            self._is_locked = True

    def only_insert(self, statement: Statement, given: Row) -> int:
        result = self._run(statement, given)
        return result.lastrowid if result.rowcount else 0


def begin(
    connection: sa.Connection, path: str, namespace: str, what: str, begin_on: Callable[[Any], None]
) -> SqliteJoinedTx:
    """Open a writing transaction on a connection, unless one is open; BadOption if that cannot be.

    The connection is examined with PRAGMAs alone: in an open transaction, a SELECT would take the snapshot,
    and its first write would then fail if anybody has written since; a write that comes first waits.
    """
    dbapi: Any = connection.dialect.loaded_dbapi
    if dbapi.Error is not sqlite3.Error:  # POSIX locks keep out other processes only
        raise BadOption(
            "this connection's driver has a SQLite of its own, which does not heed the locks that Python's sqlite3 "
            "has in this process: both would write at once, and damage the file",
            option="connection",
        )
    try:
        file = _main_file(connection)
        is_query_only = connection.exec_driver_sql("PRAGMA query_only").scalar_one()
        has_recursion = connection.exec_driver_sql("PRAGMA recursive_triggers").scalar_one()
        if isinstance(file, bytes):
            raise BadOption("tubes needs a connection whose text_factory makes str", option="connection")
        if not file or os.path.realpath(file) != path:
            raise BadOption(
                f"this connection is to {file or 'a database in memory'}, but the queue is on {what}",
                option="connection",
            )
        if is_query_only:
            raise read_only(what)
        if has_recursion:
            raise BadOption("tubes works only with PRAGMA recursive_triggers=OFF", option="connection")
        raw = _raw(connection)
        was_open = raw.in_transaction
        if not was_open:
            if _is_autocommit(raw):
                raise autocommits()
            if connection.dialect.is_async:  # another thread waits, and this one runs other tasks
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # pysqlite would put it off until an INSERT
            else:
                begin_on(raw)
    except (sqlite3.Error, sa.exc.DBAPIError) as error:
        raise user_error(error, what) from error
    return SqliteJoinedTx(connection, namespace, is_locked=not was_open)


def stands(dialect: Any, connection: Any) -> bool:
    """Whether the transaction is still open: SQLite rolls it back when the disk is full, for example."""
    return bool(driver_connection(dialect, connection).in_transaction)


def _notice_its_end(connection: sa.Connection, *_: Any) -> None:
    """Called before each statement: if SQLite has ended the transaction, pysqlite silently begins another."""
    joined: Joined | None = connection.info.get(KEY)
    if joined is not None and joined.units and not joined.stands(connection.connection):
        joined.is_dead = True


def within(tx: SqliteJoinedTx, work: Callable[[Any], T], what: str) -> T:
    """Run ``work`` in the user's transaction; an error undoes what it did, and nothing else."""
    connection = tx.connection
    joined: Joined = connection.info[KEY]
    if not joined.stands(connection.connection):
        raise StoreError(f"{what}: {ENDED}; roll it back, too")
    try:
        return in_savepoint(_raw(connection), tx.execute, work, tx)
    except sa.exc.DBAPIError as error:
        raise user_error(error, what) from error
    except sa.exc.InvalidRequestError as error:
        raise unusable(error) from error


def user_error(error: sqlite3.Error | sa.exc.DBAPIError, what: str) -> TubeError:
    """Our error for one on the user's connection."""
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if not isinstance(original, sqlite3.Error):
        return StoreError(f"{what}: {error}")
    if base_code(original) == sqlite3.SQLITE_READONLY:
        return read_only(what)
    return translated(original, what)


def _raw(connection: sa.Connection) -> Any:
    return driver_connection(connection.dialect, connection.connection)


def _main_file(connection: sa.Connection) -> str | bytes | None:
    """The file of its database; bytes, if that is what its text_factory makes."""
    found = connection.exec_driver_sql("PRAGMA database_list").all()
    return next((file for _number, name, file in found if name in ("main", b"main")), None)


def _is_autocommit(raw: Any) -> bool:
    """Whether the commit of a connection does nothing; since Python 3.12 there are two ways to say so."""
    return raw.isolation_level is None or getattr(raw, "autocommit", False) is True


def _begin_before_savepoint(connection: sa.Connection, _: str | None) -> None:
    """Open a transaction before a first savepoint, on the files of queues.

    pysqlite does not, and then SQLite takes the savepoint for the transaction: releasing it commits, and no
    later rollback undoes that.
    """
    if connection.dialect.name != "sqlite" or not SharedFile.is_any_open():
        return
    raw = _raw(connection)
    if raw.in_transaction or _is_autocommit(raw):
        return
    file = _main_file(connection)
    if file and SharedFile.is_open(os.fsdecode(file)):
        connection.exec_driver_sql("BEGIN")


def watch_first_savepoints() -> None:
    """Do that from now on, in the whole process."""
    if not sa.event.contains(sa.Engine, "savepoint", _begin_before_savepoint):
        sa.event.listen(sa.Engine, "savepoint", _begin_before_savepoint)
