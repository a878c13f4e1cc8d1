"""README's two commands are the ones that the checks run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
DEMO = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/tubes demo"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest"


def test_readme_names_two_commands_that_do_all_the_setting_up() -> None:
    shown = [block.text.strip() for block in blocks(ROOT / "README.md", "console")]
    assert [command for command in shown if "venv" in command] == [DEMO, TEST]


def test_the_checks_run_readmes_commands() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert f"{TEST} || exit 1" in lines
    assert f"{DEMO} || exit 1" in lines
    assert "set -euo pipefail" in lines


def test_the_checks_can_be_started() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_checks_run_every_benchmark() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    programs = [
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert programs
    once = script.split('step "One iteration of each benchmark"')[1]
    assert [name for name in programs if not re.search(rf"\b{name}\.py\b", once)] == []
