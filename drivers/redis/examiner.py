"""What can be wrong in a Redis store, and how it is repaired: the checks that ``tubes doctor`` runs.

Each look at a tube is one script, and so is each repair, which looks again first: what they find was so at
one instant, whatever others do. What must be true of a tube's keys is in ``lua/rules.lua``. The catalogue
may be on another server than a tube: a check of both looks in an order in which living processes cannot
mislead it, or looks twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tubes.doctor import LOOK_LIMIT, Check, Finding, Kind, Look
from tubes.driver import Features, TubeRecord
from tubes.options import described_sub_queue, sub_queue_name
from tubes.payload import why_unreadable

from ..examining import (
    PATIENCE,
    CatalogueCheck,
    DeadOwners,
    FeaturesOf,
    LonelySessions,
    StoreCheck,
    UnknownSessions,
    name_of_lost,
    portions,
)
from . import scripts
from .driver import RedisDriver
from .tx import RedisTx

if TYPE_CHECKING:
    from .runner import Runner
    from .store import RedisStore

SCAN_LIMIT = 100
"""About how many things one script looks at: the server serves nobody else meanwhile."""


class RuleText(NamedTuple):
    """What the doctor says of a broken rule, and does about it."""

    kind: Kind
    what: str
    remedy: str | None


RULES = {
    "ghost": RuleText(
        Kind.GHOST, "{where} leads to task {task}, which does not exist", "take it out of {where}"
    ),
    "astray": RuleText(
        Kind.STATE, "task {task} is in {where}, where it does not belong", "take it out of {where}"
    ),
    "worse": RuleText(
        Kind.LINE, "in {line} task {task} stands in front but should not", "take it away from there"
    ),
    "front": RuleText(
        Kind.LINE, "in {line} the first task does not stand in front", "put the right one there"
    ),
    "second": RuleText(Kind.LINE, "in {line} task {task} is taken, and so is another", "give it back"),
    "orphan": RuleText(Kind.ORPHAN, "task {task} is not in {missing}, where it belongs", "give it its place"),
    "lost": RuleText(Kind.ORPHAN, "there is a payload of task {task}, but no task", "bury it as a task"),
    "empty": RuleText(Kind.GHOST, "task {task} has no payload", "remove it"),
    "payload": RuleText(
        Kind.PAYLOAD,
        "task {task} has a payload that is not JSON: {missing}",
        "keep it as bytes, and bury the task",
    ),
    "unreadable": RuleText(
        Kind.STATE, "the record of task {task} cannot be read", "bury the task with a new record"
    ),
    "nobody": RuleText(Kind.OWNER, "task {task} is taken by nobody", "give it back"),
    "endless": RuleText(
        Kind.STATE, "task {task} is delayed in a tube whose type has no delays", "make it ready"
    ),
    "extra": RuleText(
        Kind.STATE, "task {task} has an owner, or times, that it cannot have", "clear what it cannot have"
    ),
    "due": RuleText(Kind.STATE, "task {task} has a wrong due time", "correct it"),
    "number": RuleText(Kind.DAMAGE, "{where} contains {task!r}, which is not an id", None),
    "next": RuleText(
        Kind.COUNT,
        "the id of its next task is missing, invalid, or was given before",
        "go on after the last one",
    ),
    "undropped": RuleText(
        Kind.ORPHAN,
        "it is marked as dropped, so that nobody can open it, but still exists",
        "remove the mark",
    ),
    "uncounted": RuleText(Kind.COUNT, "the count of {task!r} calls is not a number", "count from 0 again"),
}
"""By the names that rules.lua gives them."""


class Survey(NamedTuple):
    """How much each of a tube's keys holds; see survey.lua."""

    next: bytes
    gave: bytes
    tasks: int
    """Records and payloads."""

    states: int
    ready: int
    line: int
    busy: int
    held: int
    buried: int
    due: int
    ready_tasks: int
    taken_tasks: int
    delayed_tasks: int
    buried_tasks: int

    @classmethod
    def of(cls, tx: RedisTx, driver: RedisDriver) -> Survey:
        """Look at a tube."""
        return cls(*driver.look(tx, scripts.SURVEY))

    @property
    def has_keys(self) -> bool:
        """Whether there is more than what a drop leaves behind."""
        return bool(self.next) or any(self[2:10])

    @property
    def was_dropped(self) -> bool:
        """Whether there is only what a drop leaves behind."""
        return bool(self.gave) and not self.has_keys


RedisCheck = StoreCheck["Runner"]


def redis_checks(store: RedisStore, features_of: FeaturesOf, *, deep: bool) -> Iterator[Check]:
    """The checks of a store.

    Sessions come first, or their tasks would seem to belong to dead ones; then the catalogue, and the tubes.
    """
    yield UnknownSessions(store)
    yield Unreadable(store)
    yield CatalogueCheck(store.tubes)
    yield Last(store)
    yield StrayTubes(store)
    yield from checks_of_tubes(store, features_of, deep=deep)
    yield LonelySessions(store)


def checks_of_tubes(store: Runner, features_of: FeaturesOf, *, deep: bool) -> Iterator[Check]:
    """The checks of tubes, their tasks, and the heads of sub-queues.

    When all that is right, the tasks of the dead are given back.
    """
    yield Types(store)
    yield Starts(store)
    for tube in store.read(store.tubes):
        features = features_of(tube)
        if features is None:
            continue
        told: dict[tuple[str, int | None], str] = {}
        if not deep:
            yield Counts(store, tube, features)
        for where in places(features, deep=deep):
            yield Things(store, tube, features, where, told)
    yield Admissions(store)
    is_alive, until = store.host.who_lives(deep)
    yield Owners(store, lambda tx, id: store.host.read(lambda own: is_alive(own, id)), until)


def places(features: Features, *, deep: bool) -> Iterator[str]:
    """Where to look in a tube, in a safe order: what a take looks at comes last, when the rest is right.

    A light look leaves out the keys that grow with the backlog.
    """
    yield "calls"
    if deep:
        yield from ("line", "buried", "due", "states")
    yield "held"
    if deep or features.grouped:
        yield "busy"
    if deep:
        yield "tasks"
    if deep or features.grouped:
        yield "ready"
    if features.grouped:
        yield "front"


class Unreadable(StoreCheck["RedisStore"]):
    """Entries of sessions and connections that nobody can read."""

    name = "sessions"

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        unreadable = sorted(self._store.sessions().unreadable)
        return Look([self._finding(*each) for each in unreadable], seen=len(unreadable))

    def _finding(self, where: str, id: str) -> Finding:
        return Finding(Kind.DAMAGE, f"in {where} the entry of {id!r} cannot be read", None)


class Last(StoreCheck["RedisStore"]):
    """What new tubes go on from: how many were created, and the last id that a dropped one gave."""

    name = "last"

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        return Look([self._finding(which.decode()) for which in self._store.ask(scripts.LAST, "")])

    def _finding(self, which: str) -> Finding:
        what = f"in the catalogue's key last, the value of {which!r} is not a number"
        return Finding(Kind.COUNT, what, "go on after the highest of the existing tubes", key=which)

    def mend(self, tx: RedisTx, finding: Finding, *, now: int) -> bool:
        which: str = finding.key
        return which.encode() in self._store.ask(scripts.LAST, which)


# Who holds tasks


class Holding(NamedTuple):
    """What a session holds in a tube."""

    owner: str
    tasks: int
    is_admitted: bool


class OwnersCheck(RedisCheck):
    """Looks at the sessions that hold tasks, one tube a step."""

    name = "owners"

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        left = [tube for tube in self._store.tubes(tx) if after is None or tube.id > after]
        if not left:
            return Look(())
        tube, *further = sorted(left, key=lambda tube: tube.id)
        holdings = [*self._holdings(tx, tube, limit)]
        findings = [*self._findings(tx, tube, holdings, now)]
        return Look(findings, tube.id if further else None, seen=len(holdings))

    def _findings(
        self, tx: RedisTx, tube: TubeRecord, holdings: Sequence[Holding], now: int
    ) -> Iterator[Finding]:
        raise NotImplementedError

    def _holdings(self, tx: RedisTx, tube: TubeRecord, limit: int) -> Iterator[Holding]:
        driver, after = self._store.examined(tube), b""
        if driver.look(tx, scripts.TYPES):
            return  # Types reports it
        while True:
            flat = driver.look(tx, scripts.HOLDERS, after, limit)
            for owner, count, is_admitted in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
                if owner != b"-":  # taken by nobody: Things reports it
                    yield Holding(owner.decode(errors="replace"), count, bool(is_admitted))
            if len(flat) < 3 * limit:
                return
            after = flat[-3]


class Admissions(OwnersCheck):
    """Sessions that hold tasks of a tube and are not on its list: nobody would give back what they hold.

    The list and the tasks are read in one script, so that no rescue can come in between.
    """

    def _findings(
        self, tx: RedisTx, tube: TubeRecord, holdings: Sequence[Holding], now: int
    ) -> Iterator[Finding]:
        remedy = "add it there, so that its tasks come back when it dies"
        for owner, tasks, is_admitted in holdings:
            if not is_admitted:
                what = f"{tasks} taken by session {owner}, which is not on the tube's list"
                yield Finding(Kind.OWNER, what, remedy, tube=tube.name, session=owner, key=tube.id)

    def mend(self, tx: RedisTx, finding: Finding, *, now: int) -> bool:
        assert finding.session is not None
        tube = self._store.tube_numbered(tx, finding.key)
        if tube is None:
            return False
        is_so = finding in self._findings(tx, tube, [*self._holdings(tx, tube, LOOK_LIMIT)], now)
        if is_so:
            self._store.examined(tube).do(tx, scripts.ADMIT, finding.session)
        return is_so


class Owners(DeadOwners["Runner"], OwnersCheck):
    """Sessions on a tube's list that will never give back what they hold."""

    def _findings(
        self, tx: RedisTx, tube: TubeRecord, holdings: Sequence[Holding], now: int
    ) -> Iterator[Finding]:
        admitted = [holding for holding in holdings if holding.is_admitted]
        if not admitted:
            return
        host = self._store.host
        sessions = host.read(host.known_sessions)  # after the holders: one that began meanwhile is known
        now = host.clock.now_ms()  # that of the tube's server may differ
        for owner, tasks, _ in admitted:
            yield from self._held(tx, tube, owner, tasks, sessions.get(owner), now)


# Tubes


class StrayTubes(StoreCheck["RedisStore"]):
    """Tubes that have keys and are not in the catalogue, so that no verb reaches them.

    A tube has an entry before it has keys, and keeps it until they are removed. So a tube is lost if it had
    keys before the catalogue was read, is not in it, and has keys after that.
    """

    name = "keys"

    def __init__(self, store: RedisStore) -> None:
        super().__init__(store)
        self._seen: set[int] = set()

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        """Look at some keys, including those of others in the same database."""
        numbers, after = self._store.numbers(after, limit)
        known = {tube.id for tube in self._store.tubes(tx)}
        unknown = sorted(numbers - known - self._seen)
        self._seen |= numbers
        findings = [finding for number in unknown for finding in self._findings(tx, number)]
        return Look(findings, after, seen=limit if after else 1)

    def _findings(self, tx: RedisTx, number: int) -> Iterator[Finding]:
        driver = self._store.examined(_unnamed(number))
        whose = f"tube number {number} is not in the catalogue, and its"
        wrong = list(_wrong_types(tx, driver, whose, tube=None))
        yield from wrong
        if not wrong and Survey.of(tx, driver).has_keys:
            yield self._finding(number)

    def _finding(self, number: int) -> Finding:
        what = f"there are keys of tube number {number}, which is not in the catalogue"
        return Finding(Kind.ORPHAN, what, f"add it, as lost_{number}", key=number)

    def mend(self, tx: RedisTx, finding: Finding, *, now: int) -> bool:
        tubes = self._store.tubes(tx)
        survey = Survey.of(tx, self._store.examined(_unnamed(finding.key)))
        if not survey.has_keys or finding.key in {tube.id for tube in tubes}:
            return False
        name = name_of_lost(finding.key, {tube.name for tube in tubes})
        return self._store.add_if_free(TubeRecord(finding.key, name, type_of(survey), {}, False))


def _unnamed(number: int) -> TubeRecord:
    """A tube of which only the number is known."""
    return TubeRecord(number, "", "", {}, False)


def type_of(survey: Survey) -> str:
    """Guess a tube's type from its keys. Types without priorities have no times, and no order but by id."""
    is_grouped = survey.line or survey.busy
    has_order = survey.due or survey.buried or not (survey.ready_tasks or survey.buried_tasks)
    if is_grouped:
        return "utubettl" if has_order or not survey.buried_tasks else "utube"
    return "fifottl" if has_order or survey.ready else "fifo"


class Types(RedisCheck):
    """Keys of the wrong type: a verb fails when it uses one, and some verbs use none of them."""

    name = "types"

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        tubes, findings = self._store.tubes(tx), list[Finding]()
        for tube in tubes:
            findings += _wrong_types(tx, self._store.examined(tube), "its", tube.name)
        return Look(findings, seen=len(tubes))


def _wrong_types(tx: RedisTx, driver: RedisDriver, whose: str, tube: str | None) -> Iterator[Finding]:
    found = [word.decode() for word in driver.look(tx, scripts.TYPES)]
    for key, is_now, right in zip(found[::3], found[1::3], found[2::3], strict=True):
        what = f"{whose} key {key} is a {is_now}, but must be a {right}"
        yield Finding(Kind.DAMAGE, what, None, tube=tube, key=key)


class Starts(RedisCheck):
    """Whether each tube of the catalogue is ready for use, and gives ids that it has not given before."""

    name = "tubes"

    def until(self, since: float) -> float:
        return since + PATIENCE

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        tubes = [tube for tube in self._store.tubes(tx) if tube.id]  # whose number is known
        findings = []
        for tube in tubes:
            driver = self._store.examined(tube)
            if driver.look(tx, scripts.TYPES):
                continue  # Types reports it
            survey = Survey.of(tx, driver)
            if survey.was_dropped:
                findings.append(self._dropped(tube))
            findings += _findings(tube, "meta", driver.look(tx, scripts.EXAMINE, "meta", "", 1)[2])
        return Look(findings, seen=len(tubes))

    def _dropped(self, tube: TubeRecord) -> Finding:
        what = "it was dropped, but is still in the catalogue"
        key = ("meta", b"", tube.id)
        return Finding(Kind.GHOST, what, "remove it from there", tube=tube.name, rule="dropped", key=key)

    def mend(self, tx: RedisTx, finding: Finding, *, now: int) -> bool:
        _, _, number = finding.key
        tube = self._store.tube_numbered(tx, number)
        if tube is None:
            return False
        driver = self._store.examined(tube)
        if finding.rule != "dropped":
            return _mend(tx, driver, finding, now=now)
        survey = Survey.of(tx, driver)
        if not survey.was_dropped:
            return False
        self._store.remove_dropped(tube, survey.gave)
        return True


class Counts(RedisCheck):
    """How much the keys of a tube hold: some must hold as much as others."""

    def __init__(self, store: Runner, tube: TubeRecord, features: Features) -> None:
        super().__init__(store)
        self._tube = tube
        self._features = features
        self.name = f"counts of {tube.name}"

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        survey = Survey.of(tx, self._store.examined(self._tube))
        differ = [
            f"{expected} {what} and {found} in {index}"
            for what, expected, index, found in self._pairs(survey)
            if expected != found
        ]
        if survey.tasks != 2 * survey.states:
            differ.insert(0, f"{survey.tasks} records and payloads and {survey.states} tasks in states")
        what = f"there are {', '.join(differ)}: --deep shows which"
        return Look([Finding(Kind.COUNT, what, None, tube=self._tube.name)] if differ else (), seen=1)

    def _pairs(self, survey: Survey) -> Iterator[tuple[str, int, str, int]]:
        yield "taken", survey.taken_tasks, "held", survey.held
        if self._features.grouped:
            yield "taken", survey.taken_tasks, "busy", survey.busy
            yield "ready", survey.ready_tasks, "line", survey.line
        elif self._features.priority:
            yield "ready", survey.ready_tasks, "ready", survey.ready
        if self._features.priority:
            yield "buried", survey.buried_tasks, "buried", survey.buried


# Tasks


class Things(RedisCheck):
    """The things in one of a tube's keys, each by itself; see rules.lua.

    Several may lead to one damaged task: ``told`` says for a rule and a task where that was found first.
    """

    def __init__(
        self,
        store: Runner,
        tube: TubeRecord,
        features: Features,
        where: str,
        told: dict[tuple[str, int | None], str],
    ) -> None:
        super().__init__(store)
        self._tube = tube
        self._where = where
        self._told = told
        self._driver = store.examined(tube, features)
        self.name = f"{'sub-queues' if where == 'front' else where} of {tube.name}"

    def size(self, tx: RedisTx) -> int:
        size: int = getattr(Survey.of(tx, self._driver), self._where, 0)
        return size

    def look(self, tx: RedisTx, after: Any, limit: int, *, now: int) -> Look:
        given = self._where, after or "", min(limit, SCAN_LIMIT)
        after, seen, wrong, payloads = self._driver.look(tx, scripts.EXAMINE, *given)
        findings = [*_findings(self._tube, self._where, wrong), *self._unreadable(tx, payloads)]
        return Look([finding for finding in findings if self._is_new(finding)], after or None, seen)

    def _is_new(self, finding: Finding) -> bool:
        about = (finding.rule, finding.task)
        return (
            finding.rule not in ("empty", "unreadable")
            or self._told.setdefault(about, self._where) == self._where
        )

    def _unreadable(self, tx: RedisTx, sizes: Sequence[Any]) -> Iterator[Finding]:
        """Payloads that must be JSON and are not, among those that examine.lua listed; they never change."""
        for ids in portions(zip(map(int, sizes[::2]), sizes[1::2], strict=True)):
            for id, _, payload in self._driver.peek(tx, ids):
                why = payload is not None and why_unreadable(payload)
                if why:
                    yield _finding(self._tube, self._where, id, b"payload", id, b"", why.encode())

    def mend(self, tx: RedisTx, finding: Finding, *, now: int) -> bool:
        return _mend(tx, self._driver, finding, now=now)


def _mend(tx: RedisTx, driver: RedisDriver, finding: Finding, *, now: int) -> bool:
    where, what, _ = finding.key
    return bool(driver.do(tx, scripts.MEND, where, what, finding.rule, driver.after, now=now))


def _findings(tube: TubeRecord, where: str, wrong: Sequence[bytes]) -> list[Finding]:
    """What examine.lua found."""
    return [_finding(tube, where, *wrong[place : place + 5]) for place in range(0, len(wrong), 5)]


def _finding(
    tube: TubeRecord, where: str, what: bytes, rule: bytes, id: bytes, utube: bytes, missing: bytes
) -> Finding:
    text = RULES[rule.decode()]
    stored = utube.decode(errors="backslashreplace")
    task: Any = int(id) if id.isdigit() else id.decode(errors="replace")
    line = described_sub_queue(stored)
    say = partial(str.format, where=where, task=task, line=line, missing=missing.decode(errors="replace"))
    return Finding(
        text.kind,
        say(text.what),
        text.remedy and say(text.remedy),
        tube=tube.name,
        task=task if isinstance(task, int) and id else None,
        utube=sub_queue_name(stored),
        rule=rule.decode(),
        key=(where, what, tube.id),
    )
