"""The suite of changes: one change is one event and one callback, in the order of the commits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tubes.errors import BadOption, NotTaken, TaskNotFound
from tubes.queue import Queue
from tubes.task import Event, State, Task
from tubes.testing.clock import FakeClock
from tubes.testing.suite import UNKNOWN_ID, Log, MakeTube, Suite, ids, needs, take
from tubes.tube import Tube


class Changes(Suite):
    """Callbacks are told of every change, once, and can do no harm."""

    def test_every_verb_makes_one_event(self, tube: Tube, log: Log) -> None:
        put = tube.put("x")
        taken = take(tube)
        released = tube.release(taken)
        buried = tube.bury(put.id)
        tube.kick()
        again = take(tube)
        acked = tube.ack(again)
        options: dict[str, Any] = {"ttl": 50} if self.features.timed else {}
        other = tube.put("y", **options)
        deleted = tube.delete(other)
        assert log.names() == ["put", "take", "release", "bury", "kick", "take", "ack", "put", "delete"]
        tasks = [task for _, task in log.seen]
        assert [tasks[n] for n in (0, 1, 2, 3, 5, 6, 7, 8)] == [
            put, taken, released, buried, again, acked, other, deleted,
        ]  # fmt: skip
        assert [task.state.value for task in tasks] == list("rtr!rt-r-")
        log.check()

    def test_every_change_says_when_it_was_made_and_is_stored_as_it_is_told(
        self, queue: Queue, tube: Tube, log: Log, clock: FakeClock
    ) -> None:
        put = tube.put("x", **self.apart(1))
        steps: list[Callable[[], object]] = [
            lambda: tube.take(0),
            lambda: tube.release(put.id),
            lambda: tube.bury(put.id),
            tube.kick,
            lambda: tube.take(0),
            tube.release_all,
            lambda: tube.take(0),
            lambda: tube.ack(put.id),
        ]
        if self.features.timed:
            steps[1:1] = [
                lambda: tube.touch(put.id, 1),
                lambda: tube.release(put.id, delay=1),
                queue.sweep,
                lambda: tube.take(0),
            ]
        for step in steps:
            clock.advance(1)
            step()
            told = log.seen[-1][1]
            assert told.state is State.DONE or tube.peek(put.id) == told
        passed = [(task.updated_at - put.created_at).seconds for _, task in log.seen]
        assert passed == [*range(len(steps) + 1)]
        assert {task.created_at for _, task in log.seen} == {put.created_at}

    def test_what_changes_nothing_makes_no_event(self, tube: Tube, log: Log) -> None:
        task = tube.bury(tube.put("x"))
        log.seen.clear()
        tube.bury(task.id)
        tube.kick(0)
        tube.take(0)
        tube.take_many(5, 0)
        tube.peek(task.id)
        tube.ack_many([task.id])
        tube.release_all()
        tube.put_many([])
        with pytest.raises(NotTaken):
            tube.ack(task.id)
        with pytest.raises(NotTaken):
            tube.take(0, ack=UNKNOWN_ID)
        with pytest.raises(TaskNotFound):
            tube.delete(UNKNOWN_ID)
        tube.statistics()
        assert log.seen == []

    def test_a_truncate_is_silent(self, tube: Tube, log: Log) -> None:
        tube.put_many("ab")
        log.seen.clear()
        tube.truncate()
        assert log.seen == []

    def test_a_batch_makes_one_event_for_each_task_in_order(self, tube: Tube, log: Log) -> None:
        tasks = [tube.put(n, **self.apart(n)) for n in range(4)]
        taken = tube.take_many(9, 0)
        tube.ack_many(taken[:2])
        tube.release_all()
        expected = ids(self.in_order(tasks))
        assert log.names() == ["put"] * 4 + ["take"] * 4 + ["ack"] * 2 + ["release"] * 2
        assert ids([task for _, task in log.seen[4:10]]) == expected + expected[:2]
        log.check()

    def test_an_ack_and_a_take_in_one_are_two_events_in_order(self, tube: Tube, log: Log) -> None:
        tube.put("x", **self.apart(1))
        tube.put("y", **self.apart(2))
        tube.take(0, ack=take(tube))
        assert log.names() == ["put", "put", "take", "ack", "take"]
        log.check()

    def test_events_and_counts_are_the_same(
        self, tube: Tube, log: Log, clock: FakeClock, queue: Queue
    ) -> None:
        timed: dict[str, Any] = {"ttl": 50, "ttr": 3, "delay": 1} if self.features.timed else {}
        for n in range(6):
            tube.put(n, **self.apart(n), **(timed if n % 2 else {}))
        for _ in range(3):
            clock.advance(2)
            for task in tube.take_many(4, 0):
                tube.release(task) if task.id % 3 else tube.bury(task)
            tube.kick(1)
            tube.take(0)
        clock.advance(100)
        queue.sweep()
        calls = {name: count for name, count in tube.statistics()["calls"].items() if count}
        assert calls == {name: log.names().count(name) for name in set(log.names())}
        log.check()

    def test_setting_a_callback_returns_the_one_before(self, tube: Tube) -> None:
        first, second = Log(), Log()
        assert tube.on_task_change(first) is None
        assert tube.on_task_change(second) is first
        tube.put("x")
        assert (len(first.seen), len(second.seen)) == (0, 1)
        assert tube.on_task_change(None) is second
        tube.put("y")
        assert len(second.seen) == 1
        assert tube.on_task_change(None) is None

    def test_a_callback_can_be_given_at_the_creation(self, make_tube: MakeTube) -> None:
        log = Log()
        tube = make_tube(on_task_change=log)
        tube.put("x")
        assert log.names() == ["put"]
        assert tube.on_task_change(None) is log

    def test_who_opens_a_tube_leaves_its_callback(self, queue: Queue, tube: Tube) -> None:
        first, second = (lambda task, event: None for _ in range(2))
        tube.on_task_change(first)
        again = queue.create_tube(tube.name, tube.type, if_not_exists=True, **self.options)
        assert again.on_task_change(first) is first
        queue.create_tube(tube.name, tube.type, if_not_exists=True, on_task_change=second, **self.options)
        assert tube.on_task_change(None) is second

    def test_listeners_stand_beside_the_callback_until_they_are_removed(self, tube: Tube, log: Log) -> None:
        listener = Log()
        remove = tube.add_listener(listener)
        tube.put("x")
        remove()
        remove()
        tube.put("y")
        assert (log.names(), listener.names()) == (["put", "put"], ["put"])

    def test_what_cannot_be_called_is_refused(self, tube: Tube, queue: Queue) -> None:
        wrong: Any = 5
        for setting in (tube.on_task_change, tube.add_listener):
            with pytest.raises(BadOption, match="5"):
                setting(wrong)
        with pytest.raises(BadOption, match="5"):
            queue.create_tube("other", self.type, on_task_change=wrong, **self.options)
        assert "other" not in queue.tubes()
        tube.put("x")

    def test_a_callback_that_raises_is_logged_and_changes_nothing(
        self, tube: Tube, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(task: Task, event: Event) -> None:
            raise RuntimeError("no")

        after = Log()
        tube.on_task_change(broken)
        tube.add_listener(after)
        with caplog.at_level(logging.ERROR, logger="tubes"):
            tube.put("x")
            task = take(tube)
            assert task.owner is not None
            tube.ack(task)
        assert after.names() == ["put", "take", "ack"]
        assert len([record for record in caplog.records if record.exc_info]) == 3
        statistics = tube.statistics()
        assert (statistics["tasks"]["total"], statistics["calls"]["ack"]) == (0, 1)

    @pytest.mark.parametrize("verb", ["ack", "release", "bury", "delete"])
    def test_a_callback_can_change_the_task_that_it_is_told_of(self, tube: Tube, verb: str) -> None:
        """Upstream left such a task taken for ever."""
        log = Log()

        def act(task: Task, event: Event) -> None:
            if event is Event.TAKE:
                getattr(tube, verb)(task)

        tube.on_task_change(act)
        tube.add_listener(log)
        tube.put("x")
        task = take(tube)
        assert log.names() == ["put", "take", verb]
        assert tube.statistics()["tasks"]["taken"] == 0
        with pytest.raises(NotTaken):
            tube.ack(task)
        log.check()

    def test_a_callback_can_put_and_what_it_puts_comes_after(self, tube: Tube) -> None:
        log = Log()

        def follow(task: Task, event: Event) -> None:
            if event is Event.PUT and task.data < 3:
                tube.put(task.data + 1)

        tube.on_task_change(follow)
        tube.add_listener(log)
        tube.put(0)
        assert [task.data for _, task in log.seen] == [0, 1, 2, 3]
        assert tube.statistics()["tasks"]["ready"] == 4

    def test_a_callback_sees_the_change_committed(self, tube: Tube) -> None:
        seen: list[bool] = []

        def look(task: Task, event: Event) -> None:
            try:
                seen.append(tube.peek(task.id).state is task.state)
            except TaskNotFound:
                seen.append(task.state is State.DONE)

        tube.on_task_change(look)
        tube.put("x")
        tube.ack(tube.release(take(tube)) and take(tube))
        assert seen == [True] * 5

    def test_callbacks_of_many_threads_come_one_at_a_time_in_the_order_of_the_commits(
        self, tube: Tube
    ) -> None:
        log = Log()
        busy = threading.Lock()

        def one_at_a_time(task: Task, event: Event) -> None:
            assert busy.acquire(blocking=False), "two callbacks at once"
            log(task, event)
            busy.release()

        tube.on_task_change(one_at_a_time)
        start = threading.Barrier(4)

        def work() -> None:
            start.wait()
            for n in range(25):
                tube.put(n)
                if (task := tube.take(0)) is not None:
                    tube.ack(task)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        calls = tube.statistics()["calls"]
        assert len(log.seen) == calls["put"] + calls["take"] + calls["ack"]
        log.check()  # a task's put before its take before its ack
        puts = [task.id for event, task in log.seen if event is Event.PUT]
        assert puts == sorted(puts) or not self.ids_follow_commits

    # Time

    @needs("timed")
    def test_time_makes_one_event_of_its_own_name(
        self, tube: Tube, log: Log, queue: Queue, clock: FakeClock
    ) -> None:
        tube.put("x", delay=1, ttr=2, ttl=10)
        clock.advance(1)
        queue.sweep()
        take(tube)
        clock.advance(2)
        queue.sweep()
        clock.advance(20)
        queue.sweep()
        assert log.names() == ["put", "delay", "take", "ttr", "ttl"]
        last = log.seen[-1][1]
        assert (last.state, last.data, last.owner) == (State.DONE, "x", None)
        log.check()

    @needs("timed")
    @pytest.mark.parametrize("how", ["ready", "taken", "delayed", "buried"])
    def test_the_end_of_a_life_is_one_event_from_any_state(
        self, tube: Tube, log: Log, queue: Queue, clock: FakeClock, how: str
    ) -> None:
        """Even if a delay or a ttr ends at the same instant."""
        task = tube.put("x", ttl=0, delay=5) if how == "delayed" else tube.put("x", ttl=5, ttr=5)
        if how == "taken":
            take(tube)
        if how == "buried":
            tube.bury(task)
        log.seen.clear()
        clock.advance(6)
        queue.sweep()
        assert [(event.value, gone.id, gone.state) for event, gone in log.seen] == [
            ("ttl", task.id, State.DONE)
        ]

    @needs("timed")
    def test_what_a_take_settles_comes_before_what_it_takes(
        self, tube: Tube, log: Log, clock: FakeClock
    ) -> None:
        tube.put("over", ttl=1, **self.apart(1))
        tube.put("delayed", delay=1, **self.apart(2))
        log.seen.clear()
        clock.advance(1)
        take(tube)
        assert sorted(log.names()[:2]) == ["delay", "ttl"]
        assert log.names()[2:] == ["take"]

    @needs("timed")
    def test_an_ack_comes_before_what_its_take_settles(self, tube: Tube, log: Log, clock: FakeClock) -> None:
        """Even the ack of a task whose ttr is over, since nobody has looked before."""
        for n in range(2):
            tube.put(n, ttr=3, **self.apart(n))
        held, late = tube.take_many(2, 0)
        log.seen.clear()
        clock.advance(3)
        task = tube.take(0, ack=held)
        assert task is not None and task.id == late.id
        assert [(event.value, told.id) for event, told in log.seen] == [
            ("ack", held.id), ("ttr", late.id), ("take", late.id),
        ]  # fmt: skip

    @needs("timed")
    def test_no_other_verb_settles_anything(self, tube: Tube, log: Log, clock: FakeClock) -> None:
        tube.put("held", **self.apart(0))
        held = take(tube)
        due = tube.put("due", delay=1, **self.apart(1))
        clock.advance(1)
        log.seen.clear()
        assert tube.put("new", **self.apart(2)).data == "new"
        assert [task.data for task in tube.put_many("ab", **self.apart(3))] == ["a", "b"]
        tube.touch(held, 1)
        tube.release(held)
        tube.bury(held.id)
        assert tube.kick(9) == 1
        tube.delete(held.id)
        assert tube.release_all() == 0
        assert tube.peek(due.id) == due
        assert log.names() == ["put", "put", "put", "touch", "release", "bury", "kick", "delete"]

    @needs("timed")
    def test_a_take_that_finds_nothing_has_settled_and_told_what_is_due(
        self, tube: Tube, log: Log, clock: FakeClock
    ) -> None:
        tube.put("over", ttl=1)
        clock.advance(1)
        assert tube.take(0) is None
        assert log.names() == ["put", "ttl"]
        assert tube.statistics()["tasks"]["total"] == 0

    @needs("timed")
    def test_a_touch_is_one_event(self, tube: Tube, log: Log) -> None:
        tube.put("x", ttr=5)
        task = take(tube)
        tube.touch(task, 1)
        tube.touch(task, 0)
        assert log.names() == ["put", "take", "touch"]
        assert tube.statistics()["calls"]["touch"] == 1
        log.check()

    @needs("timed")
    def test_a_callback_that_raises_does_not_stop_time(
        self, tube: Tube, queue: Queue, clock: FakeClock
    ) -> None:
        calls: list[Callable[[], None]] = []

        def broken(task: Task, event: Event) -> None:
            raise RuntimeError(f"no {len(calls)}")

        tube.on_task_change(broken)
        tube.put_many("abc", ttl=1)
        clock.advance(1)
        assert queue.sweep() == 3
        tube.put("d", ttl=1)
        clock.advance(1)
        assert queue.sweep() == 1
