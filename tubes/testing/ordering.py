"""The suite of order: which task comes first, and how it keeps its place in line."""

from __future__ import annotations

import pytest

from tubes.errors import NotSupported
from tubes.queue import Queue
from tubes.task import State, Task
from tubes.testing.clock import FakeClock
from tubes.testing.suite import MakeTube, Suite, ack_all, ids, needs, refused, take, take_all, without
from tubes.tube import Tube


class Ordering(Suite):
    """Tasks come in the type's order, whenever they became ready."""

    def put_some(self, tube: Tube, count: int = 5) -> list[Task]:
        """Put tasks that can all be taken at once."""
        return [tube.put(n, **self.apart(n)) for n in range(count)]

    def test_tasks_are_taken_in_the_order_of_the_type(self, tube: Tube) -> None:
        tasks = self.put_some(tube)
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    def test_a_batch_keeps_its_order(self, tube: Tube) -> None:
        tasks = tube.put_many(range(5), **self.apart(0))
        assert ids(ack_all(tube)) == ids(self.in_order(tasks))

    def test_taking_many_is_taking_one_by_one(self, tube: Tube) -> None:
        expected = ids(self.in_order(self.put_some(tube, 6)))
        assert ids(tube.take_many(4, 0)) == expected[:4]
        assert ids(tube.take_many(4, 0)) == expected[4:]
        assert tube.take_many(4, 0) == []

    def test_a_batch_leaves_out_what_lies_between(self, make_tube: MakeTube) -> None:
        tube, other = make_tube(), make_tube("other")
        tasks = []
        for n in range(4):
            tasks.append(tube.put(n, **self.apart(n)))
            other.put(n, **self.apart(n))
        tube.bury(tasks[1])
        taken, theirs = tube.take_many(9, 0), other.take_many(9, 0)
        assert sorted(ids(taken)) == ids([tasks[0], *tasks[2:]])
        assert len(theirs) == 4
        assert ids(tube.ack_many(taken)) == ids(taken)
        assert ids(tube.tasks("!")) == [tasks[1].id]
        assert sorted(ids(other.tasks("t"))) == sorted(ids(theirs))

    def test_a_released_task_keeps_its_place(self, tube: Tube) -> None:
        tasks = self.put_some(tube)
        first, second = take(tube), take(tube)
        tube.release(second)
        tube.release(first)
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    def test_a_released_task_comes_before_those_put_while_it_was_taken(self, tube: Tube) -> None:
        tasks = self.put_some(tube, 2)
        first = take(tube)
        tasks += self.put_some(tube, 2)
        tube.release(first)
        assert take(tube).id == self.in_order([*tasks])[0].id

    def test_tasks_that_release_all_brings_back_keep_their_places(self, tube: Tube) -> None:
        tasks = self.put_some(tube)
        tube.take_many(3, 0)
        tube.release_all()
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    def test_a_kicked_task_keeps_its_place(self, tube: Tube) -> None:
        tasks = self.put_some(tube)
        tube.bury(tasks[3])
        tube.bury(tasks[1])
        tube.kick(2)
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    def test_a_kick_brings_back_those_that_would_be_taken_first(self, tube: Tube) -> None:
        tasks = self.put_some(tube)
        for task in (tasks[3], tasks[0], tasks[4], tasks[1]):
            tube.bury(task)
        kicked: list[Task] = []
        tube.on_task_change(lambda task, event: kicked.append(task))
        tube.kick(2)
        buried = ids(self.in_order([tasks[n] for n in (0, 1, 3, 4)]))
        assert ids(kicked) == buried[:2]
        assert ids(tube.tasks(State.BURIED)) == sorted(buried[2:])

    def test_a_place_is_not_lost_in_the_course_of_time(self, tube: Tube, clock: FakeClock) -> None:
        """It does not depend on when a task was buried, or when it came back."""
        tasks = []
        for n in range(6):
            tasks.append(tube.put(n, **self.apart(n)))
            clock.advance(1)
        expected = ids(self.in_order(tasks))
        buried = [tasks[n] for n in (4, 0, 2)]
        for task in buried:
            tube.bury(task)
            clock.advance(1)
        kicked: list[Task] = []
        tube.on_task_change(lambda task, event: kicked.append(task))
        assert tube.kick(2) == 2
        assert ids(kicked) == ids(self.in_order(buried))[:2]
        clock.advance(1)
        tube.kick(1)
        for _ in range(2):
            first, second = tube.take_many(2, 0)
            for task in (second, first):
                clock.advance(1)
                tube.release(task)
        assert ids(take_all(tube)) == expected

    def test_ids_are_numbers_also_where_they_grow_by_a_digit(self, tube: Tube) -> None:
        """As text, 10 comes before 9. In a store that has given out a great many ids, this shows nothing."""
        last = tube.put("x").id
        missing = 10 ** len(str(last)) - 3 - last
        if 0 < missing < 10_000:
            tube.put_many([None] * missing)
        tube.truncate()
        tasks = self.put_some(tube, 6)
        expected = ids(self.in_order(tasks))
        assert ids(tube.tasks(State.READY)) == ids(tasks)
        assert [task.id for _ in range(2) for task in tube.take_many(3, 0)] == expected
        for task in tasks:
            tube.bury(task.id)
        kicked: list[int] = []
        tube.on_task_change(lambda task, event: kicked.append(task.id))
        tube.kick(6)
        assert kicked == expected
        assert ids(take_all(tube)) == expected

    def test_a_clock_that_steps_back_changes_no_place(self, tube: Tube, clock: FakeClock) -> None:
        tasks = []
        for n in range(4):
            tasks.append(tube.put(n, **self.apart(n)))
            clock.step(-60)
        tube.release(take(tube))
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    def test_order_holds_after_many_comings_and_goings(self, tube: Tube) -> None:
        expected = self.put_some(tube, 12)
        for n, task in enumerate(tube.take_many(6, 0)):
            if n % 3 == 0:
                tube.release(task)
            elif n % 3 == 1:
                tube.bury(task)
            else:
                tube.ack(task)
                expected = [other for other in expected if other.id != task.id]
        tube.delete(expected.pop(5))
        tube.kick(10)
        assert ids(take_all(tube)) == ids(self.in_order(expected))

    # Priority

    @needs("priority")
    def test_the_smaller_priority_comes_first_and_equals_come_in_order(self, tube: Tube) -> None:
        tasks = [tube.put(n, pri=pri, **self.apart(n)) for n, pri in enumerate([100, 9, 10, 9, 100, 10, 0])]
        assert [task.pri for task in tasks] == [100, 9, 10, 9, 100, 10, 0]
        assert ids(take_all(tube)) == ids(self.in_order(tasks))

    @needs("priority")
    def test_a_large_priority_is_kept_and_heeded(self, tube: Tube) -> None:
        pris = [2**53, 2**53 - 1, 2**32, 2**31]
        for n, pri in enumerate(pris):
            tube.put(n, pri=pri, **self.apart(n))
        assert [task.pri for task in take_all(tube)] == sorted(pris)

    @needs("priority")
    def test_taking_many_heeds_priority(self, tube: Tube) -> None:
        tasks = [tube.put(n, pri=pri, **self.apart(n)) for n, pri in enumerate([2, 0, 1])]
        assert ids(tube.take_many(2, 0)) == [tasks[1].id, tasks[2].id]

    @needs("priority")
    def test_a_task_that_comes_back_heeds_better_ones_that_came_meanwhile(self, tube: Tube) -> None:
        worse = tube.put("worse", pri=5, **self.apart(0))
        task = take(tube)
        better = tube.put("better", pri=1, **self.apart(1))
        tube.release(task)
        assert ids(take_all(tube)) == [better.id, worse.id]

    @needs("priority")
    def test_a_kick_heeds_priority(self, tube: Tube) -> None:
        tasks = [tube.put(n, pri=pri, **self.apart(n)) for n, pri in enumerate([2, 0, 1])]
        for task in tasks:
            tube.bury(task)
        tube.kick(1)
        assert take(tube).id == tasks[1].id

    @needs("priority")
    def test_a_kick_tells_of_its_tasks_in_the_order_of_a_take(self, tube: Tube) -> None:
        tasks = [tube.put(n, pri=pri, **self.apart(n)) for n, pri in enumerate([2, 0, 1])]
        for task in tasks:
            tube.bury(task)
        told: list[int] = []
        tube.on_task_change(lambda task, event: told.append(task.id))
        tube.kick(3)
        assert told == ids(self.in_order(tasks))

    @needs("priority")
    def test_a_tube_has_a_default_priority(self, make_tube: MakeTube) -> None:
        tube = make_tube(pri=3)
        assert [tube.put("x").pri, tube.put("x", pri=0).pri] == [3, 0]

    @needs("priority")
    def test_a_priority_that_cannot_be_is_refused(self, queue: Queue, tube: Tube) -> None:
        for pri in (-1, 1.5, "1", None, True, 2**63):
            assert "pri" in refused(tube.put, "x", pri=pri)
            assert "pri" in refused(queue.create_tube, "other", self.type, pri=pri, **self.options)
        assert tube.statistics()["tasks"]["total"] == 0

    @without("priority")
    def test_a_priority_is_refused_by_a_type_without(self, queue: Queue, tube: Tube) -> None:
        with pytest.raises(NotSupported, match="'pri'"):
            tube.put("x", pri=1)
        with pytest.raises(NotSupported, match="'pri'"):
            queue.create_tube("other", self.type, pri=1, **self.options)
        assert tube.statistics()["tasks"]["total"] == 0
