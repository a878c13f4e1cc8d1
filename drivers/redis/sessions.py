"""The sessions of a queue and their connections, as a process has read them; see queue.lua."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Connection(NamedTuple):
    """A process's part in a session."""

    session: str
    beat: str


class Sessions(NamedTuple):
    """What there was at one instant, by id."""

    ends: Mapping[str, int | None]
    """When each session is over; ``None`` while it has connections."""
    connections: Mapping[str, Connection]

    @classmethod
    def of(cls, sessions: Sequence[bytes], connections: Sequence[bytes]) -> Sessions:
        """Read what sessions.lua answers."""
        return cls(
            {id: None if ends == "-" else int(ends) for id, (_, ends) in _pairs(sessions)},
            {id: Connection(session, beat) for id, (session, beat, *_) in _pairs(connections)},
        )

    def connected(self) -> set[str]:
        """The sessions that have connections."""
        return {each.session for each in self.connections.values()}

    def lonely(self) -> list[str]:
        """Those that have none any more, and of which nobody has noticed yet that they end."""
        connected = self.connected()
        return sorted(id for id, ends in self.ends.items() if ends is None and id not in connected)

    def is_over(self, session: str, now: int) -> bool:
        """Whether it has outlived its last connection for as long as it may."""
        ends = self.ends[session]
        return ends is not None and ends <= now


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, list[str]]]:
    for id, stored in zip(flat[::2], flat[1::2], strict=True):
        yield id.decode(), stored.decode().split(" ", 2)
