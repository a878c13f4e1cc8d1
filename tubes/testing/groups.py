"""The suite of sub-queues: at most one task of each is taken, and its order is strict."""

from __future__ import annotations

from typing import Any

import pytest

from tubes.driver import NewTask
from tubes.errors import NotSupported
from tubes.queue import Queue
from tubes.task import State
from tubes.testing.clock import FakeClock
from tubes.testing.suite import (
    MakeTube,
    Suite,
    Waiting,
    ack_all,
    ids,
    needs,
    refused,
    take,
    take_all,
    without,
)
from tubes.tube import Tube


class Groups(Suite):
    """A sub-queue is busy while one of its tasks is taken, and only then."""

    @needs("grouped")
    def test_a_task_says_which_sub_queue_it_is_of(self, tube: Tube) -> None:
        task = tube.put("x", utube="a")
        assert task.utube == "a"
        assert take(tube).utube == tube.peek(task.id).utube == "a"

    @needs("grouped")
    def test_of_a_sub_queue_one_task_is_taken_at_a_time(self, tube: Tube) -> None:
        first, second = self.in_order([tube.put(n, utube="a") for n in range(2)])
        task = take(tube)
        assert task.id == first.id
        assert tube.take(0) is None
        assert tube.take_many(5, 0) == []
        tube.ack(task)
        assert take(tube).id == second.id

    @needs("grouped")
    def test_what_is_put_into_a_busy_sub_queue_waits(self, tube: Tube) -> None:
        tube.put("head", utube="a")
        head = take(tube)
        behind = [tube.put("alone", utube="a"), *tube.put_many("ab", utube="a")]
        assert tube.take(0) is None
        assert tube.take_many(5, 0) == []
        tube.ack(head)
        assert ids(tube.take_many(5, 0)) == ids(self.in_order(behind))[:1]

    @needs("grouped")
    def test_others_go_past_a_busy_sub_queue(self, tube: Tube) -> None:
        tasks = [tube.put(utube, utube=utube) for utube in "aabbc"]
        heads = self.in_order(
            [self.in_order([task for task in tasks if task.data == utube])[0] for utube in "abc"]
        )
        assert ids(take_all(tube)) == ids(heads)

    @needs("grouped")
    def test_taking_many_takes_one_of_each_sub_queue(self, tube: Tube) -> None:
        for utube in "aaabbbc":
            tube.put("x", utube=utube)
        assert sorted(str(task.utube) for task in tube.take_many(10, 0)) == ["a", "b", "c"]
        assert tube.take(0) is None

    @needs("grouped")
    def test_a_sub_queue_is_worked_off_in_strict_order(self, tube: Tube) -> None:
        tasks = tube.put_many(range(5), utube="a")
        assert ids(ack_all(tube)) == ids(self.in_order(tasks))

    @needs("grouped")
    def test_those_that_are_put_together_come_after_one_that_was_first(self, tube: Tube) -> None:
        tasks = [tube.put("first", utube="a"), *tube.put_many(range(2), utube="a")]
        assert ids(ack_all(tube)) == ids(self.in_order(tasks))

    @needs("grouped")
    @pytest.mark.parametrize("end", ["ack", "release", "bury", "delete", "release_all"])
    def test_a_sub_queue_is_free_again_when_its_task_is_in_nobodys_hands(self, tube: Tube, end: str) -> None:
        tasks = self.in_order([tube.put(n, utube="a") for n in range(3)])
        task = take(tube)
        if end == "release_all":
            tube.release_all()
        else:
            getattr(tube, end)(task)
        comes_back = end in ("release", "release_all")
        assert take(tube).id == tasks[0 if comes_back else 1].id
        assert tube.take(0) is None

    @needs("grouped")
    def test_a_buried_head_does_not_block_its_sub_queue(self, tube: Tube) -> None:
        tasks = self.in_order([tube.put(n, utube="a") for n in range(3)])
        tube.bury(tasks[0])
        task = take(tube)
        assert task.id == tasks[1].id
        tube.kick()
        assert tube.take(0) is None
        tube.ack(task)
        assert take(tube).id == tasks[0].id

    @needs("grouped")
    def test_the_unnamed_sub_queue_goes_on_like_any_other(self, tube: Tube) -> None:
        tasks = self.in_order([tube.put(n) for n in range(5)])
        tube.bury(tasks[0])
        tube.delete(tasks[1])
        assert take(tube).id == tasks[2].id
        tube.bury(tasks[2])
        tube.ack(take(tube))
        assert tube.kick(2) == 2
        assert take(tube).id == tasks[0].id
        assert tube.take(0) is None

    @needs("grouped")
    def test_a_released_task_heeds_an_older_one_that_was_kicked_meanwhile(self, tube: Tube) -> None:
        first, second = self.in_order([tube.put(n, utube="a") for n in range(2)])
        tube.bury(first)
        task = take(tube)
        assert task.id == second.id
        tube.kick()
        tube.release(task)
        assert take(tube).id == first.id

    @needs("grouped")
    def test_a_kick_into_a_busy_sub_queue_breaks_nothing(self, tube: Tube) -> None:
        """Upstream hung here: bury, kick, put and two takes in one sub-queue."""
        one, two = self.in_order([tube.put(n, utube="a") for n in range(2)])
        tube.bury(one)
        assert tube.kick(5) == 1
        three = tube.put("three", utube="a")
        done = []
        while (task := tube.take(0)) is not None:
            assert tube.take(0) is None
            done.append(tube.ack(task))
        assert ids(done) == ids(self.in_order([one, two, three]))

    @needs("grouped")
    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_a_deleted_task_leaves_the_others_in_line(self, tube: Tube, position: int) -> None:
        tasks = self.in_order([tube.put(n, utube="a") for n in range(3)])
        tube.delete(tasks.pop(position))
        assert ids(ack_all(tube)) == ids(tasks)

    @needs("grouped")
    @pytest.mark.parametrize("end", ["bury", "delete"])
    @pytest.mark.parametrize("position", [1, 2])
    def test_a_sub_queue_stays_busy_when_one_that_waits_in_it_goes(
        self, tube: Tube, position: int, end: str
    ) -> None:
        tasks = self.in_order([tube.put(n, utube="a") for n in range(3)])
        assert take(tube).id == tasks[0].id
        getattr(tube, end)(tasks.pop(position))
        assert tube.take(0) is None
        tube.ack(tasks[0].id)
        assert take(tube).id == tasks[1].id

    @needs("grouped")
    def test_tasks_without_a_name_share_one_sub_queue(self, tube: Tube) -> None:
        tube.put_many("ab")
        tube.put("c", utube=None)
        tube.put("nil", utube="nil")
        tube.put_many("no", utube="")
        assert sorted(str(task.utube) for task in take_all(tube)) == ["", "None", "nil"]

    @needs("grouped")
    @pytest.mark.parametrize("end", ["ack", "release", "bury", "delete"])
    def test_sub_queues_of_one_name_in_two_tubes_are_two(self, make_tube: MakeTube, end: str) -> None:
        one, other = make_tube("one"), make_tube("other")
        for tube in (one, other):
            for n in range(3):
                tube.put(n, utube="a")
            take(tube)
        for here, there in ((one, other), (other, one)):
            getattr(here, end)(here.tasks(State.TAKEN)[0])
            assert there.take(0) is None
            assert take(here).utube == "a"
            assert here.take(0) is None

    @needs("grouped")
    def test_what_is_kicked_passes_nobody_in_another_tube(self, make_tube: MakeTube) -> None:
        one, other = make_tube("one"), make_tube("other")
        kicked = one.bury(one.put("x", utube="a"))
        theirs = other.put("y", utube="a")
        assert one.kick() == 1
        assert [take(one).id, take(other).id] == [kicked.id, theirs.id]

    @needs("grouped")
    def test_a_number_and_its_text_name_the_same_sub_queue(self, tube: Tube) -> None:
        assert [tube.put("x", utube=1).utube, tube.put("x", utube="1").utube] == ["1", "1"]
        assert tube.put("x", utube=1.0).utube == "1"
        take(tube)
        assert tube.take(0) is None

    @needs("grouped")
    def test_any_text_names_a_sub_queue_of_its_own(self, tube: Tube) -> None:
        names = [
            "a", "A", "a ", "ä", "a\u0308", "a" * 500, "'; drop", "🐍", "", "\1", "\1a", "a\1", "a\n", "a:b", "a/b",
            "a*", "a%", "1", "01", "1.0", "null",
        ]  # fmt: skip
        assert [tube.put("x", utube=name).utube for name in names] == names
        assert sorted(str(task.utube) for task in take_all(tube)) == sorted(names)

    @needs("grouped")
    def test_what_cannot_name_a_sub_queue_is_refused(self, tube: Tube) -> None:
        never: list[Any] = [float("nan"), b"a", [], "a\0b", "\ud800"]
        for utube in never:
            assert "utube" in refused(tube.put, "x", utube=utube)
        assert tube.statistics()["tasks"]["total"] == 0

    @needs("grouped")
    def test_a_waiting_take_gets_the_next_of_a_sub_queue_that_becomes_free(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        second = self.in_order([tube.put(n, utube="a") for n in range(2)])[1]
        task = take(tube)
        consumer = Waiting(clock, tube.take, 60)
        tube.ack(task)
        assert consumer.end().id == second.id

    @needs("grouped")
    def test_many_sub_queues_are_worked_off_without_a_double(self, tube: Tube) -> None:
        for n in range(60):
            tube.put(n, utube=n % 7)
        order: dict[str | None, list[int]] = {}
        while batch := tube.take_many(5, 0):
            assert len({task.utube for task in batch}) == len(batch)
            for task in batch:
                order.setdefault(task.utube, []).append(task.data)
                tube.ack(task)
        assert all(datas == sorted(datas, reverse=self.order == "newest") for datas in order.values())
        assert sum(map(len, order.values())) == 60

    # With time and priority

    @needs("grouped", "priority")
    def test_priority_counts_inside_a_sub_queue_and_over_all(self, tube: Tube) -> None:
        worse = tube.put("worse", utube="a", pri=5)
        other = tube.put("other", utube="b", pri=3)
        better = tube.put("better", utube="a", pri=1)
        assert ids(take_all(tube)) == [better.id, other.id]
        tube.ack(better.id)
        assert take(tube).id == worse.id

    @needs("grouped", "priority")
    def test_better_ones_that_are_put_together_come_before_a_worse_one_that_was_first(
        self, tube: Tube
    ) -> None:
        worse = tube.put("worse", utube="a", pri=5)
        better = self.in_order(tube.put_many(range(3), utube="a", pri=1))
        assert ids(ack_all(tube)) == ids([*better, worse])

    @needs("grouped", "priority")
    @pytest.mark.parametrize("places", [[("a", 2), ("a", 0), ("a", 1)], [("a", 1), ("b", 1)]])
    def test_each_of_those_that_one_step_puts_comes_into_its_own_place(
        self, queue: Queue, tube: Tube, clock: FakeClock, places: list[tuple[str, int]]
    ) -> None:
        """A put_many gives all its tasks the same options; a driver must not count on that."""
        tasks = [tube.put("worse", utube=utube, pri=5) for utube in "ab"]
        items = [NewTask('"x"', "x", pri, utube) for utube, pri in places]
        changes = queue.store.transact(lambda tx: tube.driver.put(tx, items, now=clock.now_ms()))
        tasks += [tube.driver.normalize_task(change.raw) for change in changes]
        assert ids(ack_all(tube)) == ids(self.in_order(tasks))

    @needs("grouped", "priority", "timed")
    @pytest.mark.parametrize("delays", [(5_000, 0), (0, 5_000)], ids=["first", "last"])
    def test_one_that_is_delayed_among_those_that_one_step_puts_keeps_no_other_back(
        self, queue: Queue, tube: Tube, clock: FakeClock, delays: tuple[int, int]
    ) -> None:
        worse = tube.put("worse", utube="a", pri=5)
        items = [NewTask('"x"', "x", 1, "a", None, None, delay) for delay in delays]
        changes = queue.store.transact(lambda tx: tube.driver.put(tx, items, now=clock.now_ms()))
        better = [tube.driver.normalize_task(change.raw) for change in changes]
        ready = better[delays.index(0)]
        assert ids(ack_all(tube)) == [ready.id, worse.id]

    @needs("grouped", "priority")
    def test_better_ones_that_are_put_together_wait_for_a_worse_one_that_is_taken(self, tube: Tube) -> None:
        tube.put("worse", utube="a", pri=5)
        task = take(tube)
        better = self.in_order(tube.put_many(range(2), utube="a", pri=1))
        assert tube.take(0) is None
        tube.ack(task)
        assert take(tube).id == better[0].id
        assert tube.take(0) is None

    @needs("grouped", "priority")
    @pytest.mark.parametrize("is_older", [True, False], ids=["older", "younger"])
    @pytest.mark.parametrize("pri", [1, 9], ids=["better", "worse"])
    def test_a_kicked_task_stands_in_its_sub_queue_by_its_priority(
        self, tube: Tube, pri: int, is_older: bool
    ) -> None:
        first, second = (tube.put(n, utube="a", pri=n) for n in ((pri, 5) if is_older else (5, pri)))
        tube.bury(first if is_older else second)
        assert tube.kick() == 1
        assert ids(ack_all(tube)) == ids(self.in_order([first, second]))

    @needs("grouped", "priority", "timed")
    @pytest.mark.parametrize("is_older", [True, False], ids=["older", "younger"])
    @pytest.mark.parametrize("pri", [1, 9], ids=["better", "worse"])
    def test_a_delayed_task_stands_in_its_sub_queue_by_its_priority(
        self, tube: Tube, clock: FakeClock, pri: int, is_older: bool
    ) -> None:
        """And blocks nobody until its delay is over."""
        for count in (1, 2):  # put alone, then two together
            tasks = [] if is_older else [tube.put("now", utube="a", pri=5)]
            tasks += tube.put_many(["later"] * count, utube="a", pri=pri, delay=3)
            if is_older:
                tasks.append(tube.put("now", utube="a", pri=5))
            task = take(tube)
            assert task.data == "now"
            tube.release(task)
            clock.advance(3)
            assert ids(ack_all(tube)) == ids(self.in_order(tasks))

    @needs("grouped", "priority")
    def test_a_released_task_heeds_better_ones_of_its_sub_queue(self, tube: Tube) -> None:
        tube.put("worse", utube="a", pri=5)
        task = take(tube)
        better = tube.put("better", utube="a", pri=1)
        tube.release(task)
        assert ids(take_all(tube)) == [better.id]

    @needs("grouped", "timed")
    def test_a_delayed_head_does_not_block_its_sub_queue(self, tube: Tube, clock: FakeClock) -> None:
        delayed = tube.put("delayed", utube="a", delay=5)
        ready = tube.put("ready", utube="a")
        task = take(tube)
        assert task.id == ready.id
        clock.advance(5)
        assert tube.take(0) is None
        tube.ack(task)
        assert take(tube).id == delayed.id

    @needs("grouped", "timed")
    @pytest.mark.parametrize("how", ["ttr", "ttl"])
    def test_a_sub_queue_is_free_again_when_the_time_of_its_task_is_over(
        self, tube: Tube, clock: FakeClock, how: str
    ) -> None:
        options: Any = {how: 3}
        head = tube.put("head", utube="a", **options)
        assert take(tube).id == head.id
        behind = tube.put("behind", utube="a")
        clock.advance(3)
        expected = behind if how == "ttl" else self.in_order([head, behind])[0]
        assert take(tube).id == expected.id
        assert tube.take(0) is None

    @needs("grouped", "timed")
    def test_a_release_with_a_delay_lets_the_next_one_through(self, tube: Tube, clock: FakeClock) -> None:
        tasks = self.in_order([tube.put(n, utube="a") for n in range(2)])
        tube.release(take(tube), delay=5)
        second = take(tube)
        assert second.id == tasks[1].id
        clock.advance(5)
        assert tube.take(0) is None
        assert tube.tasks(State.READY)[0].id == tasks[0].id

    # Without

    @without("grouped")
    def test_a_sub_queue_is_refused_by_a_type_without(self, tube: Tube, queue: Queue) -> None:
        with pytest.raises(NotSupported, match="'utube'") as caught:
            tube.put("x", utube="a")
        assert caught.value.option == "utube"
        with pytest.raises(NotSupported, match="'utube'"):
            tube.put_many([1, 2], utube="a")
        assert tube.statistics()["tasks"]["total"] == 0

    @without("grouped")
    def test_all_tasks_are_taken_at_once_in_a_type_without(self, tube: Tube) -> None:
        assert len(tube.put_many(range(4))) == len(tube.take_many(9, 0)) == 4
