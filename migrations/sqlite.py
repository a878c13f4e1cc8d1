"""Brings a SQLite database to the schema that this version knows."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from . import TABLES, running, version_table

if TYPE_CHECKING:
    from tubes.drivers.sql.sqlite_tx import SqliteTx
    from tubes.drivers.sql.sqlite_writer import SqliteWriter


def is_behind(db: sqlite3.Connection, namespace: str, what: str, command: str, *, migrate: bool) -> bool:
    """Whether the schema must be brought up; SchemaMismatch if it cannot be, see ``running.must_upgrade``.

    Nor can it be if others have tables of these names, or of names that SQLite does not tell from these: a
    namespace that differs in case alone has a lock file of its own. That is checked before the journal mode
    is changed.
    """
    version = schema_version(db, namespace)
    behind = running.must_upgrade(version, what, command, migrate=migrate)
    if version is None:  # in one query, since another process may be making them
        names = [f"{namespace}_{table}" for table in TABLES]
        query = f"""SELECT type || ' ' || name || ' already exists' FROM sqlite_master
            WHERE type IN ('table', 'view') AND name COLLATE NOCASE IN ({", ".join("?" * len(names))})
            AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = ?)"""
        if found := db.execute(query, (*names, version_table(namespace))).fetchone():
            raise running.in_the_way(found[0], namespace, what)
    if behind:  # this is kept: it loads Alembic, and nobody waits for that here
        running.schema_sql(namespace, "sqlite", version)
    return behind


def bring_up(writer: SqliteWriter, namespace: str, what: str) -> None:
    """Upgrade an empty or older database in one transaction; SchemaMismatch for a newer one."""

    def step(tx: SqliteTx) -> None:
        tx.begin()
        version = schema_version(writer.db, namespace)
        if not running.must_upgrade(version, what, "", migrate=True):  # another process was faster
            return
        if version is None:  # Alembic leaves it, empty, when it takes the schema down
            writer.db.execute(f'DROP TABLE IF EXISTS "{version_table(namespace)}"')
        try:
            # One by one, since executescript would end the transaction. Only between them is a line empty
            for statement in running.schema_sql(namespace, "sqlite", version).split("\n\n"):
                writer.db.execute(statement)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
                raise
            raise running.in_the_way(error, namespace, what) from error

    writer.transact(step)


def schema_version(db: sqlite3.Connection, namespace: str) -> str | None:
    """Return the revision of a namespace's tables, ``None`` when there are none."""
    table = version_table(namespace)
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if db.execute(query, (table,)).fetchone() is None:
        return None
    row = db.execute(f'SELECT version_num FROM "{table}"').fetchone()
    return None if row is None else str(row[0])
