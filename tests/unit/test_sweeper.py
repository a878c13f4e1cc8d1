"""The background thread: that it goes on after failures, and says them once."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, tzinfo

import apscheduler.schedulers.base
import pytest
from apscheduler.schedulers.background import BackgroundScheduler

from tubes.clock import pause, real_monotonic
from tubes.errors import StoreUnavailable
from tubes.sweeper import Sweeper

AWAY, STARTING = StoreUnavailable("no such server"), StoreUnavailable("the server is starting up")


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
        deadline = real_monotonic() + 10
        while len(turns) < len(answers) + 2 and real_monotonic() < deadline:
            pause(0.005)
        sweeper.stop()
    assert len(turns) >= len(answers) + 2
    *failed, works = [record for record in caplog.records if record.name == "tubes.sweeper"]
    assert [record.levelname for record in failed] == levels
    assert all("failed" in record.message and bool(record.exc_info) is has_traceback for record in failed)
    assert (works.levelname, works.message) == ("WARNING", "the background sweep works again")


def test_a_wall_clock_that_is_set_back_stops_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """APScheduler's own clock, by which it plans."""
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
    step = timedelta(hours=-1)
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
    assert "can't start new thread" in caplog.text
    sweeper.nudge(0.0)
    deadline = real_monotonic() + 10
    while not turns and real_monotonic() < deadline:
        pause(0.01)
    sweeper.stop()
    assert turns
