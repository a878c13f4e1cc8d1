"""Removes the statistics that ANALYZE has noted of our tables in a SQLite database.

Without these notes SQLite takes every table for a large one, and looks for tasks by the indexes made for
that. Notes from a moment when a queue was nearly empty stay until the next ANALYZE, and make it read all
tasks instead: in every batch, and in every put into a sub-queue of a type that has priorities.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy.engine import Dialect
from tubes.migrations import TABLES

from .sqlite_tx import ReadTx, SqliteTx
from .statements import Texts


class Notes(Texts):
    """The statements that look for the notes on a namespace's tables, and remove them."""

    def __init__(self, dialect: Dialect, namespace: str) -> None:
        super().__init__(dialect, namespace)
        ours = ", ".join(f"'{namespace}_{table}'" for table in TABLES)
        kept = ("sqlite_stat1", "sqlite_stat4")
        self._kept = self._make(f"SELECT name FROM sqlite_master WHERE name IN {kept}")
        self._looks = {
            name: self._make(f"SELECT 1 FROM {name} WHERE tbl IN ({ours}) LIMIT 1") for name in kept
        }
        self._removals = {name: self._make(f"DELETE FROM {name} WHERE tbl IN ({ours})") for name in kept}
        # When the schema changes, all other connections read again what is left; this one must be told to
        self._make_known = [
            self._make(f"CREATE VIEW {namespace}_notes_are_gone AS SELECT 1"),
            self._make(f"DROP VIEW {namespace}_notes_are_gone"),
            self._make("ANALYZE sqlite_schema"),
        ]

    def are_there(self, tx: ReadTx | SqliteTx) -> bool:
        """Tell whether there are any."""
        return any(tx.rows(self._looks[name]) for (name,) in tx.rows(self._kept))

    def forget(self, tx: SqliteTx) -> None:
        """Remove them; the notes on other tables stay."""
        for (name,) in tx.rows(self._kept):
            tx.run(self._removals[name])
        for statement in self._make_known:
            tx.run(statement)


notes = lru_cache(maxsize=64)(Notes)
"""All of these for a dialect and a namespace, made once."""
