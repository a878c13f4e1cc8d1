"""What the examiners of all stores do alike: sessions, tasks of the dead, tubes that were lost, payloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tubes.doctor import Check, Finding, Kind, Look
from tubes.driver import Features, TubeRecord

PATIENCE = 0.5
"""Seconds that living processes get to see to what others left, or to do the second half of what they have begun."""

MOST_PAYLOADS = 4_000_000
"""Bytes of payloads that are read at once, unless a single one has more."""

FeaturesOf = Callable[[TubeRecord], Features | None]


def portions(sizes: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Ids of tasks whose payloads, of these sizes, can be read at once."""
    some: list[int] = []
    total = 0
    for id, size in sizes:
        if some and total + size > MOST_PAYLOADS:
            yield some
            some, total = [], 0
        some.append(id)
        total += size
    if some:
        yield some


class HasSessions(Protocol):
    """A store's sessions, as the checks see them."""

    def unknown_sessions(self, tx: Any) -> Sequence[str]: ...
    def add_session(self, tx: Any, session: str, *, dry: bool) -> bool: ...
    def lonely_sessions(self, tx: Any) -> Sequence[str]: ...


class SessionsCheck(Check):
    """A check of what processes that begin or end may be about to see to."""

    name = "sessions"

    def __init__(self, store: HasSessions) -> None:
        self._store = store

    def patience(self) -> float:
        return PATIENCE


class UnknownSessions(SessionsCheck):
    """Connections whose session is not there. Their processes may live, and hold tasks that seem to be nobody's."""

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        return Look([self._finding(session) for session in self._store.unknown_sessions(tx)])

    def _finding(self, session: str) -> Finding:
        what = f"session {session} has a connection and is not there itself"
        return Finding(Kind.SESSION, what, "add it", session=session)

    def mend(self, tx: Any, finding: Finding, *, now: int, dry: bool) -> bool:
        assert finding.session is not None
        return self._store.add_session(tx, finding.session, dry=dry)


class LonelySessions(SessionsCheck):
    """Sessions that have lost their last connection and go on for ever."""

    rescues = True

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        return Look([self._finding(session) for session in self._store.lonely_sessions(tx)])

    def _finding(self, session: str) -> Finding:
        what = f"session {session} has no connection and has not ended"
        return Finding(Kind.SESSION, what, "end it", session=session)


class CatalogueCheck(Check):
    """Tubes whose entries nobody can read, so that no verb reaches them, or which are others by a second name."""

    name = "catalogue"

    def __init__(self, tubes: Callable[[Any], Sequence[TubeRecord]]) -> None:
        self._tubes = tubes

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        tubes, names, findings = self._tubes(tx), dict[int, str](), []
        for tube in tubes:
            what = ""
            if tube.unreadable:
                what = f"its entry in the catalogue cannot be read: {tube.unreadable}"
            elif names.setdefault(tube.id, tube.name) != tube.name:
                what = f"it has the same number as {names[tube.id]!r}, and so the same tasks"
            if what:
                findings.append(Finding(Kind.DAMAGE, what, None, tube=tube.name))
        return Look(findings, seen=len(tubes))


def held_by_the_dead(tube: TubeRecord, owner: str, count: int, why: str) -> Finding:
    """Tasks that a session holds which will not give them back."""
    what = f"{count} taken by session {owner}, {why}"
    remedy = "give them back, where the tube's type is registered"
    return Finding(Kind.OWNER, what, remedy, tube=tube.name, session=owner)


def name_of_lost(number: int, names: Collection[str]) -> str:
    """A name for a tube that has lost its own, and that no other has."""
    name = f"lost_{number}"
    while name in names:
        name += "_"
    return name
