"""What a pooler in between takes away, and what goes on without it."""

from __future__ import annotations

import importlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import begin, ended, eventually, finish, heard, let_through_until_vacuumed, tell, waiting
from faults.racing import race_enough
from faults.serving import WORKER
from faults.test_postgresql import plain
from servers import PostgresServer

import tubes

Connect = Callable[..., tubes.Queue]

postgresql_wire: Any = importlib.import_module("tubes.drivers.sql.postgresql_wire")


@pytest.fixture
def connect(pooled_db: str) -> Iterator[Connect]:
    """Opens queues through PgBouncer, closed when the test is over."""
    with ExitStack() as opened:

        def opening(url: str = pooled_db, **settings: Any) -> tubes.Queue:
            return opened.enter_context(tubes.connect(url, **settings))

        yield opening


def test_prepared_statements_do_not_work_here(pooled_db: str) -> None:
    """Otherwise, the other tests would show nothing."""
    with pytest.raises(tubes.StoreError, match="prepared statement"):
        with tubes.connect(pooled_db + "&pooled=no") as queue, tubes.connect(pooled_db) as other:
            queue.create_tube("jobs", "utube")
            for first, second in ((queue, other), (other, queue)):
                with first.transaction() as unit, second.transaction() as another:
                    first.tube.jobs.put("x", unit=unit)
                    second.tube.jobs.put("x", utube="y", unit=another)


def test_an_encoding_that_a_user_has_set_is_left_to_nobody(connect: Connect) -> None:
    """PgBouncer keeps it for as long as the connection is open."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    with queue.transaction() as unit:
        unit.connection.exec_driver_sql("SET client_encoding = latin1")
    assert tube.peek(tube.put("\N{POUND SIGN}")).data == "\N{POUND SIGN}"
    assert [task.data for task in connect(sweep=False).tube.jobs.tasks("r")] == ["\N{POUND SIGN}"]


def test_no_statement_of_another_s_is_taken_for_one_s_own(pooled_db: str) -> None:
    """As with ``pooled=no``, or behind a pooler that passes the server's process number on."""
    made = partial(postgresql_wire.Wire, plain(pooled_db), "it", "full", pooled=False)
    with closing(made()) as first, closing(made()) as second:
        first.simple("BEGIN")
        first.execute("SELECT 'first'", ())
        second.execute("SELECT 'second'", ())
        first.simple("COMMIT")  # that connection of the server came free last, and is given next
        with pytest.raises(postgresql_wire.Refused, match=r"prepared statement .* does not exist"):
            second.execute("SELECT 'second'", ())


def test_what_others_get_of_the_server_is_as_it_was(connect: Connect, pooled_db: str) -> None:
    """No setting, no prepared statement, no listener and no lock stays behind."""
    queue = connect()
    tube = queue.create_tube("jobs", "utubettl", ttr=60)
    with queue.transaction() as unit:
        tube.put("y", unit=unit)
    with queue.transaction() as unit:
        assert unit.connection.scalar(sa.text("SHOW enable_seqscan")) == "off"
        for _ in range(10):  # psycopg prepares what it sees more than five times
            unit.connection.execute(sa.text("SELECT 1"))
    for number in range(20):
        tube.put(number, utube=str(number))
    tube.ack_many(tube.take_many(10, 0))
    assert tube.take(timeout=0.2) is not None
    with ExitStack() as opened:
        for _ in range(4):  # all that there are
            db = opened.enter_context(psycopg.connect(plain(pooled_db)))
            settings = ("enable_seqscan", "jit", "synchronous_commit", "lock_timeout")
            shown = [db.execute(f"SHOW {name}").fetchall()[0][0] for name in settings]
            assert shown == ["on", "on", "on", "0"]
            for leftover in ("pg_prepared_statements", "pg_listening_channels()"):
                assert not db.execute(f"SELECT * FROM {leftover}").fetchall()
        ours = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        assert not db.execute(f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND {ours}").fetchall()


def test_dead_rows_are_vacuumed(connect: Connect, own_postgres_db: str) -> None:
    with psycopg.connect(plain(own_postgres_db), autocommit=True) as db:
        let_through_until_vacuumed(connect().create_tube("jobs", "fifo"), db)


def test_a_waiting_take_finds_what_another_process_puts(
    connect: Connect, record_property: Callable[[str, object], None]
) -> None:
    """Nobody calls it: it looks ten times a second."""
    taker, putter = connect(), connect()
    tube = taker.create_tube("jobs", "fifo")
    came: list[float] = []

    def take() -> None:
        assert tube.take(timeout=20) is not None
        came.append(time.monotonic())

    waits = []
    for number in range(15):
        waiter = threading.Thread(target=take)
        waiter.start()
        eventually(lambda: taker.store.waiters.count(tube.record.id))
        time.sleep(0.05 + number * 0.007)  # anywhere between two looks
        put = time.monotonic()
        putter.tube.jobs.put("x")
        ended(waiter)
        waits.append(came.pop() - put)
    record_property("waits", repr(waits))
    print(
        f"\nthrough PgBouncer, a take waits for {median(waits) * 1000:.0f} ms, {max(waits) * 1000:.0f} at most"
    )
    assert median(waits) < 0.3


def test_what_a_killed_process_holds_is_ready_again(connect: Connect, pooled_db: str) -> None:
    tube = connect().create_tube("jobs", "utube")
    tube.put("held")
    worker = begin(WORKER, pooled_db)
    try:
        tell(worker, "take")
        assert heard(worker) == "held"
        time.sleep(1.5)  # longer than a silent process is given: this one beats
        assert tube.take(timeout=0) is None
        worker.kill()
        task = tube.take(timeout=20)
        assert task is not None and task.attempts == 2
    finally:
        finish(worker)


@pytest.mark.parametrize("type", ["limfifottl", "utube", "utubettl"])
def test_nothing_is_in_two_hands(pooled_db: str, type: str) -> None:
    race_enough(pooled_db, type, 1.5, 30, are_called=False)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_is_noticed(
    connect: Connect, postgres_server: PostgresServer, mode: str
) -> None:
    """A waiting take goes on waiting, and a temporary tube is emptied: by the next beat at the latest."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    brief = queue.create_tube("brief", "fifo", temporary=True)
    brief.put("gone")
    waiter, got = waiting(tube)
    postgres_server.stop(mode)
    postgres_server.start()

    def put() -> bool:
        try:
            tube.put("came")
        except tubes.StoreError:
            return False
        return True

    def is_empty() -> bool:
        try:
            return brief.statistics()["tasks"]["total"] == 0
        except tubes.StoreError:
            return False

    eventually(put, within=30)
    ended(waiter)
    assert [task and task.data for task in got] == ["came"]
    eventually(is_empty, within=30)


def does_a_commit_wait(here: str, db: psycopg.Connection[Any]) -> bool:
    """
    Whether the server makes a commit wait for its standby; the setting in ``db`` does not tell.

    Another process of the server reads it for all, perhaps later.
    """
    probe = psycopg.pq.PGconn.connect(here.encode())
    try:
        probe.send_query(b"SELECT pg_logical_emit_message(true, 'probe', '')")
        state = "SELECT wait_event = 'SyncRep', state = 'idle' FROM pg_stat_activity WHERE pid = %s"

        def is_known() -> bool:
            row = db.execute(state, [probe.backend_pid]).fetchone()
            return row is not None and any(row)

        eventually(is_known)
        waits = db.execute(state, [probe.backend_pid]).fetchone()
        db.execute("SELECT pg_terminate_backend(%s, 10000)", [probe.backend_pid])
    finally:
        probe.finish()
    return waits is not None and bool(waits[0])


@pytest.mark.parametrize("verb", ["put", "take"])
def test_what_the_pooler_says_of_a_server_that_died_is_no_answer_to_a_commit(
    connect: Connect, pooled_db: str, postgres_server: PostgresServer, verb: str
) -> None:
    """The commit is done and waits for a standby when its process is killed: nothing was answered."""
    beatless = re.sub("dead_after=[0-9]+", "dead_after=600", pooled_db)  # a beat would be a commit too
    queue = connect(beatless, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    if verb == "take":
        tube.put("x")
        queue.sweep()  # stores what was counted, which would be a commit beside the take's
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(tube.put("x") if verb == "put" else tube.take(timeout=0))
        except tubes.StoreError as error:
            outcome.append(type(error))

    caller = threading.Thread(target=call)
    here = f"user=postgres dbname=postgres host={postgres_server.folder}"
    with psycopg.connect(here, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        try:
            db.execute("SELECT pg_reload_conf()")
            eventually(lambda: does_a_commit_wait(here, db))
            caller.start()
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            eventually(lambda: db.execute(waits).fetchone() is not None)
            held = db.execute(waits).fetchall()
        finally:
            db.execute("ALTER SYSTEM RESET synchronous_standby_names")
    for (pid,) in held:
        os.kill(pid, signal.SIGKILL)
    postgres_server.stop("immediate")
    postgres_server.start()
    ended(caller)
    assert outcome == [tubes.OutcomeUnknown]

    got: list[tubes.Task] = []

    def take() -> bool:
        try:
            got.extend(tube.take_many(5, timeout=0))
        except tubes.StoreError:
            return False
        return True

    eventually(take, within=30)
    assert [task.data for task in got] == ["x"]
