"""A Hypothesis state machine: a real tube and the model do the same things, and must agree after every step.

Two sessions use one tube. Time passes, sweeps come or do not, sessions end, die, sleep and are joined again,
and everything is closed and opened again. Results, errors, events, all tasks in full, and statistics are
compared.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tubes.driver import Features
from tubes.errors import LeaseLost, NotTaken, TaskNotFound, TubeFull, TubesWarning
from tubes.feature_options import PUT_OPTIONS, TUBE_OPTIONS
from tubes.queue import Queue
from tubes.task import STORED, Event, State, Task
from tubes.testing.clock import FakeClock
from tubes.testing.model import Model, ModelChange, ModelTask
from tubes.tube import Tube

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BY_TIME = (Event.DELAY, Event.TTL, Event.TTR)
UNASKED = (*BY_TIME, Event.RELEASE)
"""What time and the end of sessions cause, in an order that is not specified."""

FEATURE_OF = {
    option: feature
    for table in (PUT_OPTIONS, TUBE_OPTIONS)
    for feature, options in table.items()
    for option in options
}

who = st.integers(0, 1)
which = st.integers(0, 40)
halves = st.integers(0, 6).map(lambda half: half / 2)
how = st.sampled_from(["held", "lease", "any"])
lives = st.one_of(st.none(), st.integers(2, 16))
put_options = st.fixed_dictionaries(
    {},
    optional={
        "pri": st.integers(0, 3),
        "utube": st.sampled_from([None, "", "a", "b"]),
        "ttl": lives,
        "ttr": lives,
        "delay": halves,
    },
)
tube_options = st.fixed_dictionaries(
    {},
    optional={
        "pri": st.integers(0, 3),
        "ttl": lives,
        "ttr": lives,
        "capacity": st.integers(0, 4),
    },
)

Seen = tuple[Event, int, tuple[Any, ...]]
"""What can be compared of a change: the event, the task's id, and its fields."""

_names = itertools.count(1)


@dataclass(frozen=True)
class Bench:
    """What a machine runs on: a type, and how to connect to the store."""

    type: str
    options: Mapping[str, Any]
    features: Features
    order: Literal["oldest", "newest"]
    connect: Callable[..., Queue]
    shared: bool
    transactions: bool
    die: Callable[[Queue], None]


class Party:
    """One connection with its session: its own Queue, Tube and callback."""

    def __init__(self, bench: Bench, clock: FakeClock, grace: float, log: list[tuple[Event, Task]]) -> None:
        self.queue = bench.connect(clock, session_ttr=grace)
        self.grace = grace
        self.log = log

    def open(self, name: str) -> None:
        self.tube: Tube = self.queue.tube[name]
        self.tube.add_listener(lambda task, event: self.log.append((event, task)))

    @property
    def session(self) -> str:
        return str(self.queue.identify())


class TubeMachine(RuleBasedStateMachine):
    """Subclassed with a ``bench`` by ``machine_for``."""

    bench: Bench

    @initialize(options=tube_options, grace=halves, stock=st.lists(put_options, max_size=3))
    def begin(self, options: dict[str, Any], grace: float, stock: list[dict[str, Any]]) -> None:
        options = self._known(options)
        self.clock = FakeClock()
        self.log: list[tuple[Event, Task]] = []
        self.name = f"machine_{next(_names)}"
        self.numbers, self.steps = itertools.count(), itertools.count()
        self.given: list[Task] = []
        self.last_id = 0
        self.first = Party(self.bench, self.clock, 0, self.log)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TubesWarning)  # a ttl without a ttr is a case like any other here
            self.first.queue.create_tube(self.name, self.bench.type, **self.bench.options, **options)
        self.first.open(self.name)
        self.second: Party | None = None
        self.sleeping: Party | None = None
        if self.bench.shared:
            self._open_second(grace)
        self.model = Model(self.bench.features, self.bench.order, now=self.clock.now_ms(), **_in_ms(options))
        for each in ({}, {}, *stock):
            self.put(0, 1, each)

    def _known(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that the type has."""
        features = self.bench.features
        return {name: value for name, value in options.items() if getattr(features, FEATURE_OF[name])}

    def _open_second(self, grace: float) -> Party:
        self.second = Party(self.bench, self.clock, grace, self.log)
        self.second.open(self.name)
        return self.second

    def _party(self, index: int) -> Party:
        return self.second if index and self.second is not None else self.first

    # Putting and taking

    @rule(who=who, count=st.integers(1, 3), options=put_options)
    def put(self, who: int, count: int, options: dict[str, Any]) -> None:
        tube = self._party(who).tube
        options = self._known(options)
        datas = [next(self.numbers) for _ in range(count)]
        try:
            tasks = [tube.put(datas[0], **options)] if count == 1 else tube.put_many(datas, **options)
        except TubeFull:
            changes = self.model.put(range(count), datas, **_in_ms(options))
            assert all(change.event is not Event.PUT for change in changes), "the tube had room"
            self._agree(changes)
            return
        ids = [task.id for task in tasks]
        assert [self.last_id, *ids] == sorted({self.last_id, *ids}), "ids must grow"
        self.last_id = ids[-1]
        self.given += tasks
        self._agree(self.model.put(ids, datas, **_in_ms(options)), tasks)

    @rule(who=who)
    def take(self, who: int) -> None:
        party = self._party(who)
        task = party.tube.take(0)
        taken = [] if task is None else [task]
        self.given += taken
        self._agree(self.model.take(1, party.session), taken, Event.TAKE)

    @rule(who=who, limit=st.integers(1, 3))
    def take_many(self, who: int, limit: int) -> None:
        party = self._party(who)
        taken = party.tube.take_many(limit, 0)
        self.given += taken
        self._agree(self.model.take(limit, party.session), taken, Event.TAKE)

    @precondition(lambda self: self.model.in_state(State.TAKEN))
    @rule(who=who, which=which, how=how)
    def ack_and_take(self, who: int, which: int, how: str) -> None:
        party = self._party(who)
        ref = self._ref(which, how, party)
        held = self._held(ref, party)
        if held is None:
            self._refused(lambda: party.tube.take(0, ack=ref), ref, party)
        else:
            task = party.tube.take(0, ack=ref)
            taken = [] if task is None else [task]
            self.given += taken
            self._agree(self.model.take(1, party.session, ack=held), taken, Event.TAKE)

    # Finishing and giving back

    @precondition(lambda self: self.model.in_state(State.TAKEN))
    @rule(who=who, which=which, how=how)
    def ack(self, who: int, which: int, how: str) -> None:
        party = self._party(who)
        ref = self._ref(which, how, party)
        self._by_owner(party, ref, lambda: party.tube.ack(ref), self.model.ack)

    @precondition(lambda self: self.model.in_state(State.TAKEN))
    @rule(who=who, which=st.lists(which, max_size=3), how=how)
    def ack_many(self, who: int, which: list[int], how: str) -> None:
        party = self._party(who)
        refs = [self._ref(one, how, party) for one in which]
        held = {task.id: task for ref in refs if (task := self._held(ref, party)) is not None}
        acked = party.tube.ack_many(refs)
        self._agree([change for task in held.values() for change in self.model.ack(task)], acked)

    @precondition(lambda self: self.model.in_state(State.TAKEN))
    @rule(who=who, which=which, how=how, delay=halves)
    def release(self, who: int, which: int, how: str, delay: float) -> None:
        party = self._party(who)
        ref = self._ref(which, how, party)
        options: dict[str, Any] = {"delay": delay} if self.bench.features.timed else {}
        self._by_owner(
            party,
            ref,
            lambda: party.tube.release(ref, **options),
            lambda task: self.model.release(task, **_in_ms(options)),
        )

    @precondition(lambda self: self.bench.features.timed and self.model.in_state(State.TAKEN))
    @rule(who=who, which=which, how=how, delta=st.integers(1, 8))
    def touch(self, who: int, which: int, how: str, delta: int) -> None:
        party = self._party(who)
        ref = self._ref(which, how, party)
        self._by_owner(
            party,
            ref,
            lambda: party.tube.touch(ref, delta),
            lambda task: self.model.touch(task, delta * 1000),
        )

    @precondition(lambda self: self.model.tasks)
    @rule(who=who, which=st.lists(which, min_size=1, max_size=3), how=how)
    def bury(self, who: int, which: list[int], how: str) -> None:
        party = self._party(who)
        for ref in [self._ref(one, how, party) for one in which]:
            known = self.model.tasks.get(_id(ref))
            if known is not None and known.state is State.BURIED:
                assert _fields(party.tube.bury(ref)) == _meant(known)
                self._agree([])
            else:
                self._by_anybody(party, ref, lambda ref=ref: party.tube.bury(ref), self.model.bury)  # type: ignore[misc]

    @precondition(lambda self: self.model.tasks)
    @rule(who=who, which=which, how=how)
    def delete(self, who: int, which: int, how: str) -> None:
        party = self._party(who)
        ref = self._ref(which, how, party)
        self._by_anybody(party, ref, lambda: party.tube.delete(ref), self.model.delete)

    @precondition(lambda self: self.model.in_state(State.BURIED))
    @rule(who=who, count=st.integers(0, 3))
    def kick(self, who: int, count: int) -> None:
        kicked = self._party(who).tube.kick(count)
        changes = self.model.kick(count)
        assert kicked == len(changes)
        self._agree(changes)

    @precondition(lambda self: self.model.in_state(State.TAKEN))
    @rule(who=who, removes=st.sampled_from([False, False, True]))
    def clear(self, who: int, removes: bool) -> None:
        """Release everything that is taken; now and then truncate."""
        tube = self._party(who).tube
        if removes and len(self.model.tasks) > 3:
            assert tube.truncate() == self.model.truncate()
            self._agree([])
        else:
            released = tube.release_all()
            changes = self.model.release_all()
            assert released == len(changes)
            self._agree(changes)

    # Transactions

    @precondition(lambda self: self.bench.transactions)
    @rule(who=who, succeeds=st.booleans())
    def transaction(self, who: int, succeeds: bool) -> None:
        """Take, ack and put in one transaction: all of it happens, or nothing."""
        party, data = self._party(who), next(self.numbers)
        task = created = None
        try:
            with party.queue.transaction() as unit:
                task = party.tube.take(0, unit=unit)
                if task is not None:
                    party.tube.ack(task, unit=unit)
                with_room = task is not None or not self.model.lacks_room_for(1)
                created = party.tube.put(data, unit=unit) if with_room else None
                assert not self.log, "an event came before the commit"
                if not succeeds:
                    raise _Abandoned
        except _Abandoned:
            self._agree([])
            return
        changes = self.model.take(1, party.session)
        if task is not None:
            changes += self.model.ack(self.model.tasks[task.id])
        if created is not None:
            self.last_id = created.id
            changes += self.model.put([created.id], [data])
        self._agree(changes)

    # Time, life and death

    @precondition(lambda self: self.model.ends or any(task.due for task in self.model.tasks.values()))
    @rule(seconds=st.sampled_from([0.5, 1, 1, 2, 3, 8]), sweeper=st.one_of(st.none(), who))
    def advance(self, seconds: float, sweeper: int | None) -> None:
        """Let time pass, and sweep or not; do sweep if sessions are over by then, whose tasks come back."""
        self.clock.advance(seconds)
        self.model.now = self.clock.now_ms()
        if sweeper is not None or any(end <= self.model.now for end in self.model.ends.values()):
            self._sweep(sweeper or 0)

    def _sweep(self, who: int) -> None:
        self._party(who).queue.sweep()
        self._agree(self.model.sweep())
        self.model.ends = {session: end for session, end in self.model.ends.items() if end > self.model.now}

    @precondition(
        lambda self: self.bench.shared and (self.second is None or self.model.in_state(State.TAKEN))
    )
    @rule(kind=st.sampled_from(["closes", "dies", "reopens"]), grace=halves, rejoins=st.booleans())
    def come_and_go(self, kind: str, grace: float, rejoins: bool) -> None:
        """The second connection closes, dies or comes back; now and then both close and the first reopens."""
        if self.second is None:
            self._second_comes(grace, rejoins)
        elif kind == "reopens":
            self._second_goes(by_death=False)
            self._reopen()
        else:
            self._second_goes(by_death=kind == "dies")

    def _second_goes(self, by_death: bool) -> None:
        """Its connection goes; its session may sleep for its grace."""
        party = self.second
        assert party is not None
        party.tube.statistics()  # stores what it has counted
        self.left = party.session
        self.second, self.sleeping = None, party
        self.model.end_session(self.left, round(party.grace * 1000))
        if by_death:
            self.bench.die(party.queue)
            self._sweep(0)
        else:
            party.queue.close()
            self._agree(self.model.rescue())

    def _second_comes(self, grace: float, rejoins: bool) -> None:
        """Connect with a session of its own, or join the one that sleeps."""
        party, asleep = self._open_second(grace), self.sleeping
        if rejoins and asleep is not None and self.model.ends.get(self.left, 0) > self.model.now:
            party.queue.identify(self.left)
            party.grace = asleep.grace
            del self.model.ends[self.left]
        self.sleeping = None
        self._agree([])

    def _reopen(self) -> None:
        """Close the last connection and open another: tasks, statistics and options are what they were."""
        session = self.first.session
        self.first.queue.close()
        self.model.end_session(session)
        self._agree(self.model.rescue())
        self.first = Party(self.bench, self.clock, 0, self.log)
        self.first.open(self.name)

    # Agreement

    @invariant()
    def they_agree(self) -> None:
        """Both sessions, in turn, see the tasks and the statistics that the model has."""
        assert not self.log, "an event that none of these calls explains"
        tube = self._party(next(self.steps) % 2).tube
        found = [task for state in STORED for task in tube.tasks(state, limit=1000)]
        expected = [_meant(self.model.tasks[id]) for id in sorted(self.model.tasks)]
        assert [_fields(task) for task in sorted(found, key=lambda task: task.id)] == expected
        assert tube.statistics() == self.model.statistics()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            if self.second is not None:
                self.second.queue.close()
            with self.first.queue as queue:
                self.clock.advance(3600)
                queue.sweep()  # forgets the sessions that sleep
                self.first.tube.truncate()
                self.first.tube.drop()

    # Within

    def _ref(self, which: int, how: str, party: Party) -> Task | int:
        """What a verb is given: an id or task that should fit, an old lease, or anything, even long gone."""
        refs = self._refs(how, party)
        return refs[which % len(refs)]

    def _refs(self, how: str, party: Party) -> Sequence[Task | int]:
        taken = self.model.in_state(State.TAKEN)
        held = [task.id for task in taken if task.owner == party.session]
        leases = [task for task in self.given if task.token is not None]
        if how == "held" and held:
            return [*held, *(task for task in leases if task.id in held)]
        if how == "lease" and leases:
            ids = {task.id for task in taken}
            return [*(task for task in leases if task.id in ids), leases[-1]]
        return [*self.model.tasks, *self.given[-3:], self.last_id, self.last_id + 1]

    def _held(self, ref: Task | int, party: Party) -> ModelTask | None:
        return self.model.held(_id(ref), party.session, _token(ref))

    def _by_owner(
        self,
        party: Party,
        ref: Task | int,
        act: Callable[[], Task | None],
        mean: Callable[[ModelTask], list[ModelChange]],
    ) -> None:
        held = self._held(ref, party)
        if held is None:
            self._refused(act, ref, party)
        else:
            task = act()
            assert task is not None
            self._agree(mean(held), [task])

    def _by_anybody(
        self,
        party: Party,
        ref: Task | int,
        act: Callable[[], Task],
        mean: Callable[[ModelTask], list[ModelChange]],
    ) -> None:
        stored = self.model.stored(_id(ref), _token(ref))
        if stored is not None:
            self._agree(mean(stored), [act()])
        elif _id(ref) in self.model.tasks:
            self._refused(act, ref, party)
        else:
            self._refused(act, ref, party, TaskNotFound)

    def _refused(
        self, act: Callable[[], Any], ref: Task | int, party: Party, expected: type[Exception] | None = None
    ) -> None:
        """The verb must raise ``expected``; by default LeaseLost for a lease of this session, or NotTaken."""
        if expected is None:
            is_ours = isinstance(ref, Task) and ref.token is not None and str(ref.owner) == party.session
            expected = LeaseLost if is_ours else NotTaken
        try:
            answer = act()
        except expected as error:
            assert type(error) is expected
        else:
            raise AssertionError(f"{expected.__name__} expected, the answer was {answer!r}")
        self._agree([])

    def _agree(
        self, changes: Sequence[ModelChange], answer: Sequence[Task] | None = None, of: Event | None = None
    ) -> None:
        """Check that the events are the model's changes, each once, and the answer those of the event ``of``.

        Without ``of``, the answer is the tasks of all changes but those that time made.
        """
        expected = _in_settled_order((event, task.id, _meant(task)) for event, task in changes)
        seen = _in_settled_order((event, task.id, _fields(task)) for event, task in self.log)
        self.log.clear()
        assert seen == expected, "events differ: seen != expected"
        if answer is not None:
            wanted = [
                _meant(task)
                for event, task in changes
                if event is of or (of is None and event not in BY_TIME)
            ]
            assert [_fields(task) for task in answer] == wanted, "the answer differs"


class _Abandoned(Exception):
    """Raised inside a transaction to roll it back."""


def machine_for(bench: Bench) -> type[TubeMachine]:
    """Make the state machine of one type on one store."""
    return type("TubeMachine", (TubeMachine,), {"bench": bench})


def _in_settled_order(changes: Iterable[Seen]) -> list[Seen]:
    """Sort each run of changes that nobody asked for by id."""
    ordered: list[Seen] = []
    for is_unasked, run in itertools.groupby(changes, key=lambda change: change[0] in UNASKED):
        together = list(run)
        ordered += sorted(together, key=lambda change: change[1]) if is_unasked else together
    return ordered


def _in_ms(options: dict[str, Any]) -> dict[str, Any]:
    durations = ("ttl", "ttr", "delay")
    return {
        name: value if value is None or name not in durations else round(value * 1000)
        for name, value in options.items()
    }


def _id(ref: Task | int) -> int:
    return ref.id if isinstance(ref, Task) else ref


def _token(ref: Task | int) -> int | None:
    """A lease as the model names it, by its number of attempts: a driver's tokens may look different."""
    return ref.attempts if isinstance(ref, Task) and ref.token is not None else None


def _ms(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH) // timedelta(milliseconds=1)


def _fields(task: Task) -> tuple[Any, ...]:
    """Everything that users see of a task."""
    return (
        task.id, task.state.name, task.data, task.pri, task.utube, _ms(task.created_at), _ms(task.updated_at),
        _ms(task.due_at), task.ttl, task.ttr, task.attempts, None if task.owner is None else str(task.owner),
        task.token is not None,
    )  # fmt: skip


def _meant(task: ModelTask) -> tuple[Any, ...]:
    is_taken = task.state is State.TAKEN
    return (
        task.id, task.state.name, task.data, task.pri, task.utube, task.created, task.updated,
        task.due, None if task.ttl is None else task.ttl / 1000, None if task.ttr is None else task.ttr / 1000,
        task.attempts, task.owner, is_taken,
    )  # fmt: skip
