"""The background thread: that it goes on after failures, and says them once."""

from __future__ import annotations

import logging

import pytest

from tubes.clock import pause, real_monotonic
from tubes.sweeper import Sweeper


def test_a_failure_that_lasts_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([OSError("full"), OSError("full"), OSError("full"), OSError("other"), None])
    turns = []

    def work() -> float | None:
        turns.append(real_monotonic())
        answer = next(answers, None)
        sweeper.nudge(0.0)
        if answer is not None:
            raise answer
        return None

    sweeper = Sweeper(work)
    with caplog.at_level(logging.DEBUG, logger="tubes.sweeper"):
        sweeper.nudge(0.0)
        deadline = real_monotonic() + 10
        while len(turns) < 7 and real_monotonic() < deadline:
            pause(0.005)
        sweeper.stop()
    assert len(turns) >= 7
    said = [
        (record.levelname, "failed" in record.message)
        for record in caplog.records
        if record.name == "tubes.sweeper"
    ]
    assert said == [("ERROR", True), ("ERROR", True), ("WARNING", False)]
