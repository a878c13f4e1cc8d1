"""Every scenario recorded from Tarantool is replayed on each store, and goes as recorded, but for DEPARTURES.

``replay`` says how a scenario is replayed, and what is compared. The case files are described in
``cases/README.md``; more of the same kinds can simply be added.
"""

from __future__ import annotations

import copy
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults.harness import ended
from oracle import rules
from oracle.awaited_stage import AwaitedStage
from oracle.outcome import Outcome, Step
from oracle.recording import CASES, Case, Departure, load
from oracle.replay import Disagreement, replay
from oracle.stage import FiberClock, Stage

import tubes
from tubes.clock import Signal

DEPARTURES = (
    Departure(
        "ids are never used again",
        "An id that a worker, a log or a callback remembers must not come to mean another task. Tarantool gives the "
        "largest stored id plus one, so the last ids come again, all of them after a truncate.",
        renews_ids=True,
    ),
    Departure(
        "the event of an ack is ack",
        "A callback must be able to tell finished work from removed work. Tarantool reports both as delete.",
        rules.an_ack_is_an_ack,
    ),
    Departure(
        "one change is one event and one count",
        "Then events can be counted, and counts be added up. Tarantool reports a task whose ttl is over as deleted "
        "and as ttl (and before that as back by its ttr, if it was taken, or as ready, if it was delayed), counts a "
        "touch twice, even one that is refused for its type, and announces a neighbour in the sub-queue by an event "
        "without a name.",
        rules.one_change_is_one_event,
    ),
    Departure(
        "delayed is delay in every type",
        "The same thing has one name. In Tarantool's utubettl alone, event and counter are called delayed.",
        rules.a_delay_is_a_delay,
    ),
    Departure(
        "unsupported and unknown options, bad values and bad tube names are errors, before anything is looked at",
        "What is silently ignored is a mistake found too late. Tarantool ignores options that a type does not have "
        "(storage_mode is one of them here: there is one way to store; in_replicaset another: there are none), takes "
        "a negative duration for none, a capacity of 1.5 for 2, an id of 2.0 for 2, makes a tube with a capacity of -1 "
        "or a pri or a ttl that then fails at every put, and with any name, and for an if_not_exists of 1 sets up a "
        "tube that is there once more, whose callback is lost then. A duration of 10^20 s is over at once there, as "
        "its microseconds do not fit into 64 bits. A put waits for room before it fails. And it looks at "
        "the task first: to release one that is not held is not_taken there, whatever the options.",
        rules.a_refusal_comes_first,
        rules.as_tarantool_took_it,
        parts=frozenset(
            {
                "a tube with a nonsensical option",
                "a tube set up once more",
                "a bad put that waits for room",
                "a duration that overflows",
            }
        ),
    ),
    Departure(
        "a negative touch is an error",
        "Tarantool's documentation says so. Its code returns nothing.",
        rules.no_negative_touch,
    ),
    Departure(
        "never is None",
        "There are no sentinel numbers. In Tarantool anything above 100 years is never, and null is none at all. A "
        "recorded task shows no times, so no other step shows it.",
        parts=frozenset({"null for a duration"}),
    ),
    Departure(
        "a full limfifottl raises TubeFull",
        "A task that was not stored must not look like one that was. Tarantool returns nil when the put's timeout "
        "is over.",
        rules.full_is_an_error,
    ),
    Departure(
        'a sub-queue named "nil" is a name like any other',
        "In Tarantool the tasks without a sub-queue share the one of that name, and those with null another.",
        parts=frozenset({"a sub-queue named nil"}),
    ),
    Departure(
        "ttl bounds a taken task in utubettl too",
        "As in Tarantool's fifottl. In its utubettl a taken task outlives its ttl until its ttr ends.",
        parts=frozenset({"ttl of a taken task in utubettl"}),
    ),
    Departure(
        "waiters are served first come, first served",
        "Tarantool wakes the waiter with the shortest timeout, and among long ones that of the oldest connection. Who "
        "waits for room looks every ten milliseconds there, and the first that looks gets it.",
        parts=frozenset({"the order of waiters"}),
    ),
    Departure(
        "a callback that raises is logged and changes nothing",
        "A listener must not be able to break what it listens to. In Tarantool the error reaches the caller, the "
        "change stays but is not counted and wakes nobody, a taken task has no owner, and a timer ends for good.",
        parts=frozenset({"a callback that raises"}),
    ),
    Departure(
        "if_not_exists with another type is an error",
        "What is returned must be what was asked for. Tarantool returns the tube that is there.",
        rules.another_type_is_an_error,
    ),
    Departure(
        "a session_ttr is of one connection",
        "Processes that share a store need not agree on it, and none of them changes it for the others. In Tarantool "
        "it is of the whole server. The stage gives it to every connection, so no step shows it.",
    ),
    Departure(
        "what ends at one moment ends together",
        "Who waits is served after that, also one whose own time is over. In a recording, what was begun later ends "
        "milliseconds later, and who waits may be served, or give up, in between.",
        parts=frozenset({"two ends at one moment"}),
    ),
    # Defects of the original
    Departure(
        "a ready buffer does not get out of step",
        "In this storage mode a kicked task of Tarantool's utube cannot be taken until its sub-queue moves, and one "
        "that comes back in utubettl is taken before its betters. Nothing of the kind is stored here.",
        parts=frozenset({"a kick in utube", "a return behind a better task", "ready_buffer_out_of_step"}),
        parts_with={"storage_mode": "ready_buffer"},
    ),
    Departure(
        "a truncate leaves no records of who took what",
        "In Tarantool they stay: a late ack says that the task is not found, the tube cannot be dropped, and the end "
        "of the session fails at the first of them and leaves its other tasks taken.",
        parts=frozenset({"records of gone tasks"}),
    ),
    Departure(
        "a released task of utubettl keeps its ttl",
        "Tarantool writes a deadline that never comes, so the task stays for ever, and cannot be taken.",
        parts=frozenset({"ttl of a released task in utubettl"}),
    ),
    Departure(
        "a touch adds what it says",
        "Tarantool takes 3153.6 s for for ever and ends the ttr at once, and fails with an overflow above 100 years, "
        "and by 4.1 s, of which floats make a part of a microsecond.",
        parts=frozenset({"a touch of an hour or more", "a touch of a part of a microsecond"}),
    ),
    Departure(
        "a kick counts whole tasks",
        "Tarantool answers a negative or fractional count with the count itself, and takes one in text.",
        rules.kicked_whole_tasks,
        rules.with_a_whole_count,
    ),
    Departure(
        "a release that fails changes nothing",
        "Tarantool forgets who holds the task before it sees that the delay is none, so that nobody can ack it, nor "
        "release it once more.",
        parts=frozenset({"a release that fails"}),
    ),
    Departure(
        "a put that waits for room in a tube that is dropped says that there is none",
        "In Tarantool it fails with an internal error.",
        rules.a_put_into_a_dropped_tube,
    ),
    Departure(
        "a put that waits for room ends with its connection",
        "In Tarantool it waits on, and stores a task later of which nobody is told.",
        parts=frozenset({"a put whose connection is gone"}),
    ),
    Departure(
        "a creation that fails leaves nothing behind",
        "In Tarantool its space may stay: there is no tube then, and none of that name can be made.",
        parts=frozenset({"a creation that failed"}),
    ),
    Departure(
        "defects that no recorded step shows",
        "utube's kick leaves a transaction open (the recorder closed it), concurrent create_tube calls leave ghosts, "
        "a read-only spell ends limfifottl's timer, take scans busy sub-queues.",
    ),
)
"""All ways in which a replay may differ from the recording; each with its reason. Nothing else passes."""

FILES = sorted(path.stem for path in CASES.glob("*.json"))
ALL = {name: load(name) for name in FILES}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, to be copied: making one takes longer than most replays."""
    path = tmp_path_factory.mktemp("oracle") / "template.db"
    tubes.connect(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def path(template: Path) -> Iterator[Path]:
    """A fresh file."""
    path = template.with_name("case.db")
    shutil.copyfile(template, path)
    yield path
    for left in template.parent.glob("case.db*"):
        left.unlink()


RECORDED = [case for name in FILES for case in ALL[name]]


def as_called(case: Case) -> str:
    """What is done and expected, whatever the storage mode: here there is one."""
    created = {name: value for name, value in case.create.items() if name != "storage_mode"}
    return repr((case.driver, created, case.steps, case.late))


ONCE_EACH = {as_called(case): case for case in reversed(RECORDED)}.values()
ON_SERVERS = [pytest.param(case, id=case.name) for case in ONCE_EACH]

_FIRST = {case.name for case in ONCE_EACH}
EVERY_CASE = [
    pytest.param(case, id=case.name, marks=() if case.name in _FIRST else pytest.mark.slow)
    for case in RECORDED
]
"""What is replayed on SQLite: what another case already calls and expects is left to the slow tests."""


def is_composed(case: Case) -> bool:
    """Whether the recording was composed at random; such a one is long."""
    return re.search(r"/(random|timed)_", case.name) is not None


def on_server(turn: int) -> list[Any]:
    """What is replayed on one of the servers.

    The slow tests have the cases of Tarantool's other storage mode, which are about the same types here, and
    most of those composed at random.
    """
    some = {case.name for case in [*filter(is_composed, ONCE_EACH)][turn::6]}

    def marks(case: Case) -> Any:
        is_kept = case.name in some if is_composed(case) else "_rb/" not in case.name
        return () if is_kept else pytest.mark.slow

    return [pytest.param(case, id=case.name, marks=marks(case)) for case in ONCE_EACH]


ON_CLUSTER = ON_SERVERS[::40]
"""What is replayed on a Redis Cluster, whose scripts are those of one server. tests/soak has the others."""


def dealt(stores: int) -> list[list[Any]]:
    """Every fourth recording of each topic, every twelfth of those composed at random, dealt out in turn."""
    topics: dict[str, list[Case]] = {}
    for name in FILES:
        for case in ALL[name]:
            topic = re.sub(r"(_[ab]|_\d+)$", "", case.name.partition("/")[2])
            topics.setdefault(topic, []).append(case)
    chosen = [
        pytest.param(case, id=case.name)
        for cases in topics.values()
        for case in cases[:: 12 if is_composed(cases[0]) else 4]
    ]
    return [chosen[store::stores] for store in range(stores)]


AWAITED, AWAITED_ON_POSTGRESQL, AWAITED_ON_REDIS = dealt(3)
"""What is replayed through asyncio: the API knows nothing of types, and each replay costs twice as much there.

tests/soak has the others.
"""


@pytest.mark.parametrize("case", EVERY_CASE)
def test_the_queue_does_what_tarantool_does(case: Case, path: Path) -> None:
    """Results, kinds of error, order, events and statistics of every step are those recorded, but for DEPARTURES."""
    with Stage(f"sqlite:///{path}") as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", AWAITED)
def test_it_does_so_through_asyncio(case: Case, path: Path) -> None:
    """The same."""
    with AwaitedStage(f"sqlite:///{path}") as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", on_server(0))
def test_it_does_so_on_postgresql(case: Case, postgres_oracle_url: str) -> None:
    """The same."""
    with Stage(postgres_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", AWAITED_ON_POSTGRESQL)
def test_it_does_so_through_asyncio_on_postgresql(case: Case, postgres_oracle_url: str) -> None:
    """The same."""
    with AwaitedStage(postgres_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", on_server(3))
def test_it_does_so_on_redis(case: Case, redis_oracle_url: str) -> None:
    """The same."""
    with Stage(redis_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", ON_CLUSTER)
def test_it_does_so_on_a_redis_cluster(case: Case, cluster_oracle_url: str) -> None:
    """The same."""
    with Stage(cluster_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", AWAITED_ON_REDIS)
def test_it_does_so_through_asyncio_on_redis(case: Case, redis_oracle_url: str) -> None:
    """The same."""
    with AwaitedStage(redis_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


# The replay itself


def everything() -> Iterator[Case]:
    """All cases, those with few steps first."""
    yield from sorted((case for name in FILES for case in ALL[name]), key=lambda case: len(case.steps))


@pytest.mark.slow
def test_the_recording_judges_almost_every_step() -> None:
    """If the courses have parted, a model says what is expected; that must stay the exception.

    Of random calls with times, the model judges 5 to 10 in 100 steps; of others, fewer.
    """
    for name in set(FILES) - {"quirks", "edges", "durations", "derived"}:
        reports = [replay(case, DEPARTURES) for case in ALL[name]]
        by_model, by_recording = (sum(getattr(r, by) for r in reports) for by in ("by_model", "by_recording"))
        assert by_model < 0.2 * by_recording, name


@pytest.mark.parametrize(
    "departure", [d for d in DEPARTURES if d.shows], ids=lambda departure: departure.name
)
def test_each_departure_is_needed(departure: Departure) -> None:
    """Without it, something that was recorded would be a disagreement."""
    others = [other for other in DEPARTURES if other is not departure]

    def is_missed(case: Case) -> bool:
        try:
            replay(case, others)
        except Disagreement:
            return True
        return False

    assert any(is_missed(case) for case in everything())


Change = Callable[[dict[str, Any]], None]


def spoil(key: str, change: Callable[[Any], Any]) -> Change:
    """Change one entry of a step."""

    def spoiled(step: dict[str, Any]) -> None:
        step[key] = change(step[key])

    return spoiled


def with_one(stats: dict[str, Any], which: str) -> dict[str, Any]:
    name = next(iter(stats[which]))
    return {**stats, which: {**stats[which], name: stats[which][name] + 1}}


WRONG: dict[str, tuple[Callable[[Step], bool], Change]] = {
    "another state": (lambda step: step.get("r", 0) == [0, "t", "a"], spoil("r", lambda r: [0, "r", "a"])),
    "another task": (lambda step: step.get("r", 0) == [1, "t", "d1"], spoil("r", lambda r: [0, *r[1:]])),
    "other data": (lambda step: step.get("r", 0) == [0, "t", "d0"], spoil("r", lambda r: [*r[:2], "d1"])),
    "nothing for a task": (
        lambda step: step["op"] == "take" and bool(step.get("r")),
        spoil("r", lambda r: None),
    ),
    "another number": (lambda step: step["op"] == "kick" and "r" in step, spoil("r", lambda r: r + 1)),
    "another error": (lambda step: step.get("err") == "not_taken", spoil("err", lambda err: "not_found")),
    "an error for a result": (
        lambda step: step["op"] == "ack" and "r" in step,
        lambda step: step.update(err="not_taken"),
    ),
    "a missing event": (lambda step: bool(step.get("events")), spoil("events", lambda events: events[:-1])),
    "one more event": (lambda step: bool(step.get("events")), spoil("events", lambda e: [*e, e[-1]])),
    "another event": (
        lambda step: step["op"] == "bury" and bool(step.get("events")),
        spoil("events", lambda events: [["kick", events[0][1]], *events[1:]]),
    ),
    "another order": (
        lambda step: step["op"] == "kick" and len(step.get("events", ())) == 2,
        spoil("events", lambda events: events[::-1]),
    ),
    "another time": (
        lambda step: step["op"] == "sleep" and len(step.get("events", ())) == 1,
        spoil("events", lambda events: [[*events[0][:2], events[0][2] + 0.2]]),
    ),
    "another duration": (lambda step: step.get("took", 0) > 0, spoil("took", lambda took: took + 0.2)),
    "another count of tasks": (
        lambda step: "tasks" in step.get("stats", {}),
        spoil("stats", lambda stats: with_one(stats, "tasks")),
    ),
    "another count of calls": (
        lambda step: "calls" in step.get("stats", {}),
        spoil("stats", lambda stats: with_one(stats, "calls")),
    ),
    "other statistics": (
        lambda step: step["op"] == "statistics" and "r" in step,
        spoil("r", lambda stats: with_one(stats, "calls")),
    ),
    "another waiter": (
        lambda step: len(step.get("woke", ())) == 1,
        spoil("woke", lambda woke: [["nobody", woke[0][1]]]),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_expectation_fails(wrong: str, path: Path) -> None:
    """One wrong entry in a case, whatever it is about, is a disagreement at that very step."""
    fits, change = WRONG[wrong]
    case, number = next(
        (case, number)
        for case in everything()
        if not replay(case, DEPARTURES).parted
        for number, step in enumerate(case.steps)
        if fits(step)
    )
    steps = copy.deepcopy([dict(step) for step in case.steps])
    change(steps[number])
    with (
        Stage(f"sqlite:///{path}") as stage,
        pytest.raises(Disagreement, match=f"step {number + 1}, .* model and queue differ"),
    ):
        replay(replace(case, steps=steps), DEPARTURES, stage)


def test_a_wait_ends_though_time_passed_before_it_began() -> None:
    """A thread woken for nothing that has read its time left may wait again after the clock has moved."""
    clock = FiberClock(0, None)
    seen, moved = threading.Event(), threading.Event()

    def wait() -> None:
        clock.monotonic()
        seen.set()
        moved.wait(20)
        clock.wait(Signal(), 1)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    seen.wait(20)
    clock.advance(1)
    moved.set()
    ended(waiting)


def test_a_call_on_a_tube_that_only_tarantool_keeps_is_not_refused_for_what_it_asks(path: Path) -> None:
    """After a truncate of taken tasks the tube is dropped here, and not in Tarantool, where calls go on."""
    put = {"op": "put", "s": "a", "data": "x", "r": [0, "r", "x"], "events": [["put", [0, "r", "x"]]]}
    take = {"op": "take", "s": "a", "timeout": 0, "r": [0, "t", "x"], "events": [["take", [0, "t", "x"]]]}
    steps: list[Step] = [
        {**put, "stats": {"tasks": {"ready": 1, "total": 1}, "calls": {"put": 1}}},
        {**take, "stats": {"tasks": {"ready": 0, "taken": 1}, "calls": {"take": 1}}},
        {"op": "truncate", "s": "a", "r": None, "stats": {"tasks": {"taken": 0, "total": 0}}},
        {"op": "drop", "s": "a", "err": "has_taken", "msg": ""},
        {"op": "kick", "s": "a", "count": -1, "r": -1},
    ]
    case = Case("gone", "fifo", steps)
    with Stage(f"sqlite:///{path}") as stage:
        assert replay(case, DEPARTURES, stage).by_model == 2


class Forgetful(Stage):
    """A queue that goes wrong when the model does not: it never reports a take."""

    def perform(self, step: Step, instants: Any, *, waits: bool) -> Outcome:
        outcome = super().perform(step, instants, waits=waits)
        outcome.events = [told for told in outcome.events if told.name != "take"]
        return outcome


def test_a_wrong_queue_fails(path: Path) -> None:
    """What the queue does is compared with the recording, not only the model."""
    with (
        Forgetful(f"sqlite:///{path}") as stage,
        pytest.raises(Disagreement, match="recording and queue differ: events"),
    ):
        replay(next(everything_with("take")), DEPARTURES, stage)


def test_a_wrong_queue_fails_after_a_parting(path: Path) -> None:
    """When the model alone judges, the queue is compared with it."""
    parted = (case for case in everything_with("take") if replay(case, DEPARTURES).parted)
    case = next(
        case for case in parted if all(step["op"] != "take" or "bg" in step for step in case.steps[:3])
    )
    with Forgetful(f"sqlite:///{path}") as stage, pytest.raises(Disagreement, match="differ: events"):
        replay(case, DEPARTURES, stage)


def everything_with(op: str) -> Iterator[Case]:
    """All cases in which ``op`` reports an event."""
    return (case for case in everything() if any(s["op"] == op and s.get("events") for s in case.steps))
