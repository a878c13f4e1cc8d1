"""Takes of which nobody knows how they ended: what they may hold is looked for and given back."""

from __future__ import annotations

import math
from collections.abc import Callable

from tubes.task import Task, milliseconds

LOOKS_FOR = 120.0
"""Seconds for which what such a take may hold is looked for.

A request that its sender has given up may be delivered all the same when a network mends; a system sends it again for
so long, about.
"""

SOONEST = 1.0
"""Seconds between the first looks. Each further one comes when twice as long has passed."""

Taken = tuple[str, int]
"""Whose take it was, by the session, and its millisecond."""


def taken_by(task: Task) -> Taken:
    """Whose take a task is of, and when that was."""
    return "" if task.owner is None else task.owner.hex, milliseconds(task.updated_at)


class UnknownTakes:
    """Those of one tube. ``monotonic`` is the clock that the looks go by."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: dict[Taken, float] = {}
        self._look_at = math.inf

    def __bool__(self) -> bool:
        return bool(self._since)

    def add(self, session: str, at_ms: int) -> None:
        """Note a take. It is to be looked for at once."""
        self._since[session, at_ms] = self._look_at = self._monotonic()

    def due(self) -> set[Taken]:
        """Those to look for now."""
        return {*self._since} if self._monotonic() >= self._look_at else set()

    def looked_for(self, some: set[Taken]) -> None:
        """What these held has been given back. Look again later, as a request may be late, unless they are old."""
        now, known = self._monotonic(), list(self._since.items())
        for taken, since in known:
            if taken in some and now - since >= LOOKS_FOR:
                self._since.pop(taken, None)
        newest = max((since for _, since in known), default=now)
        self._look_at = now + max(SOONEST, now - newest) if {*self._since} <= some else now
