"""The suite of all or nothing: transactions, batches, and an ack with a take."""

from __future__ import annotations

from typing import Any

import pytest

from tubes.errors import BadOption, NotSupported, NotTaken, TaskNotFound
from tubes.queue import Queue
from tubes.task import Event, State, Task
from tubes.testing.suite import UNKNOWN_ID, Log, MakeTube, Suite, ids, refused, take, transactional
from tubes.tube import Tube


class Stop(Exception):
    """Raised to roll back."""


class Atomicity(Suite):
    """What fails leaves nothing: no task, no state, no event, no count."""

    def test_there_are_transactions_where_the_class_says_so_and_nowhere_else(
        self, queue: Queue, tube: Tube
    ) -> None:
        """If it says that there are none, their tests are left out, so transactions must then be refused."""
        try:
            with queue.transaction() as unit:
                tube.put("x", unit=unit)
        except NotSupported:
            are_there = False
        else:
            are_there = True
        assert are_there == self.transactions, f"this kit was told transactions = {self.transactions}"
        assert tube.statistics()["tasks"]["total"] == are_there

    @transactional
    def test_a_transaction_is_seen_as_a_whole_after_its_commit(
        self, queue: Queue, tube: Tube, log: Log
    ) -> None:
        tube.put("x")
        task = take(tube)
        with queue.transaction() as unit:
            tube.ack(task, unit=unit)
            new = tube.put("y", unit=unit)
            assert tube.peek(new.id, unit=unit) == new
            assert log.names() == ["put", "take"]
        assert log.names() == ["put", "take", "ack", "put"]
        assert tube.statistics()["tasks"]["total"] == 1
        log.check()

    @transactional
    def test_a_transaction_that_raises_leaves_nothing(self, queue: Queue, tube: Tube, log: Log) -> None:
        kept = [tube.put(n, **self.apart(n)) for n in range(4)]
        tube.bury(kept[3])
        held = take(tube)
        others = [task for task in kept if task.id != held.id]
        before, tasks = tube.statistics(), [tube.peek(task.id) for task in kept]
        log.seen.clear()
        with pytest.raises(Stop), queue.transaction() as unit:
            tube.ack(held, unit=unit)
            tube.put("new", unit=unit)
            tube.put_many("ab", unit=unit)
            tube.take(0, unit=unit)
            tube.take_many(2, 0, unit=unit)
            tube.bury(others[0].id, unit=unit)
            tube.kick(5, unit=unit)
            tube.delete(others[1].id, unit=unit)
            raise Stop
        assert [tube.peek(task.id) for task in kept] == tasks
        assert tube.statistics() == before
        assert log.seen == []
        assert tube.ack(held).state is State.DONE

    @transactional
    def test_a_take_that_was_rolled_back_counts_no_attempt(self, queue: Queue, tube: Tube) -> None:
        task = tube.put("x")
        with pytest.raises(Stop), queue.transaction() as unit:
            taken = tube.take(0, unit=unit)
            assert taken is not None and taken.attempts == 1
            raise Stop
        assert tube.peek(task.id) == task
        assert taken is not None
        with pytest.raises(NotTaken):
            tube.ack(taken)
        assert queue.store.read(tube.driver.can_take)
        assert take(tube).attempts == 1

    @transactional
    def test_a_verb_that_is_refused_inside_rolls_everything_back(
        self, queue: Queue, tube: Tube, log: Log
    ) -> None:
        with pytest.raises(NotTaken), queue.transaction() as unit:
            tube.put("x", unit=unit)
            tube.ack(UNKNOWN_ID, unit=unit)
        assert tube.statistics()["tasks"]["total"] == 0
        assert log.seen == []

    @transactional
    def test_a_refusal_that_is_caught_inside_harms_nothing(self, queue: Queue, tube: Tube) -> None:
        with queue.transaction() as unit:
            tube.put("x", unit=unit)
            with pytest.raises(NotTaken):
                tube.ack(UNKNOWN_ID, unit=unit)
            with pytest.raises(TaskNotFound):
                tube.delete(UNKNOWN_ID, unit=unit)
            with pytest.raises(TypeError):
                tube.put(object(), unit=unit)
        assert take(tube).data == "x"

    @transactional
    def test_a_task_moves_from_tube_to_tube_in_one(self, queue: Queue, make_tube: MakeTube) -> None:
        source, target = make_tube("source"), make_tube("target")
        events: list[tuple[str, Event]] = []
        for tube in (source, target):
            tube.on_task_change(lambda task, event: events.append((task.tube, event)))
        source.put("x")
        task = take(source)
        with pytest.raises(Stop), queue.transaction() as unit:
            target.put(task.data, unit=unit)
            source.ack(task, unit=unit)
            raise Stop
        assert (source.peek(task.id).state, target.take(0)) == (State.TAKEN, None)
        with queue.transaction() as unit:
            target.put(task.data, unit=unit)
            source.ack(task, unit=unit)
        assert events[-2:] == [("target", Event.PUT), ("source", Event.ACK)] and len(events) == 4
        assert take(target).data == "x"

    @transactional
    def test_a_transaction_is_used_only_while_it_lasts(self, queue: Queue, tube: Tube) -> None:
        with queue.transaction() as unit:
            pass
        with pytest.raises(BadOption, match="over"):
            tube.put("x", unit=unit)
        assert tube.statistics()["tasks"]["total"] == 0

    @transactional
    def test_a_take_inside_a_transaction_does_not_wait(self, queue: Queue, tube: Tube) -> None:
        with queue.transaction() as unit:
            with pytest.raises(BadOption, match="timeout"):
                tube.take(unit=unit)
            assert tube.take(0, unit=unit) is None

    @transactional
    def test_kicking_fewer_than_asked_leaves_nothing_open(self, queue: Queue, tube: Tube) -> None:
        """Upstream left a transaction open here, and lost the next put."""
        tube.bury(tube.put("x"))
        assert tube.kick(5) == 1
        tube.put("y")
        with queue.transaction() as unit:
            assert tube.kick(5, unit=unit) == 0
            tube.put("z", unit=unit)
        assert tube.statistics()["tasks"]["ready"] == 3

    @pytest.mark.parametrize("position", [0, 2, 4])
    def test_a_batch_with_one_bad_item_stores_nothing(self, tube: Tube, log: Log, position: int) -> None:
        datas: list[Any] = [1, 2, 3, 4]
        datas.insert(position, object())
        with pytest.raises(TypeError):
            tube.put_many(datas)
        assert tube.statistics()["tasks"]["total"] == tube.statistics()["calls"]["put"] == 0
        assert log.seen == []

    def test_a_batch_whose_source_fails_stores_nothing(self, tube: Tube) -> None:
        def source() -> Any:
            yield 1
            raise Stop

        with pytest.raises(Stop):
            tube.put_many(source())
        assert tube.statistics()["tasks"]["total"] == 0

    def test_a_take_with_a_refused_ack_takes_nothing(self, tube: Tube, log: Log) -> None:
        old = tube.put("old", **self.apart(1))
        task = tube.put("new", **self.apart(2))
        log.seen.clear()
        for ref in (old, old.id, UNKNOWN_ID):
            refused(tube.take, 0, ack=ref, error=NotTaken)
            refused(tube.take, None, ack=ref, error=NotTaken)  # does not wait either
        assert [tube.peek(old.id), tube.peek(task.id)] == [old, task]
        assert log.seen == []
        assert tube.statistics()["tasks"]["taken"] == 0

    def test_a_take_with_an_ack_does_both(self, tube: Tube) -> None:
        tasks = [tube.put(n, utube="a") if self.features.grouped else tube.put(n) for n in range(3)]
        seen: list[Task] = []
        task = tube.take(0)
        while task is not None:
            seen.append(task)
            task = tube.take(0, ack=task)
        assert ids(seen) == ids(self.in_order(tasks))
        assert tube.statistics()["tasks"]["total"] == 0

    def test_a_take_with_an_ack_takes_one(self, tube: Tube) -> None:
        tasks = self.in_order([tube.put(n, **self.apart(n)) for n in range(3)])
        task = tube.take(0, ack=take(tube))
        assert task is not None and ids(tube.tasks(State.TAKEN)) == [task.id] == [tasks[1].id]

    def test_a_take_with_an_ack_acks_also_when_nothing_is_ready(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        assert tube.take(0, ack=task) is None
        with pytest.raises(TaskNotFound):
            tube.peek(task.id)
        assert tube.statistics()["calls"]["ack"] == 1
