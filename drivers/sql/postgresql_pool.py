"""The pool of connections that queues on PostgreSQL work with: a few, which their threads use in turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tubes.clock import real_monotonic
from tubes.errors import StoreBusy, StoreUnavailable
from tubes.interrupts import interruptible, is_interrupted

from ..retries import Lost
from .postgresql_wire import Refused, Wire

MOST_CONNECTIONS = 16
"""Connections at work at the same time, besides the one that listens; more threads take turns."""

LONGEST_WAIT = 0.1
"""Seconds after which a thread in line looks by itself, in case a signal came just before it slept."""


class Pool:
    """Lends connections. ``open`` opens one more; ``patience``: seconds to wait for one of those in use."""

    def __init__(self, open: Callable[[], Wire], patience: float, what: str) -> None:
        self._open = open
        self._patience = patience
        self._what = what
        self._idle: list[Wire] = []
        self._line: deque[threading.Lock] = deque()
        """The calls that wait for a connection."""
        self._places: list[None] = []
        """One for each that is open or being opened. A counter that threads change at once loses changes."""
        self._is_over = False
        """Whether what is given back is closed."""

    @contextmanager
    def lent(self) -> Iterator[Wire]:
        """Lend a connection for a while."""
        wire = self.borrow()
        try:
            yield wire
        finally:
            self.give_back(wire)

    def borrow(self) -> Wire:
        """Get an idle connection, or one more; stand in line if there are as many as there may be.

        If the server refuses one more, that is no error while this process has some: its threads take turns
        with those, whatever the server says, and in whatever language.
        """
        wire = self._idle_wire() if not self._line else None
        most, refusal = MOST_CONNECTIONS, None
        while wire is None:
            wire = self._stand_in_line(most, refusal)
            if wire is None:
                try:
                    wire = self._one_more()
                except StoreUnavailable as error:
                    most, refusal = len(self._places), error
                    if not most:
                        raise
        return wire

    def _one_more(self) -> Wire:
        """Open one, in the place that is kept for it."""
        try:
            return self._open()
        except BaseException:
            self._places.pop()
            self._stir_first()
            raise

    def give_back(self, wire: Wire) -> None:
        if wire.is_inherited:  # it belongs to no pool of this process
            return
        try:
            if not wire.is_lost:
                wire.clean_up()
        except BaseException as error:
            wire.close()
            if not isinstance(error, (Lost, Refused)):  # an interrupt
                raise
        finally:
            self._take_in(wire)

    def _take_in(self, wire: Wire) -> None:
        """Keep it for the next user, or give up its place."""
        if wire.is_read_only:  # it stays so, as do others of its age, even if the server allows writes again
            wire.close()
            self.forget_idle()
        if wire.is_lost or self._is_over:
            self._places.pop()
            wire.close()
        else:
            self._idle.append(wire)
        if self._line:
            self._stir_first()

    def forget_idle(self) -> None:
        """One connection was lost, so the idle ones probably are too."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
                self._places.pop()

    def close(self) -> None:
        """Close the idle ones, and from now on what is given back."""
        self._is_over = True
        self.forget_idle()

    def _idle_wire(self) -> Wire | None:
        """Return an idle connection that still stands, if there is one."""
        try:
            wire = self._idle.pop()
        except IndexError:
            return None
        try:
            if wire.is_connected():
                return wire
        except BaseException:  # an interrupt, such as a gevent.Timeout
            wire.close()
            self._places.pop()
            raise
        self._places.pop()
        self.forget_idle()
        return None

    def _stand_in_line(self, most: int, refusal: StoreUnavailable | None) -> Wire | None:
        """Wait for a turn: return an idle connection, or ``None`` if the caller is to open one more.

        ``refusal``: why the server has given no more than ``most``.
        """
        deadline, place = real_monotonic() + self._patience, threading.Lock()
        place.acquire()
        if is_interrupted():  # the interrupted call may be in line, and cannot go on before this one
            self._line.appendleft(place)
        else:
            self._line.append(place)
        try:
            while True:
                if self._line[0] is place:
                    wire = self._idle_wire()
                    if wire is not None:
                        return wire
                    if len(self._places) < most:
                        self._places.append(None)
                        return None
                left = deadline - real_monotonic()
                if left <= 0:
                    why = f", and the server gives no more: {refusal.__cause__}" if refusal else ""
                    raise StoreBusy(f"{self._what}: all {most} connections of this process are in use{why}")
                interruptible(place.acquire, True, min(left, LONGEST_WAIT))
        finally:
            self._line.remove(place)
            self._stir_first()

    def _stir_first(self) -> None:
        """Wake the first in line: there may be a connection for it."""
        with suppress(IndexError, RuntimeError):  # nobody is, or it was woken and has not looked yet
            self._line[0].release()
