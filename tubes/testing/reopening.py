"""The suite of what outlives a connection: the same calls find everything as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tubes.errors import TubeExists
from tubes.queue import Queue
from tubes.task import State
from tubes.testing.clock import FakeClock
from tubes.testing.suite import Connect, MakeTube, Suite, ids, needs, take, take_all
from tubes.tube import Tube


class Reopening(Suite):
    """Everybody leaves, and somebody comes back."""

    def reopen(self, queue: Queue, make_queue: Connect, **settings: Any) -> Tube:
        """Close everything, and make the same calls again."""
        queue.close()
        return make_queue(**settings).create_tube("jobs", self.type, if_not_exists=True, **self.options)

    def test_tasks_are_as_they_were(self, queue: Queue, tube: Tube, make_queue: Connect) -> None:
        tasks = [tube.put({"n": n, "bytes": "ä"}, **self.apart(n)) for n in range(4)]
        tasks[1] = tube.bury(tasks[1])
        tasks.append(tube.put(b"\0bytes", **self.apart(4)))
        tube = self.reopen(queue, make_queue)
        assert [tube.peek(task.id) for task in tasks] == tasks
        assert ids(take_all(tube)) == ids(
            self.in_order([task for task in tasks if task.state is State.READY])
        )

    def test_what_was_taken_is_ready_and_its_attempt_counted(
        self, queue: Queue, tube: Tube, make_queue: Connect
    ) -> None:
        tube.put("x")
        task = take(tube)
        tube = self.reopen(queue, make_queue)
        again = take(tube)
        assert (again.id, again.attempts) == (task.id, 2)

    def test_ids_go_on_after_the_tube_was_emptied(
        self, queue: Queue, tube: Tube, make_queue: Connect
    ) -> None:
        last = tube.put_many("abc")[-1].id
        tube.truncate()
        tube = self.reopen(queue, make_queue)
        assert tube.put("x").id > last

    def test_statistics_go_on(self, queue: Queue, tube: Tube, make_queue: Connect) -> None:
        tube.put("x")
        tube.ack(take(tube))
        tube.put("y")
        take(tube)
        tube = self.reopen(queue, make_queue)
        statistics = tube.statistics()
        calls = {name: count for name, count in statistics["calls"].items() if count}
        assert calls == {"put": 2, "take": 2, "ack": 1, "release": 1}
        assert (statistics["tasks"]["ready"], statistics["tasks"]["done"]) == (1, 1)

    def test_a_tube_is_opened_by_its_name_alone(self, queue: Queue, tube: Tube, make_queue: Connect) -> None:
        tube.put("x")
        queue.close()
        again = make_queue()
        assert again.tube[tube.name].type == self.type
        assert take(again.tube[tube.name]).data == "x"
        with pytest.raises(TubeExists, match=tube.name):
            again.create_tube(tube.name, self.type, **self.options)

    def test_a_dropped_tube_stays_dropped(self, queue: Queue, tube: Tube, make_queue: Connect) -> None:
        tube.put("x")
        tube.drop()
        queue.close()
        assert tube.name not in make_queue().tubes()

    def test_a_temporary_tube_comes_back_empty(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        """On a server it does so only after the server restarts; its last client may leave."""
        tube = make_tube(temporary=True, **({"capacity": 4} if self.features.bounded else {}))
        is_on_server = queue.store.reconnects and not getattr(tube.driver, "is_hosted", False)
        tasks = tube.put_many("abc")
        tube.bury(tube.put("d"))
        tube = self.reopen(queue, make_queue)
        if is_on_server:
            assert tube.tasks(State.READY) == tasks
            return
        assert tube.take(0) is None
        assert tube.statistics()["tasks"]["total"] == 0
        tube.put_many("wxyz")
        assert len(tube.tasks(State.READY)) == 4

    def test_a_temporary_tube_is_emptied_by_nobody_who_comes_or_goes_while_it_is_open(
        self, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        tube = make_tube(temporary=True)
        tasks = tube.put_many("ab")
        other = make_queue()
        assert other.tube[tube.name].tasks(State.READY) == tasks
        assert tube.tasks(State.READY) == tasks
        other.close()
        assert tube.tasks(State.READY) == tasks

    def test_a_session_that_sleeps_through_it_can_be_joined(
        self, make_queue: Connect, store_url: str
    ) -> None:
        queue = make_queue(session_ttr=60)
        tube = queue.create_tube("jobs", self.type, **self.options)
        tube.put("x")
        task, session = take(tube), queue.identify()
        queue.close()
        again = make_queue()
        assert again.tube["jobs"].take(0) is None
        again.identify(session)
        assert again.tube["jobs"].ack(task).state is State.DONE

    @needs("grouped")
    def test_sub_queues_are_free_and_in_order(self, queue: Queue, tube: Tube, make_queue: Connect) -> None:
        first, second = self.in_order([tube.put(n, utube="a") for n in range(2)])
        take(tube)
        tube = self.reopen(queue, make_queue)
        assert take(tube).id == first.id
        assert tube.take(0) is None
        tube.ack(first.id)
        assert take(tube).id == second.id

    @needs("timed")
    def test_time_goes_on_while_everybody_is_away(
        self, queue: Queue, tube: Tube, make_queue: Connect, clock: FakeClock
    ) -> None:
        tube.put("over", ttl=10, **self.apart(1))
        delayed = tube.put("delayed", delay=10, ttl=60, ttr=5, **self.apart(2))
        queue.close()
        clock.advance(10)
        tube = make_queue().tube["jobs"]
        task = take(tube)
        assert (task.id, task.ttl, task.ttr) == (delayed.id, 70, 5)
        assert tube.take(0) is None

    @needs("timed")
    def test_a_tubes_options_are_kept(self, queue: Queue, make_tube: MakeTube, make_queue: Connect) -> None:
        make_tube(ttl=30, ttr=4)
        task = self.reopen(queue, make_queue).put("x")
        assert (task.ttl, task.ttr) == (30, 4)

    @needs("bounded")
    def test_a_bounded_tube_is_as_full_as_it_was(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        make_tube(capacity=2).put_many("ab")
        tube = self.reopen(queue, make_queue)
        with pytest.raises(Exception, match="full"):
            tube.put("c")
        tube.ack(take(tube))
        tube.put("c")
