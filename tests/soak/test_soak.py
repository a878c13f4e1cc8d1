"""The long form of ``tests/faults/test_kills.py`` and of the interrupts: a minute of kills a type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.harness import TYPES, Crew, drain, run, settle, torment
from faults.test_interrupts import STRESS

SECONDS = float(os.environ.get("TUBES_SOAK_SECONDS", 60))
KILLS = int(os.environ.get("TUBES_SOAK_KILLS", 100))


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Workers on a file of their own; all are killed when the test is over."""
    made = Crew(tmp_path)
    yield made
    made.disband()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_kills_and_stops_loses_nothing(
    crew: Crew, type: str, record_property: Callable[[str, object], None]
) -> None:
    """Producers and consumers are killed and stopped at random; then every task is accounted for."""
    crew.type = type
    if type not in ("fifo", "utube"):
        crew.tube = {"ttr": 0.5}
    if type == "limfifottl":
        crew.tube |= {"capacity": 200}
    killed = torment(crew, SECONDS, KILLS, producers=3, consumers=4)
    account = settle(crew.lines(), drain(crew))
    record_property("account", repr(account))
    print(f"\n{type}: {killed} killed, {account}")
    assert killed >= KILLS and account.acked > KILLS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["off", "full"])
@pytest.mark.parametrize("manner", ["busy", "waiting"])
def test_thousands_of_interrupts_strand_no_task(tmp_path: Path, manner: str, durability: str) -> None:
    """Signals rain on a main thread that takes and acks: all it holds is what it was given."""
    lines = run(STRESS, tmp_path / "soak.db", manner, durability, 3000, within=600).splitlines()
    assert lines == ["3000 0", "True"]
