"""Transactions over several calls: those of ``queue.transaction()``, and those that the user ends."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tubes.errors import OutcomeUnknown
from tubes.interrupts import guarded
from tubes.store import Unit

if TYPE_CHECKING:
    from tubes.queue import Queue


class Transactions:
    """Those of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._inside: list[int] = []
        """The threads that are inside a block."""

    @contextmanager
    def block(self) -> Iterator[Unit]:
        """One that is committed when the block ends, and rolled back if it raises. Then come callbacks and wake-ups."""
        self._queue.check_open()
        block = _Block(self._queue, self)
        try:
            guarded(block.enter)
            yield cast("Unit", block.unit)
            guarded(block.leave, None, None, None)
        except BaseException:
            if block.is_inside:
                guarded(block.leave, *sys.exc_info())
            raise
        self._queue.deliveries.deliver()

    def join(self, connection: Any) -> Unit:
        """The unit of the transaction that is open on a connection of the user's."""
        self._queue.check_open()
        return self._queue.store.join_transaction(connection, partial(self.new_unit, is_joined=True))

    def is_inside(self, thread: int) -> bool:
        """Whether a thread is inside a block."""
        return thread in self._inside

    def forked(self) -> None:
        """Called in a forked child: they are the parent's."""
        for unit in list(self._units):
            unit.forked()
        self._units = weakref.WeakSet()

    # Within

    def new_unit(self, tx: Any, *, is_joined: bool = False) -> Unit:
        """The form in which the user has an open transaction."""
        unit = Unit(self._queue.store, tx, self._ended, is_joined=is_joined)
        self._units.add(unit)
        return unit

    def entered(self, thread: int) -> None:
        """A thread is inside a block now."""
        self._inside.append(thread)

    def left(self, thread: int) -> None:
        """A thread is no longer inside the block."""
        self._inside.remove(thread)

    def _ended(self, unit: Unit, committed: bool) -> None:
        """The user has ended it."""
        if committed:
            _line_up(unit)
            if not self._queue.is_closed:
                guarded(_publish, unit)
            self._queue.deliveries.deliver()


class _Block:
    """A ``with`` block that is one transaction."""

    def __init__(self, queue: Queue, transactions: Transactions) -> None:
        self._transactions = transactions
        self._thread = threading.get_ident()
        self._transaction = queue.store.transaction(self._committed)
        self.unit: Unit | None = None
        self.is_inside = False

    def enter(self) -> None:
        tx = self._transaction.__enter__()
        self._transactions.entered(self._thread)
        self.is_inside = True
        self.unit = self._transactions.new_unit(tx)

    def leave(self, *error: Any) -> None:
        self.is_inside = False
        self._transactions.left(self._thread)
        if self.unit is not None:
            self.unit.end()
        try:
            self._transaction.__exit__(*error)
        except OutcomeUnknown:
            for tube, changes in () if self.unit is None else self.unit.changes():
                tube.doubt(changes)
            raise
        if self.unit is not None and error[0] is None:
            _publish(self.unit)

    def _committed(self) -> None:
        if self.unit is not None:
            _line_up(self.unit)


def _line_up(unit: Unit) -> None:
    for tube, changes in unit.changes():
        tube.line_up(changes)


def _publish(unit: Unit) -> None:
    for tube, changes in unit.changes():
        tube.publish(changes)
