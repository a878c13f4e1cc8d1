"""The host's clock steps back an hour, or forward a day: no task is lost, none waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from faults.harness import TYPES, Connect, ended, eventually

import tubes
from tubes.clock import Signal, SystemClock
from tubes.testing import FakeClock
from tubes.testing.suite import take

HOUR, DAY = 3600.0, 86400.0


def drain(tube: tubes.Tube) -> list[object]:
    """Take and ack all that is ready."""
    taken = []
    while (task := tube.take(timeout=0)) is not None:
        taken.append(tube.ack(task).data)
    return taken


@pytest.mark.parametrize("step", [-HOUR, DAY])
@pytest.mark.parametrize("type", TYPES)
def test_a_step_loses_no_task_and_keeps_the_order(connect: Connect, type: str, step: float) -> None:
    """Tasks put before and after a step come in the order in which they were put."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", type)
    for n in range(3):
        tube.put(n)
    held = take(tube)
    clock.step(step)
    queue.sweep()
    for n in range(3, 6):
        tube.put(n)
    assert tube.ack(held).data == 0
    assert drain(tube) == [1, 2, 3, 4, 5]
    assert tube.statistics()["tasks"]["total"] == 0


@pytest.mark.parametrize("type", ["fifottl", "limfifottl", "utubettl"])
def test_a_step_back_only_puts_off_what_is_due(connect: Connect, type: str) -> None:
    """A delayed task and a lease last an hour longer, no more; a ttl that has begun ends an hour later."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", type)
    tube.put("leased", ttr=10)
    held = tube.take(timeout=0)
    tube.put("delayed", delay=5)
    tube.put("mortal", ttl=20)
    assert held is not None
    clock.step(-HOUR)
    queue.sweep()
    states = tube.statistics()["tasks"]
    assert (states["taken"], states["delayed"], states["ready"]) == (1, 1, 1)
    clock.advance(HOUR + 5)
    queue.sweep()
    assert tube.statistics()["tasks"]["delayed"] == 0
    clock.advance(5)
    queue.sweep()
    with pytest.raises(tubes.LeaseLost):
        tube.ack(held)
    clock.advance(10)
    assert drain(tube) == ["leased", "delayed"]


@pytest.mark.parametrize("type", ["fifottl", "limfifottl", "utubettl"])
def test_a_step_forward_brings_what_is_due_at_once(connect: Connect, type: str) -> None:
    """Delays and leases that the step passed are over; the late worker's ack is refused, the task is not lost."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", type)
    tube.put("leased", ttr=10)
    held = tube.take(timeout=0)
    tube.put("delayed", delay=5)
    assert held is not None
    clock.step(DAY)
    again = tube.take(timeout=0)
    assert again is not None and (again.data, again.attempts) == ("leased", 2)
    with pytest.raises(tubes.LeaseLost):
        tube.ack(held)
    tube.ack(again)
    assert drain(tube) == ["delayed"]


@pytest.mark.parametrize("step", [-HOUR, DAY])
def test_a_waiting_take_ends_in_its_time_whatever_the_clock_does(connect: Connect, step: float) -> None:
    """Its timeout runs on the monotonic clock: a step neither ends nor prolongs it."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("far away", delay=10 * DAY)
    got: list[tubes.Task | None] = []
    waiter = threading.Thread(target=lambda: got.append(tube.take(timeout=60)))
    waiter.start()
    eventually(lambda: clock.waiting == 1)
    clock.step(step)
    clock.advance(59)
    eventually(lambda: clock.waiting == 1)
    assert waiter.is_alive()
    clock.advance(1)
    ended(waiter)
    assert got == [None]


@pytest.mark.parametrize("step", [-HOUR, DAY])
def test_a_waiting_take_gets_what_is_put_after_a_step(connect: Connect, step: float) -> None:
    """A take that waits for a delayed task, still not due after the step, is woken by another."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("soon", delay=2 * DAY)
    got: list[tubes.Task | None] = []
    waiter = threading.Thread(target=lambda: got.append(tube.take(timeout=None)))
    waiter.start()
    eventually(lambda: clock.waiting == 1)
    clock.step(step)
    tube.put("now")
    ended(waiter)
    assert got[0] is not None and got[0].data == "now"


def test_a_real_clock_that_steps_back_stops_no_background_sweep(connect: Connect) -> None:
    """With the host's own clock an hour back, a short delay still ends for a take that waits."""

    class Stepping(SystemClock):
        offset_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.offset_ms

    clock = Stepping()
    queue = connect(clock=clock)
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("before", delay=3600.2)
    clock.offset_ms = -3_600_000
    tube.put("after", delay=0.2)
    task = tube.take(timeout=10)
    assert task is not None and task.data == "after"
    assert tube.take(timeout=0.2) is None
    clock.offset_ms = 3_600_000
    task = tube.take(timeout=10)
    assert task is not None and task.data == "before"


class Passing(FakeClock):
    """A clock on which waiting makes the time pass."""

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        assert timeout is not None
        self.advance(timeout)
        return False


@pytest.mark.parametrize("verb", ["take", "put"])
def test_what_becomes_due_while_one_tries_is_done_at_once(connect: Connect, verb: str) -> None:
    """A transaction takes a few milliseconds, and the next task's time may be over in any of them."""
    clock = Passing()
    tube = connect(clock=clock, sweep=False).create_tube("jobs", "limfifottl", capacity=2)
    tube.bury(tube.put("over", ttl=1 if verb == "take" else 2))
    tube.put("next", delay=2)
    began, driver, seconds = clock.now_ms(), tube.driver, iter((1, 1))
    step = getattr(driver, verb)

    def slow(*arguments: Any, **named: Any) -> Any:
        done = step(*arguments, **named)
        clock.advance(next(seconds, 0))
        return done

    setattr(driver, verb, slow)
    if verb == "take":
        task = tube.take(timeout=60)
        assert task is not None and task.data == "next"
    else:
        tube.put("more", timeout=60)
    assert clock.now_ms() - began == 2000


def test_what_becomes_due_while_one_sweeps_is_done_at_once(connect: Connect) -> None:
    """It happens with many tubes, or with slow callbacks."""
    clock = FakeClock()
    queue: Any = connect(clock=clock, sweep=False)
    first, second = (queue.create_tube(name, "fifottl") for name in ("first", "second"))
    first.put("x", ttl=2)
    second.put("y", ttl=1)
    second.on_task_change(lambda task, event: clock.advance(1))
    clock.advance(1)
    queue._sweeps = True
    assert queue._background() == 0.0
    assert [first.statistics()["calls"]["ttl"], second.statistics()["calls"]["ttl"]] == [0, 1]
