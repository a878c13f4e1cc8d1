"""The kit can fail: each of these drivers has one fault, and the test for that fault finds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from slow import slow_but

import tubes
from tubes import Change, Event, Features, NewTask, Ref, State, Task, TubeType, register_driver
from tubes.testing import ConformanceKit, FakeClock
from tubes.testing.agreement import Agreement

pytest_plugins = ["pytester"]

PLAIN, TIMED, GROUPED = Features(), Features(timed=True), Features(grouped=True)
BOUNDED, RANKED = Features(bounded=True), Features(priority=True)
TIMED_AND_BOUNDED = Features(timed=True, bounded=True)


class Sound:
    """A built-in driver, passed through. The others override the verb that they get wrong."""

    is_temporary = False

    def __init__(self, inner: Any, features: Features) -> None:
        self.inner = inner
        self.features = features

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WrongOrder(Sound):
    """Is realised with another order: see ``factory``."""


class TellsTwice(Sound):
    def ack(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        return [*self.inner.ack(tx, refs, **given)] * 2


class TellsNothingOfTime(Sound):
    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        self.inner.expire(tx, limit, now=now)
        return []


class TellsOfAnotherEvent(Sound):
    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        return [change._replace(event=Event.RELEASE) for change in self.inner.kick(tx, limit, now=now)]


class CountsNoAttempts(Sound):
    def normalize_task(self, raw: Any) -> Task:
        task: Task = self.inner.normalize_task(raw)
        return dataclasses.replace(task, attempts=0)


class TakesTwoOfASubQueue(Sound):
    """Is realised without sub-queues: see ``factory``."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.put(tx, [item._replace(utube=None) for item in items], now=now)
        return changes


class LosesThePlace(Sound):
    """Puts a released task back behind all others."""

    def release(
        self, tx: Any, refs: Sequence[Ref], *, delay_ms: int, owner: Any, now: int
    ) -> Sequence[Change]:
        changes = []
        for change in self.inner.ack(tx, refs, owner=owner, now=now):
            (put,) = self.inner.put(tx, [NewTask(f'"{change.raw.data}"', change.raw.data)], now=now)
            changes.append(put._replace(event=Event.RELEASE))
        return changes


class HandsOutWhatIsOver(Sound):
    """Takes as if it were long ago."""

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.take(tx, limit, owner=owner, now=now - 10**9)
        return changes


class ForgetsAPartOfThePast(Sound):
    """Releases without the delay, which would also lengthen the task's life."""

    def release(
        self, tx: Any, refs: Sequence[Ref], *, delay_ms: int, owner: Any, now: int
    ) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.release(tx, refs, delay_ms=0, owner=owner, now=now)
        return changes


class AsksNobody(Sound):
    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: Any, now: int) -> Sequence[Change]:
        bare = [Ref(ref.id, ref.token) for ref in refs]
        changes: Sequence[Change] = self.inner.ack(tx, bare, owner=None, now=now)
        return changes


class IgnoresTokens(Sound):
    def ack(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.ack(tx, [Ref(ref.id) for ref in refs], **given)
        return changes


class AcksWhatItGaveBack(Sound):
    """Asks whether a task was ever taken, not whether it is taken now."""

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: Any, now: int) -> Sequence[Change]:
        tasks = map(self.normalize_task, self.inner.peek(tx, [ref.id for ref in refs if ref.token is None]))
        back = [Ref(task.id) for task in tasks if task.state is State.READY and task.attempts]
        acked = self.inner.ack(tx, refs, owner=owner, now=now)
        gone = self.inner.delete(tx, back, owner=owner, now=now)
        return [*acked, *(change._replace(event=Event.ACK) for change in gone)]


class BuriesWithItsOwner(Sound):
    owner: Any = None

    def bury(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        for raw in self.inner.peek(tx, [ref.id for ref in refs]):
            self.owner = self.inner.normalize_task(raw).owner
        changes: Sequence[Change] = self.inner.bury(tx, refs, **given)
        return changes

    def normalize_task(self, raw: Any) -> Task:
        task: Task = self.inner.normalize_task(raw)
        return dataclasses.replace(task, owner=self.owner) if task.state is State.BURIED else task


class KnowsNoBounds(Sound):
    """Is realised without its capacity: see ``factory``."""


class KicksAll(Sound):
    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.kick(tx, 1000, now=now)
        return changes


class KicksBackwards(Sound):
    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        return [*self.inner.kick(tx, limit, now=now)][::-1]


class BuriesNothingDelayed(Sound):
    def bury(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        tasks = map(self.normalize_task, self.inner.peek(tx, [ref.id for ref in refs]))
        delayed = {task.id for task in tasks if task.state is State.DELAYED}
        changes: Sequence[Change] = self.inner.bury(
            tx, [ref for ref in refs if ref.id not in delayed], **given
        )
        return changes


class CountsInMemory(Sound):
    """Keeps outside the transaction what a rollback must take back."""

    stored = 0

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        self.stored += len(items)
        changes: Sequence[Change] = self.inner.put(tx, items, now=now)
        return changes

    def count(self, tx: Any) -> Mapping[State, int]:
        return {State.READY: self.stored}


class HandsOutTwice(Sound):
    last: Sequence[Change] = ()
    calls = 0

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        self.calls += 1
        if self.calls % 5 == 0 and self.last:
            return self.last
        self.last = self.inner.take(tx, limit, owner=owner, now=now)
        return self.last


class StartsEmpty(Sound):
    def start(self, tx: Any) -> None:
        self.inner.truncate(tx, 1000)


class BeginsEmpty(Sound):
    def create_space(self, tx: Any, tube: Any) -> None:
        self.inner.truncate(tx, 1000)


class LetsTheDelayedIn(Sound):
    """Lets delayed tasks into a full tube."""

    def put(self, tx: Any, items: Sequence[NewTask], **given: Any) -> Sequence[Change]:
        later = [item for item in items if item.delay_ms]
        if later:
            self.inner._give_room(tx, len(later))
        changes: Sequence[Change] = self.inner.put(tx, items, **given)
        return changes


class ReachesIntoAnotherTube(Sound):
    """Forgets to say in which tube the task is."""

    others: ClassVar[list[Any]] = []

    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.others.append(inner)

    def delete(self, tx: Any, refs: Sequence[Ref], *, owner: Any, now: int) -> Sequence[Change]:
        for inner in reversed(self.others):
            changes: Sequence[Change] = inner.delete(tx, refs, owner=owner, now=now)
            if changes:
                return changes
        return []


class SeesNothing(Sound):
    """Tells waiting consumers of nothing, though their takes would find it."""

    def can_take(self, tx: Any) -> bool:
        return False


class SeesTooMuch(Sound):
    def can_take(self, tx: Any) -> bool:
        return True


class SeesNothingBeside(Sound):
    """Sees nothing ready while anything is taken."""

    def can_take(self, tx: Any) -> bool:
        return not self.inner.count(tx)[State.TAKEN] and bool(self.inner.can_take(tx))


class SeesWhatIsBehind(Sound):
    """Sees what is ready in a busy sub-queue, too."""

    def can_take(self, tx: Any) -> bool:
        return bool(self.inner.count(tx)[State.READY])


class GivesBackOne(Sound):
    """Releases only the first of many."""

    def release(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.release(tx, refs[:1], **given)
        return changes


class AsksForAnOwner(Sound):
    """Demands an owner even of the administrator."""

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: Any, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.ack(tx, refs, owner=owner or "nobody", now=now)
        return changes


class TakesNothingForNever(Sound):
    """Takes a ttr of 0 for none."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        given = [item._replace(ttr_ms=item.ttr_ms or None) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, given, now=now)
        return changes


class CutsTimes(Sound):
    """Cuts delays to what 32 bits can hold."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        cut = [item._replace(delay_ms=min(item.delay_ms, 2**31 - 1)) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, cut, now=now)
        return changes


class CutsPriorities(Sound):
    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        cut = [item._replace(pri=min(item.pri, 2**31 - 1)) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, cut, now=now)
        return changes


class SortsPrioritiesAsText(Sound):
    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        as_text = [item._replace(pri=int.from_bytes(str(item.pri).encode().ljust(4))) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, as_text, now=now)
        return changes

    def normalize_task(self, raw: Any) -> Task:
        task: Task = self.inner.normalize_task(raw)
        return dataclasses.replace(task, pri=int(task.pri.to_bytes(4).strip(b"\0")))


class TakesOneStep(Sound):
    """Releases so few that the step looks like the last."""

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.release_owner(tx, owner, min(limit, 100), now=now)
        return changes


class TakesOneMore(Sound):
    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.take(tx, limit + 1, owner=owner, now=now)
        return changes


class ReleasesAll(Sound):
    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.release_owner(tx, owner, 1000, now=now)
        return changes


class TruncatesAll(Sound):
    def truncate(self, tx: Any, limit: int) -> int:
        count: int = self.inner.truncate(tx, 1000)
        return count


class SettlesAll(Sound):
    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.expire(tx, 1000, now=now)
        return changes


class SaysNotWhen(Sound):
    """Does not say when time will do something to what is put."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        return [change._replace(due_ms=None) for change in self.inner.put(tx, items, now=now)]


class FindsTwice(Sound):
    def peek(self, tx: Any, ids: Sequence[int]) -> Sequence[Any]:
        return [*self.inner.peek(tx, ids)] * 2


class ListsAll(Sound):
    def tasks_by_state(self, tx: Any, state: State, *, after: int, limit: int) -> Sequence[Any]:
        raws: Sequence[Any] = self.inner.tasks_by_state(tx, state, after=after, limit=1000)
        return raws


class ListsBackwards(Sound):
    def tasks_by_state(self, tx: Any, state: State, **given: Any) -> Sequence[Any]:
        return [*self.inner.tasks_by_state(tx, state, **given)][::-1]


class ListsByPriority(Sound):
    def tasks_by_state(self, tx: Any, state: State, **given: Any) -> Sequence[Any]:
        raws = self.inner.tasks_by_state(tx, state, **given)
        return sorted(raws, key=lambda raw: int(self.inner.normalize_task(raw).pri))


class TreatsAllLikeTheFirst(Sound):
    """Gives all tasks of one put the options of the first."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        alike = [items[0]._replace(payload=item.payload, data=item.data) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, alike, now=now)
        return changes


class AcksTheReady(Sound):
    """If the administrator asks for it."""

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: Any, now: int) -> Sequence[Change]:
        if owner is not None:
            acked: Sequence[Change] = self.inner.ack(tx, refs, owner=owner, now=now)
            return acked
        gone = self.inner.delete(tx, refs, owner=None, now=now)
        return [change._replace(event=Event.ACK) for change in gone]


class TruncatesNothingDelayed(Sound):
    truncated = (State.READY, State.TAKEN, State.BURIED)

    def truncate(self, tx: Any, limit: int) -> int:
        refs: list[Ref] = []
        for state in self.truncated:
            raws = self.inner.tasks_by_state(tx, state, after=-1, limit=limit - len(refs))
            refs += [Ref(self.inner.normalize_task(raw).id) for raw in raws]
        self.inner.delete(tx, refs, owner=None, now=0)
        return len(refs)


class TruncatesNothingTaken(TruncatesNothingDelayed):
    """So that its tubes cannot be dropped."""

    truncated = (State.READY, State.BURIED, State.DELAYED)


class SeesWhatIsDelayed(Sound):
    def can_take(self, tx: Any) -> bool:
        return bool(self.inner.can_take(tx) or self.inner.count(tx)[State.DELAYED])


class KnowsNoTimeOfTheTaken(Sound):
    def next_due(self, tx: Any) -> int | None:
        due: int | None = self.inner.next_due(tx)
        return None if self.inner.count(tx)[State.TAKEN] else due


class TakesBeforeItSettles(Sound):
    """If anything is ready."""

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        early: Sequence[Change] = self.inner.take(tx, limit, owner=owner, now=now - 10_000)
        return early or self.inner.take(tx, limit, owner=owner, now=now)


class LeavesWhatIsLate(Sound):
    """Leaves late tasks with a session that is over."""

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        due = self.inner.next_due(tx)
        late = due is not None and due <= now
        changes: Sequence[Change] = [] if late else self.inner.release_owner(tx, owner, limit, now=now)
        return changes


class GivesRoomTwice(Sound):
    def truncate(self, tx: Any, limit: int) -> int:
        gone: int = self.inner.truncate(tx, limit)
        self.inner._give_room(tx, gone)
        return gone


class SharesTheNamesOfSubQueues(Sound):
    """With another tube: what is busy there is busy here."""

    others: ClassVar[list[Any]] = []

    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.others.append(inner)

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        for other in self.others:
            if other is not self.inner and other.count(tx)[State.TAKEN]:
                return []
        changes: Sequence[Change] = self.inner.take(tx, limit, owner=owner, now=now)
        return changes


class EmptiesWhatIsTemporary(Sound):
    """Even if others have it open."""

    def start(self, tx: Any) -> None:
        self.inner.start(tx)
        if self.is_temporary:
            self.inner.truncate(tx, 1000)


class RemembersWhatIsReady(Sound):
    """Knows only of what it has done itself."""

    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.ready: set[int] = set()

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        return self._noted(self.inner.put(tx, items, now=now))

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        return self._noted(self.inner.take(tx, limit, owner=owner, now=now))

    def release(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        return self._noted(self.inner.release(tx, refs, **given))

    def can_take(self, tx: Any) -> bool:
        return bool(self.ready)

    def _noted(self, changes: Sequence[Change]) -> Sequence[Change]:
        for task in [self.normalize_task(change.raw) for change in changes]:
            (self.ready.add if task.state is State.READY else self.ready.discard)(task.id)
        return changes


class RemembersWhatWasRolledBack(RemembersWhatIsReady):
    """The same fault, seen when a transaction fails."""


class AcksAllForNothing(Sound):
    """If it is asked for none."""

    def ack(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        if not refs:
            raws = self.inner.tasks_by_state(tx, State.TAKEN, after=-1, limit=1000)
            refs = [Ref(self.inner.normalize_task(raw).id) for raw in raws]
        changes: Sequence[Change] = self.inner.ack(tx, refs, **given)
        return changes


class BuriesTheTtrToo(Sound):
    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.buried: set[int] = set()

    def bury(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        self.buried |= {ref.id for ref in refs}
        changes: Sequence[Change] = self.inner.bury(tx, refs, **given)
        return changes

    def take(self, tx: Any, limit: int, **given: Any) -> Sequence[Change]:
        changes = self.inner.take(tx, limit, **given)
        return [change._replace(raw=self.normalize_task(change.raw)) for change in changes]

    def normalize_task(self, raw: Any) -> Task:
        task: Task = self.inner.normalize_task(raw)
        return dataclasses.replace(task, ttr=None) if task.id in self.buried else task


class CutsToSeconds(Sound):
    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        cut = [item._replace(ttr_ms=item.ttr_ms and item.ttr_ms // 1000 * 1000) for item in items]
        changes: Sequence[Change] = self.inner.put(tx, cut, now=now)
        return changes


class TouchesUpToTheEnd(Sound):
    """Extends a lease only up to the end of the life that the task had."""

    def touch(self, tx: Any, refs: Sequence[Ref], delta_ms: int, **given: Any) -> Sequence[Change]:
        changes = []
        for change in self.inner.touch(tx, refs, delta_ms, **given):
            task: Task = self.inner.normalize_task(change.raw)
            if task.ttl is not None and task.due_at is not None:
                end = task.created_at + timedelta(seconds=task.ttl, milliseconds=-delta_ms)
                task = dataclasses.replace(task, due_at=min(end, task.due_at))
            changes.append(change._replace(raw=task))
        return changes


class TakesOneMoreWithAnAck(Sound):
    def ack_and_take(self, tx: Any, refs: Sequence[Ref], limit: int, **given: Any) -> Sequence[Change]:
        acked = self.inner.ack(tx, refs, **given)
        return acked and [*acked, *self.inner.take(tx, limit + 1, **given)]


class KeepsTheSessionOfItsFirstTake(Sound):
    owner: Any = None

    def take(self, tx: Any, limit: int, *, owner: Any, now: int) -> Sequence[Change]:
        self.owner = self.owner or owner
        changes: Sequence[Change] = self.inner.take(tx, limit, owner=self.owner, now=now)
        return changes


class GivesBackAtItsStart(Sound):
    """Gives back what others hold."""

    def start(self, tx: Any) -> None:
        self.inner.start(tx)
        self.inner.release_owner(tx, None, 1000, now=0)


class CutsBytes(Sound):
    """Stores bytes as C does, up to the last that is not zero."""

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        cut = [
            item._replace(payload=item.payload.rstrip(b"\0"), data=item.payload.rstrip(b"\0"))
            if isinstance(item.payload, bytes)
            else item
            for item in items
        ]
        changes: Sequence[Change] = self.inner.put(tx, cut, now=now)
        return changes


class BuriesByTheNumberAlone(Sound):
    """Of a lease, though a take that was rolled back had the same."""

    def bury(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        changes: Sequence[Change] = self.inner.bury(tx, [Ref(ref.id, ref.token) for ref in refs], **given)
        return changes


class RemembersWhatItSaw(Sound):
    """Until it changes something itself."""

    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.seen: dict[int, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in ("put", "take", "release", "ack", "bury", "kick", "delete", "truncate"):
            self.seen.clear()
        return super().__getattribute__(name)

    def peek(self, tx: Any, ids: Sequence[int]) -> Sequence[Any]:
        for id in ids:
            if id not in self.seen:
                self.seen.update((id, raw) for raw in self.inner.peek(tx, [id]))
        return [self.seen[id] for id in ids if id in self.seen]


class SettlesAllTubes(Sound):
    """Forgets to say in which tube the tasks are."""

    others: ClassVar[list[Any]] = []

    def __init__(self, inner: Any, features: Features) -> None:
        super().__init__(inner, features)
        self.others.append(inner)

    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        return [change for inner in self.others for change in inner.expire(tx, limit, now=now)]


class LosesTheLeaseLate(Sound):
    """Only after it has said that the ttr is over."""

    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        held = {task.id: task for task in map(self.normalize_task, self._taken(tx))}
        changes = []
        for change in self.inner.expire(tx, limit, now=now):
            task: Task = self.normalize_task(change.raw)
            if change.event is Event.TTR:
                task = dataclasses.replace(task, owner=held[task.id].owner, token=held[task.id].token)
            changes.append(change._replace(raw=task))
        return changes

    def _taken(self, tx: Any) -> Sequence[Any]:
        raws: Sequence[Any] = self.inner.tasks_by_state(tx, State.TAKEN, after=-1, limit=1000)
        return raws


class ForgetsItsSubQueue(Sound):
    """When it tells of a release."""

    def release(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        tasks = [self.normalize_task(change.raw) for change in self.inner.release(tx, refs, **given)]
        return [Change(Event.RELEASE, dataclasses.replace(task, utube=None)) for task in tasks]


class ReleasesByTheTaskAlone(Sound):
    """Asks the Task for the lease, which may be missing."""

    def release(self, tx: Any, refs: Sequence[Ref], **given: Any) -> Sequence[Change]:
        known = [Ref(ref.id, ref.task.token if ref.task else None, ref.task) for ref in refs]
        changes: Sequence[Change] = self.inner.release(tx, known, **given)
        return changes


class KeepsWhatTheDeadHold(Sound):
    """Gives back only what it is asked to take from everybody."""

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = (
            self.inner.release_owner(tx, None, limit, now=now) if owner is None else []
        )
        return changes


@dataclass(frozen=True)
class Fault:
    """A faulty driver, and where the kit finds the fault."""

    driver: type[Sound]
    suite: str
    test: str
    features: Features = PLAIN
    is_seen_by_the_machine: bool = True
    """The machine has few tasks, in one tube, and does not wait."""

    @property
    def type(self) -> str:
        return f"faulty_{self.driver.__name__}"[:32]


FAULTS = (
    Fault(WrongOrder, "ordering.Ordering", "test_tasks_are_taken_in_the_order_of_the_type"),
    Fault(LosesThePlace, "ordering.Ordering", "test_a_released_task_keeps_its_place"),
    Fault(TellsTwice, "changes.Changes", "test_every_verb_makes_one_event"),
    Fault(TellsOfAnotherEvent, "changes.Changes", "test_every_verb_makes_one_event"),
    Fault(TellsNothingOfTime, "changes.Changes", "test_time_makes_one_event_of_its_own_name", TIMED),
    Fault(CountsNoAttempts, "ownership.Ownership", "test_attempts_are_counted_at_the_take"),
    Fault(IgnoresTokens, "ownership.Ownership", "test_a_task_that_was_taken_again_cannot_be_finished"),
    Fault(
        AcksWhatItGaveBack,
        "ownership.Ownership",
        "test_a_task_that_was_released_is_no_longer_held",
        PLAIN,
        False,
    ),
    Fault(BuriesWithItsOwner, "api.Api", "test_a_taken_task_can_be_buried"),
    Fault(AsksNobody, "ownership.SharedOwnership", "test_what_another_session_holds_cannot_be_acked"),
    Fault(HandsOutWhatIsOver, "timing.Timing", "test_what_is_over_is_never_handed_out", TIMED),
    Fault(ForgetsAPartOfThePast, "timing.Timing", "test_a_task_can_be_released_with_a_delay", TIMED),
    Fault(TakesTwoOfASubQueue, "groups.Groups", "test_of_a_sub_queue_one_task_is_taken_at_a_time", GROUPED),
    Fault(KnowsNoBounds, "capacity.Capacity", "test_a_put_into_a_full_tube_is_refused", BOUNDED),
    Fault(LetsTheDelayedIn, "capacity.Capacity", "test_a_delayed_task_takes_room", TIMED_AND_BOUNDED),
    Fault(KicksAll, "api.Api", "test_a_kick_tells_how_many_it_brought_back"),
    Fault(KicksBackwards, "ordering.Ordering", "test_a_kick_brings_back_those", PLAIN, False),
    Fault(BuriesNothingDelayed, "timing.Timing", "test_a_delayed_task_can_be_buried", TIMED),
    Fault(CountsInMemory, "atomicity.Atomicity", "test_a_transaction_that_raises_leaves_nothing"),
    Fault(HandsOutTwice, "concurrency.Concurrency", "test_threads_take_every_task_once"),
    Fault(StartsEmpty, "reopening.Reopening", "test_tasks_are_as_they_were"),
    Fault(BeginsEmpty, "api.Api", "test_what_begins_a_tube_may_come_again", PLAIN, False),
    Fault(ReachesIntoAnotherTube, "api.Api", "test_no_verb_reaches_a_task_of_another_tube", PLAIN, False),
    Fault(SeesNothing, "api.Api", "test_who_waits_can_tell", PLAIN, False),
    Fault(SeesTooMuch, "api.Api", "test_who_waits_can_tell", PLAIN, False),
    Fault(SeesNothingBeside, "api.Api", "test_who_waits_can_tell", PLAIN, False),
    Fault(SeesWhatIsBehind, "api.Api", "test_who_waits_can_tell", GROUPED, False),
    Fault(GivesBackOne, "api.Api", "test_a_step_does_all", PLAIN, False),
    Fault(AsksForAnOwner, "api.Api", "test_a_step_does_all", PLAIN, False),
    Fault(TakesNothingForNever, "timing.Timing", "test_a_ttr_of_nothing", TIMED, False),
    Fault(CutsTimes, "timing.Timing", "test_times_of_years", TIMED, False),
    Fault(CutsPriorities, "ordering.Ordering", "test_a_large_priority", RANKED, False),
    Fault(TakesOneStep, "api.Api", "test_what_takes_many_steps", PLAIN, False),
    Fault(SortsPrioritiesAsText, "ordering.Ordering", "test_the_smaller_priority_comes_first", RANKED, False),
    Fault(TakesOneMore, "api.Api", "test_a_step_does_no_more", PLAIN, False),
    Fault(ReleasesAll, "api.Api", "test_a_step_does_no_more", PLAIN, False),
    Fault(TruncatesAll, "api.Api", "test_a_step_does_no_more", PLAIN, False),
    Fault(SettlesAll, "timing.Timing", "test_a_step_settles_no_more", TIMED, False),
    Fault(SaysNotWhen, "timing.Timing", "test_a_change_says_when", TIMED, False),
    Fault(FindsTwice, "api.Api", "test_a_look_finds_each_task_once", PLAIN, False),
    Fault(ListsAll, "api.Api", "test_tasks_of_a_state_come_by_id_and_in_pages", PLAIN, False),
    Fault(ListsBackwards, "api.Api", "test_tasks_of_a_state_come_by_id_and_in_pages", PLAIN, False),
    Fault(ListsByPriority, "api.Api", "test_every_state_is_listed", RANKED, False),
    Fault(TreatsAllLikeTheFirst, "api.Api", "test_a_step_stores_each_task", TIMED, False),
    Fault(AcksTheReady, "api.Api", "test_a_step_does_all", PLAIN, False),
    Fault(TruncatesNothingDelayed, "api.Api", "test_tasks_in_every_state_are_counted", TIMED, False),
    Fault(SeesWhatIsDelayed, "timing.Timing", "test_who_waits_is_not_told", TIMED, False),
    Fault(KnowsNoTimeOfTheTaken, "timing.Timing", "test_what_is_due_next", TIMED, False),
    Fault(TakesBeforeItSettles, "timing.Timing", "test_a_task_whose_ttr_is_over", TIMED, False),
    Fault(LeavesWhatIsLate, "timing.Timing", "test_a_lease_lasts", TIMED, False),
    Fault(GivesRoomTwice, "capacity.Capacity", "test_a_tube_that_was_emptied", BOUNDED, False),
    Fault(SharesTheNamesOfSubQueues, "groups.Groups", "test_sub_queues_of_one_name", GROUPED, False),
    Fault(EmptiesWhatIsTemporary, "reopening.Reopening", "test_a_temporary_tube_is_emptied_by", PLAIN, False),
    Fault(RemembersWhatIsReady, "concurrency.SharedConcurrency", "test_who_waits_can_tell_of", PLAIN, False),
    Fault(AcksAllForNothing, "api.Api", "test_a_step_that_is_asked_for_nothing", PLAIN, False),
    Fault(BuriesTheTtrToo, "api.Api", "test_a_task_keeps_what_it_was_put_with", TIMED, False),
    Fault(CutsToSeconds, "api.Api", "test_a_step_stores_each_task", TIMED, False),
    Fault(TouchesUpToTheEnd, "timing.Timing", "test_a_touch_adds_to_the_ttr", TIMED, False),
    Fault(TakesOneMoreWithAnAck, "atomicity.Atomicity", "test_a_take_with_an_ack", GROUPED, False),
    Fault(
        KeepsTheSessionOfItsFirstTake,
        "ownership.SharedOwnership",
        "test_who_joins_another_session",
        PLAIN,
        False,
    ),
    Fault(GivesBackAtItsStart, "api.Api", "test_what_begins_a_tube_may_come_again", PLAIN, False),
    Fault(RemembersWhatWasRolledBack, "atomicity.Atomicity", "counts_no_attempt", PLAIN, False),
    Fault(RemembersWhatItSaw, "concurrency.SharedConcurrency", "test_each_connection_sees", PLAIN, False),
    Fault(SettlesAllTubes, "api.Api", "test_no_step_reaches", TIMED, False),
    Fault(LosesTheLeaseLate, "changes.Changes", "test_time_makes_one_event", TIMED, False),
    Fault(ForgetsItsSubQueue, "changes.Changes", "test_every_change_says_when", GROUPED, False),
    Fault(ReleasesByTheTaskAlone, "ownership.Ownership", "test_a_lease_counts_by_its_token", PLAIN, False),
    Fault(CutsBytes, "api.Api", "test_a_payload_comes_back", PLAIN, False),
    Fault(KeepsWhatTheDeadHold, "ownership.SharedOwnership", "what_an_unknown_session", PLAIN, False),
    Fault(BuriesByTheNumberAlone, "ownership.SharedOwnership", "rolled_back_is_no_lease", PLAIN, False),
)


def factory(driver: type[Sound], features: Features) -> Callable[[Any, Any], Any]:
    """Make a driver factory; some faults come from realising another type."""
    realised = TubeType(
        PLAIN if driver in (TakesTwoOfASubQueue, KnowsNoBounds) else features,
        order="newest" if driver is WrongOrder else "oldest",
    )

    def make(store: Any, tube: Any) -> Sound:
        made = driver(store.realise(realised, tube), features)
        made.is_temporary = tube.temporary
        return made

    return make


for fault in FAULTS:
    register_driver(fault.type, factory(fault.driver, fault.features))
SOUND = {
    features: f"sound_{number}"
    for number, features in enumerate((PLAIN, TIMED, GROUPED, BOUNDED, RANKED, TIMED_AND_BOUNDED))
}
for features, name in SOUND.items():
    register_driver(name, factory(Sound, features))

MODULE = """
from hypothesis import Phase, settings
from tubes import Features
from tubes.testing.{module} import {suite}
"""

CLASS = """
class Test_{type}_({suite}):
    type = {type!r}
    features = {features!r}

    def machine_settings(self):
        return settings(
            super().machine_settings(), max_examples={examples}, phases=[Phase.generate], derandomize=True
        )
"""


def write(pytester: pytest.Pytester, suite: str, types: Mapping[str, Features], *, examples: int = 0) -> None:
    """Write a module with a class of this suite for each of these types."""
    module, _, name = suite.rpartition(".")
    pytester.makepyfile(
        MODULE.format(module=module, suite=name)
        + "".join(
            CLASS.format(suite=name, type=type, features=features, examples=examples)
            for type, features in types.items()
        )
    )


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    """Run some tests of what was written, in a pytest of its own."""
    return pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-rA", "-k", test)


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load all modules that a kit uses: an inner pytest forgets those it loads, which costs seconds."""
    assert ConformanceKit.__name__
    with tubes.connect("sqlite://") as queue:
        queue.create_tube("jobs", "fifottl").put("x", ttl=1)


SUITES = tuple(dict.fromkeys(fault.suite for fault in FAULTS))


def outcomes_of(ran: pytest.RunResult, type: str) -> set[str]:
    """How the tests of a type's class ended."""
    return {line.split()[0] for line in ran.outlines if f"::Test_{type}_::" in line and line[0].isupper()}


@pytest.mark.parametrize("suite", slow_but(["ordering.Ordering", "ownership.Ownership"], SUITES))
def test_each_fault_is_found_by_the_test_that_is_there_for_it(pytester: pytest.Pytester, suite: str) -> None:
    faults = [fault for fault in FAULTS if fault.suite == suite]
    write(pytester, suite, {fault.type: fault.features for fault in faults})
    ran = run(pytester, " or ".join(f"(Test_{fault.type}_ and {fault.test})" for fault in faults))
    missed = {fault.type for fault in faults if "FAILED" not in outcomes_of(ran, fault.type)}
    assert not missed and "errors" not in ran.parseoutcomes()


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_the_same_tests_pass_without_the_faults(pytester: pytest.Pytester, suite: str) -> None:
    faults = [fault for fault in FAULTS if fault.suite == suite]
    write(pytester, suite, {SOUND[fault.features]: fault.features for fault in faults})
    ran = run(pytester, " or ".join(f"(Test_{SOUND[fault.features]}_ and {fault.test})" for fault in faults))
    assert {outcome for fault in faults for outcome in outcomes_of(ran, SOUND[fault.features])} == {"PASSED"}
    assert not ran.parseoutcomes().keys() & {"failed", "errors", "skipped"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if fault.is_seen_by_the_machine][::4],  # each has a test that finds it sooner
    ids=lambda fault: fault.driver.__name__,
)
def test_the_machine_finds_the_fault_by_itself(pytester: pytest.Pytester, fault: Fault) -> None:
    write(pytester, "agreement.Agreement", {fault.type: fault.features}, examples=300)
    run(pytester, "agrees").assert_outcomes(failed=1)


@pytest.mark.slow
def test_the_machine_finds_nothing_where_there_is_nothing(pytester: pytest.Pytester) -> None:
    write(pytester, "agreement.Agreement", {type: features for features, type in SOUND.items()}, examples=4)
    run(pytester, "agrees").assert_outcomes(passed=len(SOUND))


def test_a_call_that_should_have_been_refused_is_named_with_its_answer(pytester: pytest.Pytester) -> None:
    """It is one of many that the test makes in a loop."""
    type = Fault(IgnoresTokens, "", "").type
    write(pytester, "ownership.Ownership", {type: PLAIN})
    ran = run(pytester, "test_a_task_that_was_taken_again")
    ran.stdout.fnmatch_lines(
        [
            "E*AssertionError: ack(<Task jobs:* taken 'x'>) must raise LeaseLost; it returned <Task jobs:* done 'x'>"
        ]
    )


@pytest.mark.slow
def test_a_test_that_cannot_clean_up_is_in_no_other_s_way(pytester: pytest.Pytester) -> None:
    register_driver("untidy", factory(TruncatesNothingTaken, PLAIN))
    write(pytester, "ordering.Ordering", {"untidy": PLAIN})
    run(pytester, "test_a_released_task").assert_outcomes(passed=2, errors=2)


@pytest.mark.slow
def test_a_suite_of_a_driver_made_by_a_function_must_be_told_its_features(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"from tubes.testing import ConformanceKit\nclass TestIt(ConformanceKit): type = {SOUND[PLAIN]!r}\n"
    )
    ran = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines([f"*set features = Features(...) to what '{SOUND[PLAIN]}' has*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("order = 'latest'", "order must be 'oldest' or 'newest', not 'latest'"),
        ("features = {'timed': True}", "features must be Features(...), not {'timed': True}"),
    ],
)
def test_what_a_class_says_of_its_type_must_make_sense(
    pytester: pytest.Pytester, said: str, message: str
) -> None:
    pytester.makepyfile(
        "from tubes import Features\nfrom tubes.testing import ConformanceKit\n"
        f"class TestIt(ConformanceKit):\n    type = {SOUND[PLAIN]!r}\n    features = Features()\n    {said}\n"
    )
    ran = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    ran.assert_outcomes(errors=1)
    assert f"TypeError: TestIt: {message}" in ran.stdout.str()


def test_a_kit_without_transactions_is_for_a_driver_without(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from tubes import Features\nfrom tubes.testing.atomicity import Atomicity\n"
        f"class TestIt(Atomicity):\n    type = {SOUND[PLAIN]!r}\n    features = Features()\n    transactions = False\n"
    )
    ran = pytester.runpytest_inprocess(
        "-p", "no:randomly", "-p", "no:cacheprovider", "-k", "there_are_transactions"
    )
    ran.assert_outcomes(failed=1)
    assert "this kit was told transactions = False" in ran.stdout.str()


def test_other_processes_open_the_store_with_the_settings_of_the_class(pytester: pytest.Pytester) -> None:
    url = f"sqlite:///{pytester.path}/kit.db"
    pytester.makepyfile(
        "from tubes.testing import ConformanceKit\n"
        "class TestIt(ConformanceKit):\n"
        f"    type, url, connect_settings = 'fifo', {url!r}, {{'namespace': 'mine'}}\n"
    )
    run(pytester, "processes_take or killed_process").assert_outcomes(passed=2)
    tubes.connect(url, namespace="mine", migrate=False).close()  # the tables are there


def test_a_type_needs_no_more_than_its_features(pytester: pytest.Pytester) -> None:
    """All else has a default, so the kit asks for none of it."""
    tubes.register_driver("plainest", TubeType())
    pytester.makepyfile(
        "from tubes.testing.api import Api\nclass TestIt(Api): type, url = 'plainest', 'sqlite://'\n"
    )
    ran = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    assert ran.ret == 0


@pytest.fixture(params=["postgres_queue_url", "redis_url"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A store on a server, where temporary tubes outlive their clients, and the dead are noticed late."""
    return str(request.getfixturevalue(request.param))


@pytest.mark.slow
def test_the_kit_as_it_is_knows_that_a_server_outlives_its_clients(
    pytester: pytest.Pytester, server_url: str
) -> None:
    pytester.makepyfile(
        "from tubes.testing.reopening import Reopening\n"
        f"class TestIt(Reopening): type, url = 'fifottl', {server_url!r}\n"
    )
    ran = pytester.runpytest_inprocess(
        "-p", "no:randomly", "-p", "no:cacheprovider", "-k", "comes_back_empty"
    )
    assert ran.parseoutcomes().get("passed") == 1 and ran.ret == 0


@pytest.mark.slow
def test_the_kit_as_it_is_waits_for_no_server_to_notice_a_death(server_url: str) -> None:
    """What the machine's dead held is back at its next sweep."""
    clock = FakeClock()
    with tubes.connect(server_url, clock=clock, sweep=False) as queue:
        tube = queue.create_tube("held_by_the_dead", "fifo")
        try:
            tube.put("x")
            dying = tubes.connect(server_url, clock=clock, sweep=False)
            assert dying.tube.held_by_the_dead.take(0) is not None
            Agreement().die(dying)
            queue.sweep()
            assert len(tube.tasks(State.READY)) == 1
        finally:
            tube.truncate()
            tube.drop()
