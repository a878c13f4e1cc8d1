"""How often a step is run again that others were in the way of, or whose connection was lost; how long that waits."""

from __future__ import annotations

import random

from tubes.clock import pause
from tubes.interrupts import interruptible

MOST_TRIES = 20
"""Times that a step is run while others are in its way, before Conflict."""

MOST_LOSSES = 3
"""Connections that it loses before the server counts as one that cannot be used."""

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two such tries, on average; each is twice the last."""


class Lost(Exception):
    """The connection is gone. ``was_sent``: something was under way, and nobody knows whether it was done."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(message)


def pause_after(tries: int) -> None:
    """Wait a while, by lot, so that those who met do not meet again."""
    interruptible(pause, random.random() * min(FIRST_PAUSE * 2 ** min(tries, 10), LONGEST_PAUSE * 2))
