"""Who lives on a server, as far as a doctor's look can tell: the same on every store whose connections beat."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from tubes.clock import real_monotonic

C = TypeVar("C", bound=Hashable)
"""By what a store knows a connection."""


class Watch(Generic[C]):
    """Watches the beats of connections: who has not beaten for as long as one may be silent is dead."""

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
