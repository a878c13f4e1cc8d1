"""Takes of unknown outcome: the tasks that they may hold are looked for and given back."""

from __future__ import annotations

import math
from collections.abc import Callable

from tubes.task import Task, milliseconds

LOOKS_FOR = 120.0
"""Seconds for which the tasks that such a take may hold are looked for.

A request that its sender has given up may still arrive when a network recovers: the operating system
retransmits it for about that long.
"""

SOONEST = 1.0
"""Seconds between the first looks. Each later one comes when the time since the newest take has doubled."""

Taken = tuple[str, int]
"""A take: its session, and its millisecond."""


def taken_by(task: Task) -> Taken:
    """The take by which a task was taken."""
    return "" if task.owner is None else task.owner.hex, milliseconds(task.updated_at)


class UnknownTakes:
    """The unknown takes of one tube. ``monotonic`` is the clock that the looks go by."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: dict[Taken, float] = {}
        self._look_at = math.inf

    def __bool__(self) -> bool:
        return bool(self._since)

    def add(self, session: str, at_ms: int) -> None:
        """Note a take, to be looked for at once."""
        self._since[session, at_ms] = self._look_at = self._monotonic()

    def due(self) -> set[Taken]:
        """The takes to look for now."""
        return {*self._since} if self._monotonic() >= self._look_at else set()

    def looked_for(self, some: set[Taken]) -> None:
        """Note that what these held is given back. Unless they are old, look again: a request may be late."""
        now, known = self._monotonic(), list(self._since.items())
        for taken, since in known:
            if taken in some and now - since >= LOOKS_FOR:
                self._since.pop(taken, None)
        newest = max((since for _, since in known), default=now)
        self._look_at = now + max(SOONEST, now - newest) if {*self._since} <= some else now
