"""A callback that raises, blocks, or calls the tube again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest
from faults.harness import TYPES, Connect, ended, eventually

import tubes
from tubes.interrupts import guarded
from tubes.testing.suite import take
from tubes.waiting import room


def test_an_alarm_in_a_callback_is_not_the_callback_s_error(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the work, as it would have a moment earlier. What a callback itself raises is its own error."""
    tube = connect().create_tube("jobs", "fifo")
    heard: list[object] = []

    def over(number: int, frame: object) -> None:
        raise TimeoutError("the work took too long")

    def callback(task: tubes.Task, event: tubes.Event) -> None:
        if task.data == "slow":
            signal.raise_signal(signal.SIGALRM)
        raise TimeoutError("no luck")

    tube.on_task_change(callback)
    tube.add_listener(lambda task, event: heard.append(task.data))
    before = signal.signal(signal.SIGALRM, over)
    try:
        tube.put("before")
        with pytest.raises(TimeoutError, match="too long"):
            tube.put("slow")
        tube.put("after")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == ["before", "slow", "after"]
    assert ["no luck" in str(record.exc_info) for record in caplog.records] == [True, True]


def test_a_callback_that_blocks_holds_up_nobody_else(connect: Connect) -> None:
    """Other threads put, take and ack meanwhile; their changes are told in order when it goes on."""
    tube = connect().create_tube("jobs", "fifo")
    inside, go_on = threading.Event(), threading.Event()
    heard: list[tuple[str, int]] = []

    def slow(task: tubes.Task, event: tubes.Event) -> None:
        if not heard:
            inside.set()
            assert go_on.wait(30)
        heard.append((event.value, task.id))

    tube.on_task_change(slow)
    blocked = threading.Thread(target=lambda: tube.put("blocks"))
    blocked.start()
    assert inside.wait(10)
    tube.put("passes")
    for _ in range(2):
        task = take(tube)
        tube.ack(task)
    assert heard == [] and blocked.is_alive()
    go_on.set()
    ended(blocked)
    eventually(lambda: len(heard) == 6)
    assert heard == [("put", 1), ("put", 2), ("take", 1), ("ack", 1), ("take", 2), ("ack", 2)]


def test_a_callback_that_is_set_while_a_call_begins_hears_of_it_then_or_never(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sets it after the call has begun and before it commits: nothing is left in the line."""
    tube = connect().create_tube("jobs", "fifo")
    heard: list[int] = []
    is_set = threading.Event()

    def set_meanwhile(work: Callable[..., object], *args: object) -> object:
        if not is_set.is_set():
            is_set.set()
            setter = threading.Thread(
                target=tube.on_task_change, args=(lambda task, _: heard.append(task.id),)
            )
            setter.start()
            setter.join()
        return guarded(work, *args)

    monkeypatch.setattr("tubes.steps.guarded", set_meanwhile)
    tube.put("first")
    assert heard in ([], [1])
    known = len(heard)
    tube.put("second")
    assert heard[known:] == [2]


@pytest.mark.parametrize("type", TYPES)
def test_a_callback_may_call_the_tube_again(connect: Connect, type: str) -> None:
    """A put in a put's callback, an ack in a take's: each is reported after the change that caused it."""
    tube = connect().create_tube("jobs", type)
    heard: list[tuple[str, object]] = []

    def again(task: tubes.Task, event: tubes.Event) -> None:
        heard.append((event.value, task.data))
        if event is tubes.Event.PUT and task.data < 3:
            tube.put(task.data + 1)
        if event is tubes.Event.TAKE:
            tube.ack(task)

    tube.on_task_change(again)
    tube.put(1)
    assert heard == [("put", 1), ("put", 2), ("put", 3)]
    while tube.take(timeout=0):
        pass
    assert heard[3:] == [("take", 1), ("ack", 1), ("take", 2), ("ack", 2), ("take", 3), ("ack", 3)]
    assert tube.statistics()["tasks"]["total"] == 0


def test_a_callback_may_change_the_task_that_it_is_told_of(connect: Connect) -> None:
    """Burying or deleting the task in its own put's callback leaves nothing half done."""
    tube = connect().create_tube("jobs", "fifo")

    def meddle(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.PUT:
            tube.bury(task) if task.data == "bury" else tube.delete(task)

    tube.on_task_change(meddle)
    assert tube.put("bury").state is tubes.State.READY
    tube.put("delete")
    tasks = tube.statistics()["tasks"]
    assert (tasks["buried"], tasks["total"]) == (1, 1)


def test_a_callback_may_use_a_transaction_and_drop_the_tube(connect: Connect) -> None:
    """It runs outside every lock, so nothing it does waits for itself."""
    queue = connect()
    tube, log = queue.create_tube("jobs", "fifo"), queue.create_tube("log", "fifo")

    def record(task: tubes.Task, event: tubes.Event) -> None:
        with queue.transaction() as unit:
            log.put(event.value, unit=unit)
        if event is tubes.Event.ACK:
            tube.drop()

    tube.on_task_change(record)
    tube.put(1)
    task = take(tube)
    tube.ack(task)
    assert [task.data for task in log.tasks("r")] == ["put", "take", "ack"]
    assert queue.tubes() == ["log"]


def test_a_callback_that_closes_the_queue_ends_it_in_order(connect: Connect) -> None:
    """The put stands; a later one is told that the queue is closed."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    tube.on_task_change(lambda task, event: queue.close())
    task = tube.put("last")
    with pytest.raises(tubes.StoreUnavailable):
        tube.put("too late")
    assert connect().tube.jobs.peek(task.id).data == "last"


def test_a_take_with_an_ack_acks_or_says_that_the_queue_is_closed(connect: Connect) -> None:
    """A callback takes while ``close`` waits for the sweep that called it: None would mean that the ack stands."""
    other, queue = connect(sweep=False), connect()
    jobs, due = queue.create_tube("jobs", "fifo"), queue.create_tube("due", "fifottl")
    jobs.put("x")
    held = jobs.take(0)
    begun, answers = threading.Event(), list[object]()

    def callback(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.DELAY:
            begun.set()
            eventually(lambda: queue.is_closed)
            try:
                answers.append(jobs.take(0, ack=held))
            except tubes.StoreUnavailable as error:
                answers.append(str(error))

    due.on_task_change(callback)
    # Through another queue: else this thread might find the callback in line, and wait for itself
    other.tube.due.put("y", delay=0.001)
    assert begun.wait(10)
    queue.close()
    again = other.tube.jobs.take(0)
    assert again is not None and answers == ["this queue is closed"]


def test_a_callback_in_the_sweeper_may_block_and_raise(connect: Connect) -> None:
    """The background sweep goes on after a callback of its changes has raised."""
    tube = connect().create_tube("jobs", "fifottl")
    heard: list[object] = []

    def broken(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.DELAY:
            heard.append(task.data)
            raise RuntimeError("no luck")

    tube.on_task_change(broken)
    tube.put(1, delay=0.01)
    eventually(lambda: heard == [1])
    tube.put(2, delay=0.01)
    eventually(lambda: heard == [1, 2])


def test_a_slow_callback_of_one_who_waited_holds_up_nobody_else(connect: Connect) -> None:
    """The slow consumer has its task, and no longer stands in line."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    go_on, is_slow = threading.Event(), threading.Event()
    got: list[object] = []

    def slowly(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.TAKE and not is_slow.is_set():
            is_slow.set()
            go_on.wait(60)

    def work() -> None:
        task = tube.take(timeout=60)
        got.append(task and task.data)

    tube.on_task_change(slowly)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: tube._store.waiters.count(tube.record.id) == 3)
    tube.put(0)
    eventually(is_slow.is_set)
    tube.put(1)
    tube.put(2)
    eventually(lambda: len(got) == 2, within=30)
    go_on.set()
    ended(*threads)
    assert {*got} == {0, 1, 2}


def test_a_slow_callback_of_a_put_that_waited_holds_up_nobody_else(connect: Connect) -> None:
    tube = connect(sweep=False).create_tube("jobs", "limfifottl", capacity=1)
    go_on, is_slow, is_over = threading.Event(), threading.Event(), threading.Event()
    tube.put("full")

    def slowly(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.PUT and not is_slow.is_set():
            is_slow.set()
            go_on.wait(60)

    def work() -> None:
        tube.put("waited", timeout=60)
        if is_slow.is_set() and not go_on.is_set():
            is_over.set()

    tube.on_task_change(slowly)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: tube._store.waiters.count(room(tube.record.id)) == 2)
    for _ in range(2):
        task = tube.take(timeout=10)
        assert task is not None
        tube.ack(task)
        eventually(is_slow.is_set)
    eventually(is_over.is_set, within=30)
    go_on.set()
    ended(*threads)
