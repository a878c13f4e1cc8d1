"""Deliveries: callbacks get changes in order, one at a time, and none can disturb another."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faults.harness import ended, handler_that_raises

import tubes
from tubes.events import Deliveries
from tubes.task import Event, State, Task, make_task


def task(id: int) -> Task:
    return make_task(id, "jobs", State.READY, None, pri=0, utube=None, created_ms=0, updated_ms=0)


def test_changes_arrive_in_the_order_in_which_they_were_added() -> None:
    deliveries, seen = Deliveries(), []
    for id in range(3):
        deliveries.add((lambda task, event: seen.append((task.id, event)),), task(id), Event.PUT)
    assert seen == []
    deliveries.deliver()
    assert seen == [(0, Event.PUT), (1, Event.PUT), (2, Event.PUT)]
    deliveries.deliver()
    assert len(seen) == 3


def test_every_listener_sees_a_change_before_any_sees_the_next() -> None:
    deliveries, seen = Deliveries(), []
    first = lambda task, event: seen.append(("first", task.id))  # noqa: E731
    second = lambda task, event: seen.append(("second", task.id))  # noqa: E731
    deliveries.add((first, second), task(1), Event.PUT)
    deliveries.add((first, second), task(2), Event.PUT)
    deliveries.deliver()
    assert seen == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_a_callback_that_raises_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    deliveries, seen = Deliveries(), []

    def broken(task: Task, event: Event) -> None:
        raise ValueError("no luck")

    deliveries.add((broken, lambda task, event: seen.append(task.id)), task(7), Event.ACK)
    deliveries.add((lambda task, event: seen.append(task.id),), task(8), Event.ACK)
    with caplog.at_level(logging.ERROR, "tubes.events"):
        deliveries.deliver()
    assert seen == [7, 8]
    (record,) = caplog.records
    assert "broken" in record.getMessage() and "jobs:7" in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_what_is_logged_says_where_and_a_log_handler_that_raises_changes_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The put is committed: if it raised the handler's error, the user would put the task again."""

    def fails(task: Task, event: Event) -> None:
        raise ValueError

    with handler_that_raises(), tubes.connect("sqlite://", sweep=False) as queue:  # after caplog's
        queue.create_tube("jobs", "fifo", on_task_change=fails).put("x")
    assert "no route to host" in capsys.readouterr().err
    assert [(record.filename, record.funcName) for record in caplog.records] == [("events.py", "_call_first")]


def test_what_a_callback_causes_is_delivered_after_it_and_not_within_it() -> None:
    deliveries, seen = Deliveries(), []

    def follow_up(change: Task, event: Event) -> None:
        seen.append(f"begin {change.id}")
        if change.id < 3:
            deliveries.add((follow_up,), task(change.id + 1), Event.PUT)
            deliveries.deliver()
        seen.append(f"end {change.id}")

    deliveries.add((follow_up,), task(1), Event.PUT)
    deliveries.deliver()
    assert seen == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]


def test_one_thread_delivers_while_others_only_append() -> None:
    """A callback that blocks holds up later callbacks, and no thread that makes changes."""
    deliveries, seen = Deliveries(), []
    entered, go_on = threading.Event(), threading.Event()

    def slow(task: Task, event: Event) -> None:
        entered.set()
        assert go_on.wait(10)
        seen.append((task.id, threading.get_ident()))

    deliveries.add((slow,), task(1), Event.PUT)
    thread = threading.Thread(target=deliveries.deliver)
    thread.start()
    assert entered.wait(10)
    deliveries.add((lambda task, event: seen.append((task.id, threading.get_ident())),), task(2), Event.PUT)
    deliveries.deliver()
    assert seen == []
    go_on.set()
    ended(thread)
    assert seen == [(1, thread.ident), (2, thread.ident)]


def test_what_is_added_while_a_delivery_comes_to_its_end_is_delivered() -> None:
    """Whoever adds it finds a delivery still under way, and leaves it to that."""
    deliveries: Any = Deliveries()
    seen: list[int] = []

    class Ending:
        """The lock of a delivery: another change comes just before its release."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def acquire(self, blocking: bool) -> bool:
            return self._lock.acquire(blocking)

        def release(self) -> None:
            if seen == [1]:
                deliveries.add((lambda task, event: seen.append(task.id),), task(2), Event.PUT)
                deliveries.deliver()
            self._lock.release()

    deliveries._delivering = Ending()
    deliveries.add((lambda task, event: seen.append(task.id),), task(1), Event.PUT)
    deliveries.deliver()
    assert seen == [1, 2]


def test_an_interrupt_in_a_callback_reaches_the_caller_and_the_line_goes_on_later() -> None:
    deliveries, seen = Deliveries(), []

    def interrupted(task: Task, event: Event) -> None:
        raise KeyboardInterrupt

    def listener(task: Task, event: Event) -> None:
        seen.append(task.id)

    deliveries.add((interrupted, listener), task(1), Event.PUT)
    deliveries.add((listener,), task(2), Event.PUT)
    with pytest.raises(KeyboardInterrupt):
        deliveries.deliver()
    deliveries.deliver()
    assert seen == [1, 2]


def test_what_an_interrupt_has_left_in_the_line_is_told_at_the_close() -> None:
    heard: list[object] = []

    def interrupted(task: Task, event: Event) -> None:
        raise KeyboardInterrupt

    with tubes.connect("sqlite://", sweep=False, session_ttr=60) as queue:
        tube = queue.create_tube("jobs", "fifo", on_task_change=interrupted)
        tube.add_listener(lambda task, event: heard.append(task.data))
        with pytest.raises(KeyboardInterrupt):
            tube.put("x")
        assert heard == []
    assert heard == ["x"]


def test_a_coroutine_function_is_refused_where_nobody_would_await_it() -> None:
    async def callback(task: tubes.Task, event: tubes.Event) -> None: ...

    class Callback:
        async def __call__(self, task: tubes.Task, event: tubes.Event) -> None: ...

    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifo")
        for listener in (callback, Callback(), Callback().__call__):
            for verb in (tube.on_task_change, tube.add_listener):
                with pytest.raises(tubes.BadOption, match=r"tubes\.aio"):
                    verb(listener)


def test_who_removes_a_listener_twice_leaves_what_others_have_added() -> None:
    heard: list[object] = []

    def listener(task: Task, event: Event) -> None:
        heard.append(task.data)

    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        remove, _ = tube.add_listener(listener), tube.add_listener(listener)
        remove()
        remove()
        tube.put("x")
    assert heard == ["x"]


def test_listeners_that_several_threads_add_at_once_are_all_heard() -> None:
    heard: list[int] = []
    at_once = threading.Barrier(4)
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")

        def add(number: int) -> None:
            at_once.wait(10)
            for _ in range(50):
                tube.add_listener(lambda task, event: heard.append(number))

        with ThreadPoolExecutor(4) as others:
            [*others.map(add, range(4))]
        tube.put("x")
    assert sorted(heard) == sorted([*range(4)] * 50)
