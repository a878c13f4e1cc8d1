"""Threads and processes race for a tube's tasks, a second a type. The long form is in ``tests/soak``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from faults.harness import TYPES
from faults.racing import Act, Hold, Notes, judge, race, race_enough
from servers import conninfo
from slow import slow_but

import tubes


@pytest.mark.parametrize("type", slow_but(["fifo", "limfifottl", "utubettl"], TYPES))
def test_nothing_is_in_two_hands_on_sqlite(tmp_path: Path, type: str) -> None:
    """Nothing is lost, done twice or stuck either; the capacity holds, and everybody gets something."""
    race_enough(f"sqlite:///{tmp_path / 'race.db'}", type, 0.7, 50, durability="off")


@pytest.mark.parametrize("type", slow_but(["limfifottl", "utubettl"], TYPES))
def test_nothing_is_in_two_hands_on_postgresql(postgres_db: str, type: str) -> None:
    """The same."""
    tubes.connect(postgres_db, migrate=True).close()
    race_enough(postgres_db, type, 1.0, 30)


@pytest.mark.parametrize("type", slow_but(["limfifottl", "utubettl"], TYPES))
def test_nothing_is_in_two_hands_on_redis(redis_db: str, type: str) -> None:
    """The same."""
    race_enough(redis_db, type, 0.7, 30)


@pytest.mark.slow
def test_a_race_shows_that_a_lock_is_missing(postgres_db: str) -> None:
    """Each call locks another key for a sub-queue, and the index that allows one task in front is gone."""
    tubes.connect(postgres_db, migrate=True).close()
    with psycopg.connect(conninfo(postgres_db)) as db:
        db.execute(
            "CREATE OR REPLACE FUNCTION tubes_key(tube bigint, utube text) RETURNS bigint LANGUAGE sql AS"
            " 'SELECT (random() * 1e18)::bigint'"
        )
        db.execute("DROP INDEX tubes_task_first")
    with pytest.raises(AssertionError, match=r"in two hands|stuck"):
        for _ in range(20):  # the first shows it, unless the machine is slow
            race(postgres_db, "utube", 2, threads=8, processes=2)


def test_a_task_that_is_kicked_while_it_is_buried_by_its_id_is_buried(tmp_path: Path) -> None:
    """Somebody kicks it after bury has found it buried already, and before bury looks at what is stored."""
    url = f"sqlite:///{tmp_path / 'race.db'}"
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube = queue.create_tube("jobs", "fifo")
        task = tube.put("x")
        tube.bury(task.id)
        look = tube.driver.peek

        def kicked_meanwhile(tx: Any, ids: Sequence[int]) -> Sequence[Any]:
            other.tube.jobs.kick()
            return look(tx, ids)

        tube.driver.peek = kicked_meanwhile  # type: ignore[method-assign]
        assert tube.bury(task.id).state is tubes.State.BURIED


FIRST = Hold("a", 1, 1, "x", 0.0, 0.1, 0.2, 0.4, float("inf"), 0.5, "ack")
SECOND = Hold("b", 2, 1, "x", 0.0, 0.1, 0.6, 0.7, float("inf"), 0.8, "ack")
PUTS = [Act("put", 1, 0.0, 0.05), Act("put", 2, 0.0, 0.06)]


def judged(*holds: Hold, acts: list[Act] = PUTS, capacity: int = 0) -> None:
    judge(Notes(list(holds), acts), ["a", "b"], capacity=capacity)


def test_the_judge_sees_what_is_wrong() -> None:
    """Each rule of a race, once broken, is reported."""
    judged(FIRST, SECOND)
    with pytest.raises(AssertionError, match="sub-queue 'x' in two hands"):
        judged(FIRST, replace(SECOND, begin=0.3))
    with pytest.raises(AssertionError, match="task 1 in two hands"):
        judged(replace(FIRST, how="release"), replace(SECOND, id=1, token=2, utube="y", begin=0.3))
    with pytest.raises(AssertionError, match="one lease, two holders"):
        judged(FIRST, replace(SECOND, id=1))
    with pytest.raises(AssertionError, match="taken away before its time"):
        judged(replace(FIRST, is_lost=True), SECOND)
    with pytest.raises(AssertionError, match="done twice"):
        judged(FIRST, replace(SECOND, id=1, token=2))
    with pytest.raises(AssertionError, match=r"lost: \[2\]"):
        judged(FIRST, replace(SECOND, how="release"))
    with pytest.raises(AssertionError, match="2 tasks at once, 1 are allowed"):
        judged(FIRST, SECOND, capacity=1)
    with pytest.raises(AssertionError, match=r"got nothing: \['b'\]"):
        judged(
            *(replace(FIRST, id=n, utube=str(n)) for n in range(100)),
            acts=[replace(PUTS[0], id=n) for n in range(100)],
        )
    judged(FIRST, replace(SECOND, who="a"))  # two holds are too few to call anybody starved


def test_the_judge_knows_what_ends_a_lease() -> None:
    """Its ttr ends it, and so does whoever buries or deletes the task."""
    overdue = replace(FIRST, until=0.32, is_lost=True, end=0.9, back=1.0)
    judged(overdue, SECOND, replace(SECOND, id=1, token=2, begin=0.85, end=0.9))
    buried = replace(FIRST, is_lost=True, end=0.9, back=1.0)
    acts = [*PUTS, Act("bury", 1, 0.25, 0.35)]
    judged(buried, SECOND, replace(SECOND, id=1, token=2, begin=0.85, end=0.9), acts=acts)
