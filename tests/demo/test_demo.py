"""``tubes demo`` on a small site: it succeeds with a utube, and fails when politeness is broken."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from interpreter import drawn_on

from tubes.cli import TERMINATED
from tubes.demo import Crawl, Outcome
from tubes.demo_show import shown_live, summary

TUBES = str(Path(sys.executable).with_name("tubes"))


def demo(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TUBES, "demo", "--pages", "150", *arguments], capture_output=True, text=True, timeout=100, cwd=cwd
    )


def test_a_polite_crawl_loses_nothing_although_a_worker_is_killed() -> None:
    done = demo("--workers", "3", "--hosts", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[:42].strip(): line[42:].split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["pages fetched"][0] == rows["pages fetched"][1].strip(",")
    assert int(rows["pages fetched"][0]) > 100
    assert rows["hosts"] == ["3"]
    assert rows["most requests in flight per host"] == ["1", "1", "yes"]
    assert int(rows["most hosts busy at once"][0]) >= 2
    assert rows["tasks lost"] == ["0", "0", "yes"]
    assert int(rows["tasks run again after the kill"][0]) >= 1
    assert "(SIGKILL)" in done.stderr


def test_the_same_crawl_on_a_fifo_fails_because_hosts_got_two_requests_at_once() -> None:
    done = demo("--type", "fifo", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert outcome["most_per_host"] >= 2
    broken = [promise for promise, holds in outcome["checks"].items() if not holds]
    assert broken == ["most requests in flight per host"]
    assert outcome["ok"] is False


def test_what_lies_in_the_current_folder_is_not_taken_for_a_module_of_the_demo(tmp_path: Path) -> None:
    """Neither the command nor what it starts looks there for modules."""
    for name in ("select", "sqlite3", "tubes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is not what was meant')\n")
    done = demo("--pages", "50", "--workers", "2", cwd=tmp_path)
    assert "not what was meant" not in done.stderr
    assert "pages fetched" in done.stdout


def test_nothing_in_the_demo_makes_python_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where it is asked to warn of all that it knows: encodings, files that are left open."""
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    monkeypatch.setenv("PYTHONWARNDEFAULTENCODING", "1")
    done = demo("--pages", "50", "--workers", "2", "--hosts", "2")
    assert "pages fetched" in done.stdout
    assert "arning" not in done.stderr and "encoding" not in done.stderr


def test_a_terminal_is_shown_how_far_the_crawl_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with shown_live() as on_progress:
            on_progress(Crawl(fetched=30, pages=90, per_second=25, workers=4, ready=7, note="one was killed"))
    drawn = drawn_on(ours)
    assert "30/90" in drawn and "pages, 25/s, 4 workers, 7 ready" in drawn
    assert "one was killed\r\n" in drawn


@pytest.mark.slow
def test_a_demo_that_is_ended_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    """In whatever folder it makes its files: in a URL, these characters mean something else."""
    temporary = tmp_path / "100%41 ?#"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([TUBES, "demo"], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "pages" in process.stderr.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 4
        process.terminate()
        assert process.wait(30) == TERMINATED
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(temporary.iterdir()) == []


GOOD = Outcome(
    type="utube",
    workers=4,
    hosts=4,
    pages=100,
    fetched=100,
    seconds=2.0,
    most_per_host=1,
    most_hosts_busy=4,
    missed=0,
    left=0,
    killed=1,
    rerun=1,
    failed=(),
)


def test_a_good_outcome_is_ok() -> None:
    assert GOOD.ok
    assert GOOD.per_second == 50


@pytest.mark.parametrize(
    "bad",
    [
        {"fetched": 99, "missed": 1},
        {"missed": 1},
        {"left": 1},
        {"most_per_host": 2},
        {"most_per_host": 0},
        {"most_hosts_busy": 1},
        {"killed": 0},
        {"rerun": 0},
        {"failed": ["exit status 1"]},
    ],
    ids=str,
)
def test_an_outcome_is_not_ok_when_one_thing_is_wrong(bad: dict[str, Any]) -> None:
    outcome = replace(GOOD, **bad)
    assert not outcome.ok
    told = outcome.as_json()
    assert told["ok"] is False and False in told["checks"].values()
    assert "[red]NO[/red]" in summary(outcome).columns[3].cells


def test_the_table_marks_what_must_hold() -> None:
    marks = [*summary(GOOD).columns[3].cells]
    assert len(marks) == 11 and marks.count("[green]yes[/green]") == 7 and marks.count("") == 4
