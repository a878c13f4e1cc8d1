"""The only module that reads a clock.

A store's clock of record tells the time that is stored (milliseconds since the epoch); the monotonic
clock measures waits. Both are injected, so that a test can advance a ``tubes.testing.FakeClock``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, runtime_checkable

SLICE = 0.25
"""Most seconds that the main thread waits before it looks for signals."""


class Signal:
    """A wake-up for one waiting thread, or for one waiting call in a thread that has others to run."""

    __slots__ = ("_lock", "is_set", "on_set")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_set: bool = False
        self.on_set: Callable[[], object] | None = None

    def set(self) -> None:
        """Wake the waiting thread, or let its next wait return at once. Setting twice is harmless."""
        if not self.is_set:
            self.is_set = True
            try:
                self._lock.release()
            except RuntimeError:  # two threads set it at the same moment
                pass
            on_set = self.on_set
            if on_set is not None:
                on_set()

    def clear(self) -> None:
        """Make the signal ready for another wait. Only the waiting thread calls this."""
        self._lock.acquire(blocking=False)
        self.is_set = False

    def wait(self, timeout: float | None) -> bool:
        """Block until it is set; ``timeout`` in real seconds. Tell whether it was set."""
        if parking.park is not None:
            return parking.park(self, timeout)
        if timeout is not None and timeout <= 0:
            is_set = self._lock.acquire(blocking=False)
        elif threading.get_ident() == threading.main_thread().ident:
            is_set = self._acquire_in_slices(math.inf if timeout is None else timeout)
        else:
            is_set = self._lock.acquire(
                timeout=-1.0 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            )
        if is_set:
            self._lock.release()
        return is_set

    def _acquire_in_slices(self, timeout: float) -> bool:
        """Wait in slices: an OS signal that comes just before a wait begins does not interrupt that wait."""
        end = real_monotonic() + timeout
        while True:
            remaining = end - real_monotonic()
            if self._lock.acquire(timeout=min(max(remaining, 0.0), SLICE)):
                return True
            if remaining <= SLICE:
                return False


class Parking(threading.local):
    """What this thread does instead of blocking when a call waits for a signal; see ``tubes.bridge``."""

    park: Callable[[Signal, float | None], bool] | None = None


parking = Parking()


@runtime_checkable
class Clock(Protocol):
    """What a queue needs to know of time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, the time that is stored."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow, for waits and timeouts."""
        ...

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Wait until the signal is set, at most ``timeout`` seconds of this clock; tell whether it was."""
        ...


class SystemClock:
    """The host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return real_monotonic()

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        return signal.wait(timeout)


real_monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""Seconds of the real monotonic clock, for what no test can fake: locks held by other processes.

Tools that freeze time for a test, such as freezegun, replace ``time.monotonic``.
"""


SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock that also counts while the host is suspended, if there is one."""


def uptime() -> float:
    """Return the seconds of that clock. Waits go by the other: nobody waits while a host is suspended."""
    return time.clock_gettime(SINCE_BOOT)


def real_now() -> datetime:
    """The real time of day, for the scheduler's appointments."""
    return datetime.now(UTC)


def pause(seconds: float) -> None:
    """Let real time pass, whatever clock a queue has: between retries, and between looks at something."""
    time.sleep(seconds)


DRIFT_MS = 0.2
"""Milliseconds by which two hosts' clocks may drift apart in a second; quartz does a twentieth of that."""


CLOCK_LOOKS, CLOCK_DOUBT_MS = 5, 2.0
"""How often at most a server is asked for its time at first, until that is known to within so many milliseconds."""


class ServerClock(SystemClock):
    """A server's clock, so that hosts whose clocks differ agree: this host's uptime plus an offset.

    The store measures the offset when it connects, and again now and then.
    """

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self._doubt_ms = math.inf
        self._learned = 0.0

    def ask(self, server_ms: Callable[[], float]) -> None:
        """Learn the time: ``server_ms`` asks the server for it, at first again if an answer took long.

        Later one answer will do: a server that is far away cannot be known better, and a beat asks each time.
        """
        took_before = math.inf
        for _ in range(CLOCK_LOOKS if self._doubt_ms == math.inf else 1):
            asked = uptime()
            answer = server_ms()
            took = uptime() - asked
            if self.learn(answer, asked, asked + took) < CLOCK_DOUBT_MS:
                break
            if abs(took - took_before) < took / 10:  # nobody was held up: it is far away
                break
            took_before = took

    def learn(self, server_ms: float, asked: float, answered: float) -> float:
        """Note what the server's clock showed, asked and answered at these instants of ``uptime``.

        An answer that took long tells little: an earlier, more exact one is kept as long as the two can both
        be true. Return by how many milliseconds the clock may be wrong now.
        """
        offset, doubt = server_ms - (asked + answered) * 500, (answered - asked) * 500
        kept = self._doubt_ms + (answered - self._learned) * DRIFT_MS
        if doubt <= kept or abs(offset - self._offset_ms) > doubt + kept:
            self._offset_ms, self._doubt_ms, self._learned = offset, doubt, answered
            return doubt
        return kept

    def now_ms(self) -> int:
        return int(uptime() * 1000 + self._offset_ms)
