"""What ANALYZE has noted of our tables in a SQLite database, and that it is forgotten.

Without notes SQLite takes every table for a large one, and looks for tasks along the indexes that are made for that.
Notes of a moment when a queue was nearly empty, which stay until the next ANALYZE, make it read all tasks instead: in
every batch, and in every put into a sub-queue of a type that has priorities.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from tubes.migrations.sqlite import MADE

from .sqlite_tx import ReadTx, SqliteTx
from .statements import Statement


class Notes:
    """The statements that look for what is noted of a namespace's tables, and remove it."""

    def __init__(self, dialect: Dialect, namespace: str) -> None:
        def make(text: str) -> Statement:
            return Statement(sa.text(text), dialect)

        ours = ", ".join(f"'{namespace}_{table}'" for table in (*MADE, "version"))
        kept = ("sqlite_stat1", "sqlite_stat4")
        self._kept = make(f"SELECT name FROM sqlite_master WHERE name IN {kept}")
        self._looks = {name: make(f"SELECT 1 FROM {name} WHERE tbl IN ({ours}) LIMIT 1") for name in kept}
        self._removals = {name: make(f"DELETE FROM {name} WHERE tbl IN ({ours})") for name in kept}
        # With another schema than they know, all connections read what is left; this one is told to
        self._make_known = [
            make(f"CREATE VIEW {namespace}_notes_are_gone AS SELECT 1"),
            make(f"DROP VIEW {namespace}_notes_are_gone"),
            make("ANALYZE sqlite_schema"),
        ]

    def are_there(self, tx: ReadTx | SqliteTx) -> bool:
        """Tell whether there are any."""
        return any(tx.rows(self._looks[name]) for (name,) in tx.rows(self._kept))

    def forget(self, tx: SqliteTx) -> None:
        """Remove them; what is noted of other tables stays."""
        for (name,) in tx.rows(self._kept):
            tx.run(self._removals[name])
        for statement in self._make_known:
            tx.run(statement)


@lru_cache(maxsize=64)
def notes(dialect: Dialect, namespace: str) -> Notes:
    """All statements, built once."""
    return Notes(dialect, namespace)
