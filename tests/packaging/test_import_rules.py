"""The import rules hold, and the check that says so finds what breaks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import import_rules
from .import_rules import broken_rules

ROOT = Path(__file__).resolve().parents[2]


def test_the_project_keeps_its_import_rules() -> None:
    assert broken_rules(ROOT) == []


def test_the_check_reads_every_file_of_the_package() -> None:
    names = {name for _, name in import_rules.modules(ROOT)}
    assert {
        "tubes",
        "tubes.tube",
        "tubes.testing.clock",
        "tubes.drivers.fifo",
        "tubes.drivers.sql.driver",
    } <= names
    assert {"tubes.migrations.env", "tubes.migrations.versions.0001_tables"} <= names


WRONG = {
    "the framework imports a driver": ("tubes/tube.py", "import tubes.drivers.fifo"),
    "the framework imports a name from a driver": ("tubes/tube.py", "from tubes.drivers.fifo import FIFO"),
    "the framework imports the package of drivers": ("tubes/tube.py", "from tubes import drivers"),
    "the framework imports a driver relatively": ("tubes/tube.py", "from .drivers import fifo"),
    "the framework's subpackage does so relatively": ("tubes/testing/kit.py", "from ..drivers import fifo"),
    "the framework's package itself does": ("tubes/__init__.py", "from .drivers.fifo import FIFO"),
    "the framework imports a driver by a literal name": (
        "tubes/registry.py",
        "import importlib\nimportlib.import_module('tubes.drivers.fifo')",
    ),
    "the framework imports a folder by its name in the checkout": (
        "tubes/cli.py",
        "from drivers import fifo",
    ),
    "the framework imports a migration": ("tubes/cli.py", "from tubes.migrations import HEAD"),
    "the framework imports SQLAlchemy": ("tubes/store.py", "import sqlalchemy as sa"),
    "the framework imports it inside a function": (
        "tubes/store.py",
        "def f():\n    from sqlalchemy import select\n    return select",
    ),
    "the framework imports it for type checkers only": (
        "tubes/store.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sqlalchemy.orm import Session",
    ),
    "the framework imports a database": ("tubes/queue.py", "import sqlite3"),
    "a program imports a driver": ("tubes/demo.py", "from tubes.drivers import fifo"),
    "a program reads a clock": ("tubes/demo.py", "import time\ntime.monotonic()"),
    "the framework imports Redis": ("tubes/queue.py", "from redis.asyncio import Redis"),
    "another module than the sweeper imports the scheduler": (
        "tubes/queue.py",
        "from apscheduler.schedulers.background import BackgroundScheduler",
    ),
    "another module than the bridge imports greenlets": ("tubes/aio.py", "from greenlet import getcurrent"),
    "a driver imports the scheduler": ("drivers/sql/sqlite.py", "import apscheduler"),
    "a driver imports the queue": ("drivers/sql/sqlite.py", "from tubes.queue import Queue"),
    "a driver imports the whole framework": ("drivers/sql/sqlite.py", "import tubes"),
    "a driver imports a tube through the package": ("drivers/fifo.py", "from tubes import TubeType"),
    "a driver climbs out of its package": ("drivers/sql/driver.py", "from ...tube import Tube"),
    "a migration imports the queue": ("migrations/env.py", "from tubes.queue import connect"),
    "a driver sleeps": ("drivers/sql/sqlite_writer.py", "from time import sleep"),
    "a module reads the clock": ("tubes/tube.py", "import time\ntime.monotonic()"),
    "a module reads the time of day": (
        "tubes/task.py",
        "from datetime import UTC, datetime\nx = datetime.now(UTC)",
    ),
    "a module reads it under another name": (
        "tubes/task.py",
        "import datetime as dt\nx = dt.datetime.utcnow()",
    ),
}

RIGHT = {
    "the clock reads clocks": (
        "tubes/clock.py",
        "import time\nfrom datetime import datetime, UTC\ntime.time_ns()\ndatetime.now(UTC)",
    ),
    "the sweeper knows the scheduler": ("tubes/sweeper.py", "import apscheduler.schedulers.background"),
    "the bridge knows greenlets": ("tubes/bridge.py", "from greenlet import getcurrent"),
    "a driver knows the driver API": (
        "drivers/sql/driver.py",
        "from tubes.driver import Change\nfrom tubes import errors\nfrom .statements import Statements\n"
        "from tubes.drivers.sql.tx import SqlTx\nimport sqlalchemy\nimport sqlite3",
    ),
    "a store runs migrations": ("drivers/sql/sqlite.py", "from tubes.migrations import sqlite"),
    "a name that only begins alike is another": (
        "tubes/tube.py",
        "import redistribute\nimport timeit_not_time",
    ),
    "an instant is no clock": ("tubes/task.py", "from datetime import datetime\ndatetime.fromtimestamp(0)"),
}


def plant(root: Path, where: str, source: str) -> None:
    file = root / where
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source + "\n", encoding="utf-8")


@pytest.mark.parametrize("case", WRONG)
def test_a_planted_wrong_import_is_found(case: str, tmp_path: Path) -> None:
    where, source = WRONG[case]
    plant(tmp_path, where, source)
    problems = broken_rules(tmp_path)
    assert problems, case
    assert all(problem.startswith(f"{where}:") for problem in problems)


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_allowed_is_not_reported(case: str, tmp_path: Path) -> None:
    plant(tmp_path, *RIGHT[case])
    assert broken_rules(tmp_path) == []


def test_the_command_fails_when_a_rule_is_broken(tmp_path: Path) -> None:
    """``.ci/run`` calls it, so its exit status must say what the check found."""
    command = [sys.executable, import_rules.__file__, str(tmp_path)]
    plant(tmp_path, "tubes/tube.py", "import json")
    assert subprocess.run(command, capture_output=True).returncode == 0
    plant(tmp_path, "tubes/tube.py", "import sqlalchemy")
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1
    assert "tubes/tube.py:1: sqlalchemy: the framework knows no database" in found.stdout
