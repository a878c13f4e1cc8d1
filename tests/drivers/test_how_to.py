"""``docs/how-to/write-a-driver.md`` is right: its drivers pass the kit, run as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.lifo import LIFO

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-driver.md"


def save_files(folder: Path) -> list[str]:
    """Save the page's blocks that are whole files; the first line of each names the file."""
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r'```python\n((?:"""|# )([\w]+\.py).*?)```', text, re.S)
    for body, name in named:
        (folder / name).write_text(body, encoding="utf-8")
    return [name for _, name in named]


@pytest.mark.slow
def test_its_drivers_pass_the_kit(tmp_path: Path) -> None:
    """In its own process, in an empty folder, as a third party would; the LIFO passes it elsewhere."""
    assert save_files(tmp_path) == ["lifo.py", "slim.py", "tries.py", "test_my_drivers.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_drivers.py"]
    command += ["-k", "TestSlim or TestTries or test_tasks_are_taken_in_the_order"]
    short = {**os.environ, "TUBES_KIT_EXAMPLES": "5"}
    ran = subprocess.run(command, cwd=tmp_path, env=short, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"^(\d+) passed, \d+ deselected in", ran.stdout.splitlines()[-1])
    assert passed and int(passed[1]) > 300, ran.stdout


def test_its_lifo_is_the_example(tmp_path: Path) -> None:
    save_files(tmp_path)
    namespace: dict[str, object] = {}
    exec((tmp_path / "lifo.py").read_text(encoding="utf-8"), namespace)
    assert namespace["LIFO"] == LIFO
