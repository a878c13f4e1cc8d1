"""The sessions of a queue and their connections, as a process has read them; see queue.lua."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tubes.store import Known

SESSION = re.compile(r"[0-9]+ ([0-9]+|-)")
CONNECTION = re.compile(r"(\S+) (\S+)( .*)?", re.DOTALL)
ROLL = re.compile(r"\S+ \S+ \S+ ([0-9]{1,9})")
"""The patterns of their entries, see queue.lua."""


class Connection(NamedTuple):
    """A process's part in a session."""

    session: str
    beat: str


class Sessions(NamedTuple):
    """All that there were at one instant, by id."""

    ends: dict[str, int | None]
    """When each session is over; ``None`` while it has connections."""
    connections: dict[str, Connection]
    every: dict[str, float]
    """Seconds between two beats of a connection, for those on the roll."""
    unreadable: list[tuple[str, str]]
    """The key and the id of each entry that nobody can read. They are in nobody's way."""

    @classmethod
    def of(cls, sessions: Sequence[bytes], connections: Sequence[bytes], roll: Sequence[bytes]) -> Sessions:
        """Read what sessions.lua answers."""
        read = cls({}, {}, {}, [])
        for id, stored in pairs(sessions):
            if entry := SESSION.fullmatch(stored):
                read.ends[id] = None if entry[1] == "-" else int(entry[1])
            else:
                read.unreadable.append(("sessions", id))
        for id, stored in pairs(connections):
            if entry := CONNECTION.fullmatch(stored):
                read.connections[id] = Connection(entry[1], entry[2])
            else:
                read.unreadable.append(("connections", id))
        for id, stored in pairs(roll):
            if entry := ROLL.fullmatch(stored):  # an unreadable one is rewritten
                read.every[id] = int(entry[1]) / 1000
        return read

    def known(self) -> dict[str, Known]:
        """What is known of each session."""
        connections: dict[str, list[str]] = {}
        for id, each in self.connections.items():
            connections.setdefault(each.session, []).append(id)
        return {session: (ends, connections.get(session, ())) for session, ends in self.ends.items()}

    def connected(self) -> set[str]:
        """The sessions that have connections."""
        return {each.session for each in self.connections.values()}

    def lonely(self) -> list[str]:
        """The sessions that have no connection left, and that nobody has ended yet."""
        connected = self.connected()
        return sorted(id for id, ends in self.ends.items() if ends is None and id not in connected)

    def is_over(self, session: str, now: int) -> bool:
        """Whether a session has outlived its last connection for as long as it may."""
        ends = self.ends[session]
        return ends is not None and ends <= now


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """The pairs that a script answers as one flat list."""
    texts = [text.decode(errors="replace") for text in flat]
    return zip(texts[::2], texts[1::2], strict=True)


def texts(ids: Iterable[bytes]) -> set[str]:
    """Ids as a server answers them, in the form that everything else has them."""
    return {id.decode(errors="replace") for id in ids}
