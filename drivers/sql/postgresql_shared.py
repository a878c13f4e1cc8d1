"""What all queues of a process on one PostgreSQL database share: counts, waiters, and spare connections."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import ClassVar

from tubes.stats import Counts
from tubes.waiting import Waiters

from .postgresql_listener import Announced, Listener
from .postgresql_wire import Wire

MOST_SPARES = 4
"""Connections that closed queues leave to others of their process, at most."""

Kind = tuple[str, float, bool | None]
"""How a connection is set up: durability, busy timeout, whether there is a pooler."""


class Shared:
    """One for each database and namespace, as long as a queue uses it."""

    _all: ClassVar[weakref.WeakValueDictionary[tuple[str, str], Shared]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _pid: ClassVar[int] = os.getpid()

    def __init__(self) -> None:
        self.counts = Counts()
        self.waiters = Waiters(self._on_wait)
        self.listeners: set[Listener] = set()
        self.announced = Announced()
        self._spares: list[tuple[Kind, Wire]] = []
        self._leaving = threading.RLock()

    @classmethod
    def of(cls, conninfo: str, namespace: str) -> Shared:
        """The one for a database and namespace; in a forked child never the parent's."""
        if cls._pid != os.getpid():  # another thread of the parent may have held the lock
            cls._lock, cls._all, cls._pid = threading.Lock(), weakref.WeakValueDictionary(), os.getpid()
        with cls._lock:
            shared = cls._all.get((conninfo, namespace))
            if shared is None:
                shared = cls._all[conninfo, namespace] = Shared()
            return shared

    def take_spare(self, kind: Kind) -> Wire | None:
        """Take an idle connection that is set up like that, if there is one."""
        with self._leaving:
            for place, (of, wire) in enumerate(self._spares):
                if of == kind:
                    del self._spares[place]
                    return wire
        return None

    def leave(self, listener: Listener, kind: Kind, idle: list[Wire]) -> None:
        """A queue is closed: leave its connections to the others; if it was the last, close them all."""
        with self._leaving:
            self.listeners.discard(listener)
            with suppress(IndexError):
                while True:  # one by one: a call of the queue's may be borrowing one
                    self._spares.append((kind, idle.pop()))
            kept = MOST_SPARES if self.listeners else 0
            self._spares, unwanted = self._spares[:kept], self._spares[kept:]
        for _, wire in unwanted:
            wire.close()

    def close_spares(self) -> None:
        """One connection was lost, so these probably are too."""
        with self._leaving:
            unwanted, self._spares = self._spares, []
        for _, wire in unwanted:
            wire.close()

    def _on_wait(self) -> None:
        for listener in list(self.listeners):
            listener.on_wait()
