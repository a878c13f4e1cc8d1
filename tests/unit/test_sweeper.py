"""The background thread: it goes on after failures, and logs each once; when it runs, and how it ends."""

from __future__ import annotations

import logging
import sys
import threading
from datetime import UTC, datetime, timedelta, tzinfo

import apscheduler.schedulers.base
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from faults.harness import Struck, ended, eventually, handler_that_raises, run

import tubes
from tubes.clock import pause, real_monotonic
from tubes.errors import StoreUnavailable
from tubes.sweeper import Sweeper

AWAY, STARTING = StoreUnavailable("no such server"), StoreUnavailable("the server is starting up")


def test_what_is_due_in_a_hundred_thousand_years_is_nothing_to_hurry_for() -> None:
    """A nudge must not fail: the task is stored by then, and no calendar has that day."""
    sweeper = Sweeper(lambda: None)
    sweeper.nudge(3e12)
    sweeper.stop()


def test_it_runs_without_what_only_entry_points_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundled program has the modules that others import, and no other plugin of the scheduler."""
    monkeypatch.setattr(BackgroundScheduler, "_trigger_plugins", {})
    monkeypatch.setattr(BackgroundScheduler, "_trigger_classes", {})
    turn = threading.Event()
    sweeper = Sweeper(turn.set)
    sweeper.nudge(0.0)
    has_run = turn.wait(60)
    sweeper.stop()
    assert has_run


@pytest.mark.parametrize(
    ("failures", "levels", "has_traceback"),
    [
        pytest.param(
            [OSError("full"), OSError("full"), OSError("full"), OSError("other")],
            ["ERROR", "ERROR"],
            True,
            id="unexpected",
        ),
        pytest.param([AWAY, AWAY, STARTING], ["WARNING"], False, id="a store that is away"),
    ],
)
def test_a_failure_that_lasts_is_said_once_and_its_end_too(
    failures: list[Exception], levels: list[str], has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Exception | None] = [*failures, None]
    turns: list[float] = []

    def work() -> float | None:
        answer = answers[len(turns)] if len(turns) < len(answers) else None
        turns.append(real_monotonic())
        sweeper.nudge(0.0)
        if answer is not None:
            raise answer
        return None

    sweeper = Sweeper(work)
    with caplog.at_level(logging.DEBUG, logger="tubes.sweeper"):
        sweeper.nudge(0.0)
        deadline = real_monotonic() + 60
        while len(turns) < len(answers) + 2 and real_monotonic() < deadline:
            pause(0.005)
        sweeper.stop()
    assert len(turns) >= len(answers) + 2
    *failed, works = caplog.records  # none is the scheduler's
    assert [record.levelname for record in failed] == levels
    assert all("failed" in record.message and bool(record.exc_info) is has_traceback for record in failed)
    assert (works.levelname, works.message) == ("WARNING", "the background sweep works again")


def test_a_log_handler_that_raises_ends_no_background_thread() -> None:
    turns: list[float] = []

    def work() -> float:
        turns.append(real_monotonic())
        raise AWAY

    sweeper = Sweeper(work)
    with handler_that_raises("tubes.sweeper"):
        try:
            sweeper.nudge(0.0)
            eventually(lambda: turns)
            sweeper.nudge(0.0)
            eventually(lambda: len(turns) > 1)
        finally:
            sweeper.stop()


@pytest.mark.slow
@pytest.mark.parametrize("by", [timedelta(hours=-1), timedelta(days=200)], ids=["back", "far forward"])
def test_a_wall_clock_that_is_set_stops_no_sweep(by: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """APScheduler plans by it, and would list all runs that it missed: an hour's work for years."""
    step = timedelta()

    class Wall(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + step

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Wall)
    monkeypatch.setattr("tubes.sweeper.real_now", lambda: Wall.now(UTC))
    turns: list[float] = []
    sweeper = Sweeper(lambda: turns.append(real_monotonic()))
    sweeper.nudge(0.0)
    deadline = real_monotonic() + 20
    while len(turns) < 2 and real_monotonic() < deadline:
        pause(0.01)
    step = by
    seen = len(turns)
    while len(turns) < seen + 3 and real_monotonic() < deadline:
        pause(0.01)
    sweeper.stop()
    assert len(turns) >= seen + 3


def test_a_thread_that_cannot_be_had_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns: list[float] = []
    sweeper = Sweeper(lambda: turns.append(real_monotonic()))

    def fails(scheduler: BackgroundScheduler) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundScheduler, "start", fails)
        sweeper.nudge(0.0)
    assert "RuntimeError: can't start new thread" in caplog.text  # with its traceback
    sweeper.nudge(0.0)
    deadline = real_monotonic() + 60
    while not turns and real_monotonic() < deadline:
        pause(0.01)
    sweeper.stop()
    assert turns


def test_a_log_handler_may_put_into_the_queue_that_cannot_have_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A put nudges: in a thread of its own, so that one that waits for itself fails the test alone."""
    sweeper = Sweeper(lambda: None)

    def fails(scheduler: BackgroundScheduler) -> None:
        raise RuntimeError("can't start new thread")

    class Puts(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sweeper.nudge(0.0)

    monkeypatch.setattr(BackgroundScheduler, "start", fails)
    logger, handler = logging.getLogger("tubes.sweeper"), Puts()
    logger.addHandler(handler)
    nudging = threading.Thread(target=sweeper.nudge, args=(0.0,), daemon=True)
    nudging.start()
    nudging.join(10)
    logger.removeHandler(handler)
    assert not nudging.is_alive()


def test_a_thread_whose_start_is_interrupted_ends_and_another_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a greenlet's timeout, after the thread has begun to run."""
    turns: list[str] = []
    sweeper = Sweeper(lambda: turns.append(threading.current_thread().name))
    start = BackgroundScheduler.start

    def starts_and_is_interrupted(scheduler: BackgroundScheduler) -> None:
        start(scheduler)
        scheduler._thread.name = "first"
        raise Struck

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundScheduler, "start", starts_and_is_interrupted)
        with pytest.raises(Struck):
            sweeper.nudge(0.0)
    eventually(lambda: "first" not in [thread.name for thread in threading.enumerate()])
    turns.clear()
    sweeper.nudge(0.0)
    eventually(lambda: len(turns) > 0)
    sweeper.stop()


@pytest.mark.parametrize("where", ["in the scheduler", "after the work"])
def test_it_goes_on_after_memory_ran_out(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Else the process would no longer beat, and be taken for dead."""
    failures = [MemoryError()]
    turns: list[float] = []
    sweeper = Sweeper(lambda: turns.append(real_monotonic()))
    failing, name = (BaseScheduler, "_process_jobs") if where == "in the scheduler" else (sweeper, "_run")
    done = getattr(failing, name)

    def fails(*args: object) -> object:
        result = done(*args)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(failing, name, fails)
    sweeper.nudge(0.0)
    eventually(lambda: len(turns) > 2)
    sweeper.stop()
    assert not failures


def test_it_goes_on_when_the_main_thread_has_ended() -> None:
    """In a program whose other threads go on: a sweeper from before, and one made afterwards."""
    code = """
import sys, threading
from tubes.sweeper import Sweeper

def end():
    threading.main_thread().join()
    for sweeper in (before, before if no_more_threads else Sweeper(ran.set)):
        ran.clear()
        sweeper.nudge(0.0)
        print(ran.wait(10))
    sweeper.stop()
    before.stop()

no_more_threads = (3, 12) <= sys.version_info < (3, 12, 2)  # there Python starts none from then on
ran = threading.Event()
before = Sweeper(ran.set)
before.nudge(0.0)
ran.wait(10)
threading.Thread(target=end).start()
"""
    assert run(code).splitlines() == ["True", "True"]


def test_a_nudge_while_it_runs_waits_for_nobody_and_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubes.sweeper.SWEEP_EVERY", 600.0)  # nothing else makes it run again
    turns: list[float] = []
    goes_on, waited = threading.Event(), list[bool]()

    def work() -> None:
        turns.append(real_monotonic())
        waited.append(goes_on.wait(30))

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    eventually(lambda: turns)
    sweeper.nudge(0.0)
    goes_on.set()
    eventually(lambda: len(turns) == 2)
    sweeper.stop()
    assert waited[0], "the nudge came back only when it had run"


@pytest.mark.slow
def test_one_that_takes_longer_than_a_turn_leaves_some_time_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tubes.sweeper.SWEEP_EVERY", 0.1)
    began: list[float] = []
    ended: list[float] = []

    def work() -> None:
        began.append(real_monotonic())
        pause(0.15)
        ended.append(real_monotonic())

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    eventually(lambda: len(began) == 4)
    sweeper.stop()
    assert all(later - earlier > 0.05 for later, earlier in zip(began[1:], ended, strict=False))


def test_it_may_be_stopped_from_within(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[threading.Thread] = []

    def work() -> None:
        sweeper.stop()
        stopped.append(threading.current_thread())

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    eventually(lambda: stopped)
    ended(stopped[0])
    assert not caplog.records


def test_who_stops_it_waits_for_what_it_is_at() -> None:
    turns: list[str] = []
    began = threading.Event()

    def work() -> None:
        turns.append("began")
        began.set()
        pause(0.05)
        turns.append("ended")

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    assert began.wait(10)
    sweeper.stop()
    assert turns == ["began", "ended"]


def test_once_stopped_it_is_nudged_in_vain() -> None:
    """A change that commits while its queue closes must start no thread that nobody ends."""
    turns: list[float] = []
    sweeper = Sweeper(lambda: turns.append(real_monotonic()))
    sweeper.stop()
    before = threading.enumerate()
    sweeper.nudge(0.0)
    assert not {*threading.enumerate()} - {*before}
    assert not turns


def test_what_calls_exit_ends_no_background_thread(caplog: pytest.LogCaptureFixture) -> None:
    """As a callback may."""
    turns: list[float] = []

    def work() -> float:
        turns.append(real_monotonic())
        if len(turns) == 1:
            sweeper.nudge(0.0)
            sys.exit()
        return 0.0

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    eventually(lambda: len(turns) > 1)
    sweeper.stop()
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == ["tubes.sweeper"]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background threads that run only when something is due: not every second, nor to store counts."""
    for name in ("tubes.sweeper.SWEEP_EVERY", "tubes.queue.SWEEP_EVERY", "tubes.queue.FLUSH_AFTER"):
        monkeypatch.setattr(name, 600.0)


def test_a_sweep_comes_when_something_is_due(idle: None) -> None:
    """The first task nudges it; when it runs, it learns when the next one in any tube is due."""
    heard: list[object] = []

    def hear(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.DELAY:
            heard.append(task.data)

    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifottl", on_task_change=hear)
        more = queue.create_tube("more", "fifottl", on_task_change=hear)
        queue.create_tube("last", "fifottl").put("last", delay=500)
        tube.put("first", delay=0.05)
        more.put("second", delay=0.1)
        eventually(lambda: heard == ["first", "second"])


def test_what_is_due_sooner_than_the_next_sweep_brings_it_forward(idle: None) -> None:
    heard: list[object] = []
    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifottl")
        tube.on_task_change(lambda task, event: heard.append(event))
        for _ in range(2):  # the second one after a sweep has run and planned the next
            heard.clear()
            tube.put("x", delay=0.02)
            eventually(lambda: heard[-1:] == [tubes.Event.DELAY])


def test_what_is_due_again_at_once_is_done_at_once(idle: None) -> None:
    turns: list[float] = []

    def work() -> float:
        turns.append(real_monotonic())
        return 0.0

    sweeper = Sweeper(work)
    sweeper.nudge(0.0)
    eventually(lambda: len(turns) > 2)
    sweeper.stop()


def test_the_sweep_comes_for_the_first_of_several_that_are_due(idle: None) -> None:
    heard: list[object] = []
    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifottl")
        tube.put("short", ttr=0.05)
        tube.put("long", ttr=500)
        tube.on_task_change(lambda task, event: heard.append((event, task.data)))
        tube.take_many(2, timeout=0)
        eventually(lambda: heard[2:] == [(tubes.Event.TTR, "short")])


def test_counts_are_stored_soon_in_a_process_that_does_not_sweep(
    idle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubes.queue.FLUSH_AFTER", 0.01)
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        for _ in range(2):
            tube.put("x")
            eventually(lambda: not queue.store.counts.is_dirty)
