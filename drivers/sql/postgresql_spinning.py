"""Waits for a server's answer: spins at first, then sleeps. See docs/decisions/awake-for-a-moment.md."""

from __future__ import annotations

import select
from os import sched_yield

from tubes.clock import real_monotonic

SPIN_FOR = 0.0004
"""Seconds to spin for an answer: long enough for most commits that wait for the server's disk."""

LEAST_SKIPS, MOST_SKIPS = 20, 5120
"""Answers for which it does not spin after one that did not come in time.

The number doubles with each miss and halves with each success.
"""


class Spinner:
    """Spins for answers on a socket, for up to ``spin_for`` seconds each. Used by one thread at a time."""

    __slots__ = ("_next_skips", "_poll", "_skips_left", "_spin_for")

    def __init__(self, socket: int, spin_for: float = SPIN_FOR) -> None:
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self._spin_for = spin_for
        self._skips_left = 0
        self._next_skips = LEAST_SKIPS

    def spin(self) -> None:
        """Return when something has come, or when it is time to sleep until it does."""
        if self._skips_left:
            self._skips_left -= 1
            return
        until = real_monotonic() + self._spin_for
        while not self._poll.poll(0):
            sched_yield()  # the server may need this very processor
            if real_monotonic() > until:  # it is far away or busy, or others had the processor
                self._skips_left = self._next_skips
                self._next_skips = min(2 * self._next_skips, MOST_SKIPS)
                return
        self._next_skips = max(self._next_skips // 2, LEAST_SKIPS)
