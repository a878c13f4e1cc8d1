"""What replaying Tarantool's answers brought to light beside them, in situations that nobody recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from faults.harness import ended, eventually

import tubes
from tubes.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def connect(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[], tubes.Queue]]:
    """Connections to one file."""
    with ExitStack() as stack:

        def connect() -> tubes.Queue:
            url = f"sqlite:///{tmp_path / 'tasks.db'}"
            return stack.enter_context(tubes.connect(url, clock=clock, sweep=False, durability="off"))

        yield connect


@pytest.mark.parametrize("type", ["fifo", "limfifottl", "utube", "utubettl"])
def test_a_tube_that_another_connection_dropped_is_gone(
    connect: Callable[[], tubes.Queue], type: str
) -> None:
    """Every verb says that there is no such tube, whoever dropped it; none calls it empty, or full."""
    one, other = connect(), connect()
    options: dict[str, Any] = {"capacity": 5} if type == "limfifottl" else {}
    one.create_tube("jobs", type, **options)
    held = other.tube["jobs"]
    has = held.features
    given: Any = ({"utube": "a"} if has.grouped else {}) | ({"pri": 1} if has.priority else {})
    one.tube["jobs"].drop()
    for verb in (
        lambda: held.put("x"),
        lambda: held.put(b"x", **given),
        lambda: held.put_many("xy"),
        lambda: held.put_many(["x", b"y"], **given),
        lambda: held.take(0),
        lambda: held.ack(1),
        lambda: held.release(1),
        lambda: held.touch(1, 5),
        lambda: held.bury(1),
        lambda: held.delete(1),
        lambda: held.peek(1),
        held.kick,
        held.release_all,
        held.truncate,
        held.statistics,
        held.drop,
        lambda: other.tube["jobs"],
    ):
        with pytest.raises(tubes.NoSuchTube):
            verb()


def test_a_tube_that_was_made_anew_is_the_new_one_everywhere(connect: Callable[[], tubes.Queue]) -> None:
    """A connection that knew the old tube finds the new one under its name."""
    one, other = connect(), connect()
    one.create_tube("jobs", "fifo")
    other.tube["jobs"].put("old")
    one.tube["jobs"].drop()
    one.create_tube("jobs", "utube")
    assert other.tube["jobs"].type == "utube"
    other.tube["jobs"].put("new")
    taken = one.tube["jobs"].take(0)
    assert taken is not None and taken.data == "new"


def test_a_session_that_ends_releases_tube_by_tube_in_the_order_of_their_creation(
    connect: Callable[[], tubes.Queue],
) -> None:
    """Whatever the order in which its connection came to know them."""
    home, leaving = connect(), connect()
    names = ["first", "second", "third"]
    for name in names:
        home.create_tube(name, "fifo").put(name)
    home.tube["first"].drop()
    home.create_tube("first", "fifo").put("first")
    released = []
    for name in ("third", "first", "second"):
        tube = leaving.tube[name]
        tube.take(0)
        tube.on_task_change(lambda task, event: released.append(task.data))
    leaving.close()
    assert released == home.tubes() == ["second", "third", "first"]


def test_tubes_that_others_dropped_are_forgotten(connect: Callable[[], tubes.Queue]) -> None:
    one, other = connect(), connect()
    for number in range(5):
        one.create_tube(f"tube_{number}", "fifo")
        other.sweep()
    one.drop_tube("tube_1")
    other.sweep()
    assert sorted(tube.name for tube in other._open_tubes) == ["tube_0", "tube_2", "tube_3", "tube_4"]


def test_a_task_that_lives_ten_thousand_years_can_be_seen(connect: Callable[[], tubes.Queue]) -> None:
    """Its end is shown as the last instant that there is."""
    jobs = connect().create_tube("jobs", "fifottl")
    jobs.put("x", ttl=1e12)
    task = jobs.take(0)
    assert task is not None and task.due_at is not None and task.due_at.year == 9999


def test_nobody_overtakes_a_waiter_that_came_first(
    connect: Callable[[], tubes.Queue], clock: FakeClock
) -> None:
    """Whatever wakes the others at the same moment, the first in line gets the next task."""
    home = connect()
    jobs = home.create_tube("jobs", "fifo")
    served: list[int] = []

    def wait(number: int, queue: tubes.Queue) -> None:
        if queue.tube["jobs"].take(60) is not None:
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number, connect())) for number in range(10)]
    for number, thread in enumerate(threads):
        thread.start()
        eventually(lambda number=number: clock.waiting == number + 1)  # type: ignore[misc]
    for number in range(len(threads)):
        home.store.waiters.wake_all()
        jobs.put("x")
        eventually(lambda number=number: len(served) == number + 1)  # type: ignore[misc]
        eventually(lambda number=number: clock.waiting == len(threads) - number - 1)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert served == sorted(served)


def test_a_take_of_many_leaves_one_to_who_came_first(
    connect: Callable[[], tubes.Queue], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are called for what was put, and the first is the slower one."""
    home, other = connect(), connect()
    jobs = home.create_tube("jobs", "fifo")
    first, rest = Consumer(lambda: jobs.take(60)), Consumer(lambda: other.tube.jobs.take_many(5, 60))
    first.start()
    eventually(lambda: clock.waiting == 1)
    take_now = jobs._take_now

    def take_later(*given: Any) -> None:
        rest.join()
        take_now(*given)

    monkeypatch.setattr(jobs, "_take_now", take_later)
    rest.start()
    eventually(lambda: clock.waiting == 2)
    connect().tube.jobs.put_many([1, 2, 3])
    ended(first)
    assert len(rest.got) == 1 and first.got is not None


class Consumer(threading.Thread):
    """Takes in a thread of its own."""

    def __init__(self, take: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._take = take
        self.got: Any = None

    def run(self) -> None:
        self.got = self._take()


def test_the_first_in_line_gets_what_becomes_due(
    connect: Callable[[], tubes.Queue], clock: FakeClock
) -> None:
    """Every waiting consumer could look when a delay ends; the one that came first does."""
    home = connect()
    jobs = home.create_tube("jobs", "fifottl")
    served: list[int] = []

    def wait(number: int, queue: tubes.Queue) -> None:
        if queue.tube["jobs"].take(1000) is not None:
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number, connect())) for number in range(10)]
    for number, thread in enumerate(threads):
        jobs.put("x", delay=10 * (number + 1))
        thread.start()
        eventually(lambda number=number: clock.waiting == number + 1)  # type: ignore[misc]
    for number in range(len(threads)):
        clock.advance(10)
        eventually(lambda number=number: len(served) == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert served == sorted(served)


def test_a_wait_ends_whatever_floats_make_of_its_end(
    connect: Callable[[], tubes.Queue], clock: FakeClock
) -> None:
    """1.6 and 0.3 are a little more than 1.9; the wait that began at 1.6 ends at 1.9 all the same."""
    clock.advance(1.6)
    jobs = connect().create_tube("jobs", "fifo")
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(jobs.take(0.3)))
    thread.start()
    eventually(lambda: clock.waiting == 1)
    clock.advance(0.3)
    ended(thread)
    assert taken == [None]


def test_puts_that_wait_for_room_are_served_first_come_first_served(
    connect: Callable[[], tubes.Queue], clock: FakeClock
) -> None:
    """Even if it is a ttl that makes room, which each of them could notice."""
    home = connect()
    jobs = home.create_tube("jobs", "limfifottl", capacity=5)
    for number in range(5):
        jobs.put("old", ttl=10 * (number + 1))
    stored: list[int] = []

    def wait(number: int, queue: tubes.Queue) -> None:
        queue.tube["jobs"].put(number, timeout=1000)
        stored.append(number)

    threads = [threading.Thread(target=wait, args=(number, connect())) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        eventually(lambda number=number: clock.waiting == number + 1)  # type: ignore[misc]
    for number in range(5):
        clock.advance(10)
        eventually(lambda number=number: len(stored) == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert stored == sorted(stored)


def test_a_put_that_waits_for_room_ends_when_its_tube_is_dropped(
    connect: Callable[[], tubes.Queue], clock: FakeClock
) -> None:
    """There will be no room, and no tube to say so."""
    home = connect()
    jobs = home.create_tube("jobs", "limfifottl", capacity=1)
    jobs.put("x")
    errors: list[Exception] = []

    def wait(queue: tubes.Queue) -> None:
        try:
            queue.tube["jobs"].put("y", timeout=1000)
        except tubes.TubeError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(connect(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: clock.waiting == len(threads))
    jobs.drop()
    ended(*threads)
    assert [type(error) for error in errors] == [tubes.NoSuchTube] * 3
