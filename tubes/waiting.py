"""Who waits for what, in the order of arrival, and how they are woken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable

from tubes.clock import Signal

Key = Hashable
"""What is waited for: a tube's id for its tasks, (id, "room") for room in it."""


class Waiters:
    """The waiting threads of one process on one store: first come, first served.

    ``on_wait`` is called whenever somebody begins to wait, before they look a last time: the store's chance
    to listen to other processes.
    """

    def __init__(self, on_wait: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Key, deque[Signal]] = {}
        self._on_wait = on_wait

    def enter(self, key: Key) -> Signal:
        """Stand in line for ``key``. Look once more after this, then wait for the signal."""
        signal = Signal()
        with self._lock:
            self._waiting.setdefault(key, deque()).append(signal)
        if self._on_wait is not None:
            self._on_wait()
        return signal

    def leave(self, key: Key, signal: Signal) -> None:
        """Leave the line, wherever one stands in it."""
        with self._lock:
            line = self._waiting.get(key)
            if line is not None:
                line.remove(signal)
                if not line:
                    del self._waiting[key]

    def wake(self, key: Key, count: int = 1) -> None:
        """Set the signals of the first ``count`` in line that have none yet."""
        if key not in self._waiting:
            return
        with self._lock:
            for signal in self._waiting.get(key, ()):
                if count <= 0:
                    break
                if not signal.is_set:
                    signal.set()
                    count -= 1

    def wake_all(self) -> None:
        """Wake everybody: the queue closes, or a clock was changed."""
        with self._lock:
            for line in self._waiting.values():
                for signal in line:
                    signal.set()

    def keys(self) -> list[Key]:
        """What is being waited for."""
        with self._lock:
            return list(self._waiting)

    def count(self, key: Key) -> int:
        """How many wait for ``key``."""
        with self._lock:
            return len(self._waiting.get(key, ()))

    def __bool__(self) -> bool:
        return bool(self._waiting)
