"""Waiting for a server's answer: awake at first, then asleep. See docs/decisions/awake-for-a-moment.md."""

from __future__ import annotations

import select
from os import sched_yield

from tubes.clock import real_monotonic

IN_VAIN = 20
"""Answers that are not looked for, after one that was not there in time: the server is far, or has much to do."""


class Lookout:
    """Looks for answers on a socket, each for up to ``awake`` seconds. Used by one thread at a time."""

    __slots__ = ("_awake", "_passed_over", "_poll")

    def __init__(self, socket: int, awake: float) -> None:
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self._awake = awake
        self._passed_over = 0

    def look(self) -> None:
        """Return when something has come, or when it is time to sleep until it does."""
        if self._passed_over:
            self._passed_over -= 1
            return
        until = real_monotonic() + self._awake
        while not self._poll.poll(0):
            if real_monotonic() > until:
                self._passed_over = IN_VAIN
                return
            sched_yield()  # the server may need this very processor
