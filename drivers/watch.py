"""Who lives, on a store whose connections beat: told by the beats alone, and the monotonic clock of who looks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from tubes.clock import real_monotonic
from tubes.errors import BadOption

C = TypeVar("C", bound=Hashable)
"""By what a store knows a connection."""


DEAD_AFTER = 15.0
"""Seconds without a beat after which a connection is taken for dead, on the monotonic clock of who looks."""

BEATS = 3
"""Beats in that time."""

LOOKS = 15
"""Looks at the others' beats in that time."""


def dead_after(given: str) -> float:
    """Seconds of ``dead_after=`` in a store's URL; BadOption where it cannot be."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise BadOption(f"dead_after must be seconds, from 0.1 to 86400, not {given!r}", option="dead_after")
    return seconds


class Beats(Generic[C]):
    """The beats of all connections as this process saw them. It looks with each beat of its own, and when it must know.

    So a gap between two looks says that this process, or all of them, could not go on, and no silence before it counts.
    """

    def __init__(self, dead_after: float) -> None:
        self._dead_after = dead_after
        self._seen: dict[C, tuple[Any, float]] = {}
        self._looked_at = 0.0

    def see(self, beats: Mapping[C, Any]) -> list[tuple[C, Any]]:
        """Look; return the connections whose beat has not changed for too long, with that beat."""
        now = real_monotonic()
        if now - self._looked_at > self._dead_after:
            self._seen = {}
        self._looked_at = now
        seen = self._seen
        self._seen = {
            id: seen[id] if id in seen and seen[id][0] == beat else (beat, now) for id, beat in beats.items()
        }
        return [(id, beat) for id, (beat, at) in self._seen.items() if now - at > self._dead_after]

    def last_of(self, connection: C) -> Any:
        """The last beat that was seen; ``None``: there is none."""
        return self._seen.get(connection, (None, 0.0))[0]

    def forget(self) -> None:
        """The server cannot be reached: nobody can beat, and silence says nothing."""
        self._seen = {}


class Watch(Generic[C]):
    """A doctor's look at the beats: who has not beaten for as long as one may be silent is dead."""

    def __init__(self, beat_of: Callable[[Any, C], Any], mine: C, dead_after: float) -> None:
        self._beat_of = beat_of
        self._dead_after = dead_after
        self._alive = {mine}
        self._first: dict[C, tuple[Any, float]] = {}

    def is_alive(self, tx: Any, connection: C) -> bool:
        """Whether it is known to live."""
        beat = self._beat_of(tx, connection)
        if self._first.setdefault(connection, (beat, real_monotonic()))[0] != beat:
            self._alive.add(connection)
        return connection in self._alive

    def seconds(self) -> float:
        """How long it takes until all that were asked for are known to live or to be dead."""
        since = [at for connection, (_, at) in self._first.items() if connection not in self._alive]
        return max(since, default=0.0) + self._dead_after - real_monotonic() if since else 0.0
