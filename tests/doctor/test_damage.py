"""Each kind of damage is found, shown by the exit status, and repaired; then every task can be worked on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import eventually
from interpreter import Process
from sleeper import is_asleep
from slow import slow_but

import tubes
from tubes.clock import pause
from tubes.doctor import Doctor, Kind
from tubes.testing import FakeClock
from tubes.testing.suite import take

from .conftest import Patient, called, drain, fill, plain, use_beside_unreadable_jobs

NOBODY = "f" * 32
"""A session that does not exist."""


@dataclass(frozen=True)
class Damage:
    """What is done to a store that ``fill`` has filled, and what must then be found.

    ``{head}`` is the id of the first task, ``{last}`` that of the last one, which is buried.
    """

    name: str
    type: str
    statements: tuple[str, ...]
    kind: str
    deep: bool = False
    lost: tuple[int, ...] = ()
    """What the damage itself has taken away."""
    only_sqlite: bool = False
    follows: str = ""
    """A kind that is found too, as it follows from the damage."""


def task(set: str, which: str = "{head}") -> str:
    return f"UPDATE tubes_task SET {set} WHERE id = {which}"


TAKEN = task(
    "state = 't', owner = (SELECT min(id) FROM tubes_session), attempts = attempts + 1, place = coalesce(due_ms, pri)"
)
"""The first task is taken, by a session that exists."""

DAMAGES = (
    # Sub-queues
    Damage("nobody in front", "utube", (task("front = 0"),), "line"),
    Damage(
        "a worse one in front", "utube", (task("front = 0"), task("front = 1", "{head} + 3")), "line"
    ),
    Damage(
        "a worse priority in front",
        "utubettl",
        (task("pri = 0, place = 0", "{head} + 3"),),
        "line",
    ),
    Damage("two in front", "utube", (task("front = 1", "{head} + 3"),), "line", only_sqlite=True),
    Damage(
        "all in front", "utubettl", ("UPDATE tubes_task SET front = 1 WHERE state = 'r'",), "line", only_sqlite=True
    ),
    Damage(
        "two taken",
        "utubettl",
        (
            "UPDATE tubes_task SET state = 't', front = 1, owner = (SELECT min(id) FROM tubes_session), attempts = 1,"
            " place = due_ms WHERE id IN ({head}, {head} + 3)",
        ),
        "line",
        only_sqlite=True,
    ),
    Damage("nobody in front of the unnamed", "utube", (
        "UPDATE tubes_task SET utube = '' WHERE utube = 'a'",
        "UPDATE tubes_task SET front = 0 WHERE utube = ''",
    ), "line"),
    Damage("nobody in front of the empty name", "utube", (
        "UPDATE tubes_task SET utube = '\1' WHERE utube = 'a'",
        "UPDATE tubes_task SET front = 0 WHERE utube = '\1'",
    ), "line"),
    # Counts
    Damage("too many counted", "limfifottl", ("UPDATE tubes_tube SET stored = 20",), "count"),
    Damage("too few counted", "limfifottl", ("UPDATE tubes_tube SET stored = -3",), "count"),
    Damage("calls of no tube", "fifo", ("INSERT INTO tubes_calls VALUES (999, 'put', 3)",), "orphan"),
    # Owners
    Damage(
        "an unknown owner",
        "utubettl",
        (task(f"state = 't', owner = '{NOBODY}', attempts = 1, place = due_ms"),),
        "owner",
    ),
    Damage("an owner without a name", "utube", (task("state = 't', owner = '', attempts = 1"),), "owner"),
    Damage(
        "an owner that has ended",
        "fifo",
        (
            f"INSERT INTO tubes_session VALUES ('{NOBODY}', 0, 1)",
            task(f"state = 't', owner = '{NOBODY}', attempts = 1"),
        ),
        "owner",
    ),
    Damage(
        "a lonely session",
        "fifo",
        (
            f"INSERT INTO tubes_session VALUES ('{NOBODY}', 0, NULL)",
            task(f"state = 't', owner = '{NOBODY}', attempts = 1"),
        ),
        "session",
    ),
    Damage("taken by nobody", "utube", (task("state = 't', attempts = 1"),), "owner", deep=True),
    Damage(
        "taken by nobody behind another",
        "utube",
        (task("state = 't', attempts = 1", "{head} + 3"),),
        "owner",
        deep=True,
    ),
    # Orphans
    Damage("a tube lost", "utubettl", ("DELETE FROM tubes_tube",), "orphan"),
    Damage("behind nobody", "fifo", (task("front = 0"),), "orphan", deep=True),
    Damage("ready and aside", "utube", (task("front = NULL"),), "orphan", deep=True, follows="line"),
    Damage("all aside", "fifottl", ("UPDATE tubes_task SET front = NULL",), "orphan", deep=True),
    Damage("buried in front", "fifo", (task("front = 1", "{last}"),), "orphan", deep=True),
    Damage("buried in line", "utube", (task("state = '!'"),), "orphan", deep=True, follows="line"),
    Damage(
        "taken and behind",
        "utubettl",
        (
            task("state = 't', owner = (SELECT min(id) FROM tubes_session), attempts = 1, place = due_ms, front = 0"),
        ),
        "orphan",
        deep=True,
        follows="line",
    ),
    # Payloads
    Damage("no payload", "fifo", (task("data = NULL"),), "ghost", deep=True, lost=(0,)),
    Damage("no payload in a sub-queue", "utube", (task("data = NULL"),), "ghost", deep=True, lost=(0,)),
    Damage("no payload, counted", "limfifottl", (task("data = NULL"),), "ghost", deep=True, lost=(0,)),
    Damage("a torn payload", "utubettl", (task("data = '{{\"torn'"),), "payload", deep=True, lost=(0,)),
    # States
    Damage("no such state", "utube", (task("state = 'x'"),), "state", deep=True, follows="line"),
    Damage("done, and there", "fifo", (task("state = '-'"),), "state", deep=True),
    Damage("delayed for ever", "fifo", (task("state = '~', front = NULL"),), "state", deep=True),
    Damage(
        "delayed until never", "fifottl", (task("state = '~', front = NULL, due_ms = NULL"),), "state", deep=True
    ),
    Damage("ready and owned", "fifo", (task(f"owner = '{NOBODY}'"),), "state", deep=True),
    Damage("taken less than never", "fifo", (task("attempts = -1"),), "state", deep=True),
    Damage("of no sub-queue", "utube", (task("utube = NULL"),), "state", deep=True, follows="line"),
    Damage(
        "taken, of no sub-queue",
        "utube",
        (
            task("state = 't', owner = (SELECT min(id) FROM tubes_session), attempts = 1, utube = NULL"),
            task("utube = ''", "{head} + 1"),
        ),
        "state",
        deep=True,
        follows="line",
    ),
    Damage(
        "two of no sub-queue",
        "utube",
        (task("utube = NULL"), task("utube = NULL", "{head} + 3")),
        "state",
        deep=True,
        follows="line",
    ),
    Damage("buried, of no sub-queue", "utube", (task("utube = NULL", "{last}"),), "state", deep=True),
    Damage("out of order", "fifottl", (task("place = 99"),), "state", deep=True),
    Damage("taken in the order of what is ready", "fifottl", (TAKEN, task("place = pri")), "state", deep=True),
    Damage("in no order", "utubettl", (task("place = NULL"),), "state", deep=True),
    Damage("never over", "fifottl", (task("due_ms = NULL"),), "state", deep=True),
    Damage(
        "held for ever",
        "fifottl",
        (
            task(
                "state = 't', owner = (SELECT min(id) FROM tubes_session), attempts = 1, due_ms = NULL, place = NULL"
            ),
        ),
        "state",
        deep=True,
    ),
    # Numbers that no verb has made
    *(
        Damage(name, type, (task(set), TAKEN if "taken" in name else task("front = front")), "state", deep=True)
        for name, type, set in (
            ("taken as often as can be counted", "fifo", "attempts = 2147483646"),
            ("ready as often as can be counted", "utubettl", "attempts = 2147483647"),
            ("an endless ttr", "fifottl", "ttr_ms = 9223372036854775807"),
            ("an endless ttr of one taken", "utubettl", "ttr_ms = 9223372036854775807"),
            ("an endless ttl", "fifottl", "ttl_ms = 9223372036854775807"),
            ("an endless ttl of one taken", "utubettl", "ttl_ms = 9223372036854775807"),
            ("an endless ttl of one taken where there is none", "fifo", "ttl_ms = 9223372036854775807"),
            ("durations below nothing", "limfifottl", "ttl_ms = -1, ttr_ms = -1"),
            ("put before the year 1", "fifo", "created_ms = -1000000000000000"),
            ("put before the year 1 with a ttl", "limfifottl", "created_ms = -9223372036854775807"),
            ("put after the year 9999", "utubettl", "created_ms = 9223372036854775807"),
            ("put after the year 9999 and taken", "fifottl", "created_ms = 9223372036854775807"),
            ("changed before the year 1", "utube", "updated_ms = -100000000000000000"),
            ("no time at all", "fifottl", "created_ms = 9223372036854775807, updated_ms = -9223372036854775807"),
            (
                "nothing but",
                "utubettl",
                "created_ms = -9223372036854775807, updated_ms = 9223372036854775807, ttl_ms = 9223372036854775807,"
                " ttr_ms = -9223372036854775807, due_ms = 9223372036854775807, place = -9223372036854775807,"
                " attempts = 2147483647",
            ),
            ("delayed until the end of numbers", "fifottl", "state = '~', front = NULL, due_ms = 9223372036854775807"),
            ("taken until the end of numbers", "fifottl", "ttl_ms = NULL, due_ms = 9223372036854775807"),
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=called)
def test_damage_is_found_and_repaired_and_nothing_is_lost(damage: Damage, file: Patient) -> None:
    check_repair(damage, file)


@pytest.mark.parametrize("damage", slow_but(DAMAGES[::12], DAMAGES), ids=called)
def test_damage_on_postgresql_is_found_and_repaired(damage: Damage, database: Patient) -> None:
    """In the same way, except for damage that the server does not allow."""
    if damage.only_sqlite:
        with pytest.raises(psycopg.errors.UniqueViolation):
            harm(database, damage)
    else:
        check_repair(damage, database)


def check_repair(damage: Damage, patient: Patient) -> None:
    """Do damage, and see that it is found and repaired and that the repair loses nothing."""
    tube = harm(patient, damage)
    before = patient.rows()
    found = [*patient.examine(deep=damage.deep)]
    assert {finding.kind.value for finding in found} - {damage.follows} == {damage.kind} - {damage.follows}
    assert all(finding.what and finding.remedy for finding in found)
    assert patient.rows() == before, "examining has changed something"

    fixed = patient.doctor("--fix", *(["--deep"] if damage.deep else []))
    assert (fixed.status, {finding["repaired"] for finding in fixed.findings}) == (0, {True})
    assert [*patient.examine(deep=True)] == []

    if damage.name == "a tube lost":
        tube = patient.opened[0].tube.lost_1
    tube.release_all()
    left = drain(tube)
    kept = [data for data in left if isinstance(data, int)]
    assert sorted(kept) == [number for number in range(9) if number not in damage.lost]
    assert len(left) == len(kept) + (damage.kind == "payload")
    more: dict[str, Any] = {"utube": "a"} if tube.features.grouped else {}
    tube.put("more", **more)
    assert drain(tube) == ["more"]


def harm(patient: Patient, damage: Damage) -> tubes.Tube:
    """Fill the store, and damage it."""
    tube = fill(patient.opened[0], damage.type)
    tube.bury(max(task.id for task in tube.tasks("r")))
    patient.opened[0].flush_counts()  # or it would do so during the examination
    ((head, last),) = patient.sql("SELECT min(id), max(id) FROM tubes_task")
    for statement in damage.statements:
        patient.sql(statement.format(head=head, last=last))
    return tube


LEFT = (
    Damage("two payloads", "fifo", (task("bytes = data", "{head}"),), "state", deep=True, only_sqlite=True),
    Damage("a sub-queue in a fifo", "fifo", (task("utube = 'a'"),), "state", deep=True),
    Damage("no number", "fifo", (task("attempts = 'many'"),), "state", deep=True, only_sqlite=True),
    Damage("of no tube", "fifo", (task("tube = NULL"),), "orphan", deep=True, only_sqlite=True),
)


@pytest.mark.parametrize("damage", LEFT, ids=called)
def test_what_takes_a_person_is_found_and_left_as_it_is(damage: Damage, patient: Patient) -> None:
    if damage.only_sqlite and not patient.is_sqlite:
        with pytest.raises(
            (psycopg.errors.DataError, psycopg.errors.NotNullViolation, psycopg.ProgrammingError)
        ):
            harm(patient, damage)
        return
    harm(patient, damage)
    before = patient.rows()
    for options in (["--deep"], ["--deep", "--fix"]):
        said = patient.doctor(*options)
        assert (said.status, said.kinds) == (1, {damage.kind})
        (finding,) = said.findings
        assert (finding["remedy"], finding["repaired"]) == (None, False)
    assert patient.rows() == before


def test_a_tube_number_that_is_none_takes_a_person_and_hides_no_lost_tube(file: Patient) -> None:
    fill(file.opened[0], "fifo")
    for number, task in ((7, 1), ("seven", 2), (b"\xff", 3)):
        file.sql("UPDATE tubes_task SET tube = ? WHERE id = ?", number, task)
    fixed = [finding for finding in file.doctor("--fix").findings if finding["repaired"]]
    assert [finding["what"].split()[6] for finding in fixed] == ["7,"]
    for options in ([], ["--deep"], ["--deep", "--fix"]):
        said = file.doctor(*options)
        assert (said.status, said.kinds) == (1, {"orphan"})
        assert {finding["remedy"] for finding in said.findings} == {None}
        assert "tube number 'seven', which is not a number" in said.out
    assert drain(file.opened[0].tube.lost_7) == [0]


def test_what_was_taken_for_longer_than_a_column_holds_is_set_right(file: Patient) -> None:
    """SQLite carries on with a number that is not an integer; a server refuses the take."""
    tube = file.opened[0].create_tube("jobs", "fifottl")
    tube.put("x", ttr=60)
    file.sql("UPDATE tubes_task SET ttr_ms = 9223372036854775807")
    held = take(tube)
    assert file.sql("SELECT typeof(due_ms), typeof(place) FROM tubes_task") == [("real", "real")]
    said = file.doctor("--deep", "--fix")
    assert (said.status, said.kinds) == (0, {"state"})
    assert [*file.examine(deep=True)] == []
    assert tube.ack(held).data == "x"


def test_a_taken_task_whose_next_time_is_lost_lives_no_longer_than_its_ttl(file: Patient) -> None:
    tube = file.opened[0].create_tube("jobs", "fifottl")
    tube.put("x", ttl=60, ttr=600)
    held = take(tube)
    file.sql("UPDATE tubes_task SET due_ms = NULL, place = NULL")
    assert file.doctor("--deep", "--fix").kinds == {"state"}
    assert tube.peek(held).due_at == held.due_at


def test_a_ttr_that_a_type_has_no_more_is_not_called_wrong(file: Patient) -> None:
    """Its tasks were put when the type still had one."""
    tube = fill(file.opened[0], "fifo")
    file.sql("UPDATE tubes_task SET ttr_ms = 600000")
    assert tube.take(timeout=0) is not None
    assert file.examine(deep=True) == []


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_a_time_before_the_year_1_holds_up_nobody(type: str, patient: Patient) -> None:
    tube = fill(patient.opened[0], type)
    first, second, *_ = tube.tasks("r")
    times = "created_ms = -1000000000000000, updated_ms = -100000000000000000"
    patient.sql(f"UPDATE tubes_task SET {times} WHERE id <= ?", second.id)
    assert [task.created_at.year == 1 for task in tube.tasks("r", limit=3)] == [True, True, False]
    assert tube.peek(first).updated_at == datetime.min.replace(tzinfo=UTC)
    taken = [tube.take(timeout=0), *tube.take_many(2, timeout=0)]
    assert [task and task.data for task in taken] == [0, 1, 2]
    assert tube.ack(first.id).state.name == "DONE"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("state = 'x'", "'x'"),
        ("state = ''", "''"),
        ("state = 't', attempts = 1, owner = 'zzz', place = coalesce(due_ms, pri)", "badly formed"),
    ],
    ids=["state", "empty", "owner"],
)
@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_a_row_that_cannot_be_read_is_named_and_costs_only_itself(
    type: str, damage: str, why: str, patient: Patient
) -> None:
    tube = fill(patient.opened[0], type)
    first, second, *_ = tube.tasks("r")
    patient.sql(f"UPDATE tubes_task SET {damage} WHERE id = ?", first.id)
    named = rf"task {first.id} of tube 'jobs' cannot be read, see `tubes doctor --deep`: .*{why}"
    with pytest.raises(tubes.StoreError, match=named):
        tube.peek(first.id)
    assert tube.peek(second.id).data == 1
    assert len(tube.tasks("r")) == 8
    counts = tube.statistics()["tasks"]
    assert (counts["ready"], counts["taken"]) == (8, int("owner" in damage))
    for data in (1, 2):
        task = tube.take(timeout=0)
        assert task is not None and task.data == data
    assert tube.delete(first.id).state.name == "DONE"


def test_a_text_where_a_number_must_be_is_named_and_the_next_take_goes_on(file: Patient) -> None:
    for type in ("fifo", "fifottl", "utube"):
        tube = fill(file.opened[0], type, type)
        ((head,),) = file.sql("SELECT min(id) FROM tubes_task WHERE tube = ?", tube.record.id)
        file.sql("UPDATE tubes_task SET created_ms = 'soon' WHERE id = ?", head)
        for look in (partial(tube.take, timeout=0), partial(tube.peek, head)):
            with pytest.raises(tubes.StoreError, match=f"task {head} of tube '{type}' cannot be read"):
                look()
        task = tube.take(timeout=0)
        assert task is not None and task.data == 1


@pytest.mark.parametrize("column", ["ttl_ms", "created_ms"])
@pytest.mark.parametrize("value", ["'soon'", "x'31'"])
def test_a_task_without_a_number_keeps_no_other_in_the_hands_of_the_dead(
    column: str, value: str, file: Patient
) -> None:
    """If nobody can tell when a task ends, nobody knows that it has ended."""
    tube = fill(file.opened[0], "fifottl")
    with file.connect() as dead:
        taken = dead.get_tube("jobs").take_many(3, timeout=0)
        file.sql(f"UPDATE tubes_task SET ttl_ms = 60000, {column} = {value} WHERE id = ?", taken[0].id)
    file.opened[0].rescuer.rescue()
    assert tube.statistics()["tasks"]["taken"] == 0
    assert {tube.peek(task.id).state for task in taken[1:]} == {tubes.State.READY}


def test_a_time_that_is_no_number_holds_up_no_sweep(file: Patient) -> None:
    clock = FakeClock()
    queue = file.connect(clock=clock)
    damaged, other = queue.create_tube("damaged", "fifottl"), queue.create_tube("other", "fifottl")
    file.sql("UPDATE tubes_task SET due_ms = 'soon' WHERE id = ?", damaged.put("later", delay=60).id)
    damaged.put("held", ttr=60)
    assert damaged.take(timeout=0) is not None
    other.put("soon", delay=1)
    clock.advance(1)
    assert queue.sweep() == 1
    assert file.doctor("--deep", "--fix").status == 0


@pytest.mark.parametrize(("also", "left"), [("", 9), (", created_ms = 1", 8)], ids=["late", "over"])
def test_a_taken_task_whose_next_time_is_lost_holds_up_no_other(
    also: str, left: int, patient: Patient
) -> None:
    """By its place its time is over, and nobody knows since when."""
    tube = fill(patient.opened[0], "fifottl")
    first, second = tube.take_many(2, timeout=0)
    patient.sql(f"UPDATE tubes_task SET place = 1, due_ms = NULL{also} WHERE id = ?", first.id)
    patient.sql("UPDATE tubes_task SET place = 1, due_ms = 1 WHERE id = ?", second.id)
    assert [task.data for task in tube.take_many(20, timeout=0)] == [*range(9)][-left:]


@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_a_ready_task_whose_next_time_is_wrong_stays_where_it_is(type: str, patient: Patient) -> None:
    """Its ttl is not over: a sweep that finds it finds nothing to do."""
    tube = patient.opened[0].create_tube("jobs", type)
    tube.put_many(["first", "second"], ttl=3600)
    patient.sql("UPDATE tubes_task SET due_ms = 1")
    patient.opened[0].sweep()
    assert take(tube).data == "first"


@pytest.mark.parametrize("type", ["fifo", "fifottl", "utube"])
def test_a_batch_with_a_row_that_cannot_be_read_is_taken_by_nobody(type: str, file: Patient) -> None:
    tube = fill(file.opened[0], type)
    file.sql("UPDATE tubes_task SET created_ms = 'soon' WHERE id = (SELECT min(id) FROM tubes_task)")
    with pytest.raises(tubes.StoreError, match="cannot be read"):
        tube.take_many(4, timeout=0)
    assert tube.statistics()["tasks"]["taken"] == 0


def test_a_priority_that_is_no_number_holds_up_no_batch(file: Patient) -> None:
    tube = fill(file.opened[0], "fifottl")
    file.sql("UPDATE tubes_task SET pri = 'soon' WHERE id = (SELECT min(id) FROM tubes_task)")
    assert [task.data for task in tube.take_many(20, timeout=0)] == [*range(1, 9), 0]


@pytest.mark.parametrize("count", ["'abc'", "''", "x'ff'", "1.5"])
def test_a_count_that_is_no_number_costs_its_own_event_alone(count: str, file: Patient) -> None:
    queue = file.opened[0]
    damaged, other = fill(queue, "fifottl"), fill(queue, "fifo", "other")
    damaged.ack(damaged.take(timeout=0) or 0)
    queue.flush_counts()
    file.sql(f"UPDATE tubes_calls SET count = {count} WHERE tube = ? AND event = 'put'", damaged.record.id)
    assert other.statistics()["calls"]["put"] == 9
    calls = damaged.statistics()["calls"]
    assert (calls["put"], calls["take"], calls["ack"]) == (0, 1, 1)
    said = file.doctor("--fix")
    assert (said.status, [(each["kind"], each["tube"]) for each in said.findings]) == (0, [("count", "jobs")])
    assert "the count of 'put' calls" in said.out
    damaged.put("more")
    queue.flush_counts()
    assert damaged.statistics()["calls"] == calls | {"put": 1}


def test_a_lost_tube_comes_back_with_its_tasks_as_they_were(patient: Patient) -> None:
    queue = patient.opened[0]
    for name, type in (("grouped", "utubettl"), ("plain", "fifo")):
        fill(queue, type, name)
    (tasks,) = patient.rows("task")
    patient.sql("DELETE FROM tubes_tube")
    for options in ([], ["--deep"]):
        said = patient.doctor(*options)
        assert [finding["remedy"] for finding in said.findings] == ["add it, as lost_1", "add it, as lost_2"]
    assert patient.doctor("--fix").status == 0
    with patient.connect() as after:
        assert [(tube.name, tube.type) for tube in after.records()] == [
            ("lost_1", "utubettl"),
            ("lost_2", "fifottl"),
        ]
        assert patient.rows("task") == [tasks]
        assert after.create_tube("more", "fifo").record.id == 3
        assert len(drain(after.tube.lost_1)) == len(drain(after.tube.lost_2)) == 9


@pytest.mark.parametrize("options", [["--fix"], ["--deep", "--fix"]], ids=" ".join)
def test_tasks_of_a_tube_number_that_is_yet_to_come_are_not_mixed_up(
    patient: Patient, options: list[str]
) -> None:
    tube = fill(patient.opened[0], "utube")
    patient.sql("UPDATE tubes_task SET tube = ? WHERE utube = 'a'", tube.record.id + 5)
    assert patient.doctor(*options).status == 0
    queue = patient.connect()
    lost = queue.tube[f"lost_{tube.record.id + 5}"]
    made = [queue.create_tube(f"made{number}", "fifo") for number in range(8)]
    assert lost.record.id not in {tube.record.id for tube in made}
    assert (sorted(drain(lost)), sorted(drain(tube))) == ([0, 3, 6], [1, 2, 4, 5, 7, 8])


@pytest.mark.slow
def test_a_living_process_whose_session_is_lost_keeps_what_it_holds(patient: Patient) -> None:
    worker = patient.connect()
    tube = fill(worker, "utube")
    held = take(tube)
    patient.sql("DELETE FROM tubes_session WHERE id = ?", worker.identify().hex)
    said = patient.doctor("--fix")
    assert (said.status, {finding["session"] for finding in said.findings}) == (0, {worker.identify().hex})
    assert tube.ack(held).data == 0
    assert len(drain(tube)) == 8


def test_what_a_dead_process_holds_is_given_back(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is there to see to it. A session known to be dead is not waited for again in each tube."""
    tube = fill(patient.opened[0], "utube")
    more = [fill(patient.opened[0], "fifo", f"more{number}") for number in range(3)]
    patient.sql(f"INSERT INTO tubes_session VALUES ('{NOBODY}', 0, NULL)")
    patient.add_connection(NOBODY)
    patient.sql(
        f"UPDATE tubes_task SET state = 't', owner = '{NOBODY}', attempts = 1 WHERE front = 1 AND utube = 'a'"
    )
    for other in more:
        set = f"state = 't', owner = '{NOBODY}', attempts = 1"
        patient.sql(f"UPDATE tubes_task SET {set} WHERE tube = {other.record.id}")
    pauses: list[float] = []

    def counted(seconds: float) -> None:
        pauses.append(seconds)
        pause(seconds)

    monkeypatch.setattr("tubes.doctor.pause", counted)
    found = [*patient.examine(deep=True)]
    assert [(finding.tube, finding.session) for finding in found] == [
        (name, NOBODY) for name in ("jobs", *(other.name for other in more))
    ]
    assert sum(pauses) < 8  # dead_after is 2.5 s, once for all, and once more if the machine stands still
    said = patient.doctor("--fix", "--deep")
    assert (said.status, said.kinds) == (0, {"owner"})
    assert [len(drain(other)) for other in more] == [9, 9, 9]
    assert tube.statistics()["tasks"]["taken"] == 0
    assert tube.statistics()["calls"]["release"] == 1
    assert len(drain(tube)) == 9


def test_a_session_that_lives_is_not_taken_for_dead(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    held = tube.take(timeout=0)
    said = patient.doctor("--deep", "--fix")
    assert (said.status, said.out) == (0, "")
    assert held is not None and tube.ack(held).state.name == "DONE"


def test_a_session_is_left_alone_that_one_process_lives_in_or_that_may_come_back(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    held = take(tube)
    patient.add_connection(patient.opened[0].identify().hex)
    with patient.connect(session_ttr=60) as away:
        kept = away.tube.jobs.take(timeout=0)
    said = patient.doctor("--deep", "--fix")
    assert (said.status, said.out) == (0, "")
    assert tube.tasks("t") == [held, kept]


def test_what_others_see_to_meanwhile_is_no_finding(file: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    file.sql(f"INSERT INTO tubes_session VALUES ('{NOBODY}', 0, NULL)")
    rescue = partial(file.sql, f"DELETE FROM tubes_session WHERE id = '{NOBODY}'")
    monkeypatch.setattr("tubes.doctor.pause", lambda seconds: rescue())
    assert file.examine() == []


def test_missing_indexes_and_triggers_are_found(fresh: Patient) -> None:
    fresh.sql("DROP INDEX tubes_task_due")
    fresh.sql(f"DROP TRIGGER tubes_task_gone{'' if fresh.is_sqlite else ' ON tubes_task'}")
    said = fresh.doctor("--fix")
    assert (said.status, said.kinds) == (1, {"damage"})
    told = [finding["what"].partition(" is missing")[0] for finding in said.findings]
    assert sorted(told) == ["index tubes_task_due", "trigger tubes_task_gone"]


def test_what_is_missing_is_named_as_it_must_be_made(file: Patient) -> None:
    with tubes.connect(file.url, namespace="Shop", migrate=True, sweep=False) as shop:
        file.sql("DROP INDEX Shop_task_due")
        (finding,) = Doctor(shop).examine()
    assert finding.what.startswith("index Shop_task_due is missing")


@pytest.mark.parametrize("fresh", ["postgresql"], indirect=True)
def test_a_missing_function_is_found(fresh: Patient) -> None:
    """Other functions call it, of which PostgreSQL knows nothing."""
    fresh.sql("DROP FUNCTION tubes_key")
    said = fresh.doctor()
    assert (said.status, said.kinds) == (1, {"damage"})
    assert "function tubes_key is missing" in said.findings[0]["what"]


@pytest.mark.parametrize("fresh", ["postgresql"], indirect=True)
def test_a_missing_sequence_is_found_and_hides_nothing_else(fresh: Patient) -> None:
    """It takes the defaults of ids with it, so a person must make all that again."""
    fill(fresh.opened[0], "utube")
    fresh.sql("DROP SEQUENCE tubes_task_id CASCADE")
    fresh.sql("UPDATE tubes_task SET front = 0 WHERE utube = 'a'")
    said = fresh.doctor("--fix")
    assert [(each["kind"], each["repaired"]) for each in said.findings] == [("line", True), ("damage", False)]
    assert said.findings[1]["what"].startswith("sequence tubes_task_id is missing")
    fresh.sql("CREATE SEQUENCE tubes_task_id AS bigint")
    for table in "tubes_task", "tubes_temporary_task":
        fresh.sql(f"ALTER TABLE {table} ALTER id SET DEFAULT nextval('tubes_task_id')")
    said = fresh.doctor("--deep", "--fix")
    assert (said.status, said.kinds) == (0, {"count"})
    assert fresh.opened[0].tube.jobs.put("more", utube="a").id == 10


@pytest.mark.parametrize("fresh", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["DISABLE", "ENABLE REPLICA"])
def test_a_trigger_that_does_not_run_is_as_good_as_missing(fresh: Patient, how: str) -> None:
    fresh.sql(f"ALTER TABLE tubes_task {how} TRIGGER tubes_task_gone")
    said = fresh.doctor()
    assert (said.status, said.kinds) == (1, {"damage"})
    assert "trigger tubes_task_gone is missing" in said.findings[0]["what"]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE mine (name TEXT COLLATE mine PRIMARY KEY)",
        "CREATE TABLE mine (name TEXT CHECK (mine(name) IS NOT NULL))",
    ],
)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_only_a_user_s_program_can_compare_is_no_damage(
    file: Patient, made: str, is_damaged: bool
) -> None:
    """In a file with a collation or function that we do not know, only our own tables are read."""
    tube = file.opened[0].create_tube("jobs", "fifo")
    tube.put_many(["x" * 100] * 200)
    file.opened[0].close()
    assert file.path is not None
    with closing(sqlite3.connect(file.path, isolation_level=None)) as db:
        db.create_collation("mine", lambda one, other: (one > other) - (one < other))
        db.create_function("mine", 1, str, deterministic=True)
        db.execute(made)
        db.execute("INSERT INTO mine VALUES ('a'), ('b')")
    if is_damaged:
        file.overwrite("tubes_task_due")
    said = file.doctor("--deep")
    assert (said.status, said.kinds) == ((1, {"damage"}) if is_damaged else (0, set()))


def test_a_damaged_page_is_found(file: Patient) -> None:
    tube = file.opened[0].create_tube("jobs", "fifo")
    tube.put_many(["x" * 100] * 200)
    file.opened[0].close()
    file.overwrite("tubes_task_due")
    assert file.doctor().status == 0
    said = file.doctor("--deep")
    assert (said.status, said.kinds) == (1, {"damage"})
    assert "SQLite says" in said.findings[0]["what"]


@pytest.mark.parametrize(
    ("index", "change"),
    [
        ("tubes_task_front", "UPDATE tubes_task SET state = 'r', front = 1, place = 0 WHERE id = 1"),
        ("tubes_task_due", "UPDATE tubes_task SET due_ms = due_ms + 1, ttl_ms = ttl_ms + 1 WHERE id = 2"),
        ('a "b: c" index d', "UPDATE tubes_task SET attempts = 5 WHERE id = 2"),
    ],
)
def test_an_index_that_has_lost_something_is_built_anew(file: Patient, index: str, change: str) -> None:
    """A task that is in its table but not where a take looks would never be taken."""
    tube = file.opened[0].create_tube("jobs", "fifottl", ttl=3600, ttr=60)
    tube.put_many([1, 2, 3])
    tube.bury(1)
    file.sql('CREATE INDEX "a ""b: c"" index d" ON tubes_task (attempts)')  # one of the user's
    file.opened[0].close()
    file.behind(index, change)
    assert file.doctor().status == 0
    said = file.doctor("--deep")
    assert (said.status, said.kinds) == (1, {"damage"})
    told = f"the index {index} does not match its table"
    assert [finding["what"] for finding in said.findings] == [told]
    said = file.doctor("--deep", "--fix")
    assert said.status == 0
    assert [(finding["what"], finding["repaired"]) for finding in said.findings] == [(told, True)]
    assert file.sql("PRAGMA integrity_check") == [("ok",)]


def test_indexes_are_left_alone_where_a_page_is_damaged_too(file: Patient) -> None:
    """What would be read to rebuild them may be damaged too."""
    file.opened[0].create_tube("jobs", "fifo").put_many(["x" * 100] * 200)
    file.opened[0].close()
    file.behind("tubes_task_front", "DELETE FROM tubes_task WHERE id = 7")
    file.overwrite("tubes_task_due")
    said = file.doctor("--deep", "--fix")
    assert (said.status, {finding["remedy"] for finding in said.findings}) == (1, {None})


def test_room_that_was_miscounted_can_be_used_again(patient: Patient) -> None:
    tube = fill(patient.opened[0], "limfifottl")
    patient.sql("UPDATE tubes_tube SET stored = 20")
    with pytest.raises(tubes.TubeFull):
        tube.put("no room")
    assert patient.doctor("--fix").status == 0
    assert len(tube.put_many(["room"] * 11)) == 11
    with pytest.raises(tubes.TubeFull):
        tube.put("no room")


def test_a_waiting_consumer_is_woken_by_a_repair(deaf: None, patient: Patient) -> None:
    fill(patient.opened[0], "utube")
    patient.sql("UPDATE tubes_task SET front = 0")
    with ThreadPoolExecutor() as pool, patient.connect(clock=FakeClock()) as worker:
        waiting = pool.submit(worker.tube.jobs.take)
        eventually(lambda: is_asleep(worker))
        assert [*Doctor(patient.opened[0]).repair()]  # not by the command: a queue that closes wakes all
        assert waiting.result(timeout=10) is not None


def test_a_put_that_waits_for_room_is_woken_by_a_repair(deaf: None, patient: Patient) -> None:
    fill(patient.opened[0], "limfifottl")
    patient.sql("UPDATE tubes_tube SET stored = 20")
    with ThreadPoolExecutor() as pool, patient.connect(clock=FakeClock()) as worker:
        waiting = pool.submit(worker.tube.jobs.put, "room", timeout=60)
        eventually(lambda: is_asleep(worker))
        assert [*Doctor(patient.opened[0]).repair()]
        assert waiting.result(timeout=10).data == "room"


@pytest.mark.slow
def test_a_consumer_of_another_process_is_called_by_a_repair(
    patient: Patient, asleep: Callable[..., Process]
) -> None:
    queue = patient.opened[0]
    fill(queue, "utube")
    patient.sql("UPDATE tubes_task SET front = 0")
    consumer = asleep(queue, patient.url, "jobs")
    assert len([*Doctor(queue).repair()]) == 3
    assert consumer.communicate(timeout=20)[0] == "0\n"


@pytest.mark.slow
def test_what_the_dead_hold_in_a_tube_of_an_unknown_type_is_left(patient: Patient) -> None:
    tube = fill(patient.opened[0], "fifo")
    patient.sql("UPDATE tubes_tube SET type = 'foreign'")
    patient.sql(f"UPDATE tubes_task SET state = 't', owner = '{NOBODY}', attempts = 1")
    said = patient.doctor("--deep", "--fix")
    assert (said.status, said.kinds) == (1, {"owner"})
    assert [finding["repaired"] for finding in said.findings] == [False]
    patient.sql("UPDATE tubes_tube SET type = 'fifo'")
    said = patient.doctor("--fix")
    assert (said.status, said.kinds) == (0, {"owner"})
    assert len(drain(tube)) == 9


def test_a_temporary_tube_is_examined_as_others_are(patient: Patient) -> None:
    queue = patient.opened[0]
    tube = queue.create_tube("fleeting", "utube", temporary=True)
    tube.put_many([*range(9)], utube="a")
    table = "tubes_task" if patient.is_sqlite else "tubes_temporary_task"
    patient.sql(f"UPDATE {table} SET front = 0")
    assert [finding.kind for finding in Doctor(queue).repair()] == [Kind.LINE]
    patient.sql(f"UPDATE {table} SET place = 5 WHERE front = 1")
    assert [finding.kind for finding in Doctor(queue, deep=True).repair()] == [Kind.STATE]
    patient.sql("DELETE FROM tubes_tube")
    assert [finding.kind for finding in Doctor(queue).repair()] == [Kind.ORPHAN]
    assert queue.records()[0].temporary is not patient.is_sqlite  # SQLite has one table for both
    assert drain(queue.tube[f"lost_{tube.record.id}"]) == [*range(9)]


@pytest.mark.slow
def test_each_namespace_is_examined_by_itself(fresh: Patient) -> None:
    queue = fresh.opened[0]
    fill(queue, "utube")
    with tubes.connect(fresh.url, namespace="Shop", migrate=True, sweep=False) as shop:
        tube = fill(shop, "utube")
        fresh.sql('UPDATE "Shop_task" SET front = 0')
        assert [*Doctor(queue, deep=True).examine()] == []
        assert len([*Doctor(shop, deep=True).repair()]) == 3
        assert [*Doctor(shop, deep=True).examine()] == []
        assert len(drain(tube)) == 9


@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "name"), [("tubes_task_id", "task"), ("tubes_tube_id_seq", "tube")])
def test_a_sequence_that_is_behind_goes_on_after_the_last(
    database: Patient, sequence: str, name: str
) -> None:
    """After a restore of single tables, say: each put would fail or give an id a second time."""
    queue = database.opened[0]
    tube = fill(queue, "fifo")
    first = tube.tasks("r")[0].id  # others have used this database before
    database.sql(f"SELECT setval('{sequence}', {first if name == 'task' else 1}, false)")
    if name == "task":
        with pytest.raises(tubes.StoreError, match="tubes doctor --fix"):
            tube.put("more")
    (finding,) = database.examine()
    assert finding.kind is Kind.COUNT and finding.what.startswith(name)
    assert [finding.rule for finding in Doctor(queue).repair()] == [name]
    assert [*database.examine()] == []
    assert tube.put("more").id > 9 and queue.create_tube("another", "fifo")
    tubes.connect(database.url, sweep=False).close()


@pytest.mark.parametrize("store", ["file", "database"])
def test_an_id_that_none_can_follow_takes_a_person_and_ends_no_put(
    store: str, request: pytest.FixtureRequest
) -> None:
    """What went on after it, a task or a tube, would soon find no id left."""
    patient: Patient = request.getfixturevalue(store)
    queue = patient.opened[0]
    last, lost, *_ = (task.id for task in fill(queue, "fifo").tasks("r"))
    patient.sql(f"UPDATE tubes_task SET id = {2**63 - 1} WHERE id = {last}")
    patient.sql(f"UPDATE tubes_task SET tube = {2**63 - 1} WHERE id = {lost}")
    for options in ([], ["--fix"], []):
        said = patient.doctor("--deep", *options)
        assert {(finding["what"].split(", which ")[-1], finding["remedy"]) for finding in said.findings} == {
            (f"task {2**63 - 1} has an id that no put gives", None),
            ("leaves none to later tubes", None),
        }
    assert queue.create_tube("another", "fifo").put("more")


@pytest.mark.parametrize(
    "strange",
    [
        "UPDATE tubes_task SET pri = 'high' WHERE id = 1",
        "UPDATE tubes_task SET created_ms = 9223372036854775807, ttl_ms = 9223372036854775807 WHERE id = 1",
        "UPDATE tubes_task SET state = 't', attempts = 1, owner = x'ff' WHERE id = 1",
        f"INSERT INTO tubes_session VALUES ('{NOBODY}', 0, 'soon')",
    ],
    ids=["text", "huge", "blob", "session"],
)
def test_what_takes_a_person_keeps_nothing_else_from_being_repaired(file: Patient, strange: str) -> None:
    queue = file.opened[0]
    for name in ("one", "two"):
        queue.create_tube(name, "utubettl").put_many(["first", "second"], utube="a", ttl=3600)
    file.sql(strange)
    if "session" in strange:
        file.sql("UPDATE tubes_task SET state = 't', attempts = 1, owner = ? WHERE id = 1", NOBODY)
    file.sql("UPDATE tubes_task SET front = 0 WHERE id > 2")
    for options in (["--fix"], ["--deep", "--fix"]):
        assert file.doctor(*options).status in (0, 1)
    task = queue.tube.two.take(timeout=0)
    assert task is not None and task.data == "first"


@pytest.mark.slow
@pytest.mark.parametrize("options", ["{broken", "null", '{"ttl_ms": "soon"}', "[" * 100_000])
def test_a_tube_whose_options_cannot_be_read_costs_the_others_nothing(patient: Patient, options: str) -> None:
    fill(patient.opened[0], "fifo", "others")
    patient.opened[0].create_tube("jobs", "fifottl", ttr=1)
    patient.sql("UPDATE tubes_tube SET options = ? WHERE name = 'jobs'", options)
    use_beside_unreadable_jobs(patient.url, "fifottl")
    said = patient.doctor("--fix")
    assert (said.status, [(each["kind"], each["tube"]) for each in said.findings]) == (
        1,
        [("damage", "jobs")],
    )


@pytest.mark.parametrize("column", ["name", "type"])
def test_an_entry_whose_name_or_type_is_no_text_costs_the_others_nothing(file: Patient, column: str) -> None:
    fill(file.opened[0], "fifo", "others")
    file.opened[0].create_tube("jobs", "fifo")
    file.sql(f"UPDATE tubes_tube SET {column} = x'ff' WHERE name = 'jobs'")
    with tubes.connect(file.url) as queue:
        assert len(drain(queue.tube.others)) == 9
        with pytest.raises(tubes.NoSuchTube):
            queue.get_tube("none")
    (finding,) = file.doctor().findings
    assert finding["kind"] == "damage" and "not text" in finding["what"]


def test_a_payload_that_is_no_text_is_said_to_be_the_doctors_without_a_word_of_it(file: Patient) -> None:
    tube = file.opened[0].create_tube("jobs", "fifo")
    tube.put_many(["secret", "next"])
    file.sql("UPDATE tubes_task SET data = CAST(x'22736563726574ff22' AS text) WHERE id = 1")
    with pytest.raises(
        tubes.StoreError, match="column data that is not text, see `tubes doctor --deep`"
    ) as said:
        tube.peek(1)
    assert "secret" not in str(said.value)
    assert [finding.task for finding in Doctor(file.opened[0], deep=True).repair()] == [1]
    kept = tube.peek(1)
    assert (kept.state, kept.data) == (tubes.State.BURIED, b'"secret\xff"')


@pytest.mark.slow
def test_bytes_that_are_no_text_cost_the_other_tasks_nothing(postgres_url: str) -> None:
    """A database without an encoding stores them, and its server refuses to send them as text."""
    name = f"tubes_ascii_{uuid4().hex}"
    with psycopg.connect(plain(postgres_url), autocommit=True) as server:
        server.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        try:
            url = sa.make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
            with (
                tubes.connect(url, migrate=True, sweep=False) as queue,
                closing(psycopg.connect(plain(url))) as raw,
            ):
                tube = fill(queue, "fifo")
                tube.put("\xe9")
                raw.execute("UPDATE tubes_task SET data = E'{\\xe9' WHERE id = 1")
                raw.execute("UPDATE tubes_task SET front = 0 WHERE id = 9")
                raw.commit()
                found = [*Doctor(queue, deep=True).repair()]
                assert [(finding.task, finding.kind) for finding in found] == [
                    (1, Kind.PAYLOAD),
                    (9, Kind.ORPHAN),
                ]
                assert [*Doctor(queue, deep=True).examine()] == []
                assert [task.data for task in tube.tasks("!")] == [b"{\xe9"]
                assert drain(tube) == [b"{\xe9", *range(1, 9), "\xe9"]
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_queue_in_memory_can_be_examined() -> None:
    with tubes.connect("sqlite://") as queue:
        tube = fill(queue, "utube")
        with queue.transaction() as unit:
            unit.connection.exec_driver_sql("UPDATE tubes_task SET front = 0")
        assert [finding.utube for finding in Doctor(queue, deep=True).examine()] == ["a", "b", "c"]
        assert [finding.utube for finding in Doctor(queue, deep=True).repair()] == ["a", "b", "c"]
        assert [*Doctor(queue, deep=True).examine()] == []
        assert len(drain(tube)) == 9


def test_a_finding_names_the_sub_queue_as_it_was_given() -> None:
    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "utube")
        for utube in (None, "", "\1", "a"):
            tube.put("x", utube=utube)
        with queue.transaction() as unit:
            unit.connection.exec_driver_sql("UPDATE tubes_task SET front = 0")
        found = [*Doctor(queue, deep=True).examine()]
        assert [finding.utube for finding in found] == [None, "", "\1", "a"]
        assert [finding.what.partition(" no task")[0] for finding in found] == [
            "in the unnamed sub-queue",
            "in sub-queue ''",
            "in sub-queue '\\x01'",
            "in sub-queue 'a'",
        ]
        assert [*Doctor(queue, deep=True).repair()] == found
        assert [*Doctor(queue, deep=True).examine()] == []


def test_many_findings_are_repaired_in_bounded_steps(file: Patient) -> None:
    """More tasks than a step looks at, and more in front of one sub-queue than one transaction repairs."""
    tube = file.opened[0].create_tube("jobs", "utube")
    tube.put_many([*range(1200)], utube="a")
    file.sql("UPDATE tubes_task SET front = 1")
    seen = []
    doctor = Doctor(file.opened[0], deep=True, on_progress=lambda *done: seen.append(done))
    (finding,) = doctor.repair()
    assert finding.kind is Kind.LINE
    assert [done for name, *done in seen if name == "tasks"][:2] == [[1000, 1200], [1200, 1200]]
    file.sql("UPDATE tubes_task SET place = 7")
    assert len({finding.task for finding in doctor.repair()}) == 1200
    assert [*doctor.examine()] == []
    first = tube.take(timeout=0)
    assert first is not None and first.data == 0
    assert tube.take(timeout=0) is None


def test_all_is_looked_at_whatever_a_step_may_look_at(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sub-queues a few at a time, and payloads of any size, each by itself."""
    monkeypatch.setattr("tubes.doctor.LOOK_LIMIT", 2)
    monkeypatch.setattr("tubes.drivers.examining.MOST_PAYLOADS", 1)
    queue = patient.opened[0]
    jobs, mails = queue.create_tube("jobs", "utube"), queue.create_tube("mails", "fifo")
    for name in "abcde":
        jobs.put_many(["x", "y"], utube=name)
    mails.put_many("xyz")
    patient.sql(f"UPDATE tubes_task SET front = 0 WHERE tube = {jobs.record.id}")
    patient.sql(f"UPDATE tubes_task SET data = '{{' WHERE tube = {mails.record.id}")
    found = patient.examine(deep=True)
    assert [finding.utube for finding in found if finding.kind is Kind.LINE] == [*"abcde"]
    assert len({finding.task for finding in found if finding.kind is Kind.PAYLOAD}) == 3
    assert patient.doctor("--deep", "--fix").kinds == {"line", "payload"}
    assert patient.examine(deep=True) == []
