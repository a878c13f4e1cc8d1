"""The background thread: that it goes on after failures, and says them once."""

from __future__ import annotations

import logging

import pytest

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
