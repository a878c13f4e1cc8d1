"""How often a step is retried after a conflict or a lost connection, and how long it pauses in between."""

from __future__ import annotations

import random

from tubes.clock import pause
from tubes.interrupts import interruptible

MOST_TRIES = 20
"""How often a step that meets conflicts is run before Conflict is raised."""

MOST_LOSSES = 3
"""Connections lost in one call before the server counts as unusable."""

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Average seconds between two tries: the pause doubles from first to longest (exponential backoff)."""


class Lost(Exception):
    """The connection is gone. ``was_sent``: a request was under way, and nobody knows whether it was done."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(message)


def pause_after(tries: int) -> None:
    """Pause for a random time (jitter), so that those who collided do not collide again."""
    interruptible(pause, random.random() * min(FIRST_PAUSE * 2 ** min(tries, 10), LONGEST_PAUSE * 2))
