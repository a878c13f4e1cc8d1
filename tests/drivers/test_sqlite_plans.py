"""Each statement finds its tasks along an index, however many there are, and whatever ANALYZE has seen."""

from __future__ import annotations

import importlib
import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tubes.drivers.sql.sqlite import DIALECT
from tubes.drivers.sql.statements import Passing, Statement, Statements, statements

import tubes

SQL: Statements = statements(DIALECT, "tubes")

SORTED = {
    "count": "GROUP BY",  # what stands behind is all in one state
    "holders": "DISTINCT",  # the owners of taken tasks
    "by_state_front": "ORDER BY",
    "by_state_aside": "ORDER BY",
    "by_state_ready": "ORDER BY",
    "ended": "ORDER BY",  # sessions
}
"""What is sorted in the statements whose order no index can give."""


def texts() -> Iterator[tuple[str, str]]:
    """All that is run on SQLite, and the steps of the triggers."""
    for name, made in vars(SQL).items():
        several = made if isinstance(made, list) else [made.all if isinstance(made, Passing) else made]
        for number, statement in enumerate(several):
            if isinstance(statement, Statement) and "SAVEPOINT" not in statement.text:
                yield f"{name}{number or ''}", statement.text
    schema = importlib.import_module("tubes.migrations.versions.0001_tables")
    for name, trigger in schema.SQLITE_TRIGGERS.items():
        when, _, steps = trigger.format(ns="tubes").removesuffix("END").partition("BEGIN")
        asked = "SELECT 1 WHERE" + when.partition("WHEN")[2]
        for number, step in enumerate([asked, *steps.strip(" \n;").split(";")]):
            if "RAISE" not in step:
                yield f"trigger_{name}{number}", re.sub(r"\b(new|old)\.\w+", "?", step)


TEXTS = dict(texts())
NUMBER = itertools.count()


def plan(db: sqlite3.Connection, name: str) -> list[str]:
    text = f"EXPLAIN QUERY PLAN {TEXTS[name]} -- {next(NUMBER)}"  # for a known text it tells the old plan
    return [line for *_, line in db.execute(text, (None,) * text.count("?"))]


def plans(queue: tubes.Queue) -> dict[str, list[str]]:
    """How the queue's own connection would run everything."""
    store: Any = queue.store
    queue.tubes()
    store.transact(lambda tx: tx.rows(SQL.tubes))  # rereads a schema that others have changed
    return {name: plan(store.writer.db, name) for name in TEXTS}


def analyze(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ANALYZE")
    db.close()


def fill(queue: tubes.Queue, count: int) -> None:
    for type in ("fifo", "fifottl", "utube", "utubettl"):
        tube = queue.create_tube(type, type, if_not_exists=True)
        options: dict[str, Any] = {"utube": "one"} if "utube" in type else {}
        tube.put_many(range(count), **options)
        if "ttl" in type:
            tube.put_many(range(count), delay=60, **options)
        tube.bury(tube.take_many(1)[0])
        tube.put(0, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tubes.Queue]:
    with tubes.connect(f"sqlite:///{path}", durability="off", sweep=False) as queue:
        yield queue


def test_no_statement_reads_all_tasks_or_sorts_them(queue: tubes.Queue) -> None:
    for name, lines in plans(queue).items():
        for line in lines:
            reads_all = re.match("SCAN.* (tubes_task|front|ahead|next|over|late|leased)", line)
            assert not reads_all, (name, line)
            assert "AUTOMATIC" not in line, (name, line)
            if "TEMP B-TREE" in line:
                assert line.endswith(SORTED.get(name, "nothing")), (name, line)


@pytest.mark.parametrize("count", [1, 20, 1000])
def test_what_a_user_s_analyze_has_seen_is_forgotten(queue: tubes.Queue, path: Path, count: int) -> None:
    """After it, batches read all tasks; release, kick and puts into a sub-queue read all those in front."""
    usual = plans(queue)
    fill(queue, count)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, name)")
        db.execute("CREATE INDEX mine_name ON mine (name)")
        db.execute("INSERT INTO mine (name) VALUES ('a')")
    analyze(path)
    if count == 1:  # with more, some builds of SQLite keep samples, too, and plan as before
        assert plans(queue) != usual
    queue.store.tidy()
    assert plans(queue) == usual
    assert db.execute("SELECT tbl, idx FROM sqlite_stat1").fetchall() == [("mine", "mine_name")]
    db.close()


def test_who_connects_forgets_it_also_for_those_who_are_connected(queue: tubes.Queue, path: Path) -> None:
    usual = plans(queue)
    fill(queue, 1)
    analyze(path)
    with tubes.connect(f"sqlite:///{path}", durability="off", sweep=False) as another:
        assert plans(another) == usual
    assert plans(queue) == usual


def test_of_an_empty_queue_too(queue: tubes.Queue, path: Path) -> None:
    """Nothing is left in it but the row that keeps the last id."""
    usual = plans(queue)
    tube = queue.create_tube("jobs", "fifo")
    tube.delete(tube.put("x").id)
    analyze(path)
    queue.store.tidy()
    assert plans(queue) == usual


@pytest.fixture
def used(queue: tubes.Queue) -> Callable[[Callable[[], Any]], int]:
    """Count the steps that SQLite's engine does for a call."""
    store: Any = queue.store
    queue._sweeper.stop()
    steps = itertools.count()

    def used(verb: Callable[[], Any]) -> int:
        for db in (store.writer.db, store._reader):
            db.set_progress_handler(lambda: next(steps) < 0, 1)
        before = next(steps)
        verb()
        return next(steps) - before

    return used


def test_a_listing_reads_not_what_other_tubes_hold(
    queue: tubes.Queue, used: Callable[[Callable[[], Any]], int]
) -> None:
    """Of ready tasks, a tube that had none read all the others': 110 ms beside 450,000, and now 0.5."""
    tube, other = queue.create_tube("jobs", "fifottl"), queue.create_tube("others", "utube")

    def least() -> list[int]:
        return [min(used(partial(tube.tasks, state)) for _ in range(5)) for state in "rt!~"]

    other.put_many(range(3_000), utube="one")
    few = least()
    other.put_many(range(3_000), utube="one")
    assert least() == few


@pytest.mark.parametrize("type", ["utube", "utubettl"])
def test_no_verb_walks_over_its_sub_queue(
    queue: tubes.Queue, used: Callable[[Callable[[], Any]], int], type: str
) -> None:
    """A release looked for a better task among all those behind: 46 ms with 60,000 there, and now 0.3."""
    tube = queue.create_tube("jobs", type)

    def verbs() -> list[int]:
        """What a put, a take and the verbs that follow a take cost SQLite's engine."""
        costs = [used(lambda: tube.put("x", utube="one"))]
        for verb in (tube.release, tube.bury, tube.delete, tube.ack):
            costs.append(used(lambda: tube.take(timeout=0)))
            [taken] = tube.tasks("t")
            costs.append(used(partial(verb, taken)))
        return [*costs, used(tube.kick)]

    def least() -> list[int]:
        """Without what is added now and then, such as a look for the dead."""
        return [min(costs) for costs in zip(*[verbs() for _ in range(5)], strict=True)]

    tube.put_many(range(10), utube="one")
    few = least()
    tube.put_many(range(200), utube="one")
    assert least() == few
