"""A put that waits for room is also called by whatever makes room in another process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faults.harness import Connect, Ended, EventfulClock, eventually
from interpreter import Process
from sleeper import is_asleep, number_known
from slow import slow_but

import tubes
from tubes.testing import FakeClock
from tubes.testing.suite import take
from tubes.waiting import Waiter, room


@pytest.fixture(params=slow_but(("sqlite", "postgresql"), ("sqlite", "postgresql", "redis")))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database on each store."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('db')}"
    found: str = request.getfixturevalue("own_migrated_db" if request.param == "postgresql" else "redis_db")
    return found


def full(queue: tubes.Queue) -> tubes.Tube:
    """A tube with room for one task, already full."""
    tube = queue.create_tube("jobs", "limfifottl", capacity=1, ttr=60)
    tube.put("full", ttl=60)
    return tube


def delete(tube: tubes.Tube, clock: FakeClock) -> None:
    tube.delete(tube.tasks("r")[0])


def ack(tube: tubes.Tube, clock: FakeClock) -> None:
    tube.ack(take(tube))


def ack_by_a_take(tube: tubes.Tube, clock: FakeClock) -> None:
    assert tube.take(timeout=0, ack=take(tube)) is None


def let_its_time_end(tube: tubes.Tube, clock: FakeClock) -> None:
    clock.advance(60)
    tube._queue.sweep()


def truncate(tube: tubes.Tube, clock: FakeClock) -> None:
    tube.truncate()


@pytest.mark.parametrize(
    "make_room", slow_but((ack, truncate), (ack, ack_by_a_take, delete, let_its_time_end, truncate))
)
def test_a_put_that_waits_elsewhere_is_called_by_whatever_makes_room(
    deaf: None,
    connect: Connect,
    url: str,
    asleep: Callable[..., Process],
    make_room: Callable[[tubes.Tube, FakeClock], None],
) -> None:
    clock = FakeClock()
    queue = connect(sweep=False, clock=clock)
    tube = full(queue)
    putter = asleep(queue, url, "jobs", "late")
    make_room(tube, clock)
    assert putter.communicate(timeout=20)[0] == "late\n"


def test_room_for_several_calls_several_processes(
    deaf: None, connect: Connect, url: str, asleep: Callable[..., Process]
) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "limfifottl", capacity=2)
    tube.put_many("ab")
    putters = [asleep(queue, url, "jobs", data) for data in "cd"]
    tube.ack_many(tube.take_many(2, timeout=0))
    assert [putter.communicate(timeout=20)[0] for putter in putters] == ["c\n", "d\n"]


def raise_ended(step: object) -> None:
    raise Ended


def test_who_is_ended_as_it_is_called_for_room_has_another_process_called(
    deaf: None,
    connect: Connect,
    url: str,
    asleep: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, waiting = connect(sweep=False), connect(sweep=False, clock=FakeClock())
    tube = full(queue)
    other = asleep(queue, url, "jobs", "late")
    with ThreadPoolExecutor(1) as threads:
        put = threads.submit(waiting.tube.jobs.put, "mine", timeout=60)
        eventually(lambda: is_asleep(waiting))
        eventually(lambda: number_known(waiting, room(tube.record.id)) != 0)  # to pass the call on to
        monkeypatch.setattr(waiting.tube.jobs, "_commit", raise_ended)
        tube.ack(take(tube))
        assert isinstance(put.exception(), Ended)
    assert other.communicate(timeout=20)[0] == "late\n"


def test_who_is_called_for_room_as_it_is_ended_has_another_process_called(
    deaf: None, connect: Connect, url: str, asleep: Callable[..., Process]
) -> None:
    """The call comes after its last look."""
    clock = EventfulClock()
    queue, waiting = connect(sweep=False), connect(sweep=False, clock=clock)
    tube = full(queue)
    other = asleep(queue, url, "jobs", "late")

    def be_called_and_end() -> None:
        tube.ack(take(tube))
        eventually(lambda: not waiting.store.waiters.uncalled(room(tube.record.id)))
        raise Ended

    with ThreadPoolExecutor(1) as threads:
        put = threads.submit(waiting.tube.jobs.put, "mine", timeout=60)
        eventually(lambda: is_asleep(waiting))
        eventually(lambda: number_known(waiting, room(tube.record.id)) != 0)  # to pass the call on to
        clock.then = be_called_and_end
        waiting.store.waiters.wake_first(room(tube.record.id))
        assert isinstance(put.exception(), Ended)
    assert other.communicate(timeout=20)[0] == "late\n"


def test_a_call_for_room_is_not_forgotten_while_an_earlier_put_tries(
    deaf: None,
    connect: Connect,
    url: str,
    asleep: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second in line is called too, waits for the first to go, and is ended as it tries."""
    clock = FakeClock()
    queue, waiting = connect(sweep=False), connect(sweep=False, clock=clock)
    tube = queue.create_tube("jobs", "limfifottl", capacity=2)
    tube.put_many(["full", "too"])
    key, waiters, late = room(tube.record.id), waiting.store.waiters, waiting.tube.jobs
    heed, commit = waiters.heed, late._commit
    heeded: list[tuple[bool, bool]] = []

    def heed_noting(key: int, signal: Waiter) -> tuple[bool, bool]:
        answer = heed(key, signal)
        heeded.append(answer)
        return answer

    def commit_or_end(step: Any) -> Any:
        if waiters.count(key) == 1:  # the first one has gone
            raise Ended
        eventually(lambda: (False, True) in heeded)
        return commit(step)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(late.put, "first", timeout=60)
        eventually(lambda: is_asleep(waiting))
        second = threads.submit(late.put, "second", timeout=60)
        eventually(lambda: clock.waiting == 2)
        other = asleep(queue, url, "jobs", "late")
        eventually(lambda: number_known(waiting, key) != 0)
        monkeypatch.setattr(waiters, "heed", heed_noting)
        monkeypatch.setattr(late, "_commit", commit_or_end)
        tube.ack_many(tube.take_many(2, timeout=0))
        assert first.result().data == "first"
        assert isinstance(second.exception(), Ended)
    assert other.communicate(timeout=20)[0] == "late\n"


def test_all_who_wait_for_room_in_other_processes_hear_that_the_tube_is_dropped(
    deaf: None, connect: Connect, url: str, asleep: Callable[..., Process]
) -> None:
    queue = connect(sweep=False)
    tube = full(queue)
    others = [asleep(queue, url, "jobs", data) for data in "ab"]
    tube.drop()
    assert [other.wait(20) for other in others] == [1, 1]  # their puts have raised
