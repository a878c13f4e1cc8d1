"""The suite of time: delay, ttl, ttr and touch, which types that know no time must clearly refuse."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from tubes.driver import Change, NewTask, Ref
from tubes.errors import BadOption, LeaseLost, NotSupported, NotTaken, TaskNotFound, TubesWarning
from tubes.queue import Queue
from tubes.task import Event, State, Task
from tubes.testing.clock import FakeClock
from tubes.testing.suite import (
    UNKNOWN_ID,
    MakeTube,
    Suite,
    Waiting,
    ids,
    needs,
    refused,
    take,
    take_all,
    without,
)
from tubes.tube import Tube


def after(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=seconds)


class Timing(Suite):
    """Nothing ends early, nothing that is over is handed out, and no sweeper is needed for that."""

    # Delay

    @needs("timed")
    def test_a_delayed_task_is_ready_when_its_delay_is_over(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        task = tube.put("x", delay=1.5)
        assert task.state is State.DELAYED and task.due_at == after(task.created_at, 1.5)
        clock.advance(1.499)
        assert queue.sweep() == 0
        assert tube.take(0) is None
        clock.advance(0.001)
        assert queue.sweep() == 1
        assert tube.peek(task.id).state is State.READY
        assert tube.statistics()["calls"]["delay"] == 1

    @needs("timed")
    def test_a_take_settles_what_is_due_without_any_sweep(self, tube: Tube, clock: FakeClock) -> None:
        task = tube.put("x", delay=3)
        clock.advance(3)
        assert take(tube).id == task.id

    @needs("timed")
    def test_who_waits_is_not_told_to_take_what_is_delayed(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("x", delay=3)
        assert tube.take(0) is None
        assert not queue.store.read(tube.driver.can_take)
        clock.advance(3)
        queue.sweep()
        assert queue.store.read(tube.driver.can_take)

    @needs("timed")
    def test_a_task_keeps_its_place_through_its_delay(self, tube: Tube, clock: FakeClock) -> None:
        tasks = [tube.put(n, delay=5 - n if n % 2 else 0, **self.apart(n)) for n in range(5)]
        clock.advance(10)
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    @needs("timed")
    def test_a_task_that_is_released_with_a_delay_keeps_its_place(self, tube: Tube, clock: FakeClock) -> None:
        tasks = [tube.put(n, **self.apart(n)) for n in range(4)]
        for task in tube.take_many(2, 0):
            tube.release(task, delay=2)
        clock.advance(2)
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    @needs("timed")
    def test_a_delay_is_added_to_the_ttl(self, tube: Tube, clock: FakeClock) -> None:
        task = tube.put("x", delay=60.1, ttl=80)
        assert task.ttl == 140.1
        clock.advance(140.099)
        assert take(tube).id == task.id
        clock.advance(0.001)
        assert tube.take(0) is None
        with pytest.raises(TaskNotFound):
            tube.peek(task.id)

    @needs("timed")
    def test_a_delay_of_nothing_is_none(self, tube: Tube) -> None:
        assert [tube.put("x", delay=0).state, tube.put("x", delay=timedelta(0)).state] == [State.READY] * 2

    @needs("timed")
    def test_a_task_can_be_released_with_a_delay_which_lengthens_its_life(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        tube.put("x", ttl=20, ttr=10)
        taken = take(tube)
        clock.advance(1)
        task = tube.release(taken, delay=5)
        assert task.updated_at == after(taken.updated_at, 1)
        assert (task.state, task.due_at) == (State.DELAYED, after(task.updated_at, 5))
        assert (task.ttl, task.ttr) == (25, 10)
        assert tube.peek(task.id) == task
        assert tube.take(0) is None
        clock.advance(5)
        again = take(tube)
        assert (again.id, again.attempts) == (task.id, 2)
        assert tube.release(again, delay=0).state is State.READY

    @needs("timed")
    def test_a_delayed_task_can_be_buried_kicked_and_deleted(self, tube: Tube, clock: FakeClock) -> None:
        task = tube.put("x", delay=5)
        tube.bury(task)
        clock.advance(10)
        assert tube.take(0) is None
        tube.kick()
        assert take(tube).id == task.id
        other = tube.put("y", delay=5)
        assert tube.delete(other).state is State.DONE

    # ttl

    @needs("timed")
    @pytest.mark.parametrize("how", ["ready", "taken", "delayed", "buried", "released", "kicked"])
    def test_a_ttl_ends_a_task_wherever_it_is(
        self, tube: Tube, queue: Queue, clock: FakeClock, how: str
    ) -> None:
        task = tube.put("x", ttl=8, ttr=100, delay=2 if how == "delayed" else 0)
        if how in ("taken", "released"):
            taken = take(tube)
            if how == "released":
                tube.release(taken)
        if how in ("buried", "kicked"):
            tube.bury(task)
            if how == "kicked":
                tube.kick()
        assert tube.peek(task.id).due_at == after(task.created_at, 2 if how == "delayed" else 8)
        clock.advance(7.999)
        queue.sweep()
        assert tube.statistics()["tasks"]["total"] == 1
        clock.advance(2.001)
        queue.sweep()
        with pytest.raises(TaskNotFound):
            tube.peek(task.id)
        statistics = tube.statistics()
        assert (statistics["calls"]["ttl"], statistics["tasks"]["done"]) == (1, 1)
        assert statistics["calls"]["delete"] == statistics["calls"]["ttr"] == 0

    @needs("timed")
    def test_what_is_over_is_never_handed_out(self, tube: Tube, clock: FakeClock) -> None:
        for n in range(20):
            tube.put(n, ttl=1 + n % 2, **self.apart(n))
        alive = tube.put("alive", **self.apart(99))
        clock.advance(2)
        assert [task.data for task in take_all(tube)] == ["alive"]
        assert tube.statistics()["tasks"]["total"] == 1
        assert tube.peek(alive.id).state is State.TAKEN

    @needs("timed")
    def test_taking_many_neither_hands_out_nor_counts_what_is_over(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        for n in range(6):
            tube.put(n, ttl=None if n % 2 else 1, **self.apart(n))
        clock.advance(1)
        assert sorted(task.data for task in tube.take_many(3, 0)) == [1, 3, 5]
        assert tube.take_many(10, 0) == []

    @needs("timed")
    def test_without_a_ttl_a_task_lives_for_ever(self, tube: Tube, queue: Queue, clock: FakeClock) -> None:
        task = tube.put("x")
        assert (task.ttl, task.ttr, task.due_at) == (None, None, None)
        clock.advance(10**9)
        assert queue.sweep() == 0
        assert take(tube).due_at is None
        clock.advance(10**9)
        assert queue.sweep() == 0
        assert tube.peek(task.id).state is State.TAKEN

    @needs("timed")
    def test_a_finished_task_is_not_finished_again_by_its_ttl(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("x", ttl=5)
        tube.ack(take(tube))
        clock.advance(10)
        assert queue.sweep() == 0
        assert tube.statistics()["calls"]["ttl"] == 0

    # ttr

    @needs("timed")
    def test_a_taken_task_is_ready_again_when_its_ttr_is_over(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("x", ttr=3)
        old = take(tube)
        assert old.due_at == after(old.updated_at, 3)
        clock.advance(2.999)
        assert queue.sweep() == 0
        clock.advance(0.001)
        assert queue.sweep() == 1
        assert tube.peek(old.id).state is State.READY
        new = take(tube)
        assert (new.id, new.attempts) == (old.id, 2)
        with pytest.raises(LeaseLost):
            tube.ack(old)
        assert tube.ack(new).state is State.DONE

    @needs("timed")
    def test_a_take_gets_the_task_whose_ttr_is_over(self, tube: Tube, clock: FakeClock) -> None:
        task = tube.put("x", ttr=3)
        take(tube)
        clock.advance(3)
        assert (take(tube).id, tube.peek(task.id).attempts) == (task.id, 2)

    @needs("timed")
    def test_a_task_whose_ttr_is_over_has_its_place_before_a_take_looks(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        """Even if another is ready, so that a take need settle nothing to find one."""
        first, second = self.in_order([tube.put(n, ttr=3, **self.apart(n)) for n in range(2)])
        assert take(tube).id == first.id
        clock.advance(3)
        assert ids(take_all(tube)) == [first.id, second.id]
        assert tube.statistics()["calls"]["ttr"] == 1

    @needs("timed")
    def test_a_lease_lasts_until_somebody_has_seen_that_it_is_over(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        for n in range(4):
            tube.put(n, ttr=3, **self.apart(n))
        first, second, third, last = tube.take_many(4, 0)
        clock.advance(3)
        assert tube.ack(first).state is State.DONE
        assert tube.release(second).state is State.READY
        touched = tube.touch(third, 5)
        assert touched is not None and touched.state is State.TAKEN
        assert tube.release_all() == 2
        assert sorted(ids(tube.tasks(State.READY))) == sorted([second.id, third.id, last.id])
        assert tube.statistics()["calls"]["ttr"] == 0

    @needs("timed")
    def test_every_take_has_the_whole_ttr(self, tube: Tube, clock: FakeClock) -> None:
        tube.put("x", ttr=3)
        tube.release(take(tube))
        clock.advance(2)
        assert take(tube).due_at == after(tube.tasks(State.TAKEN)[0].updated_at, 3)
        clock.advance(2.999)
        assert tube.take(0) is None

    @needs("timed")
    def test_a_ttr_does_not_touch_a_task_that_was_buried(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("x", ttr=3)
        task = take(tube)
        tube.bury(task)
        clock.advance(10)
        assert queue.sweep() == 0
        assert tube.peek(task.id).state is State.BURIED

    @needs("timed")
    def test_a_ttr_is_bounded_by_the_ttl(self, tube: Tube, clock: FakeClock) -> None:
        tube.put("x", ttl=10, ttr=8)
        task = take(tube)
        assert task.due_at == after(task.updated_at, 8)
        clock.advance(5)
        tube.release(task)
        late = take(tube)
        assert late.due_at == after(late.created_at, 10)

    @needs("timed")
    def test_who_looks_late_is_told_all_that_has_happened_in_its_order(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        """Even what came before the end of a task that is gone (Tarantool: its fiber does each in turn)."""
        seen: list[tuple[Event, object, float | None]] = []

        def see(task: Task, event: Event) -> None:
            due = None if task.due_at is None else (task.due_at - task.created_at).total_seconds()
            seen.append((event, task.data, due))

        tube.put("taken", ttl=5, ttr=2, **self.apart(1))
        take(tube)
        tube.put("delayed", ttl=1, delay=3, **self.apart(2))
        tube.put("ready", ttl=3.5, **self.apart(3))
        tube.put("stays", delay=4.5, **self.apart(4))
        tube.on_task_change(see)
        clock.advance(10)
        assert take(tube).data == "stays"
        assert seen == [
            (Event.TTR, "taken", 5),
            (Event.DELAY, "delayed", 4),
            (Event.TTL, "ready", None),
            (Event.TTL, "delayed", None),
            (Event.DELAY, "stays", None),
            (Event.TTL, "taken", None),
            (Event.TAKE, "stays", None),
        ]
        calls = tube.statistics()["calls"]
        assert (calls["ttr"], calls["delay"], calls["ttl"]) == (1, 2, 3)

    @needs("timed")
    def test_a_task_has_its_own_times_or_the_tubes(self, make_tube: MakeTube) -> None:
        tube = make_tube("both", ttl=20, ttr=5)
        given: list[dict[str, Any]] = [
            {},
            {"ttl": None},
            {"ttr": None},
            {"ttl": 9, "ttr": timedelta(seconds=2)},
        ]
        tasks = [tube.put("x", **options) for options in given]
        assert [(task.ttl, task.ttr) for task in tasks] == [(20, 5), (None, 5), (20, None), (9, 2)]

    @needs("timed")
    def test_the_ttr_is_the_tubes_ttl_where_the_tube_has_no_ttr(self, make_tube: MakeTube) -> None:
        with pytest.warns(TubesWarning, match="ttr"):
            tube = make_tube("lives", ttl=20)
        assert [(task.ttl, task.ttr) for task in (tube.put("x"), tube.put("x", ttl=9))] == [(20, 20), (9, 20)]

    @needs("timed")
    def test_who_gives_a_tube_that_is_there_other_options_is_told_which(
        self, queue: Queue, make_tube: MakeTube
    ) -> None:
        tube = make_tube("both", ttl=20, ttr=5)

        def again(**options: Any) -> Tube:
            return queue.create_tube("both", self.type, if_not_exists=True, **self.options, **options)

        with pytest.warns(TubesWarning, match="already exists with a different ttl, ttr, which it keeps"):
            assert again(ttl=30, ttr=timedelta(seconds=6)) is tube
        assert (tube.put("x").ttl, tube.put("x").ttr) == (20, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("error", TubesWarning)
            assert again() is again(ttl=20) is again(ttr=timedelta(seconds=5)) is again(ttl=None) is tube

    # Touch

    @needs("timed")
    def test_a_touch_adds_to_the_ttr_the_ttl_and_the_deadline(self, tube: Tube, clock: FakeClock) -> None:
        """Even beyond the end of the life that the task had before."""
        tube.put("x", ttl=6, ttr=5)
        task = take(tube)
        clock.advance(1)
        touched = tube.touch(task, 2.5)
        assert touched is not None and task.due_at is not None
        assert (touched.ttl, touched.ttr, touched.due_at) == (8.5, 7.5, after(task.due_at, 2.5))
        assert (touched.state, touched.token, touched.attempts) == (State.TAKEN, task.token, 1)
        clock.advance(6.499)
        assert tube.take(0) is None
        clock.advance(0.001)
        assert take(tube).id == task.id

    @needs("timed")
    def test_a_task_that_was_touched_is_acked_by_its_lease(self, tube: Tube) -> None:
        tube.put("x", ttr=5)
        task = take(tube)
        touched = tube.touch(task, timedelta(seconds=1))
        assert touched is not None and touched.token == task.token
        done = tube.ack(task)
        assert (done.state, done.ttr) == (State.DONE, 6)

    @needs("timed")
    def test_many_that_were_touched_are_acked_as_they_are_now(self, tube: Tube) -> None:
        tasks = [tube.put(n, ttl=20, ttr=5, **self.apart(n)) for n in range(3)]
        taken = tube.take_many(3, 0)
        for task in taken:
            tube.touch(task, 1)
        assert [(task.ttl, task.ttr) for task in tube.ack_many(taken)] == [(21, 6)] * len(tasks)

    @needs("timed")
    def test_a_touch_by_nothing_does_nothing(self, tube: Tube) -> None:
        tube.put("x", ttr=5)
        task = take(tube)
        assert tube.touch(task, 0) is None
        assert tube.touch(UNKNOWN_ID, 0) is None
        assert tube.peek(task.id) == task
        assert tube.statistics()["calls"]["touch"] == 0

    @needs("timed")
    def test_only_a_taken_task_can_be_touched(self, tube: Tube) -> None:
        task = tube.put("x", ttr=5)
        for id in (task.id, task.id + 1):
            assert str(id) in refused(tube.touch, id, 1, error=NotTaken)
        with pytest.raises(BadOption, match="delta"):
            tube.touch(task, -1)
        assert tube.statistics()["calls"]["touch"] == 0

    # Exactness

    @needs("timed")
    def test_a_duration_is_rounded_up_so_that_nothing_ends_early(self, tube: Tube, clock: FakeClock) -> None:
        assert tube.put("x", ttl=0.0001).ttl == 0.001
        assert tube.put("y", ttl=0.1 + 0.2).ttl == 0.3

    @needs("timed")
    def test_a_ttl_of_nothing_is_over_at_once(self, tube: Tube) -> None:
        tube.put("x", ttl=0)
        assert tube.take(0) is None

    @needs("timed")
    def test_times_of_years_are_kept(self, tube: Tube, clock: FakeClock) -> None:
        task = tube.put("x", ttl=10**8, ttr=10**8, delay=10**8)
        assert (task.ttl, task.ttr, task.due_at) == (2 * 10**8, 10**8, after(task.created_at, 10**8))
        assert tube.peek(task.id) == task
        clock.advance(10**8 - 1)
        assert tube.take(0) is None
        clock.advance(1)
        assert take(tube).due_at == after(task.created_at, 2 * 10**8)

    @needs("timed")
    def test_a_ttr_of_nothing_is_over_at_once(self, tube: Tube) -> None:
        tube.put("x", ttr=0)
        assert [take(tube).attempts, take(tube).attempts] == [1, 2]

    @needs("timed")
    @pytest.mark.parametrize("option", ["ttl", "ttr", "delay"])
    def test_a_duration_that_cannot_be_is_refused_and_nothing_is_stored(
        self, tube: Tube, option: str
    ) -> None:
        for value in (-1, -0.001, float("nan"), float("inf"), "1", True, 1e300):
            given: dict[str, Any] = {option: value}
            assert option in refused(tube.put, "x", **given)
        assert tube.statistics()["tasks"]["total"] == 0

    @needs("timed")
    def test_a_sweep_tells_how_many_tasks_it_changed(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("a", ttl=1, **self.apart(1))
        tube.put("b", delay=1, **self.apart(2))
        tube.put("c", ttr=1, **self.apart(3))
        tube.put("d", ttl=9, **self.apart(4))
        while take(tube).data != "c":
            tube.bury(tube.tasks(State.TAKEN)[0])
        clock.advance(1)
        assert queue.sweep() == 3
        assert queue.sweep() == 0

    @needs("timed")
    def test_many_due_tasks_are_all_settled(self, tube: Tube, queue: Queue, clock: FakeClock) -> None:
        count = 2500  # more than one step settles
        tube.put_many(range(count), ttl=1)
        clock.advance(1)
        assert queue.sweep() == count
        statistics = tube.statistics()
        assert (statistics["tasks"]["total"], statistics["calls"]["ttl"]) == (0, count)

    @needs("timed")
    def test_a_step_settles_no_more_than_it_is_asked_to(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        """So that its transaction stays short; a caller that wants more asks again."""
        for n in range(2):
            tube.put(n, ttr=1, **self.apart(n))
        assert len(tube.take_many(2, 0)) == 2
        for n in range(2):
            tube.put(n, ttl=1, **self.apart(n))
            tube.put(n, delay=1, **self.apart(n))
        clock.advance(1)
        settled = queue.store.transact(lambda tx: tube.driver.expire(tx, 4, now=clock.now_ms()))
        assert len(settled) == 4
        assert queue.sweep() == 2

    @needs("timed")
    def test_a_step_settles_what_fell_due_first(self, tube: Tube, queue: Queue, clock: FakeClock) -> None:
        taken = tube.put("taken", ttr=2, **self.apart(0))
        assert take(tube).id == taken.id
        delayed = tube.put("delayed", delay=1, **self.apart(1))
        clock.advance(3)
        for task in (delayed, taken):
            settled = queue.store.transact(lambda tx: tube.driver.expire(tx, 1, now=clock.now_ms()))
            assert [tube.driver.normalize_task(change.raw).id for change in settled] == [task.id]

    @needs("timed")
    def test_a_change_says_when_time_will_do_the_next_thing_to_its_task(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        """So that the sweeper runs in time."""
        driver, owner, start = tube.driver, queue.store.session, clock.now_ms()
        mortal = NewTask('"x"', "x", 0, "" if self.features.grouped else None, 20_000, 5_000, 2_000)
        endless = mortal._replace(ttl_ms=None, ttr_ms=None, delay_ms=0)

        def due(step: Callable[..., Sequence[Change]], *given: Any, **options: Any) -> list[int | None]:
            now = clock.now_ms()
            changes = queue.store.transact(lambda tx: step(tx, *given, now=now, **options))
            return [None if change.due_ms is None else change.due_ms - start for change in changes]

        assert due(driver.put, [mortal]) == [2_000]
        refs = [Ref(task.id) for task in tube.tasks(State.DELAYED)]
        clock.advance(2)
        assert due(driver.expire, 9) == [20_000]
        assert due(driver.take, 1, owner=owner) == [7_000]
        assert due(driver.touch, refs, 1_000, owner=owner) == [8_000]
        assert due(driver.release, refs, delay_ms=0, owner=owner) == [21_000]
        assert due(driver.take, 1, owner=owner) == [8_000]
        assert due(driver.release_owner, owner, 1) == [21_000]
        assert due(driver.take, 1, owner=owner) == [8_000]
        clock.advance(6)
        assert due(driver.expire, 9) == [21_000]
        assert due(driver.take, 1, owner=owner) == [14_000]
        assert due(driver.release, refs, delay_ms=3_000, owner=owner) == [11_000]
        assert due(driver.bury, refs, owner=owner) == due(driver.kick, 1) == [24_000]
        assert due(driver.delete, refs, owner=owner) == due(driver.put, [endless]) == [None]

    @needs("timed")
    @pytest.mark.parametrize("first", ["taken", "buried", "delayed", "ready"])
    def test_what_is_due_next_is_the_first_of_all_that_is(
        self, tube: Tube, queue: Queue, clock: FakeClock, first: str
    ) -> None:
        """Whatever states the tasks are in: until then, nobody looks."""
        start = clock.now_ms()

        def due_next() -> float | None:
            due = queue.store.read(tube.driver.next_due)
            return None if due is None else (due - start) / 1000

        assert tube.take(0) is None
        assert due_next() is None
        for n, state in enumerate(["taken", "buried", "delayed", "ready"]):
            seconds = 3 if state == first else 5
            time: dict[str, Any] = {"delay" if state == "delayed" else "ttl": seconds}
            task = tube.put(state, **time, **self.apart(n))
            if state == "taken":
                take(tube)
            elif state == "buried":
                tube.bury(task)
        assert due_next() == 3
        clock.advance(3)
        assert (queue.sweep(), due_next()) == (1, 5)
        clock.advance(2)
        assert (queue.sweep(), due_next()) == (3, None)

    @needs("timed")
    def test_a_take_behind_many_that_are_over_gets_the_one_that_is_not(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        if self.order == "newest":
            tube.put("alive")
        tube.put_many(range(1500), ttl=1)
        if self.order == "oldest":
            tube.put("alive")
        clock.advance(1)
        assert take(tube).data == "alive"

    @needs("timed", "priority")
    def test_a_take_behind_many_that_are_due_gets_the_best_of_all(self, tube: Tube, clock: FakeClock) -> None:
        tube.put_many(range(1500), delay=1, pri=1)
        tube.put("best", delay=2, pri=0)
        clock.advance(2)
        assert take(tube).data == "best"

    @needs("timed")
    def test_a_clock_that_steps_back_loses_nothing(self, tube: Tube, queue: Queue, clock: FakeClock) -> None:
        tube.put("x", ttl=100, ttr=10)
        task = take(tube)
        clock.step(-3600)
        queue.sweep()
        assert tube.ack(task).state is State.DONE
        tube.put("y", ttl=100)
        assert take(tube).data == "y"

    # Waiting

    @needs("timed")
    @pytest.mark.parametrize("how", ["delay", "ttr"])
    def test_a_waiting_take_gets_the_task_that_time_brings(
        self, tube: Tube, clock: FakeClock, how: str
    ) -> None:
        if how == "delay":
            tube.put("x", delay=5)
        else:
            tube.put("x", ttr=5)
            take(tube)
        consumer = Waiting(clock, tube.take, 60)
        clock.advance(4.999)
        assert clock.waiting == 1
        clock.advance(0.001)
        assert consumer.end().data == "x"

    # Without

    @without("timed")
    @pytest.mark.parametrize("option", ["ttl", "ttr", "delay"])
    def test_a_time_is_refused_by_a_type_without(self, tube: Tube, option: str) -> None:
        options: Any = {option: 1}
        with pytest.raises(NotSupported, match=f"'{option}'") as caught:
            tube.put("x", **options)
        assert caught.value.option == option
        assert tube.statistics()["tasks"]["total"] == 0

    @without("timed")
    @pytest.mark.parametrize("option", ["ttl", "ttr"])
    def test_a_tubes_time_is_refused_by_a_type_without(self, queue: Queue, option: str) -> None:
        options: Any = {option: 1, **self.options}
        with pytest.raises(NotSupported, match=f"'{option}'"):
            queue.create_tube("timed", self.type, **options)
        assert "timed" not in queue.tubes()

    @without("timed")
    def test_touch_and_a_delayed_release_are_refused_by_a_type_without(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        with pytest.raises(NotSupported, match="touch"):
            tube.touch(task, 1)
        with pytest.raises(NotSupported, match="'delay'"):
            tube.release(task, delay=1)
        assert tube.peek(task.id) == task
        tube.release(task, delay=None)
        with pytest.raises(NotTaken):
            tube.touch(task.id, 1)
        take(tube)
        with pytest.raises(LeaseLost):
            tube.touch(task, 1)

    @without("timed")
    def test_time_does_nothing_in_a_type_without(self, tube: Tube, queue: Queue, clock: FakeClock) -> None:
        task = tube.put("x")
        assert (task.due_at, task.ttl, task.ttr) == (None, None, None)
        assert queue.store.read(tube.driver.next_due) is None
        clock.advance(10**9)
        assert queue.sweep() == 0
        assert take(tube).due_at is None
        clock.advance(10**9)
        assert queue.sweep() == 0
        assert tube.peek(task.id).state is State.TAKEN
