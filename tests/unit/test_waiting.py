"""Waiters are woken in order of arrival, as many as there is something for, by whatever makes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
from faults.harness import EventfulClock, ended, eventually

import tubes
from tubes.testing import FakeClock
from tubes.testing.suite import Waiting, take
from tubes.waiting import LEASES_KEPT, Waiter, Waiters, arrival, room, seconds_until

JOBS, OTHER = 1, 2
"""Two tubes."""


def test_the_first_in_line_is_woken_first() -> None:
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(3)]
    waiters.call(JOBS)
    assert [signal.is_set for signal in line] == [True, False, False]


def test_a_call_that_came_first_and_enters_later_stands_in_front() -> None:
    """As in ``tubes.aio``, where several threads bring the calls of one event loop into line."""
    waiters = Waiters()
    contexts = [copy_context() for _ in range(3)]
    for number, context in enumerate(contexts):
        context.run(arrival.set, number)
    line = [contexts[number].run(waiters.enter, JOBS) for number in (2, 0, 1)]
    assert [signal.came for signal in waiters.line[JOBS]] == [0, 1, 2]
    waiters.call(JOBS)
    assert [signal.is_set for signal in line] == [False, True, False]


def test_one_that_is_awake_already_is_not_counted_again() -> None:
    """Two tasks wake two more consumers, even if the one woken before has not left the line yet."""
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(4)]
    waiters.call(JOBS)
    waiters.call(JOBS, 2)
    assert [signal.is_set for signal in line] == [True, True, True, False]


def test_more_wake_ups_than_waiters_wake_all_of_them() -> None:
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(2)]
    waiters.call(JOBS, 10)
    assert all(signal.is_set for signal in line)


def test_waking_nobody_is_harmless_and_wakes_nobody_later() -> None:
    waiters = Waiters()
    waiters.call(JOBS, 5)
    waiters.enter(JOBS)
    waiters.call(JOBS, 0)
    assert waiters.enter(JOBS).is_set is False


def test_each_key_has_a_line_of_its_own() -> None:
    waiters = Waiters()
    consumer, putter = waiters.enter(JOBS), waiters.enter(room(JOBS))
    waiters.call(room(JOBS))
    assert (consumer.is_set, putter.is_set) == (False, True)
    assert waiters.keys() == [JOBS, room(JOBS)]


def test_a_waiter_that_gets_ready_for_a_look_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent lets other greenlets run there; one that had to wait could be interrupted before it has left."""

    class Cleared(Waiter):
        def clear(self) -> None:
            keys.append(waiters.keys())
            super().clear()

    keys: list[list[int]] = []
    monkeypatch.setattr("tubes.waiting.Waiter", Cleared)
    waiters = Waiters()
    first = waiters.enter(JOBS)
    waiters.call(JOBS)
    looking = threading.Thread(target=lambda: heeded.append(waiters.heed(JOBS, first)), daemon=True)
    heeded: list[tuple[bool, bool]] = []
    looking.start()
    ended(looking)
    assert heeded == [(True, True)] and keys == [[JOBS]] and not first.is_set


def test_who_has_left_is_not_woken() -> None:
    waiters = Waiters()
    first, second = waiters.enter(JOBS), waiters.enter(JOBS)
    waiters.leave(JOBS, first)
    waiters.call(JOBS)
    assert (first.is_set, second.is_set) == (False, True)


def test_an_empty_line_is_forgotten() -> None:
    waiters = Waiters()
    assert not waiters
    signal = waiters.enter(JOBS)
    assert waiters
    assert waiters.count(JOBS) == 1
    waiters.call(JOBS)
    waiters.leave(JOBS, signal)
    assert not waiters
    assert (waiters.keys(), waiters.count(JOBS)) == ([], 0)


def test_leaving_a_line_that_is_gone_is_harmless() -> None:
    waiters = Waiters()
    signal = waiters.enter(JOBS)
    waiters.leave(JOBS, signal)
    waiters.leave(JOBS, signal)


def test_waking_all_wakes_every_line() -> None:
    waiters = Waiters()
    line = [waiters.enter(key) for key in (JOBS, OTHER, OTHER)]
    waiters.wake_all()
    assert all(signal.is_set for signal in line)


def test_any_other_news_is_for_the_first_in_each_line_or_the_next_where_that_one_is_held_up() -> None:
    waiters = Waiters()
    lines = {key: [waiters.enter(key) for _ in range(2)] for key in (JOBS, OTHER)}
    waiters.wake_first(JOBS)
    assert [signal.is_set for signal in lines[JOBS] + lines[OTHER]] == [True, False, False, False]
    waiters.wake_one_each()
    assert [signal.is_set for signal in lines[JOBS] + lines[OTHER]] == [True, True, True, False]
    waiters.heed(JOBS, lines[JOBS][0])
    waiters.wake_one_each()
    assert [signal.is_set for signal in lines[JOBS] + lines[OTHER]] == [True] * 4


def test_who_is_woken_is_told_once_whether_he_was_called_and_whether_he_is_first() -> None:
    """No other waiter may look: it would overtake."""
    waiters = Waiters()
    first, second = waiters.enter(JOBS), waiters.enter(JOBS)
    assert waiters.uncalled(JOBS) == 2
    assert waiters.call(JOBS) == 1
    waiters.wake_all()
    assert waiters.uncalled(JOBS) == 1
    assert [waiters.heed(JOBS, signal) for signal in (first, second)] == [(True, True), (False, False)]
    assert waiters.heed(JOBS, first) == (True, False)
    assert not first.is_set and not second.is_set
    assert waiters.call(JOBS, 5) == waiters.call(JOBS, 0) + 2
    assert waiters.call(OTHER, 5) == 0


def test_nobody_is_called_for_what_one_who_has_left_had_before() -> None:
    """Else the next call would pass over a waiter that was called in vain."""
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(4)]
    waiters.leave(JOBS, line[0], [(7, 1), (8, 1)])
    assert waiters.call(JOBS, 1, [(7, 1)]) == 1
    assert waiters.uncalled(JOBS) == 3
    assert waiters.call(JOBS, 1, [(7, 2)]) == waiters.call(JOBS, 2, [(8, 1), (9, 1)]) - 1 == 1
    assert [signal.is_set for signal in line[1:]] == [True, True, False]
    for signal in line[1:]:
        waiters.leave(JOBS, signal, [(9, 1)])
    line = [waiters.enter(JOBS) for _ in range(2)]
    waiters.call(JOBS, 1, [(9, 1)])
    assert [signal.is_set for signal in line] == [True, False]


def test_what_many_who_have_left_had_is_known_and_not_for_ever() -> None:
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(5)]
    waiters.leave(JOBS, line[0], [(1, 1), (2, 1)])
    waiters.leave(JOBS, line[1], [(3, 1)])
    assert waiters.call(JOBS, 2, [(2, 1), (3, 1)]) == 2 and not line[2].is_set
    waiters.leave(JOBS, line[2], [(id, 1) for id in range(4, LEASES_KEPT + 2)])
    assert waiters.call(JOBS, 2, [(2, 1), (1, 1)]) == 2
    assert [signal.is_set for signal in line[3:]] == [True, False]


def test_the_lines_are_looked_at_by_one_thread_at_a_time() -> None:
    """Else a waiter that enters as the last one leaves would stand in a line that is gone, for ever."""

    class Line(dict[Any, Any]):
        """Fails if the lock is not held. Whether there is a line at all can be seen without it."""

        def __getattribute__(self, name: str) -> Any:
            assert waiters._lock.locked(), name
            return super().__getattribute__(name)

        def __getitem__(self, key: Any) -> Any:
            return self.get(key)

        def __delitem__(self, key: Any) -> None:
            self.pop(key)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.keys())

    waiters = Waiters()
    waiters.line = Line()
    first, second = waiters.enter(JOBS), waiters.enter(JOBS)
    waiters.call(JOBS)
    waiters.wake_one_each()
    waiters.wake_all()
    assert (waiters.uncalled(JOBS), waiters.count(JOBS), waiters.keys()) == (1, 2, [JOBS])
    assert waiters.heed(JOBS, first) == (True, True)
    for signal in (first, second):
        waiters.leave(JOBS, signal)
    assert not waiters


def test_for_a_single_task_the_first_in_line_is_woken_whoever_is_called() -> None:
    """So that a waiter called in vain is not overtaken."""
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(3)]
    assert waiters.call(JOBS) == waiters.call(JOBS) == 1
    assert [signal.is_set for signal in line] == [True, False, False]
    assert waiters.uncalled(JOBS) == 1
    waiters.heed(JOBS, line[0])
    waiters.leave(JOBS, line[0], [(1, 1)])
    waiters.wake_first(JOBS)
    assert waiters.heed(JOBS, line[1]) == (True, True)


def test_what_the_first_in_line_has_not_found_nobody_is_called_for_any_more() -> None:
    waiters = Waiters()
    line = [waiters.enter(JOBS) for _ in range(3)]
    waiters.call(JOBS)
    waiters.call(JOBS)
    waiters.heed(JOBS, line[0])
    waiters.looked_in_vain(JOBS, line[0])
    assert waiters.uncalled(JOBS) == 3
    waiters.call(JOBS)
    waiters.call(JOBS)
    waiters.looked_in_vain(JOBS, line[0])  # it looked before these calls, and looks again
    assert waiters.uncalled(JOBS) == 1
    waiters.heed(JOBS, line[0])
    waiters.call(JOBS, 2)
    waiters.heed(JOBS, line[0])
    waiters.looked_in_vain(JOBS, line[0])
    assert waiters.uncalled(JOBS) == 2  # the last one is awake, and will look


def test_the_store_is_told_when_nobody_waits_any_more() -> None:
    told: list[int] = []
    waiters = Waiters(on_nobody=lambda: told.append(len(waiters.line)))
    signals = {key: waiters.enter(key) for key in (JOBS, OTHER)}
    waiters.leave(JOBS, signals[JOBS])
    assert told == []
    waiters.leave(OTHER, signals[OTHER])
    assert told == [0]


def test_the_store_is_told_when_somebody_stands_in_line() -> None:
    """After the waiter is in line, so that nothing that is signalled from then on can be missed."""
    seen: list[int] = []
    waiters = Waiters(lambda: seen.append(waiters.count(JOBS)))
    waiters.enter(JOBS)
    waiters.enter(JOBS)
    assert seen == [1, 2]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_who_cannot_begin_to_wait_leaves_the_line(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error("too many open files")

    waiters = Waiters(on_wait=fails)
    with pytest.raises(error, match="too many"):
        waiters.enter(1)
    assert not waiters


@pytest.mark.parametrize(
    ("due", "tried", "now", "seconds"),
    [
        pytest.param(5000, 1000, 2000, 3.0, id="to come"),
        pytest.param(1500, 1000, 2000, 0.0, id="due since it was tried"),
        pytest.param(990, 1000, 2000, 0.0, id="for a moment"),
        pytest.param(950, 1000, 2000, 0.05, id="for a while"),
        pytest.param(0, 1000, 2000, 0.1, id="for long"),
    ],
)
def test_what_is_held_up_is_tried_again_after_as_long_as_it_has_been_due(
    due: int, tried: int, now: int, seconds: float
) -> None:
    """Tried at once, it would be tried again and again for as long as a transaction is open."""
    assert seconds_until(due, tried, now) == pytest.approx(seconds)


# In a database in memory, waiters never look by themselves: only a call gets them anything


@pytest.mark.parametrize("end", ["ack", "delete", "bury", "ttl"])
def test_who_waits_is_called_when_a_sub_queue_becomes_free(
    queue: tubes.Queue, clock: FakeClock, end: str
) -> None:
    tube = queue.create_tube("jobs", "utubettl", ttr=60)
    tube.put("first", utube="a", ttl=5)
    tube.put("second", utube="a")
    first = take(tube)
    waiter = Waiting(clock, tube.take)
    if end == "ttl":
        clock.step(5)  # which wakes nobody, so that a sweep comes first
        queue.sweep()
    else:
        getattr(tube, end)(first)
    assert waiter.end().data == "second"


@pytest.mark.parametrize("end", ["ack", "delete", "ttl", "truncate"])
def test_all_who_wait_for_room_get_it_whatever_has_made_it(
    queue: tubes.Queue, clock: FakeClock, end: str
) -> None:
    tube = queue.create_tube("jobs", "limfifottl", capacity=2)
    tube.put_many("ab", ttl=5, ttr=60)
    taken = tube.take_many(2, timeout=0)
    waiters = [Waiting(clock, tube.put, data, timeout=None) for data in "cd"]
    if end == "ack":
        tube.ack_many(taken)
    elif end == "delete":
        with queue.transaction() as unit:
            for task in taken:
                tube.delete(task, unit=unit)
    elif end == "ttl":
        clock.step(5)  # which wakes nobody, so that a sweep comes first
        queue.sweep()
    else:
        tube.truncate()
    assert {waiter.end().data for waiter in waiters} == {"c", "d"}


def test_who_wants_less_room_overtakes_nobody_who_waits_for_more(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    tube = queue.create_tube("jobs", "limfifottl", capacity=4)
    tube.put_many("abcd")
    taken = tube.take_many(4, timeout=0)
    waiters, key = queue.store.waiters, room(tube.record.id)
    wants_three = Waiting(clock, tube.put_many, "xyz", timeout=None)
    Waiting(clock, tube.put, "one", timeout=None)
    tube.ack_many(taken[:2])
    eventually(lambda: waiters.uncalled(key) == clock.waiting == 2)  # both were called, and wait again
    assert tube.tasks("r") == []
    tube.ack(taken[2])
    wants_three.end()
    assert [task.data for task in tube.tasks("r")] == ["x", "y", "z"]
    tube.ack(taken[3])
    eventually(lambda: len(tube.tasks("r")) == 4)


@pytest.mark.parametrize("how", ["delay", "ttr"])
def test_all_who_wait_get_what_a_sweep_makes_ready(queue: tubes.Queue, clock: FakeClock, how: str) -> None:
    tube = queue.create_tube("jobs", "fifottl")
    if how == "delay":
        tube.put_many("ab", delay=5)
    else:
        tube.put_many("ab", ttr=5)
        assert len(tube.take_many(2, timeout=0)) == 2
    waiters = [Waiting(clock, tube.take) for _ in range(2)]
    clock.step(5)  # which wakes nobody, so that the sweep comes first
    queue.sweep()
    assert {waiter.end().data for waiter in waiters} == {"a", "b"}


def test_whose_time_for_room_is_over_tries_a_last_time_wherever_he_stands(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    """The first in line wants more room than there is."""
    tube = queue.create_tube("jobs", "limfifottl", capacity=2)
    task, _ = tube.put_many("ab")
    Waiting(clock, tube.put_many, "cd", timeout=None)
    late = Waiting(clock, tube.put, "late", timeout=5)
    tube.delete(task)
    eventually(lambda: clock.waiting == 2)
    clock.advance(5)
    assert late.end().data == "late"
    tube.truncate()


def test_who_waits_for_room_hears_that_the_tube_is_dropped(queue: tubes.Queue, clock: FakeClock) -> None:
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    tube.put("full")
    waiter = Waiting(clock, tube.put, "x", timeout=None)
    tube.drop()
    with pytest.raises(tubes.NoSuchTube, match="jobs"):
        waiter.end()


def test_who_waits_hears_that_the_tube_was_dropped_by_another_process(
    queue: tubes.Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("jobs", "fifo")
    waiter = Waiting(clock, tube.take)
    monkeypatch.setattr(queue.store, "has_tube", lambda tx, record: False)
    queue.store.waiters.wake_first(tube.record.id)
    with pytest.raises(tubes.NoSuchTube, match="jobs"):
        waiter.end()


def test_nobody_waits_for_room_longer_than_he_wants_to(queue: tubes.Queue, clock: FakeClock) -> None:
    """Whatever else is due later."""
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    tube.put("full", ttl=60)
    waiter = Waiting(clock, tube.put, "x", timeout=5)
    clock.advance(5)
    with pytest.raises(tubes.TubeFull):
        waiter.end()


def test_who_comes_to_be_first_in_line_for_room_sees_to_what_is_due(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    tube.put("full", ttl=60)
    first = Waiting(clock, tube.put, "first", timeout=5)
    second = Waiting(clock, tube.put, "second", timeout=None)
    clock.advance(5)
    with pytest.raises(tubes.TubeFull):
        first.end()
    eventually(lambda: clock.waiting == 1)
    clock.advance(55)
    assert second.end().data == "second"


def test_who_waits_behind_others_takes_one_and_leaves_them_theirs(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    tube = queue.create_tube("jobs", "fifo")
    waiters = queue.store.waiters
    first = waiters.enter(tube.record.id)
    second = Waiting(clock, tube.take_many, 5)
    tube.put_many("abc")
    assert [task.data for task in second.end()] == ["a"]
    waiters.leave(tube.record.id, first)


def test_whose_time_is_over_tries_a_last_time_wherever_he_stands(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    tube = queue.create_tube("jobs", "fifo")
    waiters = queue.store.waiters
    first = waiters.enter(tube.record.id)
    late = Waiting(clock, tube.take, timeout=5)
    tube.put("x")  # which calls the first alone
    clock.advance(5)
    assert late.end().data == "x"
    waiters.leave(tube.record.id, first)


def test_who_comes_to_be_first_in_line_sees_to_what_is_due(queue: tubes.Queue, clock: FakeClock) -> None:
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("x", delay=60)
    first, second = Waiting(clock, tube.take, timeout=5), Waiting(clock, tube.take)
    clock.advance(5)
    first.end()
    eventually(lambda: clock.waiting == 1)
    clock.advance(55)
    assert second.end().data == "x"


def test_who_has_settled_what_was_due_sleeps_until_the_next_is(queue: tubes.Queue, clock: FakeClock) -> None:
    """If it still went by what was due before, it would sleep longer."""
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("held", ttl=5)
    tube.take(timeout=0)
    tube.put("next", delay=5.05)
    waiter = Waiting(clock, tube.take)
    clock.advance(5.03)
    eventually(lambda: clock.waiting == 1)
    clock.advance(0.02)
    assert waiter.end().data == "next"


def test_who_was_called_behind_one_that_found_nothing_is_called_again() -> None:
    """Else a later waiter is called in its place for the next two, and overtakes it."""
    clock = EventfulClock()
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        tube, waiters = queue.create_tube("jobs", "fifo"), queue.store.waiters
        line = [Waiting(clock, tube.take) for _ in range(2)]
        left: list[int] = []

        def call_both() -> None:
            waiters.call(tube.record.id)
            waiters.call(tube.record.id)
            left.append(waiters.uncalled(tube.record.id))

        clock.then = call_both  # as the first one looks; others have been faster
        waiters.wake_first(tube.record.id)
        eventually(lambda: left == [0])
        eventually(lambda: waiters.uncalled(tube.record.id) == 2)
        tube.put_many("ab")
        assert {waiting.end().data for waiting in line} == {"a", "b"}


def test_what_a_look_takes_is_a_part_of_the_timeout(
    queue: tubes.Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("jobs", "fifo")
    can_take = tube.driver.can_take

    def can_take_late(tx: Any) -> bool:
        monkeypatch.undo()
        clock.advance(3)
        return can_take(tx)

    monkeypatch.setattr(tube.driver, "can_take", can_take_late)
    waiter = Waiting(clock, tube.take, timeout=5)
    clock.advance(2)
    waiter.end()


def test_callbacks_hear_what_a_waiting_take_settles_while_it_goes_on_waiting(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    tube = queue.create_tube("jobs", "fifottl", ttr=60)
    heard: list[tubes.Event] = []
    tube.put("short", ttl=5)
    tube.take(timeout=0)
    tube.on_task_change(lambda task, event: heard.append(event))
    waiter = Waiting(clock, tube.take)
    clock.advance(5)
    eventually(lambda: heard == [tubes.Event.TTL])
    assert waiter.thread.is_alive()
    tube.put("next")
    assert waiter.end().data == "next"


def test_who_waits_takes_what_a_rescue_had_to_leave(queue: tubes.Queue, clock: FakeClock) -> None:
    tube = queue.create_tube("jobs", "fifo")
    tube.put("held")
    tube.take(timeout=0)
    waiter = Waiting(clock, tube.take)
    tube.ended.add(queue.store.session)  # as if another transaction had locked the task meanwhile
    queue.store.waiters.wake_first(tube.record.id)
    assert waiter.end().data == "held"


def test_who_waits_for_room_goes_when_the_queue_closes_however_long_that_takes(
    queue: tubes.Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter that looked after the close began, and waited on, would wait for ever."""
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    tube.put("full")
    waiter = Waiting(clock, tube.put, "x", timeout=None)
    leave = queue.store.leave

    def leave_late() -> bool:
        waiter.thread.join(20)
        return leave()

    monkeypatch.setattr(queue.store, "leave", leave_late)
    queue.close()
    with pytest.raises(tubes.StoreUnavailable, match="closed"):
        waiter.end()
