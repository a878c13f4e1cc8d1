"""Lends the database connection of a store's own transactions to users, as a SQLAlchemy Connection."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import sqlalchemy as sa

from tubes.errors import BadOption
from tubes.store import Store, Unit

from .joined import KEY, Joined, watch_savepoints

ENDS = ("commit", "rollback", "close")
"""What a user may not do with a lent connection."""


class Lender:
    """Lends one database connection. ``notice`` is called with each statement of a user, and may refuse it.

    ``closes_results``: whether to close the user's results at the end, since an unread one would block later
    writes. ``stand_in``: makes the connection that SQLAlchemy gets instead until its transaction has begun.
    """

    def __init__(
        self,
        url: str,
        raw: Any,
        notice: Callable[[str], None],
        *,
        closes_results: bool = False,
        stand_in: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._raw = self._used = raw
        self._stand_in = stand_in
        self._engine = sa.create_engine(url, pool=sa.StaticPool(lambda: self._used, reset_on_return=None))
        self._lent: sa.Connection | None = None
        self._notice = notice
        self._closes_results = closes_results
        self._unit: Unit | None = None
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()
        dialect = self._engine.dialect
        watch_savepoints(dialect)
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            vars(dialect)[name] = self._in_turn(getattr(dialect, name))
        vars(dialect).update(
            do_commit=self._refuse, do_rollback=self._refuse, do_close=_keep, do_terminate=_keep
        )

    def lend(self, store: Store, unit: Unit) -> sa.Connection:
        """Return the connection of a unit's transaction, always the same; it is the unit's until ``take_back``."""
        if self._lent is None:
            try:
                connection = self._begun(store, unit)
            except BaseException:  # of an application's listener
                self._engine.dispose()  # its pool may have the stand-in, which is closed
                raise
            for end in ENDS:  # before SQLAlchemy takes its transaction as ended
                vars(connection)[end] = self._refuse
            self._lent = connection
        return self._lent

    def _begun(self, store: Store, unit: Unit) -> sa.Connection:
        """Make the connection to lend, with a transaction of SQLAlchemy's begun on it."""
        with self._stand_in(self._raw) as self._used:
            connection = self._engine.connect()
            self._use(connection, self._used)
            joined = Joined(lambda _: True)  # its unit's transaction checks that
            joined.is_lent = True
            joined.units[store] = self._unit = unit
            connection.info[KEY] = joined
            if not connection.in_transaction():  # a listener may have executed something
                connection.begin()  # so that a Session on it leaves the commit to others
            self._use(connection, self._raw)
        return connection

    def _use(self, connection: sa.Connection, raw: Any) -> None:
        """Put a database connection under SQLAlchemy's, now and for when it is lent again."""
        pooled: Any = connection.connection
        pooled.dbapi_connection = pooled._connection_record.dbapi_connection = raw

    def take_back(self) -> None:
        """End the loan: the unit is over."""
        connection, self._lent, self._unit = self._lent, None, None
        if connection is not None and not connection.closed:
            for end in ENDS:
                del vars(connection)[end]
            if not connection.invalidated:  # else it was lost, and nobody uses it again
                connection.info.pop(KEY, None)
            connection.close()
        for cursor in [*self._cursors]:
            with suppress(Exception):  # the queue was closed meanwhile
                cursor.close()
        self._cursors.clear()

    def _in_turn(self, execute: Callable[..., None]) -> Callable[..., None]:
        """Execute between the calls of other threads that share the unit, never in the middle of one."""

        def execute_in_turn(cursor: Any, text: str, *given: Any) -> None:
            self._notice(text)
            if self._closes_results:
                self._cursors.add(cursor)
            unit = self._unit
            with unit.turn() if unit is not None else nullcontext():
                execute(cursor, text, *given)

        return execute_in_turn

    def _refuse(self, *_: Any) -> None:
        if self._lent is not None:
            raise BadOption(
                "this transaction belongs to the unit: the end of its block commits it, "
                "an exception rolls it back",
                option="connection",
            )


def _keep(_: Any) -> None:
    """Do nothing: the database connection is the store's."""
