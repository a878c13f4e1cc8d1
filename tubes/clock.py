"""The only module that reads a clock.

A store's clock of record tells the time that is stored (milliseconds since the epoch); the monotonic
clock measures waits. Both are injected, so that a test advances a ``tubes.testing.FakeClock``.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Signal:
    """A one-shot wake-up for one waiting thread."""

    __slots__ = ("_lock", "is_set")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_set = False

    def set(self) -> None:
        """Wake the waiting thread, or let its next wait return at once. Setting twice is harmless."""
        if not self.is_set:
            self.is_set = True
            try:
                self._lock.release()
            except RuntimeError:  # two threads set it at the same moment
                pass

    def clear(self) -> None:
        """Make the signal ready for another wait. Only the waiting thread calls this."""
        self._lock.acquire(blocking=False)
        self.is_set = False

    def wait(self, timeout: float | None) -> bool:
        """Block until it is set; ``timeout`` in real seconds. Tell whether it was set."""
        limit = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if self._lock.acquire(timeout=limit) if limit else self._lock.acquire(blocking=False):
            self._lock.release()
            return True
        return False


class Clock(Protocol):
    """What a queue needs to know of time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, the time that is stored."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow, for waits and timeouts."""
        ...

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Wait until the signal is set or ``timeout`` seconds of this clock are over; tell which."""
        ...


class SystemClock:
    """The host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        return signal.wait(timeout)


def real_monotonic() -> float:
    """Seconds of the real monotonic clock, for what no test can fake: locks held by other processes."""
    return time.monotonic()


def real_now() -> datetime:
    """The real time of day, for the scheduler's appointments."""
    return datetime.now(UTC)


def pause(seconds: float) -> None:
    """Let real time pass. For the retries of stores; nothing else sleeps."""
    time.sleep(seconds)
