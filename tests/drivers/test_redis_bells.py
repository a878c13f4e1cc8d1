"""Who waits in another process is called by every verb that leaves him something, once for each, and by no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

import tubes
from tubes.testing import FakeClock
from tubes.testing.suite import take


class Strangers:
    """Other processes that wait at one of a tube's bells, and hear how often it rings."""

    def __init__(self, client: redis.Redis, tube: tubes.Tube, line: str, bell: str) -> None:
        tag = f"{{tubes:{tube.record.id}}}"
        self._client, self._line, self._bell = client, f"{tag}:{line}", f"{tag}:{bell}"

    def come(self, count: int, seconds: float = 60) -> None:
        until_ms = round((time.time() + seconds) * 1000)
        self._client.zadd(self._line, {f"stranger {n}": until_ms for n in range(count)})

    def heard(self, act: Callable[[], Any]) -> int:
        act()
        rung: Any = self._client.llen(self._bell)
        self._client.delete(self._bell)
        return int(rung)


@pytest.fixture
def client(redis_db: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_db) as client:
        yield client


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def connect(redis_db: str, clock: FakeClock) -> Iterator[Callable[[], tubes.Queue]]:
    queues: list[tubes.Queue] = []

    def connect() -> tubes.Queue:
        queues.append(tubes.connect(redis_db, clock=clock, sweep=False))
        return queues[-1]

    yield connect
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_whatever_can_be_taken_calls_who_waits(
    type: str, connect: Callable[[], tubes.Queue], client: redis.Redis, clock: FakeClock
) -> None:
    queue, other = connect(), connect()
    jobs = queue.create_tube("jobs", type)
    frees = 1 if jobs.features.grouped else 0  # who is next in a sub-queue that becomes free
    strangers = Strangers(client, jobs, "waiting", "bell")
    strangers.come(3)
    heard = strangers.heard
    assert heard(lambda: jobs.put("a")) == 1
    assert heard(lambda: jobs.put("later", delay=5)) == 0
    assert heard(lambda: jobs.put_many("bc")) == 2
    assert heard(lambda: jobs.put_many(range(9))) == 3
    assert heard(lambda: jobs.touch(take(jobs), 5)) == 0
    assert heard(jobs.release_all) == 1
    assert heard(lambda: jobs.ack(jobs.take(0) or 0)) == frees
    assert heard(lambda: jobs.take(0, ack=take(jobs))) == frees
    assert heard(lambda: jobs.release(jobs.tasks("t")[0].id)) == 1
    assert heard(lambda: jobs.release(take(jobs), delay=5)) == frees
    assert heard(lambda: jobs.bury(take(jobs))) == frees
    assert heard(jobs.kick) == 1
    assert heard(lambda: jobs.delete(take(jobs))) == frees
    clock.advance(5)
    assert heard(queue.sweep) == 2
    assert heard(lambda: other.tube["jobs"].take(0)) == 0
    assert heard(other.close) == 1
    jobs.put_many("de", delay=5)
    clock.advance(5)
    assert heard(lambda: jobs.take(0)) == 2  # which settles what is due
    for time_is, calls in (("ttl", frees), ("ttr", 1)):
        options: Any = {time_is: 3}
        jobs.truncate()
        assert heard(partial(jobs.put, "x", **options)) == 1
        jobs.take(0)
        clock.advance(3)
        assert heard(queue.sweep) == calls
    assert heard(jobs.drop) == 3


def test_who_has_not_said_for_long_that_he_waits_is_not_called(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    jobs = connect().create_tube("jobs", "utube")
    strangers = Strangers(client, jobs, "waiting", "bell")
    strangers.come(2, seconds=-1)
    assert strangers.heard(lambda: jobs.put("x")) == 0


def test_whatever_makes_room_calls_who_waits_for_room(
    connect: Callable[[], tubes.Queue], client: redis.Redis, clock: FakeClock
) -> None:
    queue = connect()
    jobs = queue.create_tube("jobs", "limfifottl", capacity=9)
    strangers = Strangers(client, jobs, "seeking", "room")
    strangers.come(3)
    heard = strangers.heard
    assert heard(lambda: jobs.put_many("abcdef")) == 0
    task = take(jobs)
    assert heard(lambda: jobs.release(task)) == heard(lambda: jobs.bury(task.id)) == heard(jobs.kick) == 0
    assert heard(lambda: jobs.ack(take(jobs))) == 1
    assert heard(lambda: jobs.ack_many(jobs.take_many(2, 0))) == 2
    assert heard(lambda: jobs.take(0, ack=take(jobs))) == 1
    assert heard(lambda: jobs.delete(jobs.tasks("t")[0])) == 1
    jobs.put_many("xy", ttl=1)
    clock.advance(1)
    assert heard(queue.sweep) == 2
    jobs.put("z")
    assert heard(jobs.truncate) == 2
    assert heard(jobs.drop) == 3
