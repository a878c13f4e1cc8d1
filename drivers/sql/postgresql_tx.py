"""A transaction on PostgreSQL, as the drivers' steps see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..retries import Lost
from .lending import Lender
from .postgresql_wire import BEGIN, ENDED, FAILED_BEFORE, FAILING, Refused, Result, Wire
from .statements import Row, Statement
from .tx import SqlTx, inserted_ids

T = TypeVar("T")

COMMIT = "COMMIT"

COMMIT_UNSYNCED = f"SET LOCAL synchronous_commit = off; {COMMIT}"
"""The same without waiting for the disk."""


class PostgresTx(SqlTx):
    """A transaction on one connection; opens when it is needed."""

    __slots__ = (
        "_opening", "_unsent", "_wire", "commit_by", "is_committing", "is_halfway", "is_open", "lender", "looked",
    )  # fmt: skip

    def __init__(self, wire: Wire, opening: str = BEGIN) -> None:
        self._wire = wire
        self._opening = opening
        """The statement that begins it."""
        self._unsent = ""
        """That statement, from ``begin`` until it is sent."""
        self.commit_by = COMMIT
        self.is_open = False
        self.is_committing = False
        self.is_halfway = False
        """Whether the step under way has executed a statement."""
        self.lender: Lender | None = None
        self.looked: dict[int, int | None] | None = None
        """In a look, what ``can_take`` has found in tubes that are there: when something is next due."""

    def begin(self) -> None:
        """Make all statements from now on one transaction. Its BEGIN travels with the first."""
        if not self.is_open:
            self.is_open = True
            self._unsent = self._opening

    def open_lender(self) -> Lender:
        """Begin the transaction; return what lends its connection to users."""
        if self._unsent:
            self._with_begin(self._wire.begin)
        self.lender = self._wire.lender()
        return self.lender

    def spoil(self) -> None:
        """Make sure that this can only be rolled back."""
        with suppress(Refused, Lost):
            self._wire.simple(FAILING)

    def commit(self) -> None:
        if self._unsent:  # nothing was done in it
            return
        self._check_stands()
        self.is_committing = True
        self._wire.simple(self.commit_by)

    def may_be_done(self, lost: Lost) -> bool:
        """Whether it may have been committed: COMMIT, or a transaction of one statement, was under way."""
        return lost.was_sent and (self.is_committing or not self.is_open)

    def many(self, statement: Statement, given: Sequence[Row]) -> None:
        self.begin()
        self._pipeline(statement, given)

    def insert(self, statement: Statement, given: Sequence[Row]) -> Sequence[int]:
        """Insert rows; return their ids in the same order. NoSuchTube if the rows' tube is gone.

        A batch is one statement and, like the ``only_`` forms, a transaction by itself unless one was begun.
        """
        batch = statement.batch
        if len(given) == 1 or batch is None:
            self.begin()
            rows = [row for result in self._pipeline(statement, given) for row in result.rows]
        else:
            rows = self.only_rows(batch, *map(list, zip(*given, strict=True)))
        return inserted_ids(rows, len(given))

    def only_rows(self, statement: Statement, *given: Any) -> list[Row]:
        return self._execute(statement, given).rows

    def only_rows_each(self, statement: Statement, given: Sequence[Row]) -> list[list[Row]]:
        """The rows of a statement for each of these, in one round trip."""
        return [result.rows for result in self._pipeline(statement, given)] if given else []

    def only_run(self, statement: Statement, *given: Any) -> int:
        return self._execute(statement, given).count

    def only_insert(self, statement: Statement, given: Row) -> int:
        return inserted_ids(self._execute(statement, given).rows, 1)[0]

    def _check_stands(self) -> None:
        """Raise unless the transaction can be committed.

        COMMIT itself would silently do nothing or roll back. If it were lost, nobody would know what it did.
        """
        wire = self._wire
        if not wire.is_connected():
            raise Lost("it was ended in a transaction", was_sent=False)
        if wire.has_failed:
            raise Refused(FAILED_BEFORE, "a statement of this transaction had failed")
        if not wire.in_transaction:
            raise Refused("25P01", ENDED)

    def _execute(self, statement: Statement, given: Row) -> Result:
        return self._with_begin(self._wire.execute, statement.text, statement.bind(given))

    def _pipeline(self, statement: Statement, given: Sequence[Row]) -> list[Result]:
        return self._with_begin(self._wire.pipeline, statement.text, [statement.bind(row) for row in given])

    def _with_begin(self, execute: Callable[..., T], *args: Any) -> T:
        """Execute something. The first call sends the BEGIN along.

        If the BEGIN itself was refused, by a cancel for instance, it is sent again with the next.
        """
        if self.lender is not None:  # users may have ended the transaction
            self._check_stands()
            self._wire.check_settings()
        begin, self._unsent = self._unsent, ""
        try:
            done = execute(*args, begin=begin)
        except BaseException:
            if not (self._wire.in_transaction or self._wire.is_lost):
                self._unsent = begin
            raise
        self.is_halfway = True
        return done
