"""On Redis too, each kind of damage is found, shown by the exit status, and repaired; then all tasks work."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import redis
from faults.harness import eventually
from sleeper import is_asleep
from slow import slow_but

import tubes
from tubes.cli import UNAVAILABLE, USAGE, run
from tubes.clock import real_monotonic
from tubes.doctor import Doctor, Finding, Kind
from tubes.options import LONGEST_MS
from tubes.testing import FakeClock
from tubes.testing.suite import take

from .conftest import (
    TYPES,
    AnyPatient,
    called,
    do_everything,
    drain,
    fill,
    find_nothing,
    find_nothing_while_others_work,
    opened,
    touch_often,
    use_beside_unreadable_jobs,
)

scripts: Any = import_module("tubes.drivers.redis.scripts")

NOBODY = "f" * 32
"""A session that does not exist."""

FIELDS = "state pri created updated due ttl ttr attempts owner kind utube".split()


def id(number: int) -> str:
    return f"{number:016d}"


@dataclass
class Patient(AnyPatient):
    """A Redis store, and what can be done to it. The damaged tube is the first."""

    client: redis.Redis
    unread: ClassVar[tuple[bytes, ...]] = (b"{tubes_hosted", b"{tubes}:roll")
    namespace = "tubes"

    @cached_property
    def number(self) -> int:
        """The tube's number."""
        return self.opened[0].records()[0].id

    def do(self, command: str, key: str, *given: Any) -> Any:
        """Run a command on a key of the tube, or of the queue if it begins with a colon."""
        tag = self.namespace
        name = f"{{{tag}}}{key}" if key.startswith(":") else f"{{{tag}:{self.number}}}:{key}"
        return self.client.execute_command(command, name, *given)  # type: ignore[no-untyped-call]

    def edit(self, number: int, **fields: Any) -> None:
        """Change a task's record and nothing else."""
        record = dict(zip(FIELDS, self.do("HGET", "tasks", id(number)).decode().split(" ", 10), strict=True))
        self.do("HSET", "tasks", id(number), " ".join(str(word) for word in (record | fields).values()))

    def take(self, *numbers: int, owner: str | None = None) -> None:
        """Have a session hold tasks as after a take, except that no other task comes to the front."""
        if owner is None:
            owner = self.opened[0].identify().hex
            self.do("SADD", "sessions", owner)
        for number in numbers:
            self.edit(number, state="t", owner=owner, attempts=1)
            self.do("ZREM", "states", f"r{id(number)}")
            self.do("ZREM", "ready", id(number))
            self.do("ZADD", "states", 0, f"t{id(number)}")
            self.do("ZADD", "held", 0, f"{owner} {id(number)} 1")

    def stored(self) -> dict[bytes, Any]:
        """All that is stored, except the beats of living sessions, and the roll call."""
        read: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": self.client.hgetall,
            b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
            b"set": self.client.smembers,
            b"list": lambda key: self.client.lrange(key, 0, -1),
        }
        keys = [key for key in self.client.scan_iter() if not key.startswith(self.unread)]
        found = {key: read[self.client.type(key)](key) for key in keys}  # type: ignore[index]
        found[b"{tubes}:connections"] = {*found.get(b"{tubes}:connections", ())}
        return found


@pytest.fixture
def patient(
    redis_db: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Patient]:
    for module in ("tubes.drivers.examining", "tubes.drivers.redis.examiner"):
        monkeypatch.setattr(import_module(module), "PATIENCE", 0.2)
    url = f"{redis_db}{'&' if '?' in redis_db else '?'}dead_after=2.5"
    with (
        redis.Redis.from_url(redis_db) as client,
        opened(Patient(url, capfd.readouterr, client)) as patient,
    ):
        yield patient


@dataclass(frozen=True)
class Damage:
    """What is done to a tube that ``fill`` has filled, its last task buried, and what must then be found."""

    name: str
    type: str
    harm: Callable[[Patient], object]
    kind: str
    deep: bool = False
    lost: tuple[int, ...] = ()
    """What the damage itself has taken away."""
    follows: str = ""
    """A kind that is found too, as it follows from the damage."""


def both(*steps: Callable[[Patient], object]) -> Callable[[Patient], object]:
    return lambda patient: [step(patient) for step in steps]


def do(command: str, key: str, *given: Any) -> Callable[[Patient], object]:
    return lambda patient: patient.do(command, key, *given)


def edit(number: int, **fields: Any) -> Callable[[Patient], object]:
    return lambda patient: patient.edit(number, **fields)


def line(utube: str, number: int, pri: int = 0) -> str:
    return f"{utube}\0{pri:016d}{id(number)}"


def taken(*numbers: int, owner: str | None = None) -> Callable[[Patient], object]:
    return lambda patient: patient.take(*numbers, owner=owner)


def take_one(patient: Patient) -> None:
    patient.opened[0].tube.jobs.take(0)
    patient.opened[0].flush_counts()  # or it would do so while it is looked at


LISTED = do("SADD", "sessions", NOBODY)
LOST = do("HDEL", "tasks", id(1), f"{id(1)}=")
INDEXES = ("states", "ready", "line", "buried", "due")
GHOSTS = (
    ("states", f"r{id(99)}"), ("states", "x"), ("ready", id(99)), ("line", line("b", 99)),
    ("held", f"{NOBODY} {id(99)} 1"), ("buried", id(99)), ("due", id(99)),
)  # fmt: skip

DAMAGES = (
    # Sub-queues
    Damage("nobody in front", "utube", do("DEL", "ready"), "line"),
    Damage("a worse one in front", "utube", both(do("ZREM", "ready", id(1)), do("ZADD", "ready", 0, id(4))), "line"),
    Damage("two in front", "utubettl", do("ZADD", "ready", 1, id(4)), "line"),
    Damage("another name for who is in front", "utube", do("ZADD", "ready", 0, f"x{id(1)}"), "line"),
    Damage("in front at the wrong place", "utubettl", do("ZADD", "ready", 7, id(1)), "line"),
    Damage("one in front of a busy one", "utubettl", both(take_one, do("ZADD", "ready", 1, id(4))), "line"),
    Damage(
        "busy with nothing", "utube", both(do("HSET", "busy", "a", id(77)), do("ZREM", "ready", id(1))),
        "ghost", follows="count",
    ),
    Damage("busy with a ready one", "utubettl", do("HSET", "busy", "a", id(1)), "state", follows="count,line"),
    Damage(
        "busy with nothing while one is taken", "utubettl", both(take_one, do("HSET", "busy", "a", id(77))),
        "orphan", deep=True, follows="ghost",
    ),
    Damage(
        "busy with a ready one while another is taken", "utubettl", both(take_one, do("HSET", "busy", "a", id(4))),
        "orphan", deep=True, follows="state",
    ),
    Damage(
        "busy with the taken one of another sub-queue", "utubettl",
        both(take_one, take_one, do("HSET", "busy", "a", id(2))), "orphan", deep=True, follows="state",
    ),
    Damage(
        "a ghost in front", "utube",
        both(do("ZREM", "ready", id(1)), do("ZADD", "line", 0, line("a", 0)), do("ZADD", "ready", 0, id(0))),
        "ghost", follows="count,line",
    ),
    Damage(
        "two taken", "utubettl",
        both(taken(1, 4), do("HSET", "busy", "a", id(1)), do("ZREM", "line", line("a", 1, 1), line("a", 4, 1))),
        "line", deep=True,
    ),
    # Tubes
    Damage("a tube lost", "utubettl", do("HDEL", ":tubes", "jobs"), "orphan"),
    Damage("no next id", "fifottl", do("HDEL", "meta", "next"), "count"),
    Damage("a next id of before", "utube", do("HSET", "meta", "next", 4), "count"),
    Damage("a next id that was given last", "limfifottl", do("HSET", "meta", "next", 9), "count"),
    Damage("a next id that is too large", "fifo", do("HSET", "meta", "next", 2**63 - 1), "count"),
    # Owners and sessions
    Damage("an unknown owner", "fifo", both(taken(1, owner=NOBODY), LISTED), "owner"),
    Damage("an unknown owner on no list", "fifottl", taken(1, owner=NOBODY), "owner"),
    Damage(
        "an owner that has ended", "fifo",
        both(do("HSET", ":sessions", NOBODY, "0 1"), LISTED, taken(1, 2, owner=NOBODY)), "owner",
    ),
    Damage(
        "a lonely session", "fifo",
        both(do("HSET", ":sessions", NOBODY, "0 -"), LISTED, taken(1, owner=NOBODY)), "session",
    ),
    Damage(
        "taken by nobody", "utube",
        both(taken(1, owner="-"), do("ZREM", "line", line("a", 1)), do("HSET", "busy", "a", id(1))),
        "owner", deep=True,
    ),
    # Orphans: in no index
    Damage("in no state", "fifo", do("ZREM", "states", f"r{id(1)}"), "orphan", deep=True),
    Damage("in no order", "fifottl", do("ZREM", "ready", id(1)), "orphan", deep=True),
    Damage("in no line", "utubettl", do("ZREM", "line", line("a", 1, 1)), "orphan", deep=True, follows="line"),
    Damage("held by no index", "fifo", both(taken(1), do("DEL", "held")), "orphan", deep=True),
    Damage(
        "taken in no busy sub-queue", "utubettl", both(take_one, do("DEL", "busy")),
        "orphan", deep=True, follows="count,line",
    ),
    Damage("buried nowhere", "fifottl", do("DEL", "buried"), "orphan", deep=True),
    Damage("never due", "utubettl", do("DEL", "due"), "orphan", deep=True),
    Damage("due at another time", "fifottl", do("ZADD", "due", 5, id(1)), "state", deep=True, follows="orphan"),
    Damage(
        "all indexes lost", "utubettl", both(*(do("DEL", key) for key in INDEXES)),
        "orphan", deep=True, follows="line",
    ),
    Damage(
        "all indexes of a plain one lost", "fifo", both(do("DEL", "states"), do("DEL", "meta")),
        "orphan", deep=True, follows="count",
    ),
    Damage(
        "a payload alone", "utube",
        both(do("HDEL", "tasks", id(4)), do("ZREM", "states", f"r{id(4)}"), do("ZREM", "line", line("a", 4))),
        "orphan", deep=True,
    ),
    Damage(
        "all records lost", "utubettl", do("HDEL", "tasks", *map(id, range(1, 10))),
        "orphan", deep=True, follows="ghost,line",
    ),
    # Ghosts: indexed without data
    Damage("no record", "fifottl", LOST, "ghost", deep=True, lost=(0,)),
    Damage("no record in a sub-queue", "utubettl", LOST, "ghost", deep=True, lost=(0,), follows="line"),
    Damage("no payload", "limfifottl", do("HDEL", "tasks", f"{id(1)}="), "ghost", deep=True, lost=(0,)),
    Damage("no payload in a sub-queue", "utube", do("HDEL", "tasks", f"{id(1)}="), "ghost", deep=True, lost=(0,)),
    Damage(
        "no payload and no place", "fifo",
        both(do("HDEL", "tasks", f"{id(1)}="), do("ZREM", "states", f"r{id(1)}")), "ghost", deep=True, lost=(0,),
    ),
    Damage(
        "no task", "utubettl", both(*(do("ZADD", key, 0, member) for key, member in GHOSTS)),
        "ghost", deep=True, follows="owner,line",
    ),
    Damage("no task, and held", "fifo", do("ZADD", "held", 0, f"{NOBODY} {id(99)} 1"), "ghost", follows="count,owner"),
    Damage("held without an id", "fifo", do("ZADD", "held", 0, NOBODY), "ghost", follows="count,owner"),
    # Payloads and records
    Damage("a torn payload", "utubettl", do("HSET", "tasks", f"{id(1)}=", '{"torn'), "payload", deep=True, lost=(0,)),
    Damage("an empty payload", "fifo", do("HSET", "tasks", f"{id(1)}=", ""), "payload", deep=True, lost=(0,)),
    Damage("a torn record", "utubettl", do("HSET", "tasks", id(1), "r 0 17"), "state", deep=True),
    Damage(
        "a torn record without a payload", "utube",
        both(do("HSET", "tasks", id(1), "r 0 17"), do("HDEL", "tasks", f"{id(1)}=")),
        "ghost", deep=True, lost=(0,), follows="line",
    ),
    Damage("a torn record in a fifo", "fifo", do("HSET", "tasks", id(1), ""), "state", deep=True),
    # States
    Damage("in two states", "fifo", do("ZADD", "states", 0, f"t{id(1)}"), "state", deep=True),
    Damage("another state", "utubettl", edit(1, state="!"), "state", deep=True, follows="orphan,line"),
    Damage("another sub-queue", "utube", edit(1, utube="z"), "state", deep=True, follows="orphan,line"),
    Damage("another priority", "fifottl", edit(1, pri=4), "state", deep=True, follows="orphan"),
    Damage(
        "delayed for ever", "fifo",
        both(edit(1, state="~"), do("ZREM", "states", f"r{id(1)}"), do("ZADD", "states", 0, f"~{id(1)}")),
        "state", deep=True,
    ),
    Damage("ready and owned", "fifo", edit(1, owner=NOBODY), "state", deep=True),
    Damage("over some time in a type without times", "utube", edit(1, ttl=9, due=9), "state", deep=True),
    Damage("never over", "fifottl", both(edit(1, due="-"), do("ZREM", "due", id(1))), "state", deep=True),
    Damage(
        "taken for longer than it lives", "fifottl",
        both(taken(1), edit(1, due=LONGEST_MS), do("ZADD", "due", LONGEST_MS, id(1))), "state", deep=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("damage", slow_but(DAMAGES[::3], DAMAGES), ids=called)
def test_damage_is_found_and_repaired_and_nothing_is_lost(damage: Damage, patient: Patient) -> None:
    tube = fill(patient.opened[0], damage.type)
    tube.bury(9)
    patient.opened[0].flush_counts()  # or it would do so while it is looked at
    damage.harm(patient)
    before = patient.stored()
    found = patient.examine(deep=damage.deep)
    follows = {kind for kind in damage.follows.split(",") if kind}
    assert {finding.kind.value for finding in found} - follows == {damage.kind}
    assert all(finding.what and (finding.remedy or finding.kind is Kind.COUNT) for finding in found)
    assert patient.stored() == before, "examining has changed something"

    fixed = patient.doctor("--fix", *(["--deep"] if damage.deep else []))
    assert (fixed.status, {finding["repaired"] for finding in fixed.findings}) == (0, {True})
    assert patient.examine(deep=True) == []

    if damage.name == "a tube lost":
        tube = patient.opened[0].tube[f"lost_{patient.number}"]
    tube.release_all()
    left = drain(tube)
    kept = [data for data in left if isinstance(data, int)]
    assert sorted(kept) == [number for number in range(9) if number not in damage.lost]
    assert len(left) == len(kept) + (damage.kind == "payload")
    more: dict[str, Any] = {"utube": "a"} if tube.features.grouped else {}
    assert tube.put("more", **more).id == 10
    assert drain(tube) == ["more"]


@pytest.mark.slow
def test_an_empty_or_short_member_of_an_index_hides_nothing_behind_it(patient: Patient) -> None:
    """The looks that go in order, at who holds tasks and at who stands in front, go on past it."""
    fill(patient.opened[0], "utube")
    patient.take(1, owner=NOBODY)
    patient.do("HSET", "busy", "a", id(1))
    patient.do("ZREM", "line", line("a", 1))
    patient.do("ZREM", "ready", id(2))
    for index in ("held", "line"):
        for member in ("", "0"):
            patient.do("ZADD", index, 0, member)
    said = patient.doctor()
    assert (said.status, said.kinds) == (1, {"ghost", "line", "count", "owner"})
    assert patient.doctor("--deep", "--fix").status == 0
    assert patient.doctor("--deep", "--fix").out == ""
    assert len(drain(patient.opened[0].tube.jobs)) == 9


def test_each_field_of_a_record_that_cannot_be_read_is_found_and_repaired(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifottl")
    fields = [field for field in FIELDS if field not in ("owner", "utube")]
    for number, field in enumerate(fields, 1):
        patient.edit(number, **{field: "x"})
    found = patient.examine(deep=True)
    assert {finding.task for finding in found if finding.kind is Kind.STATE} == {*range(1, 10)}
    assert patient.doctor("--deep", "--fix").status == 0
    assert patient.examine(deep=True) == []
    assert sorted(drain(tube)) == [*range(9)]


def test_each_time_in_a_type_without_times_is_found(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    for number, field in enumerate(("due", "ttl", "ttr"), 1):
        patient.edit(number, **{field: 9})
    assert sorted(finding.task or 0 for finding in patient.examine(deep=True)) == [1, 2, 3]
    assert patient.doctor("--deep", "--fix").status == 0
    assert patient.examine(deep=True) == []


def test_bytes_whose_record_is_lost_stay_bytes(patient: Patient) -> None:
    tube = patient.opened[0].create_tube("jobs", "fifo")
    tube.put(b"\xff")
    patient.do("HDEL", "tasks", id(1))
    said = patient.doctor("--deep", "--fix")
    assert (said.status, "payload" in said.kinds) == (0, False)
    assert drain(tube) == [b"\xff"]


def test_a_task_whose_next_time_is_lost_is_due_again(patient: Patient) -> None:
    """A delay is over at once; a ttr runs from the take."""
    clock = FakeClock()
    with tubes.connect(patient.url, clock=clock, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifottl")
        for ttr, ttl in ((60, None), (60, 3600), (3600, 60)):
            tube.put("early", ttr=ttr, ttl=ttl)
        taken = [task.id for task in tube.take_many(3, timeout=0)]
        delayed = tube.put("late", delay=600).id
        for number in (*taken, delayed):
            patient.edit(number, due="-")
            patient.do("ZREM", "due", id(number))
        found = [*Doctor(queue, deep=True).repair()]
        assert [finding.kind for finding in found] == [Kind.STATE] * 4
        assert [*Doctor(queue, deep=True).examine()] == []
        now, *dues = (tube.peek(number).due_at for number in (delayed, *taken))
        assert now is not None
        assert [due and (due - now).total_seconds() for due in dues] == [60, 60, 60]
        assert take(tube).id == delayed


def test_who_holds_tasks_costs_as_many_looks_at_the_sessions_however_many_do(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = patient.opened[0]
    fill(queue, "fifo")
    store: Any = queue.store
    ask, looks, thread = store.sessions, list[int](), threading.get_ident()

    def counted(**given: Any) -> Any:
        looks[-1] += threading.get_ident() == thread  # not in the thread that beats
        return ask(**given)

    monkeypatch.setattr(store, "sessions", counted)
    with ExitStack() as others:
        for more in 1, 5:
            for _ in range(more):
                other = others.enter_context(tubes.connect(patient.url, sweep=False))
                assert other.tube.jobs.take(timeout=0) is not None
            looks.append(0)
            assert list(Doctor(queue).examine()) == []
    assert looks[0] == looks[1] > 0


def test_light_findings_that_take_a_deep_look_say_so(patient: Patient) -> None:
    fill(patient.opened[0], "fifottl")
    patient.do("ZREM", "states", f"r{id(1)}")
    said = patient.doctor("--fix")
    (finding,) = said.findings
    assert (said.status, finding["kind"], finding["remedy"]) == (1, "count", None)
    assert "18 records and payloads and 8 tasks in states" in finding["what"] and "--deep" in finding["what"]
    assert patient.doctor("--fix", "--deep").status == 0
    assert patient.doctor().status == 0


@pytest.mark.parametrize("key", ["meta", "tasks", "sessions", "bell"])
def test_a_key_of_another_type_is_found_and_left_to_a_person(key: str, patient: Patient) -> None:
    """Whether or not a verb looks at it; one that does says that the store is damaged, not away."""
    tube = fill(patient.opened[0], "utube")
    fill(patient.opened[0], "fifo", "other")
    patient.do("DEL", key)
    patient.do("SET", key, "x")
    for options in ([], ["--deep", "--fix"]):
        said = patient.doctor(*options)
        assert said.status == 1
        assert f"its key {{tubes:{patient.number}}}:{key} is a string, but must be a " in said.out
    if key != "bell":
        with pytest.raises(tubes.StoreError, match="tubes doctor") as caught:
            tube.take(timeout=60)
        assert type(caught.value) is tubes.StoreError
    assert len(drain(patient.opened[0].tube.other)) == 9


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_who_waits_where_a_task_has_lost_its_record_is_told_so(type: str, patient: Patient) -> None:
    """Otherwise the consumer would wait, as for a server that is away."""
    tube = fill(patient.opened[0], type)
    patient.do("HDEL", "tasks", id(1))
    assert [task.data for task in tube.tasks("r")] == [*range(1, 9)]
    with pytest.raises(tubes.StoreError, match="tubes doctor --deep") as caught:
        tube.take(timeout=60)
    assert caught.type is tubes.StoreError
    assert patient.doctor("--fix", "--deep").status == 0
    assert sorted(drain(tube)) == [*range(9)]


@pytest.mark.parametrize("count", ["abc", "", "1.5", "9" * 19, f"{2**63 - 1}", "007"])
def test_a_count_that_is_no_number_costs_its_own_event_alone(count: str, patient: Patient) -> None:
    queue = patient.opened[0]
    damaged, other = fill(queue, "fifottl"), fill(queue, "fifo", "other")
    patient.do("HSET", "calls", "put", count, b"\xff", "torn")
    damaged.ack(damaged.take(timeout=0) or 0)
    assert queue.sweep() == 0
    assert other.statistics()["calls"]["put"] == 9
    calls = damaged.statistics()["calls"]
    assert (calls["put"], calls["take"], calls["ack"]) == (0, 1, 1)
    said = patient.doctor("--fix")
    assert (said.status, [each["kind"] for each in said.findings]) == (0, ["count"] * 2)
    assert "the count of 'put' calls" in said.out
    damaged.put("more")
    queue.sweep()
    assert damaged.statistics()["calls"] == calls | {"put": 1}


def test_a_task_that_cannot_be_read_is_named_and_costs_no_other(patient: Patient) -> None:
    """The tasks taken with it go back at once, and the next take gets them."""
    tube = fill(patient.opened[0], "fifo")
    patient.edit(2, created="x")
    named = "task 2 of tube 'jobs' cannot be read"
    for verb in (tube.peek, lambda _: tube.tasks("r")):
        with pytest.raises(tubes.StoreError, match=named):
            verb(2)
    with pytest.raises(tubes.StoreError, match=named) as caught:
        tube.take_many(4, timeout=0)
    assert caught.type is tubes.StoreError
    taken = tube.take_many(4, timeout=0)
    assert [task.id for task in taken] == [1, 3, 4, 5]
    for task in taken:
        tube.release(task)
    assert patient.doctor("--deep", "--fix").status == 0
    assert sorted(drain(tube)) == [*range(9)]


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
@pytest.mark.parametrize("record", [None, "torn"])
def test_a_task_whose_record_is_lost_costs_no_other(type: str, record: str | None, patient: Patient) -> None:
    """Those taken before it are told of; only who meets it first gets the error."""
    tube = fill(patient.opened[0], type)
    patient.do("HDEL", "tasks", id(2))
    if record is not None:
        patient.do("HSET", "tasks", id(2), record)
    first = tube.take_many(9, timeout=0)
    assert [task.id for task in first] == [1]
    with pytest.raises(tubes.StoreError, match="damaged data"):
        tube.take_many(9, timeout=0)
    assert tube.statistics()["tasks"]["taken"] == 1
    task = first[0]
    assert tube.take(timeout=0, ack=task) is None  # the ack stands, and the next take gets the error
    with pytest.raises(tubes.NotTaken):
        tube.ack(task)


def test_a_task_that_has_no_id_is_named_and_costs_no_other(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HSET", "tasks", "1x", patient.do("HGET", "tasks", id(1)), "1x=", 1)
    patient.do("ZADD", "states", 0, "r1x")
    named = "task b'1x' of tube 'jobs' cannot be read"
    with pytest.raises(tubes.StoreError, match=named):
        tube.tasks("r")
    with pytest.raises(tubes.StoreError, match=named):
        tube.take_many(20, timeout=0)
    assert [task.data for task in tube.take_many(20, timeout=0)] == [*range(9)]


def test_a_task_in_no_state_is_named(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.edit(2, state="x")
    with pytest.raises(tubes.StoreError, match="task 2 of tube 'jobs' cannot be read"):
        tube.peek(2)


def test_a_task_that_cannot_be_read_is_named_though_those_beside_it_cannot_go_back(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.edit(2, created="x")
    patient.do("SET", "waiting", "x")
    with pytest.raises(tubes.StoreError, match="task 2 of tube 'jobs' cannot be read"):
        tube.take_many(4, timeout=0)


@pytest.mark.parametrize("score", ["inf", "-inf"])
def test_a_time_that_is_infinite_holds_up_no_sweep(score: str, patient: Patient) -> None:
    clock = FakeClock()
    queue = patient.connect(clock=clock)
    damaged, other = queue.create_tube("damaged", "fifottl"), queue.create_tube("other", "fifottl")
    patient.do("ZADD", "due", score, id(damaged.put("later", delay=60).id))
    assert damaged.next_due_ms() == (None if score == "inf" else 0)
    other.put("soon", delay=1)
    clock.advance(1)
    queue.sweep()
    assert other.statistics()["tasks"]["ready"] == 1
    assert patient.doctor("--deep", "--fix").status == 0


def test_a_next_id_is_behind_all_tasks_though_ghosts_come_last(patient: Patient) -> None:
    """Otherwise a put would overwrite what is there."""
    tube = fill(patient.opened[0], "fifo")
    patient.do("HDEL", "meta", "next")
    for member in (id(98), id(99), "x"):
        patient.do("ZADD", "states", 0, f"r{member}")
    assert patient.doctor("--fix").kinds == {"count"}
    assert tube.put("more").id == 10
    assert patient.doctor("--fix", "--deep").status == 0
    assert drain(tube) == [*range(9), "more"]


def test_a_next_id_is_behind_all_tasks_though_one_has_no_id(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HDEL", "meta", "next")
    patient.do("HSET", "tasks", "7", "what?", "7=", "what?")
    patient.do("ZADD", "states", 0, "r7")
    assert "count" in patient.doctor("--fix").kinds
    assert tube.put("more").id == 10


def test_a_next_id_is_behind_more_ghosts_than_are_looked_at(patient: Patient) -> None:
    """It is not known what stands behind them."""
    tube = fill(patient.opened[0], "fifo")
    patient.do("HDEL", "meta", "next")
    patient.do("ZADD", "states", *(word for number in range(50, 1100) for word in (0, f"r{id(number)}")))
    assert patient.doctor("--fix").kinds == {"count"}
    assert tube.put("more").id == 100


def test_a_next_id_is_behind_all_tasks_though_those_in_another_state_are_lower(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    tube.bury(1)
    patient.do("HSET", "meta", "next", 5)
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"count"})
    assert tube.put("more").id == 10


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_tasks_are_taken_though_the_next_id_is_lost(type: str, patient: Patient) -> None:
    """By who has taken there before: a session can no longer be let in."""
    tube = fill(patient.opened[0], type)
    assert take(tube).data == 0
    patient.do("HDEL", "meta", "next")
    assert take(tube).data == 1


def test_a_buried_task_stays_so_when_its_record_is_cleared(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    tube.bury(1)
    patient.edit(1, owner=NOBODY)
    said = patient.doctor("--fix", "--deep")
    assert (said.status, said.kinds) == (0, {"state"})
    assert tube.peek(1).state is tubes.State.BURIED


def test_a_tube_that_was_never_opened_gives_no_id_of_the_one_that_had_its_name(patient: Patient) -> None:
    """Its creator may have died before it was ready for use; whoever connects after that makes it ready."""
    queue = patient.opened[0]
    drain(fill(queue, "fifo"))
    queue.drop_tube("jobs")
    tube = queue.create_tube("jobs", "fifo")
    patient.do("DEL", "meta")
    assert [finding.kind for finding in Doctor(queue).repair()] == [Kind.COUNT]
    assert tube.put("more").id == 10


def test_two_names_of_one_tube_are_found(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    patient.do("HSET", ":tubes", "twin", patient.do("HGET", ":tubes", "jobs"))
    for options in ([], ["--fix"]):
        said = patient.doctor(*options)
        assert (said.status, [each["kind"] for each in said.findings]) == (1, ["damage"])
        assert "the same number" in said.findings[0]["what"]


@pytest.mark.parametrize("damage", [("HSET", "tasks", id(1), "torn"), ("HDEL", "tasks", id(1) + "=")])
def test_a_task_that_is_wrong_by_itself_is_told_of_once(damage: tuple[str, ...], patient: Patient) -> None:
    """Even though all that leads to it is looked at."""
    fill(patient.opened[0], "utubettl")
    patient.do(*damage)
    assert [finding.task for finding in patient.examine(deep=True)] == [1]


def test_others_can_work_between_one_repair_and_the_next(patient: Patient) -> None:
    """A repair takes the task at once out of everything that leads to it."""
    tube = fill(patient.opened[0], "fifottl")
    patient.do("HDEL", "tasks", f"{id(1)}=")
    repair = Doctor(patient.opened[0], deep=True).repair()
    assert next(repair).task == 1
    assert [task.data for task in tube.take_many(20, timeout=0)] == [*range(1, 9)]
    assert [*repair] == []


def test_a_repair_lets_nobody_into_a_busy_sub_queue(patient: Patient) -> None:
    tube = fill(patient.opened[0], "utube")
    assert tube.take(timeout=0)
    patient.take(4)
    patient.do("ZREM", "line", line("a", 4))
    repair = Doctor(patient.opened[0], deep=True).repair()
    assert next(repair).task == 4
    assert patient.do("ZCARD", "held") == 1
    assert [task.data for task in tube.take_many(20, timeout=0)] == [1, 2]
    assert [*repair] == []


def test_no_put_overwrites_a_task_that_was_found_again(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HSET", "tasks", f"{id(10)}=", '"found"')
    repair = Doctor(patient.opened[0], deep=True).repair()
    assert next(repair).task == 10
    assert tube.put("more").id == 11
    assert [*repair] == []
    assert tube.peek(10).data == "found"


def test_what_is_no_id_is_left_to_a_person(patient: Patient) -> None:
    fill(patient.opened[0], "utube")
    patient.do("HSET", "tasks", "7", "what?")
    patient.do("HSET", "tasks", "7=", "what?")
    patient.do("HSET", "tasks", "8=", "what?")
    for options in (["--deep"], ["--deep", "--fix"]):
        said = patient.doctor(*options)
        assert (said.status, said.kinds) == (1, {"damage"})
        assert [finding["remedy"] for finding in said.findings] == [None, None]


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        (":sessions", ""),
        (":sessions", "0 soon"),
        (":sessions", "x -"),
        (":connections", ""),
        (":connections", "x"),
    ],
)
def test_a_session_that_cannot_be_read_is_in_nobodys_way(key: str, entry: str, patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HSET", key, NOBODY, entry)
    for options in ([], ["--fix"]):
        said = patient.doctor(*options)
        assert (said.status, said.kinds) == (1, {"damage"})
    assert patient.opened[0].sweep() == 0
    assert len(drain(tube)) == 9


def test_a_session_whose_id_is_no_text_is_in_nobodys_way(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HSET", ":sessions", b"\xff", "0 1")
    patient.do("SADD", "sessions", b"\xfe")
    assert patient.opened[0].sweep() == 0
    assert len(drain(tube)) == 9


@pytest.mark.parametrize("last", ["x", "", "-5"])
def test_a_last_id_that_cannot_be_read_spoils_no_new_tube(last: str, patient: Patient) -> None:
    queue = patient.opened[0]
    patient.do("HSET", ":last", "task", last)
    drain(fill(queue, "fifo"))
    patient.do("HSET", ":last", "task", last)
    queue.drop_tube("jobs")
    assert queue.create_tube("jobs", "fifo").put("more").id == 10


@pytest.mark.parametrize("last", ["x", "", "-5", "9" * 16])
def test_numbers_that_cannot_be_read_stop_no_new_tube_and_are_repaired(last: str, patient: Patient) -> None:
    """The catalogue's own numbers: how many tubes were created, and the last id of the dropped ones."""
    queue = patient.opened[0]
    for name in ("first", "second"):
        drain(fill(queue, "fifo", name))
        queue.drop_tube(name)
        queue.create_tube(name, "fifo")
    for repair in (lambda: queue.create_tube("third", "fifo"), lambda: patient.doctor("--fix")):
        patient.do("HSET", ":last", "tube", last, "task", last)
        found = patient.doctor()
        assert (found.status, [each["kind"] for each in found.findings]) == (1, ["count"] * 2)
        assert "last" in found.out
        repair()
        assert (patient.doctor().status, patient.do("HGET", ":last", "task")) == (0, b"18")
    assert queue.create_tube("fourth", "fifo").put("more").id == 19
    assert queue.tubes() == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("key", ["tubes", "sessions", "connections", "last"])
def test_a_key_of_the_catalogue_of_another_type_is_among_those_named(key: str, patient: Patient) -> None:
    """By whoever connects, the doctor too, and by an open queue; it takes a person to repair."""
    queue = patient.opened[0]
    fill(queue, "fifo")
    patient.do("DEL", f":{key}")
    patient.do("SET", f":{key}", "torn")
    named = f"WRONGTYPE.* one of .*{{tubes}}:{key}.* is no hash"
    with pytest.raises(tubes.StoreError, match=named):
        tubes.connect(patient.url)
    assert run(["doctor", patient.url]) == UNAVAILABLE
    assert re.search(named, patient.capture()[1])
    try:
        told = " ".join(finding.what for finding in patient.examine())
    except tubes.StoreError as error:  # no check can go through unknown tubes
        told = str(error)
    assert re.search(named, told)
    patient.do("RENAME", f":{key}", "{tubes}:torn")
    assert patient.doctor("--fix").status == 0
    assert sum(len(drain(queue.tube[name])) for name in queue.tubes()) == 9


def test_a_roll_of_another_type_is_among_those_named_by_who_connects(patient: Patient) -> None:
    patient.do("DEL", ":roll")
    patient.do("SET", ":roll", "torn")
    with pytest.raises(tubes.StoreError, match=r"WRONGTYPE.* one of .*{tubes}:roll.* is no hash"):
        tubes.connect(patient.url)


@pytest.mark.parametrize("entry", ["torn", "x -"])
def test_the_entry_of_a_session_that_lives_is_repaired(entry: str, patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    held = tube.take(timeout=0)
    patient.do("HSET", ":sessions", patient.opened[0].identify().hex, entry)
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"session"})
    assert held is not None and tube.ack(held).data == 0


ENTRY = {"id": 7, "order": 9, "after": 0, "type": "fifo", "options": {}, "temporary": False}


@pytest.mark.parametrize(
    "entry",
    [
        "{broken",
        "[]",
        "[" * 100_000,
        *(json.dumps(ENTRY | {word: "x"}) for word in ("id", "order", "options")),
    ],
)
def test_a_tube_whose_entry_cannot_be_read_costs_the_others_nothing(entry: str, patient: Patient) -> None:
    fill(patient.opened[0], "fifo", "others")
    patient.do("HSET", ":tubes", "jobs", entry)
    use_beside_unreadable_jobs(patient.url, "fifo")
    assert run(["ls", "--url", patient.url]) == UNAVAILABLE
    shown, told = patient.capture()
    assert "others" in shown and "? (cannot be used)" in shown
    assert told.startswith("tubes: tube 'jobs': the catalogue's entry") and told.count("\n") == 1
    said = patient.doctor("--fix")
    assert said.status == 1
    assert ("damage", "jobs", False) in [
        (each["kind"], each["tube"], each["repaired"]) for each in said.findings
    ]


@pytest.mark.parametrize("entry", ["{broken", json.dumps(ENTRY)])
def test_a_tube_whose_name_cannot_be_read_costs_the_others_nothing(entry: str, patient: Patient) -> None:
    fill(patient.opened[0], "fifo", "others")
    patient.do("HSET", ":tubes", b"\xff", entry)
    with tubes.connect(patient.url) as queue:
        assert {*queue.tubes()} == {"others", "\\xff"} and queue.sweep() == 0
        assert len(drain(queue.tube.others)) == 9


@pytest.mark.parametrize("key", ["due", "sessions"])
def test_a_tube_with_a_key_of_another_type_holds_up_no_other(key: str, patient: Patient) -> None:
    """A sweep sees to the others, and then says what is wrong."""
    queue = patient.opened[0]
    damaged, other = (queue.create_tube(name, "fifottl") for name in ("jobs", "others"))
    with tubes.connect(patient.url, sweep=False) as ending:
        for tube in (damaged, other):
            tube.put("held", ttr=100)
            tube.put("late", delay=0.05)
            assert ending.tube[tube.name].take(timeout=0) is not None
        patient.do("SET", key, "torn")
    time.sleep(0.1)  # real time: the server's clock, by which the delay ends
    with pytest.raises(tubes.StoreError, match="WRONGTYPE"):
        queue.sweep()
    assert [task.data for task in other.tasks("r")] == ["held", "late"]


def test_the_tasks_of_a_tube_whose_number_cannot_be_read_come_back(patient: Patient) -> None:
    fill(patient.opened[0], "utubettl")
    number = patient.number
    patient.do("HSET", ":tubes", "jobs", "{broken")
    assert patient.doctor("--fix").kinds == {"damage", "orphan"}
    with tubes.connect(patient.url) as queue:
        assert len(drain(queue.tube[f"lost_{number}"])) == 9


def test_a_task_that_has_lost_its_payload_holds_up_nobody(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.do("HDEL", "tasks", f"{id(1)}=")
    assert drain(tube) == [None, *range(1, 9)]


def test_a_lost_tube_comes_back_with_the_type_that_its_keys_have(patient: Patient) -> None:
    queue = patient.opened[0]
    for type in TYPES:
        fill(queue, type, type).bury(9)
    numbers = {record.id: record.type for record in queue.records()}
    patient.client.mset({f"{{tubes:{number}}}": "another's" for number in range(3000)})
    patient.do("DEL", ":tubes")
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"orphan"})
    assert patient.examine(deep=True) == []
    with tubes.connect(patient.url, sweep=False) as after:
        lost = {record.name: record.type for record in after.records()}
        assert lost == {
            f"lost_{number}": "fifottl" if type == "limfifottl" else type for number, type in numbers.items()
        }
        assert [len(drain(after.tube[name])) for name in lost] == [9] * 5


@pytest.mark.parametrize(("type", "more"), [("fifottl", {}), ("utubettl", {"utube": "a"})])
def test_a_lost_tube_of_which_only_ready_tasks_are_left_may_have_priorities(
    patient: Patient, type: str, more: Any
) -> None:
    """Nobody can tell; a type that has priorities also suits tasks that have none."""
    tube = patient.opened[0].create_tube("jobs", type)
    tube.put("second", pri=2, **more)
    patient.do("HDEL", ":tubes", "jobs")
    assert patient.doctor("--fix").status == 0
    assert patient.examine(deep=True) == []
    with tubes.connect(patient.url, sweep=False) as after:
        tube = after.tube[f"lost_{patient.number}"]
        tube.put("first", pri=1, **more)
        assert drain(tube) == ["first", "second"]


def test_a_lost_tube_comes_back_though_there_is_nothing_in_it(patient: Patient) -> None:
    """It gives no id that was given before."""
    tube = fill(patient.opened[0], "fifo")
    drain(tube)
    patient.do("HDEL", ":tubes", "jobs")
    assert patient.doctor("--fix").status == 0
    with tubes.connect(patient.url, sweep=False) as after:
        assert after.tube[f"lost_{patient.number}"].put("more").id == 10


def test_a_lost_tube_comes_back_beside_one_of_the_name_that_it_would_get(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    name = f"lost_{patient.number}"
    patient.do("HDEL", ":tubes", "jobs")
    patient.opened[0].create_tube(name, "fifo")
    assert patient.doctor("--fix").status == 0
    with tubes.connect(patient.url, sweep=False) as after:
        assert len(drain(after.tube[f"{name}_"])) == 9


def test_a_key_of_another_type_of_a_lost_tube_is_named_and_hides_no_other_lost_tube(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    patient.do("DEL", ":tubes")
    patient.client.set("{tubes:77}:tasks", "torn")
    said = patient.doctor("--fix")
    assert (said.status, [each["kind"] for each in said.findings]) == (1, ["orphan", "damage"])
    assert "and its key {tubes:77}:tasks is a string, but must be a hash" in said.findings[1]["what"]
    with tubes.connect(patient.url, sweep=False) as after:
        assert len(drain(after.tube[f"lost_{patient.number}"])) == 9


def test_a_lost_tube_comes_back_though_its_next_id_is_lost_too(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    assert patient.number
    patient.do("DEL", "meta")
    patient.do("HDEL", ":tubes", "jobs")
    assert patient.doctor("--fix").status == 0
    with tubes.connect(patient.url, sweep=False) as after:
        tube = after.tube[f"lost_{patient.number}"]
        assert tube.put("more").id == 10
        assert len(drain(tube)) == 10


@pytest.mark.parametrize(
    "number", ["0", "007", "9" * 17, "9" * 20, "9" * 5000], ids=["0", "007", "17", "20", "5000"]
)
def test_a_number_that_no_tube_ever_had_is_that_of_no_lost_tube(number: str, patient: Patient) -> None:
    """Others' keys may look like a tube's. An entry for one could not be read; none may stop the repair."""
    fill(patient.opened[0], "fifo")
    patient.client.hset(f"{{tubes:{number}}}:meta", "next", "5")
    assert patient.doctor("--fix").status == 0
    assert [record.name for record in patient.opened[0].records()] == ["jobs"]


@pytest.mark.slow
def test_a_key_of_another_type_keeps_no_other_tube_from_being_repaired(patient: Patient) -> None:
    queue = patient.opened[0]
    torn, jobs, later = (fill(queue, "fifo", name) for name in ("torn", "jobs", "later"))
    for tube in (jobs, later):  # one of them may come before the torn one
        meta, held = (f"{{tubes:{tube.record.id}}}:{key}" for key in ("meta", "held"))
        patient.client.hdel(meta, "next")
        patient.client.zadd(held, {f"{NOBODY} {id(1)} 1": 0})
        patient.client.hset(f"{{tubes:{tube.record.id}}}:tasks", id(1), f"t 0 1 1 - - - 1 {NOBODY} j ")
        patient.client.zrem(f"{{tubes:{tube.record.id}}}:states", f"r{id(1)}")
        patient.client.zadd(f"{{tubes:{tube.record.id}}}:states", {f"t{id(1)}": 0})
    for key in ("states", "held"):
        patient.client.delete(f"{{tubes:{torn.record.id}}}:{key}")
        patient.client.set(f"{{tubes:{torn.record.id}}}:{key}", "torn")
    said = patient.doctor("--fix")
    assert said.status == 1
    assert {finding["tube"] for finding in said.findings if finding["repaired"]} == {"jobs", "later"}
    assert not [each for each in said.findings if each["tube"] in ("jobs", "later") and not each["repaired"]]
    for tube in (jobs, later):
        assert len(drain(tube)) == 9
        assert tube.put("more").id == 10


def test_a_tube_that_was_half_dropped_is_dropped(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    drain(tube)
    entry = patient.do("HGET", ":tubes", "jobs")
    patient.opened[0].drop_tube(tube)
    patient.do("HSET", ":tubes", "jobs", entry)
    assert [finding.rule for finding in patient.examine()] == ["dropped"]
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"ghost"})
    assert patient.opened[0].records() == []
    assert patient.opened[0].create_tube("jobs", "fifo").put("more").id == 10


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_next_lost", [True, False])
def test_a_tube_that_only_seems_to_be_dropped_is_kept(
    is_known: bool, is_next_lost: bool, patient: Patient
) -> None:
    fill(patient.opened[0], "utubettl")
    patient.do("HSET", "meta", "dropped", 1, "gave", 20)
    patient.do("PEXPIRE", "meta", 86_400_000)  # as a drop does
    if is_next_lost:
        patient.do("HDEL", "meta", "next")
    if not is_known:
        patient.do("HDEL", ":tubes", "jobs")
    assert patient.doctor().status == 1
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"orphan"})
    assert (patient.doctor("--deep", "--fix").out, patient.do("PTTL", "meta")) == ("", -1)
    with tubes.connect(patient.url, sweep=False) as after:
        tube = after.tube["jobs" if is_known else f"lost_{patient.number}"]
        assert len(drain(tube)) == 9
        assert tube.put("more").id == (21 if is_next_lost else 10)


def test_a_living_process_whose_session_is_lost_keeps_what_it_holds(patient: Patient) -> None:
    url = patient.url.replace("dead_after=2.5", "dead_after=60")  # its next beat would begin a new session
    with tubes.connect(url, sweep=False) as worker:
        tube = fill(worker, "utube")
        held = take(tube)
        patient.do("HDEL", ":sessions", worker.identify().hex)
        said = patient.doctor("--fix")
        assert (said.status, {finding["session"] for finding in said.findings}) == (
            0,
            {worker.identify().hex},
        )
        assert tube.ack(held).data == 0
        assert len(drain(tube)) == 8


def test_a_living_owner_that_is_on_no_list_keeps_what_it_holds(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    held = tube.take(timeout=0)
    patient.do("DEL", "sessions")
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"owner"})
    assert held is not None and tube.ack(held).data == 0


def test_a_tube_that_is_dropped_before_an_owner_is_listed_ends_no_repair(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That can happen if its last task has been deleted since the doctor looked."""
    admissions = import_module("tubes.drivers.redis.examiner").Admissions
    mend, other = admissions.mend, fill(patient.opened[0], "fifo")
    other.take(timeout=0)
    patient.do("DEL", "sessions")

    def late(self: Any, tx: Any, finding: Finding, **options: Any) -> Any:
        def run(*given: Any, is_repeatable: bool) -> Any:
            if not is_repeatable:
                other.truncate()
                other.drop()
            return tx.run(*given, is_repeatable=is_repeatable)

        return mend(self, SimpleNamespace(run=run), finding, **options)

    monkeypatch.setattr(admissions, "mend", late)
    assert patient.doctor("--fix").status == 0
    assert patient.opened[0].tubes() == []


def test_all_is_looked_at_whatever_a_step_may_look_at(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners a few at a time, and payloads of any size, each by itself."""
    for module in ("tubes.doctor", "tubes.drivers.redis.examiner"):
        monkeypatch.setattr(f"{module}.LOOK_LIMIT", 2)
    monkeypatch.setattr("tubes.drivers.examining.MOST_PAYLOADS", 1)
    tube = fill(patient.opened[0], "fifo")
    owners = [letter * 32 for letter in "bcdef"]
    for number, owner in enumerate(owners, 1):
        patient.take(number, owner=owner)
    for number in (7, 8, 9):
        patient.do("HSET", "tasks", f"{id(number)}=", "{")
    found = patient.examine(deep=True)
    assert [finding.session for finding in found if finding.kind is Kind.OWNER] == owners
    assert {finding.task for finding in found if finding.kind is Kind.PAYLOAD} == {7, 8, 9}
    assert patient.doctor("--deep", "--fix").status == 0
    assert patient.examine(deep=True) == []
    assert len(drain(tube)) == 9


@pytest.mark.slow
def test_a_dead_owner_that_is_on_no_list_is_told_of_once_and_rescued_in_one_repair(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.take(1, owner=NOBODY)
    assert [finding.session for finding in patient.examine()] == [NOBODY]
    assert patient.doctor("--fix").status == 0
    assert len(drain(tube)) == 9


def test_the_dead_are_rescued_again_where_a_damaged_task_stopped_that(patient: Patient) -> None:
    """A script that ends with an error does not undo what it did before it."""
    tube = fill(patient.opened[0], "fifo")
    patient.do("SADD", "sessions", NOBODY)
    patient.take(1, 2, owner=NOBODY)
    record = patient.do("HGET", "tasks", id(1))
    patient.do("HDEL", "tasks", id(1))
    assert patient.opened[0].rescuer.rescue() == 0
    patient.do("HSET", "tasks", id(1), record)
    assert patient.connect().rescuer.rescue() == 2
    assert len(drain(tube)) == 9


def test_owners_are_looked_at_in_every_tube(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their numbers, which are random."""
    monkeypatch.setattr(import_module("tubes.drivers.redis.examiner"), "PATIENCE", 0)
    queue = patient.opened[0]
    names = [f"jobs_{number}" for number in range(6)]
    for name in names:
        tube = fill(queue, "fifo", name)
        assert tube.take(timeout=0) is not None
        patient.client.delete(f"{{tubes:{tube.record.id}}}:sessions")
    assert {finding.tube for finding in patient.examine()} == {*names}
    assert {finding["tube"] for finding in patient.doctor("--fix").findings} == {*names}
    assert patient.examine() == []


@pytest.mark.parametrize("stands_still", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_a_dead_process_holds_is_given_back_with_an_event(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    """Even if the machine stands still for a while as it waits for beats: that time does not count."""
    late, doctor = 0.0, import_module("tubes.doctor")
    pause = doctor.pause

    def stand_still(seconds: float) -> None:
        nonlocal late
        late = 2.0
        pause(seconds)

    tube = fill(patient.opened[0], "utube")
    tube.take(timeout=0)
    patient.do("HSET", ":sessions", NOBODY, "0 -")
    patient.do("HSET", ":connections", "99", f"{NOBODY} 3 here/1")
    patient.do("SADD", "sessions", NOBODY)
    patient.take(2, owner=NOBODY)
    patient.do("HSET", "busy", "b", id(2))
    patient.do("ZREM", "line", line("b", 2))
    assert patient.examine() == []  # it takes a while to know who is dead
    if stands_still:
        monkeypatch.setattr(doctor, "pause", stand_still)
        for module in (doctor, import_module("tubes.drivers.watch")):
            monkeypatch.setattr(module, "real_monotonic", lambda: real_monotonic() + late)
    else:
        assert [finding.session for finding in patient.examine(deep=True)] == [NOBODY]
    said = patient.doctor("--fix", "--deep")
    assert (said.status, said.kinds) == (0, {"owner"})
    assert [(each["tube"], each["session"]) for each in said.findings] == [("jobs", NOBODY)]
    assert tube.statistics()["tasks"]["taken"] == 1
    assert tube.statistics()["calls"]["release"] == 1


def test_what_a_session_holds_that_may_come_back_is_left_to_it(patient: Patient) -> None:
    fill(patient.opened[0], "fifo")
    with patient.connect(session_ttr=60) as worker:
        session, held = worker.identify(), worker.tube.jobs.take(timeout=0)
    assert held is not None
    assert patient.examine(deep=True) == []
    assert patient.doctor("--fix").status == 0
    patient.opened[0].identify(session)
    assert patient.opened[0].tube.jobs.ack(held).id == held.id


def test_a_waiting_consumer_is_woken_by_a_repair(deaf: None, patient: Patient) -> None:
    fill(patient.opened[0], "utube")
    patient.do("DEL", "ready")
    with ThreadPoolExecutor() as pool, patient.connect(clock=FakeClock()) as worker:
        waiting = pool.submit(worker.tube.jobs.take)
        eventually(lambda: patient.do("EXISTS", "waiting") and is_asleep(worker))
        assert [*Doctor(patient.opened[0]).repair()]  # not by the command: a queue that closes wakes all
        assert waiting.result(timeout=10) is not None


def test_a_consumer_of_another_process_is_called_by_a_repair(patient: Patient) -> None:
    fill(patient.opened[0], "utube")
    patient.do("DEL", "ready")
    patient.do("ZADD", "waiting", 2**50, NOBODY)
    assert patient.doctor("--fix").status == 0
    assert patient.do("LLEN", "bell") == 1


def test_many_findings_are_repaired_in_bounded_steps(patient: Patient) -> None:
    tube = patient.opened[0].create_tube("jobs", "utubettl")
    tube.put_many([*range(1200)], utube="a", ttl=3600)
    for key in ("states", "line", "ready", "due"):
        patient.do("DEL", key)
    seen = []
    doctor = Doctor(patient.opened[0], deep=True, on_progress=lambda *done: seen.append(done))
    assert {finding.kind for finding in doctor.repair()} == {Kind.ORPHAN}
    steps = [done for name, *done in seen if name == "tasks of jobs"]
    assert len(steps) >= 5 and [2400, 2400] in steps  # records and payloads
    assert [*doctor.examine()] == []
    assert tube.statistics()["tasks"]["ready"] == 1200
    task = tube.take(timeout=0)
    assert task is not None and task.data == 0


@pytest.mark.slow
def test_nothing_is_found_and_nothing_written_whatever_has_been_done(patient: Patient, redis_db: str) -> None:
    do_everything(patient.opened[0])
    patient.opened[0].create_tube("hot", "redis", url=redis_db).put("x")
    find_nothing(patient, patient.stored)


def test_the_longest_times_are_nothing_wrong(patient: Patient) -> None:
    """Nor are the longer ones that they add up to."""
    tube, longest = patient.opened[0].create_tube("jobs", "utubettl"), LONGEST_MS / 1000
    for number in range(20):
        tube.put(number, utube=str(number), ttl=longest - number / 1000)
    for task in tube.take_many(10, 0):
        tube.touch(tube.touch(task, longest) or 0, longest - 0.001)
    for task in tube.take_many(5, 0):
        tube.release(task, delay=longest)
    for task in tube.take_many(1, 0):
        touch_often(tube, task)
        tube.release(task, delay=longest)
    tube.put("late", ttl=longest, delay=longest)
    assert patient.examine(deep=True) == []


def test_nothing_is_found_while_others_work(patient: Patient) -> None:
    find_nothing_while_others_work(patient)


def test_each_namespace_is_examined_by_itself(patient: Patient) -> None:
    queue = patient.opened[0]
    fill(queue, "utube")
    with tubes.connect(patient.url, namespace="Shop", sweep=False) as shop:
        tube = fill(shop, "utube")
        patient.client.delete(f"{{Shop:{tube.record.id}}}:ready")
        assert patient.examine(deep=True) == []
        assert len([*Doctor(shop, deep=True).repair()]) == 3
        assert [*Doctor(shop, deep=True).examine()] == []
        assert len(drain(tube)) == 9


@pytest.mark.slow
def test_tubes_on_all_nodes_of_a_cluster_are_examined(redis_cluster: str) -> None:
    with tubes.connect(redis_cluster, namespace="doctors", sweep=False) as queue:
        numbers = [fill(queue, "utubettl", f"jobs{number}").record.id for number in range(4)]
        assert [*Doctor(queue, deep=True).examine()] == []
        with redis.RedisCluster.from_url(redis_cluster) as client:
            for number in numbers:
                client.delete(f"{{doctors:{number}}}:ready", f"{{doctors:{number}}}:due")
        assert len([*Doctor(queue).repair()]) == 4 * 3
        assert len([*Doctor(queue, deep=True).repair()]) == 4 * 9
        assert [*Doctor(queue, deep=True).examine()] == []
        with redis.RedisCluster.from_url(redis_cluster) as client:
            client.delete("{doctors}:tubes")
        assert [finding.kind for finding in Doctor(queue).repair()] == [Kind.ORPHAN] * 4
        for number in numbers:
            assert len(drain(queue.tube[f"lost_{number}"])) == 9
            queue.drop_tube(f"lost_{number}")


def test_tubes_of_queues_of_other_stores_are_not_taken_for_lost(patient: Patient, redis_db: str) -> None:
    patient.opened[0].create_tube("hot", "redis", url=redis_db).put("x")
    assert run(["doctor", patient.url, "--namespace", "tubes_hosted", "--fix"]) == USAGE
    assert "queues' own stores" in patient.capture()[1]


def test_a_finding_names_the_sub_queue_as_it_was_given(patient: Patient) -> None:
    queue = patient.opened[0]
    tube = queue.create_tube("jobs", "utube")
    driver: Any = tube.driver
    for utube in (None, "", "\1", "a"):
        tube.put("x", utube=utube)
    record = b"r 0 1 1 - - - 0 - j \xff"  # from a client in another language
    queue.store.transact(lambda tx: driver._write(tx, scripts.PUT, 1, [0, record, b"1"]))
    patient.do("DEL", "ready")
    said = [json.loads(text) for text in patient.doctor().out.splitlines()]
    assert [(each["utube"], each["what"].partition(" the first")[0]) for each in said] == [
        (None, "in the unnamed sub-queue"),
        ("", "in sub-queue ''"),
        ("\1", "in sub-queue '\\x01'"),
        ("a", "in sub-queue 'a'"),
        (tube.peek(5).utube, r"in sub-queue '\\xff'"),
    ]


def test_json_is_a_line_for_each_finding(patient: Patient) -> None:
    fill(patient.opened[0], "utubettl")
    patient.do("ZREM", "ready", id(1))
    said = patient.doctor()
    assert [json.loads(text) for text in said.out.splitlines()] == [
        {
            "kind": "line",
            "tube": "jobs",
            "task": 1,
            "utube": "a",
            "session": None,
            "what": "in sub-queue 'a' the first task does not stand in front",
            "remedy": "put the right one there",
            "repaired": False,
        }
    ]
