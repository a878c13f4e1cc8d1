"""Examines a store for what should not be, and repairs it: what ``tubes doctor`` does.

The store knows where to look. It gives ``Check``s, in the order in which it is safe to repair. A check looks
in bounded steps, each in a transaction of its own. It mends one finding at a time, in a short transaction
that looks again before it writes. Others may work meanwhile. A tube that is not in the queue's store has one
of its own, which is examined after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from tubes.clock import pause, real_monotonic
from tubes.driver import Features, TubeRecord, TubeType
from tubes.errors import (
    IncompleteDriver,
    NoSuchTube,
    NotSupported,
    StoreBusy,
    TubeError,
    UnknownDriver,
    store_works,
)
from tubes.interrupts import guarded
from tubes.open_tubes import apart_from_others
from tubes.registry import find_driver
from tubes.waiting import room

if TYPE_CHECKING:
    from tubes.queue import Queue
    from tubes.store import Store
    from tubes.tube import Tube

LOOK_LIMIT = 1000
"""Most things that one step of a check looks at."""

MOST_STEPS = 10_000
"""Most transactions for mending one finding, should it never come to an end."""

MOST_PASSES = 3
"""Most passes over a store to repair it: mending one thing can bring another to light."""

LOOK_AGAIN_AFTER = 0.1
"""Seconds between two looks at what living processes may put right by themselves."""


class Kind(Enum):
    """What is wrong with something."""

    DAMAGE = "damage"
    """The file or the schema itself."""
    ORPHAN = "orphan"
    """Stored, and in no index: nothing leads to it."""
    GHOST = "ghost"
    """In the indexes, without data."""
    PAYLOAD = "payload"
    """Data that cannot be read."""
    STATE = "state"
    """A task whose parts contradict each other."""
    LINE = "line"
    """The wrong task, none, or more than one stands in front of a sub-queue."""
    COUNT = "count"
    """A count that differs from what it counts."""
    OWNER = "owner"
    """Taken, and its owner is dead or unknown."""
    SESSION = "session"
    """A session without connections, or the other way round."""
    AWAY = "away"
    """A tube's own server, which cannot be asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not be. Two findings about the same thing are equal, whatever they say of it."""

    kind: Kind
    what: str = field(compare=False)
    """What is wrong, as a sentence."""
    remedy: str | None = field(compare=False)
    """What a repair does about it, in the imperative; ``None``: only a person can repair it."""
    tube: str | None = None
    task: int | None = None
    utube: str | None = None
    session: str | None = None
    rule: str = field(default="", repr=False)
    """Which of the check's rules it breaks."""
    key: Any = field(default=None, repr=False)
    """What the check finds it again by."""

    def as_json(self) -> dict[str, Any]:
        """The finding for other programs."""
        return {
            "kind": self.kind.value,
            "tube": self.tube,
            "task": self.task,
            "utube": self.utube,
            "session": self.session,
            "what": self.what,
            "remedy": self.remedy,
        }


class Look(NamedTuple):
    """The result of one step of a check."""

    findings: Sequence[Finding]
    after: Any = None
    """Where the next step goes on; ``None``: that was all."""
    seen: int = 0
    """How many things it looked at."""


class Check:
    """One kind of look at a store. What it finds is true of one instant, unless it is ``doubtful``."""

    name = ""
    """What it looks at: ``tasks``, say."""
    doubtful: bool = False
    """Whether a look can catch others between two of their steps, so that it must ``confirm`` findings."""
    rescues: ClassVar[bool] = False
    """Whether ``Rescuer.rescue``, which every process runs for the dead, repairs it instead of ``mend``."""

    def until(self, since: float) -> float:
        """When findings of that instant have lasted, since living processes may put them right by themselves.

        Both are instants of the monotonic clock. Asked again after each further look, which may put it off.
        """
        return since

    def size(self, tx: Any) -> int:
        """About how many things there are to look at; 0: too few to show progress."""
        return 0

    def look(self, tx: Any, after: Any, limit: int, *, now: int) -> Look:
        """Look at up to ``limit`` things after that place (``None``: the first ones); ``tx`` only reads."""
        raise NotImplementedError

    def confirm(self, tx: Any, finding: Finding) -> bool:
        """Look again, keeping others from changing it; tell if it is so. Asked only if ``doubtful``."""
        raise NotImplementedError

    def mend(self, tx: Any, finding: Finding, *, now: int) -> bool:
        """Look again, keeping others from changing it; if it is still so, repair it, and tell that.

        If that is too much for one transaction, repair a part of it: this is called until it has nothing to
        do.
        """
        raise NotImplementedError


class Examinable(Protocol):
    """A store that can be examined: a queue's, or a driver's own. The method is optional in a ``Store``."""

    def checks(self, features: Callable[[TubeRecord], Features | None], *, deep: bool) -> Iterable[Check]:
        """The checks, in the order in which it is safe to repair, each made when its turn has come.

        Light ones cost little whatever the backlog; ``deep`` ones look at every task too. ``features``
        returns those of a tube whose type is a TubeType registered here, else ``None``.
        """
        ...


Progress = Callable[[str, int, int], None]
"""Called after each step with the check's name, how far it is, and of how many (0: unknown)."""


class Doctor:
    """Examines the store that a queue is on, and tubes' own stores, and repairs them.

    NotSupported if the queue's store cannot be examined.
    """

    def __init__(self, queue: Queue, *, deep: bool = False, on_progress: Progress | None = None) -> None:
        if getattr(queue.store, "checks", None) is None:
            raise NotSupported(f"{queue.store} cannot be examined")
        self.queue = queue
        self.deep = deep
        self.on_progress: Progress = on_progress or (lambda name, done, size: None)

    def examine(self) -> Iterator[Finding]:
        """Yield what is wrong. Nothing is written."""
        yield from self._of_queue().examine()
        for tube in self._tubes_apart():
            failed: list[Exception] = []
            with apart_from_others(tube, failed):
                for finding in self._of_tube(tube).examine():
                    yield replace(finding, tube=tube.name)
            for error in failed:
                kind = Kind.DAMAGE if _is_of_damage(error) else Kind.AWAY
                yield Finding(kind, f"its own store cannot be examined: {error}", None, tube=tube.name)

    def repair(self) -> Iterator[Finding]:
        """Repair what can be, and yield it. ``examine`` then tells what is left."""
        yield from self._of_queue().repair()
        for tube in self._tubes_apart():
            with apart_from_others(tube):
                for finding in self._of_tube(tube).repair():
                    yield replace(finding, tube=tube.name)

    # Within

    def _tubes_apart(self) -> list[Tube]:
        """The tubes that have stores of their own."""
        return [tube for tube in self.queue._open_tubes.open_all() if hasattr(tube.driver, "own_store")]

    def _of_queue(self) -> Examination:
        return Examination(self, self.queue.store, self.queue.rescuer.rescue)

    def _of_tube(self, tube: Tube) -> Examination:
        """That of the store that a tube has of its own. StoreUnavailable if its server is away."""
        tube.place.check_reachable()
        store: Store = cast("Any", tube.driver).own_store()

        def rescue() -> None:
            self.queue.rescuer.rescue()
            with apart_from_others(tube):
                tube.rescue(thoroughly=True)

        return Examination(self, store, rescue)


class Examination:
    """Of one store; and its repair. ``rescue`` gives back what dead sessions hold there."""

    def __init__(self, doctor: Doctor, store: Store, rescue: Callable[[], object]) -> None:
        self._doctor = doctor
        self._store = store
        self._rescue = rescue

    def examine(self) -> Iterator[Finding]:
        """Yield what is wrong there."""
        for check in self._checks():
            for findings in self._steps(check):
                yield from findings

    def repair(self) -> Iterator[Finding]:
        """Repair what can be, and yield it."""
        for _ in range(MOST_PASSES):
            mended = 0
            for check in self._checks():
                for findings in self._steps(check):
                    for finding in self._mended(check, findings):
                        mended += 1
                        yield finding
            if not mended:
                return

    # Within

    def _checks(self) -> Iterable[Check]:
        store = cast("Examinable", self._store)
        return store.checks(_features, deep=self._doctor.deep)

    def _steps(self, check: Check) -> Iterator[Sequence[Finding]]:
        """The findings of a check, step by step."""
        seen = size = 0
        after: Any = None
        while True:
            try:
                if after is None:
                    size = self._store.read(check.size)
                look = self._look(check, after)
                findings = self._lasting(check, after, look.findings)
                if check.doubtful:
                    findings = [finding for finding in findings if self._confirm(check, finding)]
            except Exception as error:
                if not _is_of_damage(error):
                    raise
                what = f"{check.name} cannot be examined: the stored data is damaged ({error})"
                yield [Finding(Kind.DAMAGE, what, None)]
                return
            seen += look.seen
            self._doctor.on_progress(check.name, seen, max(size, seen) if size else 0)
            yield findings
            if look.after is None:
                return
            after = look.after

    def _look(self, check: Check, after: Any) -> Look:
        now = self._store.clock.now_ms()
        return self._store.read(lambda tx: check.look(tx, after, LOOK_LIMIT, now=now))

    def _lasting(self, check: Check, after: Any, findings: Sequence[Finding]) -> Sequence[Finding]:
        """The findings that nobody puts right while we wait."""
        since = real_monotonic()
        while findings and real_monotonic() < check.until(since):
            pause(LOOK_AGAIN_AFTER)
            still = set(self._look(check, after).findings)
            findings = [finding for finding in findings if finding in still]
        return findings

    def _mended(self, check: Check, findings: Sequence[Finding]) -> Iterator[Finding]:
        curable = [finding for finding in findings if finding.remedy is not None]
        if check.rescues:
            if curable:
                self._rescue()
                left = {*chain.from_iterable(self._steps(check))}
                yield from (finding for finding in curable if finding not in left)
            return
        ready: Counter[str] = Counter()
        try:
            for finding in curable:
                if self._mend(check, finding):
                    ready[finding.tube or ""] += 1
                    yield finding
        finally:
            self._wake(ready)

    def _confirm(self, check: Check, finding: Finding) -> bool:
        return self._write(lambda tx: check.confirm(tx, finding))

    def _mend(self, check: Check, finding: Finding) -> bool:
        """Mend it step by step; tell whether there was anything to mend.

        What cannot be mended, since something else about it is damaged, is left to a person.
        """
        for done in range(MOST_STEPS):
            try:
                is_so = self._write(lambda tx: check.mend(tx, finding, now=self._store.clock.now_ms()))
            except Exception as error:
                if not _is_of_damage(error):
                    raise
                return False
            if not is_so:
                return done > 0
        return True

    def _write(self, work: Callable[[Any], bool]) -> bool:
        """Do it in a transaction.

        What others have locked is left to them; there is nothing to mend if they have dropped the tube.
        """

        def step(tx: Any) -> bool:
            tx.begin()
            return work(tx)

        try:
            return guarded(self._store.transact, step)
        except (StoreBusy, NoSuchTube):
            return False

    def _wake(self, tubes: Counter[str]) -> None:
        """Wake those who wait: what was mended may be taken now, or makes room."""
        if tubes:
            queue = self._doctor.queue
            for record in queue.records():
                if tubes[record.name]:
                    for key in record.id, room(record.id):
                        queue.store.call(key, tubes[record.name])


def _is_of_damage(error: Exception) -> bool:
    """Whether an error comes from what is stored, such as text instead of a number, or too large a number."""
    return not isinstance(error, TubeError) or store_works(error)


def _features(record: TubeRecord) -> Features | None:
    try:
        definition = find_driver(record.type)
    except (UnknownDriver, IncompleteDriver):
        return None
    return definition.features if isinstance(definition, TubeType) else None
