"""Transactions on SQLite, as the drivers' steps see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .sqlite_errors import is_busy
from .statements import Row, Statement

if TYPE_CHECKING:
    from .sqlite_writer import SqliteWriter

T = TypeVar("T")


class LockedLate(Exception):
    """A step has got the file's write lock, but waited so long for it that it must run again: time has passed."""


class ReadTx:
    """Reads what is committed: ``rows`` from one snapshot, each ``only_rows`` before them from its own."""

    __slots__ = ("_db", "is_open")

    def __init__(self, db: sqlite3.Connection, *, is_open: bool = False) -> None:
        self._db = db
        self.is_open = is_open

    def begin(self) -> None:
        if not self.is_open:
            self._db.execute("BEGIN")
            self.is_open = True

    def rows(self, statement: Statement, *given: Any) -> list[Row]:
        self.begin()
        return self.only_rows(statement, *given)

    def only_rows(self, statement: Statement, *given: Any) -> list[Row]:
        return self._db.execute(statement.text, statement.bind(given)).fetchall()


class SqliteTx:
    """A transaction of the writer, opened when it is first needed."""

    __slots__ = ("_db", "_writer", "is_open")

    def __init__(self, writer: SqliteWriter, *, is_open: bool = False) -> None:
        self._writer = writer
        self._db = writer.db
        self.is_open = is_open

    def begin(self) -> None:
        if not self.is_open:
            self._writer.begin(is_step=True)
            self.is_open = True

    def rows(self, statement: Statement, *given: Any) -> list[Row]:
        self.begin()
        return self._db.execute(statement.text, statement.bind(given)).fetchall()

    def run(self, statement: Statement, *given: Any) -> int:
        self.begin()
        return self._db.execute(statement.text, statement.bind(given)).rowcount

    def many(self, statement: Statement, given: Sequence[Row]) -> None:
        self.begin()
        self._db.executemany(statement.text, [statement.bind(row) for row in given])

    def insert(self, statement: Statement, given: Sequence[Row]) -> Sequence[int]:
        """Insert rows; their ids are consecutive, since nobody else writes meanwhile."""
        self.many(statement, given)
        last: int = self._db.execute("SELECT last_insert_rowid()").fetchone()[0]
        return range(last - len(given) + 1, last + 1)

    # Each of these is most of what a step does, so they call nothing of ours unless they must

    def only_rows(self, statement: Statement, *given: Any) -> list[Row]:
        given = statement.bind(given)
        try:
            return self._db.execute(statement.text, given).fetchall()
        except sqlite3.OperationalError as error:
            return self._only_later(error, statement.text, given).fetchall()

    def only_run(self, statement: Statement, *given: Any) -> int:
        given = statement.bind(given)
        try:
            return self._db.execute(statement.text, given).rowcount
        except sqlite3.OperationalError as error:
            return self._only_later(error, statement.text, given).rowcount

    def only_insert(self, statement: Statement, given: Row) -> int:
        given = statement.bind(given)
        try:
            cursor = self._db.execute(statement.text, given)
        except sqlite3.OperationalError as error:
            cursor = self._only_later(error, statement.text, given)
        return cursor.lastrowid if cursor.rowcount else 0  # type: ignore[return-value]

    def _only_later(self, error: sqlite3.OperationalError, text: str, given: Row) -> sqlite3.Cursor:
        """Retry if others hold the file's write lock; raise any other error again."""
        if self.is_open or not is_busy(error):
            raise error
        return self._writer.insist(text, given, is_step=True)


class SharedTx(SqliteTx):
    """One member's part in a shared commit: a savepoint, if one statement is not enough."""

    __slots__ = ()

    def begin(self) -> None:
        if not self.is_open:
            self._db.execute("SAVEPOINT member")
            self.is_open = True

    def release(self) -> None:
        if self.is_open:
            self._db.execute("RELEASE member")

    def undo(self) -> None:
        """Undo what this member did, unless it was a single statement: that stands, as it would alone."""
        if self.is_open:
            self._db.execute("ROLLBACK TO member")
            self._db.execute("RELEASE member")


def in_savepoint(db: Any, execute: Callable[[str], object], work: Callable[[Any], T], tx: Any) -> T:
    """Run ``work`` in the transaction that is open on a connection; an error undoes what it did.

    Nothing is left to undo if SQLite has rolled back all of it, as it does when the disk is full, or if an
    interrupt has closed the connection.
    """
    execute("SAVEPOINT tubes_step")
    try:
        return work(tx)
    except BaseException:
        if _is_in_transaction(db):
            execute("ROLLBACK TO tubes_step")
        raise
    finally:
        if _is_in_transaction(db):
            execute("RELEASE tubes_step")


def _is_in_transaction(db: Any) -> bool:
    try:
        return bool(db.in_transaction)
    except (sqlite3.ProgrammingError, ValueError):  # it is closed; aiosqlite raises the latter
        return False
