"""How often a step is run again that others were in the way of, and how long that waits."""

from __future__ import annotations

import random

from tubes.clock import pause
from tubes.interrupts import interruptible

MOST_TRIES = 20
"""Times that a step is run while others are in its way, before Conflict."""

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two such tries, on average; each is twice the last."""


def pause_after(tries: int) -> None:
    """Wait a while, by lot, so that those who met do not meet again."""
    interruptible(pause, random.random() * min(FIRST_PAUSE * 2**tries, LONGEST_PAUSE * 2))
