"""Each verb that leaves something for waiters in other processes calls one for each; no other verb does."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest
import redis
from faults.harness import Ended, end_when_woken, eventually, put_before_it_leaves

import tubes
from tubes.driver import STEP_LIMIT, Ref
from tubes.testing import FakeClock
from tubes.testing.suite import take
from tubes.waiting import room

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


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

    def left(self) -> list[bytes]:
        """Those that are believed to wait."""
        left: Any = self._client.zrange(self._line, 0, -1)
        return list(left)


def ask(queue: tubes.Queue, tube: tubes.Tube, script: Any, *given: Any) -> Any:
    """Run a script of that tube's, as any client may."""
    driver: Any = tube.driver
    return queue.store.transact(lambda tx: driver.do(tx, script, *given))


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
    frees = 1 if jobs.features.grouped else 0  # for the next task of a sub-queue that becomes free
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
    jobs.put_many(range(STEP_LIMIT), delay=5)
    clock.advance(5)
    assert heard(lambda: jobs.take(0)) == 3  # in two steps, of which the first only settles
    for time_is, calls in (("ttl", frees), ("ttr", 1)):
        options: Any = {time_is: 3}
        jobs.truncate()
        assert heard(partial(jobs.put, "x", **options)) == 1
        jobs.take(0)
        clock.advance(3)
        assert heard(queue.sweep) == calls
    assert heard(jobs.drop) == 3


def test_each_put_into_a_plain_tube_calls_as_many_as_it_has_tasks(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    jobs = connect().create_tube("jobs", "fifo")
    strangers = Strangers(client, jobs, "waiting", "bell")
    strangers.come(3)
    assert strangers.heard(lambda: jobs.put("a")) == 1
    assert strangers.heard(lambda: jobs.put_many("bc")) == 2


@pytest.mark.parametrize("type", ["fifo", "fifottl"])
def test_who_waits_in_the_process_that_puts_is_no_reason_to_call_another(
    type: str, connect: Callable[[], tubes.Queue], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = connect().create_tube("jobs", type)
    strangers = Strangers(client, jobs, "waiting", "bell")
    strangers.come(3)
    monkeypatch.setattr(jobs.driver, "_waiting", lambda: 1)
    assert strangers.heard(lambda: jobs.put("a")) == 0
    assert strangers.heard(lambda: jobs.put_many("bcd")) == 2


@pytest.mark.parametrize(
    "moment", ["it is ended as it is called", "it is ended before", "it has another task"]
)
def test_for_who_leaves_without_what_it_was_called_for_another_process_is_called(
    deaf: None,
    connect: Callable[[], tubes.Queue],
    client: redis.Redis,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    jobs = connect().create_tube("jobs", "fifo")
    strangers = Strangers(client, jobs, "waiting", "bell")
    publish, waiters, key = jobs.publish, jobs._store.waiters, jobs.record.id

    def publish_late(changes: Any) -> None:
        waiters.wake_first(key)
        eventually(lambda: not waiters.count(key))
        publish(changes)

    takes: list[Future[tubes.Task | None]] = []

    def put_and_wait_for_the_bell() -> None:
        jobs.put("x")
        eventually(lambda: takes[0].done() and client.llen(f"{{tubes:{key}}}:bell"))

    if moment == "it has another task":
        put_before_it_leaves(jobs, "y", monkeypatch)
    else:
        end_when_woken(clock, monkeypatch)
    if moment == "it is ended before":
        monkeypatch.setattr(jobs, "publish", publish_late)
    with ThreadPoolExecutor(1) as threads:
        takes.append(threads.submit(jobs.take, 60))
        eventually(lambda: clock.waiting == 1 and strangers.left())
        strangers.come(3)
        # Its own process might hear the bell and pass the call on
        client.zrem(f"{{tubes:{key}}}:waiting", *[who for who in strangers.left() if b" " not in who])
        assert strangers.heard(put_and_wait_for_the_bell) == 1
    assert isinstance(takes[0].exception(), Ended) == (moment != "it has another task")
    assert len(jobs.tasks("r")) == 1


def test_for_who_leaves_without_the_room_it_was_called_for_another_process_is_called(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    jobs = connect().create_tube("jobs", "limfifottl", capacity=1)
    strangers = Strangers(client, jobs, "seeking", "room")
    strangers.come(3)
    assert strangers.heard(lambda: jobs._store.call_instead(room(jobs.record.id), 1)) == 1


def test_room_that_comes_is_no_reason_to_call_fewer_for_tasks(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    """They are called in place of a waiter that was here when the script ran, and has left."""
    jobs = connect().create_tube("jobs", "limfifottl", capacity=1)
    strangers, store = Strangers(client, jobs, "waiting", "bell"), cast(Any, jobs._store)
    strangers.come(3)
    store._spared.count = 1
    assert strangers.heard(lambda: store.call(room(jobs.record.id), 1)) == 0
    assert strangers.heard(lambda: store.call(jobs.record.id, 2)) == 1
    assert strangers.heard(lambda: store.call(jobs.record.id, 2)) == 0
    store._spared.count = 3
    assert strangers.heard(lambda: store.call(jobs.record.id, 1)) == 1


def test_each_sub_queue_that_one_step_frees_calls_one(
    connect: Callable[[], tubes.Queue], client: redis.Redis, clock: FakeClock
) -> None:
    queue = connect()
    jobs, now = queue.create_tube("jobs", "utubettl"), clock.now_ms()
    strangers = Strangers(client, jobs, "waiting", "bell")
    for name in "abcd":
        jobs.put_many([1, 2], utube=name)
    refs = [Ref(task.id) for task in jobs.take_many(4, 0)]
    strangers.come(3)
    driver, transact = jobs.driver, queue.store.transact
    release = partial(driver.release, delay_ms=5, owner=None, now=now)
    assert strangers.heard(lambda: transact(lambda tx: release(tx, refs[:2]))) == 2
    assert strangers.heard(lambda: transact(lambda tx: driver.bury(tx, refs[2:], owner=None, now=now))) == 2


def test_who_was_called_and_has_not_heard_it_is_not_called_again(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    """Calls that nobody takes would stay for a process that comes much later."""
    jobs = connect().create_tube("jobs", "fifottl")
    strangers = Strangers(client, jobs, "waiting", "bell")
    strangers.come(3)

    def act() -> None:
        jobs.put_many("ab")
        jobs.put_many("cd")

    assert strangers.heard(act) == 3


@pytest.mark.parametrize(("kind", "line", "bell"), [("t", "waiting", "bell"), ("r", "seeking", "room")])
def test_who_waits_no_longer_is_not_called_and_passes_on_what_he_did_not_need(
    kind: str, line: str, bell: str, connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    queue = connect()
    jobs = queue.create_tube("jobs", "limfifottl", capacity=9)
    strangers = Strangers(client, jobs, line, bell)
    strangers.come(2)
    assert strangers.heard(lambda: ask(queue, jobs, scripts.UNWAIT, "stranger 0", kind, 1)) == 1
    assert strangers.left() == [b"stranger 1"]
    assert strangers.heard(lambda: ask(queue, jobs, scripts.UNWAIT, "stranger 1", kind, 1)) == 0
    assert strangers.left() == []


@pytest.mark.parametrize("type", ["fifo", "fifottl", "utubettl"])
def test_who_begins_to_wait_is_told_whether_there_is_something_already(
    type: str, connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    """It may have come between the look and the wait, when there was nobody to call."""
    queue = connect()
    jobs = queue.create_tube("jobs", type)
    wait = partial(ask, queue, jobs, scripts.WAIT, "me", 1000, "t", 0)
    assert wait() == 0
    assert Strangers(client, jobs, "waiting", "bell").left() == [b"me"]
    jobs.put("x")
    assert wait() == 1
    task = take(jobs)
    assert wait() == 0
    jobs.ack(task)
    jobs.drop()
    assert wait() == 1  # its next look says that the tube is gone


def test_who_begins_to_wait_for_room_is_told_whether_there_is_some_already(
    connect: Callable[[], tubes.Queue], client: redis.Redis
) -> None:
    queue = connect()
    jobs = queue.create_tube("jobs", "limfifottl", capacity=2)
    wait = partial(ask, queue, jobs, scripts.WAIT, "me", 1000, "r", 2)
    jobs.put("a")
    assert wait() == 1
    assert Strangers(client, jobs, "seeking", "room").left() == [b"me"]
    task = jobs.put("b")
    assert wait() == 0
    jobs.delete(task)
    assert wait() == 1


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
