"""Tells which connections of a store live: by their beats, and by the observer's monotonic clock.

A process that looks only for a moment, such as a worker that cron starts, sees nobody's silence. So each
process that connects also calls the roll: the store notes the beat of each connection, and how often in a row
it was the same as at the roll call before. A connection that was absent ``BEATS`` times is dead as well. None
is called more often than it beats, by the server's clock: if that is put forward, a living connection is
absent once, and not three times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from tubes.clock import real_monotonic
from tubes.errors import BadOption, StoreError

C = TypeVar("C", bound=Hashable)
"""What a store knows a connection by."""


DEAD_AFTER = 15.0
"""Seconds without a beat after which a connection is taken for dead, on the observer's monotonic clock."""

BEATS = 3
"""Beats in that time."""

LOOKS = 15
"""Looks at the others' beats in that time."""


def dead_after(given: str) -> float:
    """Seconds of ``dead_after=`` in a store's URL; BadOption if the value is not allowed."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise BadOption(f"dead_after must be seconds, from 0.1 to 86400, not {given!r}", option="dead_after")
    return seconds


class Seen(NamedTuple):
    """The last beat seen of a connection, since when, and whether it was seen to follow another."""

    beat: Any
    at: float
    is_next: bool


NEVER = Seen(None, 0.0, False)


class Beats(Generic[C]):
    """All connections' beats as this process saw them. It looks with each of its own, and when it must know.

    A long gap between two looks means that this process, or all of them, could not run: silence before the
    gap does not count. Long is ``dead_after`` less one beat: a connection that was about to beat at the look
    before the gap had already been silent for one beat.
    """

    def __init__(self, dead_after: float) -> None:
        self.dead_after = dead_after
        self.every = dead_after / BEATS
        """Seconds between two beats."""
        self._every_of: Mapping[C, float] = {}
        self.absent: dict[C, Any] = {}
        """The connections that were silent at the last ``BEATS`` roll calls, with their last beat."""
        self._seen: dict[C, Seen] = {}
        self._looked_at = 0.0
        self._look_at = 0.0

    def suspects(self, look: Callable[[], bool], *, thoroughly: bool, away: type[StoreError]) -> bool:
        """Look for the dead, if it is time to; tell whether there may be some.

        After a look this process does not look again for ``dead_after / LOOKS`` seconds, unless it found
        something: a rescue must find that too. ``away`` is what ``look`` raises if the server cannot be
        asked.
        """
        now = real_monotonic()
        if now < self._look_at and not thoroughly:
            return False
        self._look_at = now + self.dead_after / LOOKS
        try:
            is_found = look()
        except away:
            self.forget()
            return False
        if is_found:
            self._look_at = 0.0
        return is_found

    def see(self, beats: Mapping[C, Any], every: Mapping[C, float]) -> list[tuple[C, Any]]:
        """Note these beats; return the connections whose beat has not changed for too long, with that beat.

        ``every``: seconds between two beats of each connection, if known. A connection whose ``dead_after``
        is longer than this process's is given that longer time; they differ while a queue's processes are
        restarted with another setting.
        """
        now = real_monotonic()
        self._every_of = every
        if now - self._looked_at > self.dead_after * (BEATS - 1) / BEATS:
            self._seen = {}
        self._looked_at = now
        seen = self._seen
        self._seen = {
            id: seen[id] if id in seen and seen[id].beat == beat else Seen(beat, now, id in seen)
            for id, beat in beats.items()
        }
        return [
            (id, last.beat)
            for id, last in self._seen.items()
            if now - last.at > self.patience_with(id) or (id, last.beat) in self.absent.items()
        ]

    def patience_with(self, connection: C) -> float:
        """Seconds without a beat after which it is dead."""
        return max(self.dead_after, self._every_of.get(connection, 0.0) * BEATS)

    def last_of(self, connection: C) -> Any:
        """The last beat that was seen; ``None``: there is none."""
        return self._seen.get(connection, NEVER).beat

    def silent_since(self, connection: C) -> float:
        """Since when that beat has been seen."""
        return self._seen.get(connection, NEVER).at

    def has_just_beaten(self, connection: C) -> bool:
        """Whether it was seen to beat, so recently that its next beat is not due yet."""
        last = self._seen.get(connection, NEVER)
        return last.is_next and real_monotonic() - last.at <= self.patience_with(connection) / BEATS

    def forget(self) -> None:
        """The server cannot be reached, or takes no beat: nobody can beat, and silence means nothing."""
        self._seen = {}


MOMENT = 0.05
"""Seconds for which a doctor that asks about each connection in turn relies on one look at all of them."""


class Watch(Generic[C]):
    """A doctor's look at the beats: a connection that does not beat for as long as it may be silent is dead.

    ``look`` is the store's own look at all of them, so that a rescue knows the dead just as soon.
    """

    def __init__(self, beats: Beats[C], look: Callable[[Any], object], mine: C) -> None:
        self._beats = beats
        self._look = look
        self._alive = {mine}
        self._first: dict[C, tuple[Any, float]] = {}
        self._look_at = 0.0

    def is_alive(self, tx: Any, connection: C) -> bool:
        """Whether it is known to live."""
        now = real_monotonic()
        if now >= self._look_at or self._beats.last_of(connection) is None:
            self._look(tx)
            self._look_at = now + MOMENT
        beat = self._beats.last_of(connection)
        first, at = self._first.setdefault(connection, (beat, real_monotonic()))
        if beat != first or self._beats.has_just_beaten(connection):
            self._alive.add(connection)
        elif self._beats.silent_since(connection) > at:  # a gap: silence before it does not count
            self._first[connection] = beat, real_monotonic()
        return connection in self._alive

    def until(self) -> float:
        """The instant when every connection that was asked about is known to live or to be dead."""
        return max(
            (
                at + self._beats.patience_with(connection)
                for connection, (_, at) in self._first.items()
                if connection not in self._alive
            ),
            default=0.0,
        )
