"""Whatever is done to the columns of tasks, a repair leaves nothing wrong in the store and loses no task."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import tubes
from tubes.doctor import Doctor

from .conftest import Patient, drain, fill

VALUES: dict[str, tuple[Any, ...]] = {
    "state": ("r", "t", "~", "!", "-", "q"),
    "front": (None, 0, 1, 2, -1),
    "pri": (0, 1, 5),
    "place": (None, 0, 1, 99, 10**13),
    "utube": (None, "a", "b", ""),
    "created_ms": (-(2**63), -(10**15), 10**15, 2**63 - 1),
    "updated_ms": (-(2**63), -(10**15), 0, 10**13, 10**15, 2**63 - 1),
    "due_ms": (None, 1, 10**13, -(2**63), 2**63 - 1),
    "ttl_ms": (None, 2**53 - 1, 2**63 - 1, -1, -(2**63)),
    "ttr_ms": (None, 2**53 - 1, 2**63 - 1, -1, -(2**63)),
    "attempts": (0, 1, -5, 3, 2**31 - 1),
    "owner": (None, "f" * 32, "ours"),
}
ROUNDS = 3


@pytest.mark.parametrize("type", ["fifo", "limfifottl", "utube", "utubettl"])
def test_random_damage_is_repaired_and_nothing_is_lost(type: str, patient: Patient) -> None:
    queue = patient.opened[0]
    dice = random.Random()
    for number in range(ROUNDS):
        seed = dice.randrange(10**9)
        tube = fill(queue, type, f"jobs{number}")
        done = damage(patient, tube, random.Random(seed))
        told = [finding.what for finding in Doctor(queue, deep=True).repair()]
        assert [*Doctor(queue, deep=True).examine()] == [], (seed, done, told)
        tube.release_all()
        for task in tube.tasks("~"):  # for all anyone can know, until the year 2286
            tube.bury(task)
        assert sorted(drain(tube)) == [*range(9)], (seed, done, told)


def damage(patient: Patient, tube: tubes.Tube, dice: random.Random) -> list[tuple[str, Any, int]]:
    """Write any value into any column of some tasks."""
    ids = [id for (id,) in patient.sql("SELECT id FROM tubes_task WHERE tube = ?", tube.record.id)]
    done = []
    for _ in range(dice.randrange(1, 10)):
        column = dice.choice([name for name in VALUES if name != "utube" or tube.features.grouped])
        value, id = dice.choice(VALUES[column]), dice.choice(ids)
        if value == "ours":
            value = patient.opened[0].identify().hex
        with suppress(psycopg.errors.UniqueViolation):  # the server lets no second task stand in front
            patient.sql(f"UPDATE tubes_task SET {column} = ? WHERE id = ?", value, id)
            done.append((column, value, id))
    return done
