"""A transaction as steps see it: ``sqlite_tx``, ``postgresql_tx`` and ``joined`` have one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tubes.errors import NoSuchTube

from .statements import Row, Statement


class SqlTx(Protocol):
    """An open transaction on a SQL database.

    It opens at the first ``rows``, ``run``, ``many`` or ``insert`` of a writing step. The ``only_`` forms are
    for a step's only writing statement: if the transaction is not open yet, the statement is a transaction by
    itself, which saves the round trips of BEGIN and COMMIT.
    """

    __slots__ = ()

    def begin(self) -> None: ...

    def rows(self, statement: Statement, *given: Any) -> list[Row]:
        self.begin()
        return self.only_rows(statement, *given)

    def run(self, statement: Statement, *given: Any) -> int:
        self.begin()
        return self.only_run(statement, *given)

    def many(self, statement: Statement, given: Sequence[Row]) -> None: ...
    def insert(self, statement: Statement, given: Sequence[Row]) -> Sequence[int]: ...
    def only_rows(self, statement: Statement, *given: Any) -> list[Row]: ...
    def only_run(self, statement: Statement, *given: Any) -> int: ...
    def only_insert(self, statement: Statement, given: Row) -> int: ...  # the id; 0: nothing was inserted


def inserted_ids(rows: Sequence[Row], wanted: int) -> list[int]:
    """The ids that an INSERT … RETURNING answered. NoSuchTube if it inserted fewer rows: their tube is gone."""
    if len(rows) < wanted:
        raise NoSuchTube("(dropped)")
    return [row[0] for row in rows]
