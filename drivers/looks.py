"""In which lines of waiters somebody looks when something may have changed in any tube.

A look is a few statements. In a process that waits in hundreds of tubes, one in each line would leave no time
for those who work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from tubes.clock import real_monotonic
from tubes.waiting import Key, Waiters

FEW = 10
"""Lines in each of which somebody looks at once. Of more, only those do where a task is ready."""

SOME = 64
"""Of the others, as many as look at a time."""


class Looks:
    """Has the waiters of one process look."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._left: dict[Key, None] = {}
        """The lines in which somebody is still to look, in this order, if there are more than a few."""
        self._next_at = 0.0

    def wake(
        self, with_ready: Callable[[list[Key]], Iterable[Key]], *, is_news: bool = True, rest: float = 0.0
    ) -> None:
        """If there is news, have somebody in each line look: in many lines at once only if a task is ready there.

        ``with_ready`` tells which of these tubes have one. In the other lines, where there may be room by now,
        or a task that is due, somebody looks in some at a time, then in others after ``rest`` seconds or more.
        """
        keys = self._waiters.keys()
        if len(keys) <= FEW:
            if is_news or self._left:
                self._left = {}
                self._waiters.wake_one_each()
            return
        if is_news:
            for key in with_ready([key for key in keys if key > 0]):
                self._waiters.wake_one(key)
            self._left |= dict.fromkeys(keys)
        now = real_monotonic()
        if now >= self._next_at:
            self._next_at = now + rest
            for key in list(islice(self._left, SOME)):
                del self._left[key]
                self._waiters.wake_one(key)
