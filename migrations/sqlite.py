"""Brings a SQLite database to the schema that this version knows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tubes.errors import SchemaMismatch

from . import HEAD, running, version_table

if TYPE_CHECKING:
    import sqlalchemy as sa
    from tubes.drivers.sql.sqlite_tx import SqliteTx
    from tubes.drivers.sql.sqlite_writer import SqliteWriter


MADE = ("tube", "task", "session", "connection", "calls")
"""The names of the tables behind the prefix, without the version's."""


def is_behind(db: sqlite3.Connection, namespace: str, what: str, command: str, *, migrate: bool) -> bool:
    """Whether the schema must be brought up; SchemaMismatch if it cannot be, see ``running.must_upgrade``.

    Nor can it be if others have tables of these names. That is checked before the journal mode is changed.
    """
    version = schema_version(db, namespace, what)
    behind = running.must_upgrade(version, what, command, migrate=migrate)
    if version is None:  # in one query, since another process may be making them
        names = [f"{namespace}_{table}" for table in MADE]
        query = f"""SELECT type || ' ' || name || ' already exists' FROM sqlite_master
            WHERE type IN ('table', 'view') AND name COLLATE NOCASE IN ({", ".join("?" * len(names))})
            AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE)"""
        if found := db.execute(query, (*names, version_table(namespace))).fetchone():
            raise _in_the_way(found[0], namespace, what)
    return behind


_made: tuple[str, list[str]] = ("", [])
"""A namespace, and the statements by which Alembic last made its tables in an empty database."""


def bring_up(writer: SqliteWriter, namespace: str, what: str) -> None:
    """Upgrade an empty or older database in one transaction; SchemaMismatch for a newer one.

    An empty one gets the statements that made an earlier one in this process: far faster than Alembic.
    """

    def step(tx: SqliteTx) -> None:
        global _made
        tx.begin()
        version = schema_version(writer.db, namespace, what)  # another process may have been faster
        if version == HEAD:
            return
        is_new = writer.db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        known, statements = _made
        if is_new and known == namespace:
            for statement in statements:
                writer.db.execute(statement)
            return
        _upgrade(writer, namespace, version, what)
        if is_new:
            _made = namespace, [*writer.db.iterdump()][1:-1]  # without BEGIN and COMMIT

    writer.transact(step)


def _upgrade(writer: SqliteWriter, namespace: str, version: str | None, what: str) -> None:
    import sqlalchemy as sa

    # What an application does to each SQLAlchemy connection, such as PRAGMA and BEGIN, it does to another one
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
        lent = _Lent(other)
        engine = sa.create_engine("sqlite://", creator=lambda: lent, poolclass=sa.StaticPool)
        try:
            with engine.connect() as connection, connection.begin():
                lent.db = writer.db
                running.upgrade(connection, namespace, version, what)
        except sa.exc.DBAPIError as error:
            raise _without_sqlalchemy(error, namespace, what) from error


def _without_sqlalchemy(error: sa.exc.DBAPIError, namespace: str, what: str) -> BaseException:
    original = error.orig
    if getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return _in_the_way(original, namespace, what)
    return original or error


def _in_the_way(which: object, namespace: str, what: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{what} has tables that are in the way ({which}): give the queue a namespace other "
        f"than {namespace!r}"
    )


class _Lent:
    """The writer's connection, lent to SQLAlchemy: the transaction on it stays the writer's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    def commit(self) -> None:
        """Not SQLAlchemy's to do."""

    rollback = close = commit


def schema_version(db: sqlite3.Connection, namespace: str, what: str) -> str | None:
    """Return the revision of a namespace's tables, ``None`` when there are none.

    SchemaMismatch if they belong to a namespace that differs in case: SQLite takes it for the same, but its
    lock file is another.
    """
    table = version_table(namespace)
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
    known = db.execute(query, (table,)).fetchone()
    if known is None:
        return None
    if known[0] != table:
        raise SchemaMismatch(
            f"{what} has tables of the namespace {known[0].removesuffix('_version')!r}, which SQLite cannot "
            f"tell from {namespace!r}: give the queue that one or a different one"
        )
    row = db.execute(f'SELECT version_num FROM "{table}"').fetchone()
    return None if row is None else str(row[0])
