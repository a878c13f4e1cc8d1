"""``tubes stats --every``: what it shows look after look, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
from typing import Any

import pytest
from interpreter import PIPE, drawn_on
from rich.table import Table

import tubes
from tubes.cli import INTERRUPTED, USAGE
from tubes.cli_watch import LOOKS, Course

from .conftest import Shell


def counts(*, put: int = 0, take: int = 0, done: int = 0, taken: int = 0) -> dict[str, Any]:
    stored = put - done
    tasks = {
        "ready": stored - taken,
        "taken": taken,
        "buried": 0,
        "delayed": 0,
        "total": stored,
        "done": done,
    }
    return {"tasks": tasks, "calls": {"put": put, "take": take}}


def cells(table: Table) -> list[list[str]]:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_a_look_shows_what_has_come_and_gone_per_second_since_the_last() -> None:
    course = Course()
    first = cells(course.table({"jobs": counts(put=10)}, 100.0))
    assert first == [["jobs", "10", "0", "0", "0", "", "", "", "█"]]
    second = cells(course.table({"jobs": counts(put=30, take=12, done=10, taken=2)}, 102.0))
    assert second == [["jobs", "18", "2", "0", "0", "10", "6", "5", "▄█"]]


def test_the_curve_goes_back_so_many_looks_and_is_flat_for_an_empty_tube() -> None:
    course = Course()
    for look in range(LOOKS + 5):
        table = course.table({"jobs": counts(put=1 if look < 5 else 0), "idle": counts()}, float(look))
    assert [row[-1] for row in cells(table)] == ["▁" * LOOKS, "▁" * LOOKS]


def test_a_tube_that_was_made_anew_or_has_just_come_shows_no_negative_rate() -> None:
    course = Course()
    course.table({"jobs": counts(put=10, take=10, done=10)}, 1.0)
    jobs, late = cells(course.table({"jobs": counts(put=1), "late": counts(put=5)}, 2.0))
    assert jobs[5:8] == ["0", "0", "0"] and late[5:8] == ["", "", ""]


@pytest.mark.parametrize("name", [["jobs"], []])
def test_programs_get_a_line_for_each_look(shell: Shell, jobs: tubes.Tube, name: list[str]) -> None:
    process = shell.start("stats", *name, "--every", "0.1", "--json", stdout=PIPE)
    lines = process.stdout
    assert lines is not None

    def stored() -> int:
        seen = json.loads(lines.readline())
        return int((seen if name else seen["jobs"])["tasks"]["total"])

    assert stored() == 0
    jobs.put("x")
    while stored() != 1:
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == INTERRUPTED


def test_a_terminal_shows_a_table_that_is_kept_up_to_date(shell: Shell, jobs: tubes.Tube) -> None:
    shell.environment["TERM"] = "xterm"
    ours, theirs = pty.openpty()
    process = shell.start("stats", "--every", "0.1", stdout=theirs)
    os.close(theirs)
    drawn = b""
    while "▁▁".encode() not in drawn:
        drawn += os.read(ours, 1000)
    jobs.put_many(range(77))
    while b" 77 " not in drawn or "█".encode() not in drawn:
        drawn += os.read(ours, 1000)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == INTERRUPTED
    assert "\x1b[?25h" in drawn_on(ours)  # the cursor is there again


def test_a_terminal_that_cannot_redraw_gets_table_after_table(shell: Shell, jobs: tubes.Tube) -> None:
    shell.environment["TERM"] = "dumb"
    ours, theirs = pty.openpty()
    process = shell.start("stats", "jobs", "--every", "0.1", stdout=theirs)
    os.close(theirs)
    drawn = b""
    while drawn.count(b"Tasks") < 3:
        drawn += os.read(ours, 1000)
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    os.close(ours)
    assert b"\x1b" not in drawn


@pytest.mark.parametrize("every", ["0", "-1", "nan", "inf", "x"])
def test_a_bad_pause_is_refused(shell: Shell, jobs: tubes.Tube, every: str) -> None:
    refused = shell.run("stats", "--every", every)
    assert (refused.returncode, refused.stdout) == (USAGE, b"")
    assert b"every" in refused.stderr and b"Traceback" not in refused.stderr
