"""Tubes of the type redis are examined along with the queue that they are in, whatever its store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from faults.harness import HOLDER, begin, eventually, finish, heard
from redis_servers import RedisServer
from sleeper import is_asleep
from slow import slow_but

import tubes
from tubes.clock import SystemClock
from tubes.doctor import Doctor, Kind
from tubes.testing import FakeClock
from tubes.testing.suite import take

from .conftest import called, drain, fill, find_nothing, find_nothing_while_others_work, opened
from .test_redis import DAMAGES, NOBODY, Damage, id, line
from .test_redis import Patient as RedisPatient


class Patient(RedisPatient):
    """A SQLite file, and the Redis server of its tubes."""

    server = ""
    unread: ClassVar[tuple[bytes, ...]] = (b"{tubes_hosted}",)
    namespace = "tubes_hosted"

    def fill(self) -> tubes.Tube:
        """A tube in Redis with nine tasks."""
        return fill(self.opened[0], "redis", url=self.server)

    def sql(self, text: str) -> None:
        """Run a statement on the queue's own store as no driver would."""
        with closing(sqlite3.connect(self.url.partition("///")[2], isolation_level=None)) as db:
            db.execute(text)

    @cached_property
    def number(self) -> int:
        return int(self.opened[0].tube.jobs.record.options["number"])


@pytest.fixture
def patient(
    tmp_path: Path, redis_db: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Patient]:
    for module in ("tubes.drivers.examining", "tubes.drivers.redis.examiner"):
        monkeypatch.setattr(import_module(module), "PATIENCE", 0.2)
    with redis.Redis.from_url(redis_db) as client:
        patient = Patient(f"sqlite:///{tmp_path}/queue.db", capfd.readouterr, client)
        patient.server = redis_db
        with opened(patient):
            yield patient


HERE = [damage for damage in DAMAGES if damage.type == "utubettl" and damage.name != "a tube lost"]
"""The damages of a tube with all features, except that of its entry, which is the queue's own."""


@pytest.mark.parametrize("damage", slow_but(HERE[::3], HERE), ids=called)
def test_damage_is_found_and_repaired_and_nothing_is_lost(damage: Damage, patient: Patient) -> None:
    tube = patient.fill()
    tube.bury(9)
    damage.harm(patient)
    before = patient.stored()
    found = patient.examine(deep=damage.deep)
    follows = {kind for kind in damage.follows.split(",") if kind}
    assert {finding.kind.value for finding in found} - follows == {damage.kind}
    assert {finding.tube for finding in found} == {"jobs"}
    assert patient.stored() == before, "examining has changed something"

    fixed = patient.doctor("--fix", *(["--deep"] if damage.deep else []))
    assert (fixed.status, {finding["repaired"] for finding in fixed.findings}) == (0, {True})
    assert patient.examine(deep=True) == []
    tube.release_all()
    kept = [data for data in drain(tube) if isinstance(data, int)]
    assert sorted(kept) == [number for number in range(9) if number not in damage.lost]


def hold(patient: Patient, number: int, utube: str, *, is_listed: bool = True) -> None:
    """Have a session that nobody is in hold a task."""
    patient.take(number, owner=NOBODY)
    patient.do("HSET", "busy", utube, id(number))
    patient.do("ZREM", "line", line(utube, number, 1))
    if is_listed:
        patient.do("SADD", "sessions", NOBODY)


@pytest.mark.parametrize(
    ("is_known", "is_listed"),
    [(False, True), (False, False), (True, True)],
    ids=["unknown", "on no list", "ended"],
)
def test_what_the_dead_hold_is_given_back_and_callbacks_hear_of_it(
    is_known: bool, is_listed: bool, patient: Patient
) -> None:
    """By the sessions that the queue's own store knows."""
    tube = patient.fill()
    if is_known:
        patient.sql(f"INSERT INTO tubes_session (id, ttr_ms, ends_ms) VALUES ('{NOBODY}', 0, 1)")
    hold(patient, 1, "a", is_listed=is_listed)
    heard: list[tuple[int, tubes.Event]] = []
    tube.on_task_change(lambda task, event: heard.append((task.id, event)))
    found = patient.examine()
    assert {finding.kind.value for finding in found} == {"owner"}
    assert {(finding.tube, finding.session) for finding in found} == {("jobs", NOBODY)}
    repaired = [*Doctor(patient.opened[0]).repair()]
    assert {finding.tube for finding in repaired} == {"jobs"}
    assert heard == [(1, tubes.Event.RELEASE)]
    assert patient.examine(deep=True) == []
    assert len(drain(tube)) == 9


def test_what_a_killed_process_holds_is_given_back_by_the_command(patient: Patient) -> None:
    tube = patient.fill()
    ours = take(tube)
    holder = begin(HOLDER, patient.url, "jobs")
    assert heard(holder) == "holds"
    finish(holder)
    (finding,) = patient.examine()
    assert (finding.tube, finding.kind) == ("jobs", Kind.OWNER) and "process is dead" in finding.what
    said = patient.doctor("--fix", "--deep")
    assert (said.status, said.kinds) == (0, {"owner"})
    assert [(each["tube"], each["session"]) for each in said.findings] == [("jobs", finding.session)]
    assert tube.statistics()["tasks"]["taken"] == 1
    assert tube.statistics()["calls"]["release"] == 1
    assert tube.ack(ours).data == 0


def test_what_a_session_holds_that_may_come_back_is_left_to_it(patient: Patient) -> None:
    tube = patient.fill()
    with patient.connect(session_ttr=60) as worker:
        session, held = worker.identify(), take(worker.tube.jobs)
    assert patient.examine(deep=True) == []
    assert patient.doctor("--deep", "--fix").status == 0
    patient.opened[0].identify(session)
    assert tube.ack(held).id == held.id


def test_when_a_session_is_over_is_told_by_the_clock_of_the_queue_s_own_store(patient: Patient) -> None:
    """The tube's server may have another."""

    class Behind(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 3_600_000

    with patient.connect(clock=Behind()) as queue:
        fill(queue, "redis", url=patient.server)
        with patient.connect(clock=Behind(), session_ttr=60) as worker:
            take(worker.tube.jobs)
        assert [*Doctor(queue, deep=True).examine()] == []


def test_a_server_that_is_away_is_found_and_costs_no_other_tube_its_look(
    patient: Patient, own_redis_server: Callable[..., RedisServer]
) -> None:
    """Nor the queue's own store."""
    queue, server = patient.opened[0], own_redis_server()
    queue.create_tube("first", "redis", url=server.url)
    patient.fill()
    queue.create_tube("last", "redis", url=server.url)
    fill(queue, "utube", "cold")
    patient.do("ZREM", "ready", id(1))
    patient.sql("UPDATE tubes_task SET front = 0 WHERE utube = 'a'")
    server.stop("immediate")
    said = patient.doctor("--fix")
    assert [(each["tube"], each["kind"], each["repaired"]) for each in said.findings] == [
        ("cold", "line", True),
        ("jobs", "line", True),
        ("first", "away", False),
        ("last", "away", False),
    ]
    away = said.findings[2]
    assert (said.status, away["remedy"]) == (1, None)
    assert "cannot be examined: Redis at unix://" in away["what"]
    assert {finding.tube for finding in patient.examine()} == {"first", "last"}
    server.start()
    assert patient.doctor("--fix").status == 0


def test_a_server_that_hangs_is_waited_for_once(
    patient: Patient, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each tube there."""
    monkeypatch.setattr(import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    server = own_redis_server()
    for number in range(3):
        patient.opened[0].create_tube(f"hot_{number}", "redis", url=server.url)
    with server.hung():
        first, *others = patient.examine()
    assert {finding.kind for finding in (first, *others)} == {Kind.AWAY}
    assert "Timeout" in first.what
    assert ["did not answer a moment ago" in finding.what for finding in others] == [True, True]


def test_a_tube_that_was_half_dropped_is_dropped(patient: Patient) -> None:
    """Its last id is kept, also if the process that dropped it could not note that."""
    tube = patient.fill()
    number = patient.number
    driver: Any = tube.driver
    assert len(drain(tube)) == 9
    driver._do(driver._redis.drop)
    found = patient.examine(deep=True)
    assert [(finding.tube, finding.kind) for finding in found] == [("jobs", Kind.GHOST)]
    said = patient.doctor("--fix")
    assert (said.status, said.kinds, len(said.findings)) == (0, {"ghost"}, 1)
    assert patient.opened[0].tubes() == []
    assert patient.examine(deep=True) == []
    again = patient.fill()
    assert again.record.options["number"] != number and again.tasks("r")[0].id == 10


def test_an_id_is_not_given_again_where_nobody_knows_the_next(patient: Patient) -> None:
    """Tasks that are gone had ids too."""
    tube = patient.fill()
    assert len(drain(tube)) == 9
    tube.put("left")
    patient.do("HDEL", "meta", "next")
    assert {finding.kind for finding in Doctor(patient.opened[0]).repair()} == {Kind.COUNT}
    assert tube.put("more").id > 10


def test_a_waiting_consumer_is_woken_by_a_repair(deaf: None, patient: Patient) -> None:
    patient.fill()
    patient.do("DEL", "ready")
    with ThreadPoolExecutor() as pool, patient.connect(clock=FakeClock()) as worker:
        waiting = pool.submit(worker.tube.jobs.take)
        eventually(lambda: patient.do("EXISTS", "waiting") and is_asleep(worker))
        assert [*Doctor(patient.opened[0]).repair()]
        assert waiting.result(timeout=10) is not None


def test_many_findings_are_repaired_in_bounded_steps(patient: Patient) -> None:
    tube = patient.opened[0].create_tube("jobs", "redis", url=patient.server)
    tube.put_many([*range(1200)], utube="a", ttl=3600)
    for key in ("states", "line", "ready", "due"):
        patient.do("DEL", key)
    seen = []
    doctor = Doctor(patient.opened[0], deep=True, on_progress=lambda *done: seen.append(done))
    assert {(finding.tube, finding.kind) for finding in doctor.repair()} == {("jobs", Kind.ORPHAN)}
    steps = [done for name, *done in seen if name == "tasks of jobs"]
    assert len(steps) >= 5 and [2400, 2400] in steps  # records and payloads
    assert [*doctor.examine()] == []
    assert tube.statistics()["tasks"]["ready"] == 1200


def test_nothing_is_found_in_tubes_that_are_whole(patient: Patient, redis_db: str) -> None:
    queue = patient.opened[0]
    patient.fill()
    queue.create_tube("fleeting", "redis", url=redis_db, temporary=True, capacity=3).put("x", delay=9)
    queue.create_tube("gone", "redis", url=redis_db).drop()
    held = take(queue.tube.jobs)
    queue.tube.jobs.release(held, delay=60)
    queue.tube.jobs.bury(take(queue.tube.jobs))
    assert queue.tube.jobs.take(timeout=0) is not None
    find_nothing(patient, patient.stored)


def test_nothing_is_found_while_others_work(patient: Patient) -> None:
    find_nothing_while_others_work(
        patient, lambda queue: queue.create_tube("hot", "redis", url=patient.server, capacity=30)
    )


@pytest.mark.parametrize("store", ["postgres_db", "redis_db"])
def test_it_is_examined_in_a_queue_of_every_store(store: str, redis_db: str, request: Any) -> None:
    with (
        tubes.connect(request.getfixturevalue(store), migrate=True, sweep=False) as queue,
        redis.Redis.from_url(redis_db) as client,
    ):
        tube = fill(queue, "redis", "hot", url=redis_db)
        client.delete(f"{{tubes_hosted:{tube.record.options['number']}}}:ready")
        assert [(each.tube, each.kind) for each in Doctor(queue).examine()] == [("hot", Kind.LINE)] * 3
        assert len([*Doctor(queue).repair()]) == 3
        assert [*Doctor(queue, deep=True).examine()] == []
        assert len(drain(tube)) == 9
        tube.drop()


@pytest.mark.slow
def test_tubes_on_all_nodes_of_a_cluster_are_examined(redis_cluster: str) -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        hot = [fill(queue, "redis", f"hot_{number}", url=redis_cluster) for number in range(4)]
        assert [*Doctor(queue, deep=True).examine()] == []
        with redis.RedisCluster.from_url(redis_cluster) as client:
            for tube in hot:
                number = tube.record.options["number"]
                client.delete(f"{{tubes_hosted:{number}}}:ready", f"{{tubes_hosted:{number}}}:due")
        names = [finding.tube for finding in Doctor(queue, deep=True).repair()]
        assert names == [tube.name for tube in hot for _ in range(9)]
        assert [*Doctor(queue, deep=True).examine()] == []
        for tube in hot:
            assert len(drain(tube)) == 9
            tube.drop()
