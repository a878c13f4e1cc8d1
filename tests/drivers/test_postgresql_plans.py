"""A step on many tasks costs the same for each, even if its plan was made for an empty table."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from servers import conninfo, new_database
from tubes.drivers.sql.postgresql import DIALECT
from tubes.drivers.sql.postgresql_wire import LASTING, PLANNING
from tubes.drivers.sql.statements import Statement, Statements, statements

import tubes

SQL: Statements = statements(DIALECT, "tubes")
BATCHES: dict[str, Statement] = {
    "lock_some": SQL.lock_some,
    "lock_groups": SQL.lock_groups,
    "lock_free_groups": SQL.lock_free_groups,
    "ready": SQL.ready,
    "remove": SQL.remove,
    "ack_leases": SQL.ack_leases,
    "ack_range": SQL.ack_range,
    "leave_front": SQL.leave_front,
    "remove_in_front": SQL.remove_all[0],
    "remove_behind": SQL.remove_all[1],
    "remove_aside": SQL.remove_all[2],
    "ids": SQL.ids,
    "ids_free_behind": SQL.ids_free[0],
    "ids_free_aside": SQL.ids_free[1],
    "ids_free_in_front": SQL.ids_free[2],
    "with_ready": SQL.with_ready,
    "next_dues": SQL.next_dues,
    "holders": SQL.holders,
    "due": SQL.due.all,
    "due_free": SQL.due.free,
    "due_elsewhere": SQL.due.elsewhere,
    "overdue_free": SQL.overdue.free,
    "overdue_elsewhere": SQL.overdue.elsewhere,
    "taken_by": SQL.taken_by.all,
    "taken": SQL.taken.all,
    "taken_free": SQL.taken.free,
    "taken_elsewhere": SQL.taken.elsewhere,
    "lock_ids": SQL.lock_ids,
    "taken_by_free": SQL.taken_by.free,
    "taken_by_elsewhere": SQL.taken_by.elsewhere,
    "buried_free": SQL.buried.free,
    "buried_elsewhere": SQL.buried.elsewhere,
    "buried_newest_free": SQL.buried_newest.free,
}


@pytest.fixture(
    scope="module",
    params=[(1000, 0), (20_000, 2)],
    ids=["emptied", "with_few_tasks_in_a_large_index"],
)
def db(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A connection to a queue that had many tasks and now has none or few, as its statistics say."""
    many, left = request.param
    with new_database(postgres_url) as url:
        with tubes.connect(url, migrate=True, sweep=False) as queue:
            tube = queue.create_tube("jobs", "fifo")
            tube.put_many(range(many))
            tube.truncate()
            tube.put_many(range(left))
        with psycopg.connect(conninfo(url), autocommit=True) as db:
            db.execute("VACUUM (ANALYZE) tubes_task")
            for name, value in (PLANNING | LASTING).items():
                db.execute(f"SET {name} = '{value}'".encode())
            yield db


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_finds_its_tasks_along_an_index(db: psycopg.Connection, name: str) -> None:
    """Joining each with each took 2 s for 1,000 tasks, and for their leases 250 ms."""
    statement = BATCHES[name]
    db.execute(f"PREPARE {name} AS {statement.text}".encode())
    nulls = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement.text))))
    nothing = f"({nulls})" if nulls else ""
    plan = "\n".join(line for (line,) in db.execute(f"EXPLAIN EXECUTE {name} {nothing}".encode()))
    assert "Join Filter" not in plan, plan
    assert "Index Cond" in plan and "Seq Scan on tubes_task" not in plan, plan


@pytest.mark.parametrize(
    ("name", "indexes"),
    [("ready", ["front", "behind"]), ("front", ["front"]), ("aside", ["aside"])],
)
def test_a_listing_reads_not_what_other_tubes_hold(
    db: psycopg.Connection, name: str, indexes: list[str]
) -> None:
    """Of ready tasks, a tube that had none read all the others': 170 ms beside 450,000, and now 1."""
    db.execute(f"PREPARE list_{name} AS {getattr(SQL, f'by_state_{name}').text}".encode())
    asked = f"EXPLAIN EXECUTE list_{name} (NULL, NULL, NULL, NULL)"
    plan = "\n".join(line for (line,) in db.execute(asked.encode()))
    assert re.findall(r"Index Only Scan using tubes_task_(\w+)", plan) == indexes, plan
    assert plan.count("tubes_task_pkey") == plan.count("Index Cond: (id = ANY") == 1, plan


@pytest.mark.parametrize(("name", "limits"), [("next_due", 2), ("next_dues", 2), ("look", 3)])
def test_what_is_due_next_is_the_first_entry_of_an_index(
    db: psycopg.Connection, name: str, limits: int
) -> None:
    """As a min() of what looked like a few, it read all taken tasks at each look of a waiting consumer."""
    text = getattr(SQL, name).text
    given = "(NULL)" if "$1" in text else ""
    db.execute(f"PREPARE first_{name} AS {text}".encode())
    plan = "\n".join(line for (line,) in db.execute(f"EXPLAIN EXECUTE first_{name} {given}".encode()))
    assert plan.count("Limit") == limits, plan
    assert "Aggregate" not in plan and "Sort" not in plan, plan
