"""A clock that tests move by hand."""

from __future__ import annotations

import math
import threading
from datetime import timedelta

from tubes.clock import Signal
from tubes.options import Seconds, milliseconds


class FakeClock:
    """Time stands still until ``advance``; nothing sleeps.

    Pass it to ``tubes.connect(url, clock=clock, sweep=False)``, then advance it and call ``queue.sweep()``.
    A ``take`` that waits in another thread wakes when the clock reaches its timeout, or when a task is due.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = start_ms
        self._passed_ms = 0
        self._waits: dict[Signal, float] = {}
        self._late: set[Signal] = set()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._passed_ms / 1000

    def advance(self, seconds: Seconds) -> None:
        """Let ``seconds`` pass, rounded up to milliseconds, and wake the calls that have waited long enough.

        BadOption for a negative number: time itself never runs backwards. ``step`` sets the time of day back.
        """
        passed = milliseconds("seconds", seconds)
        with self._lock:
            self._now_ms += passed
            self._passed_ms += passed
            for signal, deadline in self._waits.items():
                if deadline <= self._passed_ms and not signal.is_set:
                    self._late.add(signal)
                    signal.set()

    def step(self, seconds: Seconds) -> None:
        """Set the time of day forward or back, as when a host's clock is set; no time passes."""
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        with self._lock:
            self._now_ms += round(seconds * 1000)

    @property
    def waiting(self) -> int:
        """How many calls wait now and have not been woken."""
        with self._lock:
            return sum(not signal.is_set for signal in self._waits)

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        with self._lock:
            deadline = math.inf if timeout is None else self._passed_ms + math.ceil(round(timeout * 1000, 6))
            if deadline <= self._passed_ms and not signal.is_set:
                return False
            self._waits[signal] = deadline
        try:
            signal.wait(None)
        finally:
            with self._lock:
                del self._waits[signal]
                late = signal in self._late
                self._late.discard(signal)
        return not late
