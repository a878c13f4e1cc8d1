"""Signals, the host's clock, and the clock that tests move by hand."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from faults.harness import ended, eventually, run

import tubes
from tubes.clock import SLICE, ServerClock, Signal, SystemClock, uptime
from tubes.testing import FakeClock


class Waiting(threading.Thread):
    """A thread that waits for a signal, and what its wait returned."""

    def __init__(self, clock: SystemClock | FakeClock, timeout: float | None) -> None:
        super().__init__(daemon=True)
        self.signal = Signal()
        self.answer: bool | None = None
        self._clock = clock
        self._timeout = timeout
        self.start()

    def run(self) -> None:
        self.answer = self._clock.wait(self.signal, self._timeout)

    def result(self) -> bool | None:
        ended(self)
        return self.answer


def test_a_set_signal_ends_a_wait() -> None:
    waiting = Waiting(SystemClock(), None)
    waiting.signal.set()
    assert waiting.result() is True


def test_a_signal_set_before_the_wait_lets_it_return_at_once() -> None:
    signal = Signal()
    signal.set()
    assert signal.wait(None) is True


def test_setting_twice_is_setting_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    signal.clear()
    assert signal.is_set is False
    assert signal.wait(0) is False


def test_a_cleared_signal_can_be_waited_for_again() -> None:
    signal = Signal()
    for _ in range(3):
        signal.set()
        assert signal.wait(1) is True
        signal.clear()
        assert signal.wait(0) is False


def test_a_wait_ends_with_its_timeout() -> None:
    assert Waiting(SystemClock(), 0.01).result() is False


@pytest.mark.parametrize("timeout", [SLICE * 1.2, SLICE * 2.2])
def test_a_wait_in_the_main_thread_lasts_as_long_though_it_looks_for_signals(timeout: float) -> None:
    assert threading.current_thread() is threading.main_thread()
    began = time.monotonic()
    assert SystemClock().wait(Signal(), timeout) is False
    assert time.monotonic() - began >= timeout


def test_a_wait_ends_where_a_tool_for_tests_has_stopped_the_clock() -> None:
    """As freezegun does: its users want another time of day, not a take that never ends."""
    code = """
import time, tubes
jobs = tubes.connect("sqlite://").create_tube("jobs", "fifo")
time.monotonic = lambda: 0.0
print(jobs.take(timeout=0.3))
"""
    assert run(code) == "None"


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_wait_of_no_time_only_looks(timeout: float) -> None:
    assert SystemClock().wait(Signal(), timeout) is False


def test_a_timeout_of_ages_is_no_overflow() -> None:
    waiting = Waiting(SystemClock(), 1e12)
    waiting.signal.set()
    assert waiting.result() is True


def test_the_systems_clock_tells_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now_ms() <= time.time_ns() // 1_000_000


def test_the_fake_clock_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(start_ms=5000)
    assert (clock.now_ms(), clock.monotonic()) == (5000, 0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (6500, 1.5)
    clock.advance(0.0001)
    assert clock.now_ms() == 6501


@pytest.mark.parametrize("half", [0.5, timedelta(seconds=0.5)])
def test_the_fake_clock_takes_durations_as_all_calls_do(half: Any) -> None:
    clock = FakeClock(1000)
    clock.advance(half)
    clock.step(half)
    assert (clock.now_ms(), clock.monotonic()) == (2000, 0.5)
    with pytest.raises(tubes.BadOption, match="seconds must be"):
        clock.advance(-1)


def test_a_step_moves_the_time_of_day_alone() -> None:
    clock = FakeClock(start_ms=5000)
    clock.step(-3)
    assert (clock.now_ms(), clock.monotonic()) == (2000, 0)


def test_a_wait_on_the_fake_clock_ends_when_its_time_has_been_advanced() -> None:
    clock = FakeClock()
    waiting = Waiting(clock, 10)
    eventually(lambda: clock.waiting == 1)
    clock.advance(9.999)
    assert clock.waiting == 1
    clock.advance(0.001)
    assert waiting.result() is False
    assert clock.waiting == 0


def test_a_signal_ends_a_wait_on_the_fake_clock() -> None:
    clock = FakeClock()
    waiting = Waiting(clock, None)
    eventually(lambda: clock.waiting == 1)
    clock.advance(1e6)
    assert clock.waiting == 1
    waiting.signal.set()
    assert waiting.result() is True


def test_advancing_wakes_only_those_whose_time_has_come() -> None:
    clock = FakeClock()
    short, long = Waiting(clock, 1), Waiting(clock, 100)
    eventually(lambda: clock.waiting == 2)
    clock.advance(2)
    assert short.result() is False
    assert clock.waiting == 1
    long.signal.set()
    assert long.result() is True


def test_a_wait_of_no_time_on_the_fake_clock_returns_at_once() -> None:
    assert FakeClock().wait(Signal(), 0) is False
    signal = Signal()
    signal.set()
    assert FakeClock().wait(signal, 0) is True


def test_a_server_s_clock_is_learned_from_the_quickest_answer() -> None:
    """A slow one may be wrong by half its time: it changes nothing while the better one can still be true."""
    clock = ServerClock()
    now = uptime()
    assert clock.learn(1_000_000, now - 0.002, now) == pytest.approx(1)
    known = clock.now_ms()
    assert abs(known - 1_000_001) < 20_000
    assert clock.learn(1_030_000, now, now + 200) < 100
    assert abs(clock.now_ms() - known) < 20_000  # and not 70 s


def test_a_server_whose_clock_was_set_is_believed() -> None:
    clock = ServerClock()
    now = uptime()
    clock.learn(1_000_000, now - 0.002, now)
    clock.learn(9_000_000, now - 0.2, now)
    assert clock.now_ms() > 8_999_000


def test_an_old_look_at_a_server_s_clock_counts_less() -> None:
    """Two clocks drift apart."""
    clock = ServerClock()
    now = uptime()
    clock.learn(0, now - 0.002, now)
    assert clock.learn(10_002, now + 10, now + 10.004) == pytest.approx(2)


def test_a_server_that_is_far_away_is_asked_again_only_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes a round trip, for which a process that beats hears of no task."""
    clock = ServerClock()
    monkeypatch.setattr("tubes.clock.uptime", itertools.count(1000, 0.05).__next__)
    answers: list[float] = []

    def answer() -> float:
        answers.append(1_000_000.0)
        return answers[-1]

    clock.ask(answer)
    assert len(answers) == 2
    clock.ask(answer)
    assert len(answers) == 3


def test_a_server_whose_answers_are_held_up_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of several is nearer to the truth."""
    clock = ServerClock()
    instants = [*itertools.accumulate([1000, 0.09, 1, 0.05, 1, 0.07, 1, 0.1, 1, 0.06])]
    now, asked = iter(instants), iter(instants[::2])
    monkeypatch.setattr("tubes.clock.uptime", now.__next__)
    clock.ask(lambda: 1000 * next(asked))
    assert [*now] == [] and clock._doubt_ms == pytest.approx(25)


def test_a_server_s_clock_went_on_while_this_host_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a task put before the next look at it would be over at once, for everybody else."""
    clock = ServerClock()
    clock.ask(lambda: 1_000_000.0)
    real, slept = time.clock_gettime, {time.CLOCK_BOOTTIME: 3600.0}
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + slept.get(which, 0.0))
    assert clock.now_ms() >= 1_000_000 + 3_600_000
