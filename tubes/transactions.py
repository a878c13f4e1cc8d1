"""Transactions over several calls: those of ``queue.transaction()``, and those that the user commits."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tubes.errors import OutcomeUnknown
from tubes.interrupts import guarded
from tubes.store import Unit

if TYPE_CHECKING:
    from tubes.queue import Queue


class Transactions:
    """The transactions that are open on one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._inside: list[int] = []
        """The threads that are inside a block."""

    @contextmanager
    def block(self) -> Iterator[Unit]:
        """Open one. At the block's end commit it, then wake and call back; if it raises, roll back."""
        self._queue.check_open()
        unit, thread = self._new_unit(None), threading.get_ident()
        transaction = self._queue.store.transaction(partial(_line_up, unit))
        is_inside = False

        def enter() -> None:
            nonlocal is_inside
            unit.tx = transaction.__enter__()
            self._inside.append(thread)
            is_inside = True

        def leave(*error: Any) -> None:
            nonlocal is_inside
            is_inside = False
            self._inside.remove(thread)
            unit.end()
            try:
                transaction.__exit__(*error)
            except OutcomeUnknown:
                for tube, changes in unit.changes():
                    tube.doubt(changes)
                raise
            if error[0] is None:
                _publish(unit)

        try:
            guarded(enter)
            yield unit
            guarded(leave, None, None, None)
        except BaseException:
            if is_inside:
                guarded(leave, *sys.exc_info())
            raise
        self._queue.deliveries.deliver()

    def join(self, connection: Any) -> Unit:
        """The unit of the transaction that is open on the user's connection."""
        self._queue.check_open()
        return self._queue.store.join_transaction(connection, partial(self._new_unit, is_joined=True))

    def is_inside(self) -> bool:
        """Whether this thread is inside a block."""
        return threading.get_ident() in self._inside

    def forked(self) -> None:
        """Called in a forked child: the open transactions are the parent's."""
        for unit in list(self._units):
            unit.forked()
        self._units = weakref.WeakSet()

    # Within

    def _new_unit(self, tx: Any, *, is_joined: bool = False) -> Unit:
        unit = Unit(self._queue.store, tx, self._ended, is_joined=is_joined)
        self._units.add(unit)
        return unit

    def _ended(self, unit: Unit, committed: bool) -> None:
        """The user has committed it or rolled it back."""
        if committed:
            _line_up(unit)
            if not self._queue.is_closed:
                guarded(_publish, unit)
            self._queue.deliveries.deliver()


def _line_up(unit: Unit) -> None:
    for tube, changes in unit.changes():
        tube.line_up(changes)


def _publish(unit: Unit) -> None:
    for tube, changes in unit.changes():
        tube.publish(changes)
