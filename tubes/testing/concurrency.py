"""The suite of concurrency: threads, connections and processes take no task twice, and wait in line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tubes.clock import pause
from tubes.errors import StoreUnavailable, TubeBusy
from tubes.queue import Queue
from tubes.task import STORED, State, Task
from tubes.testing.children import Child, take_and_ack_all
from tubes.testing.clock import FakeClock
from tubes.testing.suite import Connect, Suite, Waiting, ids, needs, take, transactional, until
from tubes.tube import Tube

JOIN = 60.0


def together(*works: Callable[[], Any]) -> None:
    """Run works in threads that start at the same moment; raise what any of them raised."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            start.wait(JOIN)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


class InHand:
    """Consumers at work: no two may have tasks of one sub-queue in hand. Keeps the ids of what is done."""

    def __init__(self, grouped: bool) -> None:
        self._grouped = grouped
        self._lock = threading.Lock()
        self._groups: set[str | None] = set()
        self.done: list[int] = []

    def take_and_ack_all(self, tube: Tube, *, at_once: bool = False) -> None:
        """Take and ack until nothing is ready."""
        task = tube.take(0)
        while task is not None:
            with self._lock:
                assert not self._grouped or task.utube not in self._groups, (
                    f"sub-queue {task.utube!r} has two taken tasks"
                )
                self._groups.add(task.utube)
            pause(0)  # the other threads take meanwhile
            with self._lock:
                self._groups.discard(task.utube)
                self.done.append(task.id)
            if at_once:
                task = tube.take(0, ack=task)
            else:
                tube.ack(task)
                task = tube.take(0)


class Concurrency(Suite):
    """Threads of one connection."""

    @pytest.mark.parametrize("at_once", [False, True], ids=["ack", "ack-and-take"])
    def test_threads_take_every_task_once(self, tube: Tube, at_once: bool) -> None:
        tasks = [tube.put(n, **self.apart(n % 6)) for n in range(120)]
        hands = InHand(self.features.grouped)
        together(*[lambda: hands.take_and_ack_all(tube, at_once=at_once)] * 4)
        hands.take_and_ack_all(
            tube
        )  # what still stood behind another of its sub-queue when the threads ended
        assert sorted(hands.done) == ids(tasks)
        assert tube.statistics()["calls"]["take"] == 120

    def test_threads_put_and_take_at_once_and_nothing_is_lost(self, tube: Tube) -> None:
        put: list[int] = []
        hands = InHand(self.features.grouped)

        def produce() -> None:
            for n in range(30):
                put.append(tube.put(n, **self.apart(n % 4)).id)

        together(produce, produce, *[lambda: hands.take_and_ack_all(tube)] * 2)
        hands.take_and_ack_all(tube)
        assert sorted(hands.done) == sorted(put) and len(set(put)) == 60

    def test_threads_take_batches_without_a_double(self, tube: Tube) -> None:
        for n in range(100):
            tube.put(n, **self.apart(n))
        batches: list[list[Task]] = []

        def work() -> None:
            while batch := tube.take_many(7, 0):
                batches.append(batch)

        together(work, work, work)
        taken = [task.id for batch in batches for task in batch]
        assert len(taken) == len(set(taken)) == 100

    def test_of_many_acks_of_a_task_one_counts(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        acked: list[Task] = []
        together(*[lambda: acked.extend(tube.ack_many([task]))] * 4)
        assert len(acked) == tube.statistics()["calls"]["ack"] == 1

    # Waiting

    def test_a_waiting_take_gets_what_is_put(self, tube: Tube, clock: FakeClock) -> None:
        consumer = Waiting(clock, tube.take)
        put = tube.put("x")
        task = consumer.end()
        assert task is not None and (task.id, task.state) == (put.id, State.TAKEN)

    @pytest.mark.parametrize("how", ["release", "kick", "release_all", "transaction"])
    def test_a_waiting_take_is_woken_by_whatever_makes_a_task_ready(
        self, queue: Queue, tube: Tube, clock: FakeClock, how: str
    ) -> None:
        if how != "transaction":
            id = tube.put("x").id
            take(tube)
        if how == "kick":
            tube.bury(id)
        consumer = Waiting(clock, tube.take)
        if how == "release":
            tube.release(id)
        elif how == "kick":
            tube.kick()
        elif how == "release_all":
            tube.release_all()
        elif self.transactions:
            with queue.transaction() as unit:
                tube.put("x", unit=unit)
        else:
            tube.put("x")
        task = consumer.end()
        assert task is not None and task.data == "x"

    def test_consumers_are_served_in_the_order_in_which_they_came(self, tube: Tube, clock: FakeClock) -> None:
        timeouts = (None, 50, 10)  # not in their order of arrival
        consumers = [Waiting(clock, tube.take, timeout) for timeout in timeouts]
        for n, consumer in enumerate(consumers):
            tube.put(n, **self.apart(n))
            task = consumer.end()
            assert task is not None and task.data == n
        assert clock.waiting == 0

    def test_one_put_serves_one_consumer(self, tube: Tube, clock: FakeClock) -> None:
        first, second = Waiting(clock, tube.take), Waiting(clock, tube.take)
        tube.put("x", **self.apart(1))
        assert first.end() is not None
        until(lambda: clock.waiting == 1)
        assert not second.got
        tube.put("y", **self.apart(2))
        assert second.end() is not None

    @transactional
    def test_a_batch_serves_as_many_consumers_as_it_has_tasks_for(self, tube: Tube, clock: FakeClock) -> None:
        consumers = [Waiting(clock, tube.take) for _ in range(3)]
        with tube._queue.transaction() as unit:
            for n in range(3):
                tube.put(n, unit=unit, **self.apart(n))
        tasks = [consumer.end() for consumer in consumers]
        assert sorted(task.data for task in tasks if task is not None) == [0, 1, 2]

    def test_a_take_returns_none_when_its_timeout_is_over(self, tube: Tube, clock: FakeClock) -> None:
        consumer = Waiting(clock, tube.take, 5)
        clock.advance(4.999)
        assert clock.waiting == 1
        clock.advance(0.001)
        assert consumer.end() is None

    def test_a_consumer_whose_time_is_over_does_not_swallow_a_task(
        self, tube: Tube, clock: FakeClock
    ) -> None:
        early, late = Waiting(clock, tube.take, 1), Waiting(clock, tube.take)
        clock.advance(1)
        assert early.end() is None
        tube.put("x")
        task = late.end()
        assert task is not None and task.data == "x"

    def test_a_take_with_an_ack_has_acked_before_it_waits(self, tube: Tube, clock: FakeClock) -> None:
        tube.put("x")
        task = take(tube)
        consumer = Waiting(clock, tube.take, 5, ack=task)
        assert tube.statistics()["calls"]["ack"] == 1
        clock.advance(5)
        assert consumer.end() is None

    def test_a_tube_is_not_dropped_while_consumers_wait(self, tube: Tube, clock: FakeClock) -> None:
        consumer = Waiting(clock, tube.take, 5)
        with pytest.raises(TubeBusy, match="wait"):
            tube.drop()
        clock.advance(5)
        assert consumer.end() is None
        tube.drop()

    def test_a_close_ends_waiting_takes_at_once(self, queue: Queue, tube: Tube, clock: FakeClock) -> None:
        consumers = [Waiting(clock, tube.take) for _ in range(2)]
        queue.close()
        for consumer in consumers:
            try:
                assert consumer.end() is None
            except StoreUnavailable:
                pass  # just as good: the queue is closed


class SharedConcurrency(Suite):
    """Several connections and processes."""

    def test_connections_take_every_task_once(self, tube: Tube, make_queue: Connect) -> None:
        tasks = [tube.put(n, **self.apart(n % 5)) for n in range(90)]
        others = [make_queue().tube[tube.name] for _ in range(2)]
        hands = InHand(self.features.grouped)
        together(*[lambda tube=each: hands.take_and_ack_all(tube) for each in (tube, tube, *others)])
        hands.take_and_ack_all(tube)
        assert sorted(hands.done) == ids(tasks)

    def test_a_put_of_one_connection_wakes_a_consumer_of_another(
        self, tube: Tube, make_queue: Connect, clock: FakeClock
    ) -> None:
        consumer = Waiting(clock, make_queue().tube[tube.name].take)
        tube.put("x")
        task = consumer.end()
        assert task is not None and task.data == "x"

    def test_who_waits_can_tell_of_what_another_connection_has_done(
        self, tube: Tube, make_queue: Connect
    ) -> None:
        other = make_queue()
        driver = other.tube[tube.name].driver

        def can_take() -> bool:
            return bool(other.store.read(driver.can_take))

        task = tube.put("x")
        assert can_take()
        tube.release(take(tube))
        assert can_take()
        tube.bury(task)
        tube.kick()
        assert can_take()

    def test_each_connection_sees_what_the_others_have_done(self, tube: Tube, make_queue: Connect) -> None:
        """A driver may remember what it saw only until anybody changes it."""
        other = make_queue().tube[tube.name]
        options: dict[str, Any] = {"ttl": 90, "ttr": 9} if self.features.timed else {}
        id = tube.put("x", **options).id

        def looks(of: Tube) -> list[Any]:
            due = of._queue.store.read(of.driver.next_due)
            return [of.peek(id), [of.tasks(state) for state in STORED], of.statistics(), due]

        steps: list[Callable[[], object]] = [
            lambda: take(tube), lambda: tube.release(id), lambda: tube.bury(id), tube.kick, lambda: tube.put("y"),
        ]  # fmt: skip
        for step in steps:
            assert looks(other) == looks(tube)
            step()
        assert looks(other) == looks(tube)

    @needs("grouped")
    def test_a_sub_queue_that_another_connection_works_on_is_not_taken(
        self, tube: Tube, make_queue: Connect
    ) -> None:
        other = make_queue().tube[tube.name]
        tube.put_many("xy", utube="a")
        held = take(other)
        apart = tube.put("apart", utube="b")
        assert ids(tube.take_many(5, 0)) == [apart.id]
        other.ack(held)
        assert take(tube).utube == "a"

    def test_processes_take_every_task_once(self, tube: Tube, child: Child) -> None:
        child.start(take_and_ack_all, tube)
        assert child.hear() == "ready"
        tasks = [tube.put(n, **self.apart(n % 5)) for n in range(150)]
        theirs: list[int] = [child.hear()]  # it is at work: else our threads might be done before it begins
        hands = InHand(self.features.grouped)
        together(*[lambda: hands.take_and_ack_all(tube)] * 2)
        until(lambda: tube.statistics()["tasks"]["total"] == 0)
        tube.put("stop")
        while (told := child.hear()) != "stop":
            theirs.append(told)
        assert sorted([*hands.done, *theirs]) == ids(tasks)
