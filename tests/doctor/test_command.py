"""What ``tubes doctor`` says, and its exit status."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest
from interpreter import PIPE, Process, drawn_on

from tubes.cli import UNAVAILABLE, USAGE, run

from .conftest import Patient, fill

DOCTOR = ("-c", "from tubes.cli import main; main()", "doctor")
ON_TERMINAL = {**os.environ, "TERM": "xterm"}


def said(patient: Patient, *arguments: str) -> tuple[int, str, str]:
    status = run(["doctor", *arguments])
    return status, *patient.capture()


def test_it_says_what_it_found_what_it_repaired_and_what_is_left(file: Patient) -> None:
    fill(file.opened[0], "utube")
    assert said(file, file.url) == (0, "0 found\n", "")
    file.sql("UPDATE tubes_task SET front = 0 WHERE utube = 'a'")
    file.sql("UPDATE tubes_task SET bytes = data WHERE id = 2")
    status, out, _ = said(file, "--url", file.url)
    assert (status, out.splitlines()[-1]) == (1, "1 found")
    for word in (
        "line",
        "jobs",
        "in sub-queue 'a' no task stands in front",
        "put the right one there",
        "found",
    ):
        assert word in out
    status, out, _ = said(file, file.url, "--deep", "--fix")
    assert (status, out.splitlines()[-1]) == (1, "1 repaired, 1 left")
    assert "by hand" in out
    file.sql("UPDATE tubes_task SET bytes = NULL WHERE id = 2")
    assert said(file, file.url, "--deep", "--fix") == (0, "0 repaired, 0 left\n", "")


def test_json_is_a_line_for_each_finding(file: Patient) -> None:
    fill(file.opened[0], "utube")
    file.sql("UPDATE tubes_task SET front = 0 WHERE utube <> 'c'")
    found = file.doctor()
    assert found.status == 1
    assert found.findings == [
        {
            "kind": "line",
            "tube": "jobs",
            "task": None,
            "utube": utube,
            "session": None,
            "what": f"in sub-queue {utube!r} no task stands in front, so it is stuck",
            "remedy": "put the right one there",
            "repaired": False,
        }
        for utube in "ab"
    ]
    assert [finding["repaired"] for finding in file.doctor("--fix").findings] == [True, True]


def test_a_table_has_an_end_and_says_what_it_does_not_show(
    file: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(file.opened[0], "utube")
    file.sql("UPDATE tubes_task SET front = 0 WHERE utube <> 'c'")
    monkeypatch.setattr("tubes.cli_doctor.MOST_SHOWN", 1)
    status, out, _ = said(file, file.url)
    assert (status, out.splitlines()[-1]) == (1, "2 found; 1 not shown, --json shows all")
    assert "sub-queue 'a'" in out and "sub-queue 'b'" not in out
    assert len(file.doctor().findings) == 2


def test_a_store_that_cannot_be_opened_or_examined_is_no_finding(
    file: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(file, f"sqlite:///{tmp_path}/none.db")[0] == UNAVAILABLE
    (tmp_path / "text.db").write_text("no database" * 100)
    assert said(file, f"sqlite:///{tmp_path}/text.db")[0] == UNAVAILABLE
    monkeypatch.delattr("tubes.drivers.sql.store.SqlStore.checks")
    status, out, err = said(file, file.url)
    assert (status, out) == (USAGE, "")
    assert "cannot be examined" in err


def test_a_bar_is_drawn_on_a_terminal(file: Patient) -> None:
    fill(file.opened[0], "utube")
    ours, theirs = pty.openpty()
    process = Process([*DOCTOR, file.url, "--deep"], env=ON_TERMINAL, stdout=PIPE, stderr=theirs)
    os.close(theirs)
    drawn = drawn_on(ours)
    said = process.communicate(timeout=60)[0]
    assert (process.returncode, said) == (0, b"0 found\n")
    assert "calls" in drawn and "\x1b[" in drawn  # the last check


def test_no_bar_is_drawn_between_findings_on_a_terminal(file: Patient) -> None:
    fill(file.opened[0], "utube")
    file.sql("UPDATE tubes_task SET front = 0 WHERE utube <> 'c'")
    ours, theirs = pty.openpty()
    process = Process([*DOCTOR, file.url, "--json"], env=ON_TERMINAL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert [json.loads(line)["kind"] for line in drawn_on(ours).splitlines()] == ["line", "line"]
    assert process.wait(60) == 1
