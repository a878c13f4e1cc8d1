"""What the examiners of all stores have in common: sessions, tasks of dead ones, lost tubes, payloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tubes.doctor import Check, Finding, Kind, Look
from tubes.driver import Features, TubeRecord
from tubes.store import Known

S = TypeVar("S")

PATIENCE = 0.5
"""Seconds that living processes get to settle what others left, or to finish what they have half done."""

MOST_PAYLOADS = 4_000_000
"""The most bytes of payloads that are read at once, unless a single payload is larger."""

FeaturesOf = Callable[[TubeRecord], Features | None]

IsAlive = Callable[[Any, Any], bool]
"""Tells, in a look, whether a connection's process lives."""


def portions(sizes: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Split tasks' ids, each with its payload's size, into lists whose payloads can be read at once."""
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


class StoreCheck(Check, Generic[S]):
    """A check of a store, of which it sees only ``S``."""

    def __init__(self, store: S) -> None:
        self._store = store


class HasSessions(Protocol):
    """A store's sessions, as the checks see them."""

    def known_sessions(self, tx: Any) -> Mapping[str, Known]: ...
    def unknown_sessions(self, tx: Any) -> Sequence[str]: ...
    def add_session(self, tx: Any, session: str) -> bool: ...


class SessionsCheck(StoreCheck[HasSessions]):
    """A check of what a process that is just starting or ending may be about to settle itself."""

    name = "sessions"

    def until(self, since: float) -> float:
        return since + PATIENCE


class UnknownSessions(SessionsCheck):
    """Connections whose session is missing. Their processes may live, and hold tasks that seem nobody's."""

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        return Look([self._finding(session) for session in self._store.unknown_sessions(tx)])

    def _finding(self, session: str) -> Finding:
        what = f"session {session} is missing but has a connection"
        return Finding(Kind.SESSION, what, "add it", session=session)

    def mend(self, tx: Any, finding: Finding, *, now: int) -> bool:
        assert finding.session is not None
        return self._store.add_session(tx, finding.session)


class LonelySessions(SessionsCheck):
    """Sessions that have lost their last connection and would never end."""

    rescues = True

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        known = self._store.known_sessions(tx).items()
        lonely = [id for id, (ends_ms, connections) in known if ends_ms is None and not connections]
        return Look([self._finding(session) for session in sorted(lonely, key=str)])

    def _finding(self, session: str) -> Finding:
        what = f"session {session} has no connection and has not ended"
        return Finding(Kind.SESSION, what, "end it", session=session)


class DeadOwners(StoreCheck[S]):
    """Tasks held by a session that is missing, that has ended, or whose processes are dead.

    ``is_alive`` tells whether a connection's process lives. ``watch``: the instant when that is known of all.
    """

    name = "owners"
    rescues = True

    def __init__(self, store: S, is_alive: IsAlive, watch: Callable[[], float]) -> None:
        super().__init__(store)
        self._is_alive = is_alive
        self._watch = watch

    def until(self, since: float) -> float:
        return max(since + PATIENCE, self._watch())

    def _held(
        self, tx: Any, tube: TubeRecord, owner: str, count: int, session: Known | None, now: int
    ) -> Iterator[Finding]:
        """The finding, if ``owner`` is such a session; it holds ``count`` tasks of the tube."""
        why = self._why_dead(tx, session, now)
        if why:
            what = f"{count} taken by session {owner or 'without a name'}, {why}"
            remedy = "give them back, where the tube's type is registered"
            yield Finding(Kind.OWNER, what, remedy, tube=tube.name, session=owner)

    def _why_dead(self, tx: Any, session: Known | None, now: int) -> str:
        if session is None:
            return "which does not exist"
        ends_ms, connections = session
        if ends_ms is not None:
            return "which has ended" if ends_ms <= now else ""
        is_dead = connections and not any(self._is_alive(tx, id) for id in connections)
        return "whose process is dead" if is_dead else ""


class CatalogueCheck(Check):
    """Tubes whose entries cannot be read, so that no verb reaches them, or that are another's second name."""

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


def name_of_lost(number: int, names: Collection[str]) -> str:
    """A name that no other tube has, for one that has lost its own."""
    name = f"lost_{number}"
    while name in names:
        name += "_"
    return name
