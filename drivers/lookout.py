"""Waits for a server's answer: spins at first, then sleeps. See docs/decisions/awake-for-a-moment.md."""

from __future__ import annotations

import select
from os import sched_yield

from tubes.clock import real_monotonic

AWAKE = 0.0004
"""Seconds to spin for an answer: long enough for most commits that wait for the server's disk."""

LEAST, MOST = 20, 5120
"""Answers for which it does not spin after one that did not come in time.

The number doubles with each miss and halves with each success.
"""


class Lookout:
    """Spins for answers on a socket, for up to ``awake`` seconds each. Used by one thread at a time."""

    __slots__ = ("_awake", "_left_out", "_poll", "_to_leave_out")

    def __init__(self, socket: int, awake: float = AWAKE) -> None:
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self._awake = awake
        self._left_out = 0
        self._to_leave_out = LEAST

    def look(self) -> None:
        """Return when something has come, or when it is time to sleep until it does."""
        if self._left_out:
            self._left_out -= 1
            return
        until = real_monotonic() + self._awake
        while not self._poll.poll(0):
            sched_yield()  # the server may need this very processor
            if real_monotonic() > until:  # it is far away or busy, or others had the processor
                self._left_out = self._to_leave_out
                self._to_leave_out = min(2 * self._to_leave_out, MOST)
                return
        self._to_leave_out = max(self._to_leave_out // 2, LEAST)
