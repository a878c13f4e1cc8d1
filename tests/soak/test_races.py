"""The long form of ``tests/faults/test_races.py``: 16 threads and 8 processes at once, for a minute a type."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.harness import TYPES
from faults.racing import Verdict, race

import tubes

SECONDS = float(os.environ.get("TUBES_SOAK_SECONDS", 60))


def check(verdict: Verdict, store: str, type: str) -> None:
    print(f"\n{type} on {store}: {verdict}")
    assert verdict.racers == 24 and verdict.fewest > 0.05 * verdict.holds / verdict.racers


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_races_on_sqlite(tmp_path: Path, type: str) -> None:
    """Nobody gets less than a twentieth of a fair share."""
    check(race(f"sqlite:///{tmp_path / 'race.db'}", type, SECONDS), "SQLite", type)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_races_on_postgresql(postgres_db: str, type: str) -> None:
    """The same."""
    tubes.connect(postgres_db, migrate=True).close()
    check(race(postgres_db, type, SECONDS), "PostgreSQL", type)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_races_on_redis(redis_db: str, type: str) -> None:
    """The same."""
    check(race(redis_db, type, SECONDS), "Redis", type)
