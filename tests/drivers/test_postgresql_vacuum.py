"""The queue vacuums the dead rows that takes and acks leave in its tables, long before autovacuum comes."""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import ended, eventually, let_through_until_vacuumed, no_new_threads
from servers import PostgresServer, conninfo

import tubes
from tubes.testing.suite import take

DEAD = "SELECT pg_stat_get_dead_tuples(CAST(%s AS regclass))"
VACUUMS = "SELECT pg_stat_get_vacuum_count(CAST(%s AS regclass))"

SKIPPED = re.compile("WARNING: .*skipping")
"""What a skipped vacuum of ours would leave in the server's log; for autovacuum, it says LOG."""


@pytest.fixture
def url(own_migrated_db: str) -> str:
    """A database with our tables, in which autovacuum does nothing."""
    with psycopg.connect(conninfo(own_migrated_db), autocommit=True) as db:
        for table in ("tubes_task", "tubes_temporary_task"):
            db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    return own_migrated_db


@pytest.fixture
def db(url: str, postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A connection of the server's superuser to that database."""
    server = sa.make_url(url).set(username="postgres").render_as_string(hide_password=False)
    with psycopg.connect(conninfo(server), autocommit=True) as db:
        yield db


def asked(db: psycopg.Connection, question: str, table: str) -> int:
    """The server's answer."""
    row = db.execute(question.encode(), (table,)).fetchone()
    assert row is not None
    return int(row[0])


def leave_dead(db: psycopg.Connection, count: int = 12_000) -> None:
    """Leave dead rows, by default enough for a vacuum to pay, without a queue that would vacuum by itself."""
    columns = "tube, pri, created_ms, updated_ms, attempts, state"
    db.execute(
        f"INSERT INTO tubes_task ({columns}) SELECT 0, 0, 0, 0, 0, 'r' FROM generate_series(1, {count})".encode()
    )
    db.execute("DELETE FROM tubes_task WHERE tube = 0")
    eventually(lambda: asked(db, DEAD, "tubes_task") >= count)  # the server counts once a second


@pytest.mark.parametrize(
    ("temporary", "table"),
    [(False, "tubes_task"), pytest.param(True, "tubes_temporary_task", marks=pytest.mark.slow)],
)
def test_dead_rows_are_vacuumed_in_the_background(
    url: str, db: psycopg.Connection, temporary: bool, table: str
) -> None:
    """The next tasks take the dead rows' room."""
    size = "SELECT pg_relation_size(CAST(%s AS regclass))"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("jobs", "fifo", temporary=temporary)
        for _ in range(2):
            let_through_until_vacuumed(tube, db, table)
        before = asked(db, size, table)
        for _ in range(10):
            tube.put_many(range(500))
            tube.ack_many(tube.take_many(500, timeout=0))
        assert asked(db, size, table) <= before


@pytest.mark.slow
def test_a_few_dead_rows_are_left_to_autovacuum(url: str, db: psycopg.Connection) -> None:
    with tubes.connect(url, sweep=False) as queue:
        leave_dead(db, 9_000)
        queue.store.tidy()
    assert asked(db, VACUUMS, "tubes_task") == 0


@pytest.mark.slow
def test_a_locked_table_is_not_waited_for(
    url: str, db: psycopg.Connection, postgres_server: PostgresServer
) -> None:
    with (
        tubes.connect(url, sweep=False, busy_timeout=60) as queue,
        psycopg.connect(conninfo(url)) as holder,
    ):
        leave_dead(db)
        holder.execute("LOCK TABLE tubes_task IN SHARE UPDATE EXCLUSIVE MODE")
        tidying = threading.Thread(target=queue.store.tidy, daemon=True)
        tidying.start()
        ended(tidying)
        assert asked(db, VACUUMS, "tubes_task") == 0
        assert not SKIPPED.search(postgres_server.log)
        holder.rollback()
        queue.store.tidy()
        eventually(lambda: asked(db, VACUUMS, "tubes_task"))


@pytest.mark.slow
def test_who_does_not_own_the_tables_leaves_it(
    url: str, db: psycopg.Connection, postgres_server: PostgresServer
) -> None:
    """The server would refuse, and write a warning into its log each time."""
    worker = sa.make_url(url).set(username="worker").render_as_string(hide_password=False)
    db.execute("CREATE ROLE worker LOGIN")
    try:
        db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO worker")
        db.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO worker")
        with tubes.connect(worker, sweep=False) as queue:
            leave_dead(db)
            queue.store.tidy()
        assert asked(db, VACUUMS, "tubes_task") == 0
        assert not SKIPPED.search(postgres_server.log)
    finally:
        db.execute("DROP OWNED BY worker; DROP ROLE worker")


@pytest.mark.slow
def test_a_vacuum_that_the_server_ends_is_no_error_and_not_tried_again_at_once(
    url: str, db: psycopg.Connection, postgres_server: PostgresServer
) -> None:
    name = sa.make_url(url).database
    for setting in ("vacuum_cost_delay = 100", "vacuum_cost_limit = 1", "statement_timeout = 2000"):
        db.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    before = postgres_server.log.count("canceling statement")
    with tubes.connect(url, sweep=False) as queue:
        leave_dead(db)
        for _ in range(2):
            queue.store.tidy()
        assert asked(db, VACUUMS, "tubes_task") == 0
        assert postgres_server.log.count("canceling statement") == before + 1
        tube = queue.create_tube("jobs", "fifo")
        tube.put("after")
        task = take(tube)
        assert task.data == "after"


@pytest.mark.slow
def test_a_vacuum_for_which_no_thread_can_be_had_is_left_to_autovacuum(
    url: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, no sweep would come after it."""
    with tubes.connect(url, sweep=False) as queue:
        leave_dead(db)
        with no_new_threads(monkeypatch):
            queue.store.tidy()
        assert asked(db, VACUUMS, "tubes_task") == 0


@pytest.mark.slow
def test_a_vacuum_holds_up_nobody_for_long(
    url: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that settles what is due, and a close waits for that thread."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.sql.postgresql_vacuum"), "LONGEST", 0.3)
    name = sa.make_url(url).database
    for setting in ("vacuum_cost_delay = 100", "vacuum_cost_limit = 1"):  # half a minute
        db.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    with tubes.connect(url, sweep=False) as queue:
        leave_dead(db)
        began = time.monotonic()
        for _ in range(2):
            queue.store.tidy()
        assert time.monotonic() - began < 10
        assert asked(db, VACUUMS, "tubes_task") == 0
        tube = queue.create_tube("jobs", "fifo")
        tube.put_many(["after", "it"])
        assert [task.data for task in tube.take_many(2, timeout=0)] == ["after", "it"]


@pytest.mark.slow
def test_what_an_old_transaction_keeps_is_vacuumed_rarely(
    url: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be removed, however often it is tried."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.sql.postgresql_vacuum"), "REST", 1e6)
    with tubes.connect(url, sweep=False) as queue, psycopg.connect(conninfo(url)) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1 FROM tubes_task")
        leave_dead(db)
        queue.store.tidy()
        eventually(lambda: asked(db, VACUUMS, "tubes_task"))
        assert asked(db, DEAD, "tubes_task") >= 10_000
        queue.store.tidy()
        assert asked(db, VACUUMS, "tubes_task") == 1
