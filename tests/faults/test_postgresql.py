"""PostgreSQL: servers restart, connections are cut, clients die or stop in transactions, clocks differ."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar, cast

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import (
    Connect,
    Ended,
    end_when_woken,
    ended,
    eventually,
    heard,
    join_forgotten,
    look_in_hastier_moments,
    meanwhile,
    no_new_threads,
    quiet,
    rescue_in_moments,
    run,
    take_looking_seldom,
    tell,
    waiting,
)
from faults.proxy import Proxy
from faults.serving import Load, put_when_it_can
from faults.test_interrupts import check_connect
from interpreter import Process
from servers import OWNER, PostgresServer, cut
from slow import slow_but

import tubes
from tubes.driver import STEP_LIMIT
from tubes.testing import FakeClock
from tubes.testing.suite import refusal, take

T = TypeVar("T")


@pytest.fixture
def url(own_migrated_db: str) -> str:
    """A database with our tables, on a server that a test may stop; a process is dead after a second."""
    return changed(own_migrated_db, dead_after="1")


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    """A proxy in front of that server."""
    made = Proxy(postgres_server.folder / ".s.PGSQL.5432")
    yield made
    made.close()


def changed(url: str, **options: str) -> str:
    """The URL with other options in its query."""
    return sa.make_url(url).update_query_dict(options).render_as_string(hide_password=False)


def through(proxy: Proxy, url: str) -> str:
    """The URL of the same database behind the proxy."""
    return changed(url, host="127.0.0.1", port=str(proxy.port))


def plain(url: str) -> str:
    """The same URL for psycopg, without our own settings."""
    bare = sa.make_url(url).set(drivername="postgresql").difference_update_query(["dead_after"])
    return bare.render_as_string(hide_password=False)


def waiting_for_locks(url: str) -> int:
    """How many connections to that database wait for a lock."""
    with psycopg.connect(plain(url)) as db:
        query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return len(db.execute(query).fetchall())


def waits_for_a_lock(url: str, work: Callable[[], T]) -> tuple[threading.Thread, list[T]]:
    """A thread that does this work and now waits for a lock; and what it gets."""
    got: list[T] = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    eventually(lambda: waiting_for_locks(url) == 1)
    return thread, got


DEADLY = """
ALTER TABLE tubes_{table} RENAME TO {table}_kept;
CREATE VIEW tubes_{table} AS SELECT * FROM {table}_kept WHERE pg_terminate_backend(pg_backend_pid());
"""
"""Whoever reads that table loses the connection."""


@pytest.mark.parametrize(
    ("durability", "synchronous"), [(None, "on"), ("full", "on"), ("normal", "off"), ("off", "off")], ids=str
)
def test_a_commit_waits_for_the_disk_as_the_durability_says(
    connect: Connect, durability: str | None, synchronous: str
) -> None:
    """A queue with the other durability is open too; its connections are not used."""
    for settings in ({"durability": "off" if synchronous == "on" else "full"}, {"durability": durability}):
        queue = connect(**settings)
        queue.create_tube("jobs", "fifo", if_not_exists=True)
    with queue.transaction() as unit:
        assert unit.connection.exec_driver_sql("SHOW synchronous_commit").scalar() == synchronous


AT_COMMIT = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()"

NOTING = f"""
CREATE TABLE noted (what text, synchronous text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO noted VALUES (TG_TABLE_NAME, current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note AFTER INSERT ON tubes_task {AT_COMMIT};
CREATE CONSTRAINT TRIGGER note AFTER INSERT ON tubes_calls {AT_COMMIT};
CREATE CONSTRAINT TRIGGER note AFTER DELETE ON tubes_session {AT_COMMIT};
"""


def test_counts_and_the_end_of_a_session_wait_for_no_disk(url: str, connect: Connect) -> None:
    """All processes write to the same rows of counts: these stay locked for as long as a commit takes."""
    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    with psycopg.connect(plain(url), autocommit=True) as db:
        db.execute(NOTING)
        tube.put("x")
        queue.flush_counts()
        tube.put("y")
        queue.close()
        noted = db.execute("SELECT what, synchronous FROM noted").fetchall()
    assert {*noted} == {("tubes_task", "on"), ("tubes_calls", "off"), ("tubes_session", "off")}
    assert noted.count(("tubes_task", "on")) == 2


@pytest.mark.parametrize("table", ["version", "server"])
def test_a_connection_that_is_lost_while_a_queue_is_opened_is_an_error_of_ours(url: str, table: str) -> None:
    with psycopg.connect(plain(url)) as db:
        db.execute(DEADLY.format(table=table).encode())
    with pytest.raises(tubes.StoreUnavailable, match="terminating connection"):
        tubes.connect(url)


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True])
def test_a_session_of_which_nobody_knows_whether_it_was_begun_is_no_change_of_the_user_s(
    url: str, proxy: Proxy, is_open: bool
) -> None:
    """The call has done nothing, and may be repeated."""
    url = through(proxy, url)
    with ExitStack() as opened:
        store: Any = opened.enter_context(tubes.connect(url, sweep=False)).store if is_open else None
        proxy.cut_after = b"COMMIT\0"
        with pytest.raises(tubes.StoreUnavailable, match="died in a commit"):
            store._begin_session() if is_open else tubes.connect(url)
    with tubes.connect(url, sweep=False) as queue:
        assert queue.create_tube("jobs", "fifo").put("x")


@pytest.mark.slow
def test_a_connection_that_is_lost_at_its_first_use_is_an_error_of_ours(connect: Connect, url: str) -> None:
    """This holds wherever another connection is needed."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    with psycopg.connect(plain(url)) as db:
        db.execute(DEADLY.format(table="server").encode())
    with queue.transaction() as unit:  # the only connection that there is
        tube.put("x", unit=unit)
        with pytest.raises(tubes.StoreUnavailable), queue.transaction():
            pass
        for call in (tube.statistics, lambda: tube.put("y")):
            with pytest.raises(tubes.StoreUnavailable):
                call()
    assert tube.take(timeout=0)


def test_conflicts_before_a_connection_is_lost_are_no_reason_to_give_up(connect: Connect) -> None:
    """Only lost connections count towards giving the server up as unusable."""
    wire = importlib.import_module("tubes.drivers.sql.postgresql_wire")
    conflict, lost = wire.Refused("40001", "others were faster"), wire.Lost("it died", was_sent=False)
    store: Any = connect(sweep=False).store

    def transact(*failures: Exception) -> str:
        left = [*failures]

        def step(tx: Any) -> str:
            if left:
                raise left.pop(0)
            return "done"

        return str(store.transact(step))

    assert transact(conflict, conflict, conflict, lost, lost) == "done"
    with pytest.raises(tubes.StoreUnavailable, match="it died"):
        transact(lost, lost, lost)


@pytest.mark.slow
def test_what_the_socket_has_no_room_for_at_once_is_sent_all_the_same(connect: Connect) -> None:
    """Both when a statement is first sent, and prepared, and later."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    got: list[Any] = []

    def work() -> None:
        for data in ("x" * 2_000_000, b"\0" * 2_000_000):
            tube.put(data)
            task = tube.take(timeout=0)
            assert task is not None and task.data == data
            got.append(tube.ack(task).data)
        tube.put_many(["y" * 100] * 10_000)
        got.append(len(tube.ack_many(tube.take_many(10_000, timeout=0))))

    thread = threading.Thread(target=work, daemon=True)  # it would wait for answers to what was never sent
    thread.start()
    ended(thread)
    assert got == ["x" * 2_000_000, b"\0" * 2_000_000, 10_000]


@pytest.mark.slow
def test_a_handler_may_call_in_the_middle_of_a_commit(url: str) -> None:
    """The tube has a callback, and callbacks come in the order of the commits."""
    code = """
import importlib, os, signal, sys, tubes
from tubes.interrupts import interruptible
PostgresTx = importlib.import_module("tubes.drivers.sql.postgresql").PostgresTx
called = []
queue = tubes.connect(sys.argv[1])
tube = queue.create_tube("jobs", "fifo", on_task_change=lambda task, event: called.append(task.data))
commit = PostgresTx.commit

def interrupted(tx):
    PostgresTx.commit = commit
    interruptible(os.kill, os.getpid(), signal.SIGTERM)  # as it waits for the answer
    commit(tx)

signal.signal(signal.SIGTERM, lambda number, frame: tube.put("the handler's"))
PostgresTx.commit = interrupted
tube.put("interrupted")
print(sorted(called), len(tube.tasks("r")))
queue.close()
"""
    assert run(code, url) == """['interrupted', "the handler's"] 2"""


@pytest.mark.parametrize("second", ["a call", "a transaction"])
@pytest.mark.parametrize("first", ["a call", "a transaction"])
def test_callbacks_are_in_line_before_another_thread_commits(
    connect: Connect, url: str, first: str, second: str
) -> None:
    """Otherwise the callback of an instant take could come before that of the put."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    told: list[str] = []
    tube.on_task_change(lambda task, event: told.append(task.data))

    def commit() -> None:
        with queue.transaction() as unit:
            tube.put("second", unit=unit)

    thread = threading.Thread(target=commit if second == "a transaction" else partial(tube.put, "second"))

    def committed(*_: object) -> None:
        thread.start()
        with psycopg.connect(plain(url), autocommit=True) as db:
            has_put = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%tubes_task%'"
            eventually(lambda: told or db.execute(has_put).fetchone() is not None)
        told.append("first")

    if first == "a transaction":
        with queue.store.transaction(committed):
            pass
    else:
        queue.store.transact(lambda tx: None, committed)
    thread.join()
    assert told == ["first", "second"]


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "lost"])
def test_a_waiting_take_whose_commit_nobody_knows_of_hands_out_nothing_of_it(
    url: str, proxy: Proxy, is_committed: bool
) -> None:
    """Its connection dies in the commit. It takes the task again, and then surely has it."""
    here = changed(url, dead_after="60")  # nothing else is committed meanwhile
    queues = [tubes.connect(to, sweep=False) for to in (here, through(proxy, here))]
    tube = queues[0].create_tube("jobs", "limfifottl", capacity=9)
    with queues[0], queues[1] as unlucky:
        theirs: Any = unlucky.tube.jobs
        take = theirs.driver.take

        def take_and_lose(*given: Any, **named: Any) -> Any:
            """Lose this COMMIT, not that of a look."""
            changes = take(*given, **named)
            if changes:
                theirs.driver.take = take
                setattr(proxy, "cut_after" if is_committed else "hold_back", b"COMMIT\0")
            return changes

        theirs.driver.take = take_and_lose
        thread, got = waiting(theirs)
        tube.put("x", delay=0.2)  # what settles that and takes it is more than one statement
        if not is_committed:
            proxy.drop()
        ended(thread)
        assert proxy.cut_after is None and proxy.hold_back is None
        (task,) = got
        assert theirs._unknown
        assert task is not None and task.attempts == (2 if is_committed else 1)
        assert tube.take(timeout=0) is None
        assert theirs.ack(task).data == "x"


@pytest.mark.slow
def test_what_a_transaction_took_whose_commit_nobody_knows_of_is_given_back(url: str, proxy: Proxy) -> None:
    """Its connection dies in a commit that stands. Otherwise this session would keep the task for life."""
    with tubes.connect(through(proxy, url), sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put_many(["done", "kept"])
        with pytest.raises(tubes.OutcomeUnknown), queue.transaction() as unit:
            done, kept = tube.take_many(2, 0, unit=unit)
            tube.ack(done, unit=unit)
            proxy.cut_after = b"COMMIT\0"
        assert [(task.data, task.attempts) for task in tube.take_many(9, 0)] == [(kept.data, 2)]


@pytest.mark.slow
def test_what_an_unknown_take_holds_is_given_back_also_by_who_has_joined_another_session(
    url: str, proxy: Proxy
) -> None:
    """Another queue shares the session it left, which would keep the task as long as that queue lives."""
    with (
        tubes.connect(url, sweep=False) as first,
        tubes.connect(url, sweep=False) as second,
        tubes.connect(through(proxy, url), sweep=False) as queue,
    ):
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        queue.identify(first.identify())
        with pytest.raises(tubes.OutcomeUnknown), queue.transaction() as unit:
            tube.take(0, unit=unit)
            proxy.cut_after = b"COMMIT\0"
        queue.identify(second.identify())
        task = tube.take(0)
        assert task is not None and task.attempts == 2


@pytest.mark.parametrize("last", [b"INSERT INTO", b"COMMIT\0"], ids=["by itself", "in a transaction"])
def test_a_put_of_which_nobody_knows_whether_it_was_done_is_not_done_again(
    url: str, proxy: Proxy, last: bytes
) -> None:
    """A put is one statement, which commits by itself, unless there is a callback."""
    with tubes.connect(url, sweep=False) as queue, tubes.connect(through(proxy, url), sweep=False) as unlucky:
        tube = queue.create_tube("jobs", "fifo")
        theirs = unlucky.tube.jobs
        theirs.on_task_change((lambda task, event: None) if last == b"COMMIT\0" else None)
        proxy.cut_after = last
        with pytest.raises(tubes.OutcomeUnknown):
            theirs.put("x")
        assert proxy.cut_after is None
        eventually(lambda: [task.data for task in tube.tasks("r")] == ["x"])


def test_a_connect_that_a_signal_cuts_short_leaves_nothing_open(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_connect(connect, 2, monkeypatch)


INTERRUPTED = """
import signal, sys, threading, time, tubes
import tubes.drivers.sql.postgresql_wire as wire
wire.CANCEL_WITHIN = 0.5
queue = tubes.connect(sys.argv[1], sweep=False)
tube = queue.tube.jobs
tube.put("before")
print("ready", flush=True)
sys.stdin.readline()
pauses = []
def look():
    last = time.monotonic()
    while True:
        time.sleep(0.01)
        pauses.append(time.monotonic() - last)
        last += pauses[-1]
threading.Thread(target=look, daemon=True).start()
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    tube.put("interrupted")
except KeyboardInterrupt:
    print("interrupted", max(pauses) < 0.4, flush=True)
sys.stdin.readline()
print(tube.put("after").data, flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_ends_a_call_to_a_server_that_does_not_hear_of_it(
    url: str, proxy: Proxy, process: Callable[..., Any]
) -> None:
    """The process's other threads do not wait meanwhile, or it would be taken for dead."""
    with tubes.connect(url, sweep=False) as queue:
        queue.create_tube("jobs", "fifo")
        worker = process(INTERRUPTED, changed(through(proxy, url), dead_after="60"))
        assert heard(worker) == "ready"
        proxy.is_silent = proxy.is_deaf = True
        tell(worker, "put")
        assert heard(worker) == "interrupted True"
        proxy.is_silent = proxy.is_deaf = False
        tell(worker, "put")
        assert heard(worker) == "after"


@pytest.mark.slow
def test_a_connection_that_was_cut_while_nobody_used_it_is_not_used(connect: Connect, url: str) -> None:
    """Nothing was under way, so the next call is made on another one, and its outcome is known."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")

    def in_a_unit() -> None:
        with queue.transaction() as unit:
            tube.put("x", unit=unit)

    with psycopg.connect(plain(url), autocommit=True) as db:
        calls: list[Callable[[], object]] = [
            lambda: tube.put("x"),
            lambda: tube.take(timeout=0),
            in_a_unit,
        ]
        for call in calls:
            for _ in range(2):  # the first time it is prepared, which needs an answer
                call()
            cut(db)
            call()
    assert (len(tube.tasks("r")), len(tube.tasks("t"))) == (3, 3)


@pytest.mark.parametrize("verb", ["peek", "put"])
def test_however_many_idle_connections_are_lost_a_call_is_made(connect: Connect, url: str, verb: str) -> None:
    """After the first lost one it tries no other idle one, or it would give up."""
    queue = connect(sweep=False)
    tube = queue.create_tube(
        "jobs", "fifo", on_task_change=lambda *_: None
    )  # so a put is no statement by itself
    tube.put("x")
    with ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(queue.transaction())
    idle = [wire.backend_pid for wire in cast("Any", queue.store)._pool._idle]
    assert len(idle) == 4
    with psycopg.connect(plain(url)) as db:
        deadly = DEADLY.format(table="tube" if verb == "put" else "task")
        db.execute(deadly.replace("WHERE", f"WHERE pg_backend_pid() <> ALL (ARRAY{idle}) OR").encode())
    assert tube.put("y") if verb == "put" else tube.peek(1)


def test_what_lies_in_a_transaction_of_a_proxy_is_not_taken_for_done(connect: Connect) -> None:
    """As behind pgpool-II in its mode ``raw``, which begins one before a prepared INSERT and leaves it open."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    taken = tube.take(timeout=0)
    assert taken is not None
    tube.release(taken)
    pool = cast("Any", queue.store)._pool
    for call in (lambda: tube.put("y"), lambda: tube.put_many(["y", "z"]), lambda: tube.take(timeout=0)):
        pool._idle[-1].simple("BEGIN")
        with pytest.raises(tubes.StoreUnavailable, match="not committed"):
            call()
    task = tube.take(timeout=0)
    assert task is not None and (task.data, task.attempts) == ("x", 2)
    assert tube.ack(task) and not tube.tasks("r")


@pytest.mark.slow
def test_a_database_that_was_read_only_for_a_while_is_written_to_again(connect: Connect, url: str) -> None:
    """Connections keep the setting they were opened with: those that were refused are not used again."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    with psycopg.connect(plain(url), autocommit=True) as db:
        default = f"ALTER DATABASE {db.info.dbname} {{}} default_transaction_read_only"
        db.execute(default.format("SET") + " = on")
        cut(db)
        with pytest.raises(tubes.StoreUnavailable, match="read-only"):
            queue.create_tube("more", "fifo")
        with pytest.raises(tubes.StoreUnavailable, match="read-only"), queue.transaction() as unit:
            assert not tube.tasks("r")  # on a second connection, which is idle when the first is refused
            tube.put("x", unit=unit)
        db.execute(default.format("RESET"))
    tube.put("x")
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_for_who_is_ended_as_it_is_called_another_process_is_called(
    deaf: None,
    connect: Connect,
    url: str,
    asleep: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    queue = connect(sweep=False, clock=clock)
    tube = queue.create_tube("jobs", "fifo")
    other = asleep(queue, url, "jobs")
    end_when_woken(clock, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        take = threads.submit(tube.take, 60)
        eventually(lambda: clock.waiting == 1)
        tube.put("x")
        assert isinstance(take.exception(), Ended)
    assert other.communicate(timeout=20)[0] == "x\n"


@pytest.mark.slow
def test_a_waiting_take_outlasts_a_standby_that_is_promoted(
    connect: Connect, url: str, postgres_server: PostgresServer
) -> None:
    """As if a name led to the next server before that one takes writes. Whoever connects is told so."""
    queue = connect()
    thread, got = waiting(queue.create_tube("jobs", "fifo"))
    postgres_server.stop()
    (postgres_server.folder / "data" / "standby.signal").touch()
    postgres_server.start()
    try:
        for migrate in (None, True):
            with pytest.raises(tubes.StoreUnavailable, match="a standby"):
                connect(migrate=migrate)
        with pytest.raises(tubes.StoreUnavailable):
            queue.tube.jobs.put("x")
        time.sleep(1)  # real time: the waiting take looks again meanwhile
        assert thread.is_alive()
    finally:
        postgres_server.promote()
    put_when_it_can(queue.tube.jobs, "came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.slow
def test_who_connected_in_a_moment_that_is_lost_is_not_taken_for_another(connect: Connect, url: str) -> None:
    """The server goes on from an older backup.

    A queue that connected since neither ends nor beats for one that connects afterwards.
    """
    queue = connect()
    queue.create_tube("jobs", "fifo").put("x")
    lost = connect(sweep=False)
    with psycopg.connect(plain(url)) as db:
        db.execute("DELETE FROM tubes_session WHERE id = %s", [lost.store.session])
        db.execute("DELETE FROM tubes_connection WHERE session = %s", [lost.store.session])
        db.execute(
            "SELECT setval(pg_get_serial_sequence('tubes_connection', 'id'), max(id)) FROM tubes_connection"
        )
    worker = connect(sweep=False)
    task = take(worker.tube.jobs)
    lost.close()
    assert queue.tube.jobs.take(timeout=0.5) is None
    assert worker.tube.jobs.ack(task).data == "x"


def test_cut_connections_lose_and_double_nothing(connect: Connect, url: str) -> None:
    """pg_terminate_backend cuts them again and again, at any moment."""
    queues = [connect(), connect()]
    queues[0].create_tube("jobs", "utube")
    with Load(queues) as load:
        with psycopg.connect(plain(url), autocommit=True) as db:
            for _ in range(25):
                time.sleep(0.05)
                cut(db, share=0.5, within=0)
        before = len(load.acked)
        eventually(lambda: len(load.acked) > before + 20)
    load.settle(connect)


def _accepts(url: str) -> bool:
    try:
        psycopg.connect(plain(url)).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("mode", slow_but(["killed"], ["fast", "immediate", "killed"]))
def test_a_restart_empties_a_temporary_tube_and_no_other(
    connect: Connect, url: str, postgres_server: PostgresServer, mode: str
) -> None:
    """Even a clean restart, or one that the server does by itself.

    Waiting takes go on, and a capacity is free again.
    """
    queue, other = connect(), connect()
    kept = queue.create_tube("kept", "limfifottl", capacity=1)
    brief = queue.create_tube("brief", "limfifottl", capacity=2, temporary=True)
    empty = queue.create_tube("empty", "utube", temporary=True)
    kept.put("kept")
    brief.put_many(["taken", "ready"])
    assert brief.take(timeout=0)
    waiter, got = waiting(empty)
    if mode == "killed":  # one of its processes, as when memory runs out: it restarts the others
        with psycopg.connect(plain(url)) as one, psycopg.connect(plain(url)) as another:
            os.kill(one.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                another.execute("SELECT pg_sleep(20)")
        eventually(lambda: _accepts(url))
    else:
        postgres_server.stop(mode)
        postgres_server.start()

    def full() -> bool:
        try:
            return len(other.tube.brief.put_many(["a", "b"])) == 2
        except tubes.StoreUnavailable:
            return False

    eventually(full)
    for tube in (brief, kept):
        with pytest.raises(tubes.TubeFull):
            tube.put("c")
    assert [task.data for task in brief.take_many(5, timeout=0)] == ["a", "b"]
    assert [task.data for task in kept.take_many(5, timeout=0)] == ["kept"]
    assert not got
    other.tube.empty.put("came")
    ended(waiter)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.slow
def test_what_is_due_next_is_known_of_temporary_tubes_and_of_others(connect: Connect) -> None:
    """Their tasks are in two separate tables."""
    queue = connect(sweep=False)
    both = [queue.create_tube(name, "fifottl", temporary=name == "brief") for name in ("kept", "brief")]
    for tube in both:
        tube.put("x", delay=60)
    store: Any = queue.store
    dues = store.read(lambda tx: store.next_dues(tx, [tube.record for tube in both]))
    assert len(dues) == 2 and None not in dues.values()


@pytest.mark.parametrize("delay", [0, 60])
def test_a_new_connection_takes_no_temporary_tube_that_holds_something_for_empty(
    connect: Connect, delay: float
) -> None:
    tube = connect(sweep=False).create_tube("brief", "limfifottl", capacity=1, temporary=True)
    tube.put("x", delay=delay)
    with pytest.raises(tubes.TubeFull):
        connect(sweep=False).tube.brief.put("y")


def test_a_restart_empties_a_temporary_tube_whose_data_alone_was_restored(connect: Connect, url: str) -> None:
    """It was restored into tables made on this server, which then hold two servers' start times."""
    tube = connect(sweep=False).create_tube("brief", "limfifottl", capacity=1, temporary=True)
    tube.put("gone")
    with psycopg.connect(plain(url)) as db:
        db.execute("INSERT INTO tubes_server (started) VALUES ('1700000000.5')")
    connect(sweep=False).tube.brief.put("new")
    tasks = connect(sweep=False).tube.brief.tasks("r")  # which is not emptied again
    assert [task.data for task in tasks] == ["new"]


def test_a_restart_empties_a_temporary_tube_though_it_takes_longer_than_a_statement_may(url: str) -> None:
    """Otherwise nobody could open the queue, or get a task of any other tube."""
    with tubes.connect(url, sweep=False) as queue:
        queue.create_tube("brief", "fifo", temporary=True).put("gone")
    with psycopg.connect(plain(url)) as db:
        db.execute("""
            UPDATE tubes_server SET started = 'before';
            CREATE FUNCTION takes_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF current_setting('statement_timeout') <> '0' THEN
                    RAISE query_canceled;
                END IF;
                RETURN old;
            END $$;
            CREATE TRIGGER takes_long BEFORE DELETE ON tubes_temporary_task
                FOR EACH ROW EXECUTE FUNCTION takes_long()
        """)
    with tubes.connect(changed(url, options="-cstatement_timeout=1min"), sweep=False) as queue:
        assert queue.tube.brief.tasks("r") == []
        with queue.transaction() as unit:
            assert unit.connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1min"


@pytest.mark.parametrize("type", ["limfifottl", "limited_utube"])
def test_what_is_put_while_a_crashed_tube_gets_its_room_back_takes_room(
    connect: Connect, url: str, type: str
) -> None:
    """In the user's own transaction, on a connection that does not look for what a crash left."""
    queue, other = connect(sweep=False), connect(sweep=False)
    tube = queue.create_tube("brief", type, capacity=3, temporary=True)
    tube.put("gone")
    with psycopg.connect(plain(url)) as db:
        db.execute("DELETE FROM tubes_temporary_task")  # as the server does when it has crashed
    engine = sa.create_engine(url.replace("dead_after=1&", ""))
    with engine.begin() as connection:
        tube.put_many(["first", "behind"], connection=connection)
        store: Any = other.store
        store._pool.forget_idle()
        opening = threading.Thread(target=other.tubes)
        opening.start()
        eventually(lambda: waiting_for_locks(url) == 1)
    engine.dispose()
    ended(opening)
    tube.put("second")
    with pytest.raises(tubes.TubeFull):
        tube.put("third")


IN_TRANSACTION = """
import sys, tubes
queue = tubes.connect(sys.argv[1])
tube = queue.tube.jobs
with queue.transaction() as unit:
    tube.put("never committed", unit=unit)
    print("put", flush=True)
    sys.stdin.readline()
"""


def test_a_producer_killed_in_its_transaction_stores_nothing(
    connect: Connect, url: str, process: Callable[..., Any]
) -> None:
    queue = connect()
    tube = queue.create_tube("jobs", "utube")
    producer = process(IN_TRANSACTION, url)
    assert heard(producer) == "put"
    tube.put("another sub-queue", utube="x")  # nobody waits for it
    producer.kill()
    producer.wait()
    eventually(lambda: tube.put("the same sub-queue"))
    assert {task.data for task in tube.tasks("r")} == {"another sub-queue", "the same sub-queue"}


@pytest.mark.slow
def test_who_settles_what_is_due_waits_for_nobody(connect: Connect) -> None:
    """A take finds a delay that is over in a sub-queue that another transaction has locked, and goes on."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.5)
    tube = queue.create_tube("jobs", "utubettl")
    tube.put("held", utube="a")
    task = take(tube)
    due = tube.put("due", utube="a", delay=0.01)
    tube.put("free", utube="b")
    with queue.transaction() as unit:
        tube.ack(task, unit=unit)
        time.sleep(0.05)  # real time: they are due by the server's clock
        free = other.tube.jobs.take(timeout=0)
        assert free is not None and free.data == "free"
        assert other.tube.jobs.take(timeout=0) is None
    after = other.tube.jobs.take(timeout=5)
    assert after is not None and after.id == due.id


@pytest.mark.slow
@pytest.mark.parametrize("type", ["fifo", "utube"])
def test_a_kick_waits_for_nobody(connect: Connect, type: str) -> None:
    """Instead of what others have locked, however much, it brings back what comes next."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube, kicking = queue.create_tube("jobs", type), other.tube.jobs
    options: list[Any] = [{"utube": name} if type == "utube" else {} for name in "ab"]
    locked = tube.put_many(range(STEP_LIMIT + 1), **options[0])
    for task in [*locked, *tube.put_many(["free", "free"], **options[1])]:
        tube.bury(task.id)
    with pytest.raises(ConnectionError), queue.transaction() as unit:
        if type == "utube":
            tube.put("first", unit=unit, **options[0])
        else:
            for task in locked:
                tube.delete(task.id, unit=unit)
        assert [kicking.kick(), kicking.kick(3), kicking.kick()] == [1, 1, 0]
        assert {task.data for task in kicking.tasks("r")} == {"free"}
        raise ConnectionError
    assert kicking.kick(2 * STEP_LIMIT) == STEP_LIMIT + 1


@pytest.mark.slow
def test_a_kick_passes_over_one_locked_sub_queue_after_another(connect: Connect) -> None:
    """Each shows only when those before it are left out. The kick keeps what it finds in between."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube, kicking = queue.create_tube("jobs", "utube"), other.tube.jobs
    buried = [tube.bury(tube.put(name, utube=name)) for name in "cabdbac"]
    with pytest.raises(ConnectionError), queue.transaction() as unit:
        for name in "ab":
            tube.put("first", utube=name, unit=unit)
        tube.delete(buried[3], unit=unit)
        assert kicking.kick(2) == 2
        assert [task.data for task in kicking.tasks("r")] == ["c", "c"]
        raise ConnectionError


def test_a_kick_brings_back_no_more_than_asked_where_better_ones_are_buried_meanwhile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again to replace what others have locked. Its callbacks come in the tasks' order."""
    queue, other = connect(sweep=False), connect(sweep=False)
    tube, kicking = queue.create_tube("jobs", "utubettl"), other.tube.jobs
    better = [tube.put("better", utube=name, pri=0) for name in "cd"]
    for name in "ab":
        tube.bury(tube.put(name, utube=name, pri=1))
    told: list[Any] = []
    kicking.on_task_change(lambda task, event: told.append(task.data))
    wire: Any = importlib.import_module("tubes.drivers.sql.postgresql_tx")
    rows = wire.PostgresTx.rows
    driver: Any = kicking.driver

    def look(tx: Any, statement: Any, *given: Any) -> Any:
        found = rows(tx, statement, *given)
        if statement is driver._sql.lock_free_groups:
            while better:
                tube.bury(better.pop())
        return found

    with queue.transaction() as unit:
        tube.put("first", utube="a", unit=unit)
        monkeypatch.setattr(wire.PostgresTx, "rows", look)
        assert kicking.kick(2) == 2
        assert told == ["better", "b"]


@pytest.mark.slow
def test_what_a_kick_has_found_is_nobody_else_s_to_change(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its first look and in those that leave out what others locked, even before it has the sub-queue."""
    queue, other = connect(sweep=False, busy_timeout=0.1), connect(sweep=False)
    tube, kicking = queue.create_tube("jobs", "utube"), other.tube.jobs
    buried = [tube.bury(tube.put(name, utube=name)).id for name in "cab"]
    wire: Any = importlib.import_module("tubes.drivers.sql.postgresql_tx")
    rows = wire.PostgresTx.rows
    driver: Any = kicking.driver
    looks = list(driver._sql.buried[1:])
    found: list[int] = []

    def look(tx: Any, statement: Any, *given: Any) -> Any:
        answer = rows(tx, statement, *given)
        if statement in looks:
            looks.remove(statement)
            found.append(answer[-1][0])
            with pytest.raises(tubes.StoreBusy):
                tube.delete(found[-1])
        return answer

    with queue.transaction() as unit:
        tube.put("first", utube="a", unit=unit)
        monkeypatch.setattr(wire.PostgresTx, "rows", look)
        assert kicking.kick(2) == 2
    assert (found, looks) == (buried[1:], [])


@pytest.mark.slow
@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_more_than_a_step_s_worth_of_locked_tasks_that_are_due_holds_up_no_other(
    connect: Connect, type: str
) -> None:
    """They are due before it. A put into a sub-queue locks all its tasks."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube = queue.create_tube("jobs", type)
    options: list[Any] = [{"utube": name} if type == "utubettl" else {} for name in "ab"]
    locked = tube.put_many(range(STEP_LIMIT + 1), delay=0.01, **options[0])
    with queue.transaction() as unit:
        if type == "utubettl":
            tube.put("first", unit=unit, **options[0])
        else:
            for task in locked:
                tube.delete(task.id, unit=unit)
        tube.put("free", delay=0.02, **options[1])
        time.sleep(0.05)
        free = other.tube.jobs.take(timeout=0)
        assert free is not None and free.data == "free"
    left = STEP_LIMIT + 1 if type == "utubettl" else 0
    assert other.sweep() == left


@pytest.mark.slow
def test_who_waits_beside_a_locked_task_that_is_due_looks_now_and_then(connect: Connect) -> None:
    """A worker whose transaction outlasts its ttr is nothing special; all others wait as ever."""
    queue, other = connect(), connect(sweep=False)
    tube = queue.create_tube("jobs", "limfifottl", capacity=1, ttr=0.2)
    tube.put("slow")
    task = take(other.tube.jobs)
    driver: Any = tube.driver
    looks, expire = 0, driver.expire

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal looks
        looks += 1
        return expire(*arguments, **named)

    with other.transaction() as unit:
        other.tube.jobs.touch(task, 60, unit=unit)
        time.sleep(0.25)  # its ttr is over, by the server's clock
        driver.expire = counted
        assert tube.take(timeout=0.3) is None
        with pytest.raises(tubes.TubeFull):
            tube.put("more", timeout=0.3)
    assert 2 < looks < 40  # without a pause, one follows the other
    assert other.tube.jobs.ack(task).data == "slow"


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has two connections for all its threads."""
    pool: Any = importlib.import_module("tubes.drivers.sql.postgresql_pool")
    monkeypatch.setattr(pool, "MOST_CONNECTIONS", 2)


def in_threads(count: int, work: Callable[[], object]) -> list[BaseException]:
    """Do the work in several threads until each has done it a few times; return what was raised."""
    errors: list[BaseException] = []
    busy = set(range(count))

    def go_on(number: int) -> None:
        for turn in itertools.count():
            try:
                work()
            except BaseException as error:
                errors.append(error)
            if turn == 20 or errors:
                busy.discard(number)
            if not busy or errors:
                return

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ended(*threads)
    return errors


@pytest.mark.slow
def test_threads_take_turns_where_the_server_has_no_more_connections() -> None:
    """A process with no connection at all gets an error that says why."""
    server = PostgresServer(settings="max_connections = 8\nsuperuser_reserved_connections = 2")
    try:
        with tubes.connect(server.url, migrate=True, sweep=False) as queue, ExitStack() as others:
            tube = queue.create_tube("jobs", "fifo")
            for _ in range(4):
                others.enter_context(psycopg.connect(plain(server.url)))
            assert in_threads(8, lambda: tube.put("x")) == []
            with suppress(psycopg.OperationalError):
                while True:
                    others.enter_context(psycopg.connect(plain(server.url)))
            with pytest.raises(tubes.StoreUnavailable, match=r"too many clients|connection slots"):
                tubes.connect(f"{server.url}&application_name=another", sweep=False)
            tube.put("y")
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("full", ["NOLOGIN", "CONNECTION LIMIT 0"])
def test_threads_take_turns_whatever_the_server_says_that_makes_no_more_connections(
    own_postgres_db: str, full: str
) -> None:
    """It may speak any language. A thread in line is told when the last connection is given back, and lost."""
    role = f"guest_{os.getpid()}"
    guest, admin = (sa.make_url(own_postgres_db).set(username=name) for name in (role, "postgres"))
    with psycopg.connect(plain(admin.render_as_string()), autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN IN ROLE tubes".encode())
        try:
            with tubes.connect(guest.render_as_string(), migrate=True, sweep=False, busy_timeout=60) as queue:
                tube = queue.create_tube("jobs", "fifo")
                db.execute(f"ALTER ROLE {role} {full}".encode())
                assert in_threads(8, lambda: tube.put("x")) == []
                store: Any = queue.store
                with ThreadPoolExecutor(1) as another:
                    with (
                        pytest.raises(tubes.StoreUnavailable, match="lost"),
                        queue.transaction() as unit,
                    ):
                        tube.put("y", unit=unit)
                        waits = another.submit(tube.put, "w")
                        eventually(lambda: bool(store._pool._line))
                        cut(db)
                        tube.put("y", unit=unit)
                    with pytest.raises(tubes.StoreUnavailable, match=r"cannot be used.*FATAL"):
                        waits.result(20)
                    with pytest.raises(tubes.StoreUnavailable, match=r"cannot be used.*FATAL"):
                        tube.put("z")
                db.execute(f"ALTER ROLE {role} LOGIN CONNECTION LIMIT -1".encode())
        finally:
            db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.slow
def test_who_waits_in_vain_for_one_of_few_connections_is_told_why(connect: Connect, url: str) -> None:
    queue = connect(sweep=False, busy_timeout=0.05)
    tube, name = queue.create_tube("jobs", "fifo"), sa.make_url(url).database
    admin = sa.make_url(plain(url)).set(username="postgres", database="postgres")
    with psycopg.connect(admin.render_as_string(), autocommit=True) as db, queue.transaction() as unit:
        tube.put("x", unit=unit)
        db.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        try:
            with pytest.raises(tubes.StoreBusy, match=r"all 1 connections .* not currently accepting"):
                tube.put("y")
        finally:
            db.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
    assert [task.data for task in tube.tasks("r")] == ["x"]


@pytest.mark.usefixtures("few_connections")
def test_more_threads_than_connections_take_turns(connect: Connect) -> None:
    tube = connect(sweep=False, busy_timeout=1).create_tube("jobs", "fifo")
    assert in_threads(6, lambda: tube.put(1)) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_connections")
def test_a_handler_that_calls_does_not_wait_behind_the_call_that_it_interrupts(connect: Connect) -> None:
    queue = connect(sweep=False, busy_timeout=1)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    line = store._pool._line
    is_called = threading.Event()

    def handler(*_: object) -> None:
        is_called.set()
        tube.put("of the handler")

    def hold() -> None:
        with queue.transaction(), queue.transaction():
            is_held.set()
            eventually(lambda: line)
            os.kill(os.getpid(), signal.SIGUSR1)
            eventually(lambda: is_called.is_set() and len(line) == 2)

    is_held = threading.Event()
    thread = threading.Thread(target=hold)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread.start()
        assert is_held.wait(20)
        tube.put("of the call")
        ended(thread)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [task.data for task in tube.take_many(9, 0)] == ["of the handler", "of the call"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_connections")
def test_many_threads_whose_session_is_over_go_on_in_a_new_one(connect: Connect, url: str) -> None:
    queue = connect(sweep=False, busy_timeout=1)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    session = store.session
    with psycopg.connect(plain(url)) as db:
        db.execute("DELETE FROM tubes_connection WHERE id = %s", [store._connection])
        db.execute("UPDATE tubes_session SET ends_ms = 1 WHERE id = %s", [session])
    assert in_threads(6, lambda: tube.take(timeout=0)) == []
    assert store.session != session


@pytest.mark.slow
@pytest.mark.parametrize("type", ["fifo", "utube"])
def test_what_a_transaction_of_the_dead_has_locked_is_waited_for_by_nobody(
    connect: Connect, url: str, type: str
) -> None:
    """The server may not know for hours that a host is gone.

    The session's other tasks are ready at once, the locked one when the transaction ends.
    """
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube = queue.create_tube("jobs", type)
    options: list[Any] = [{"utube": name} if type == "utube" else {} for name in "ab"]
    locked, free = (tube.put(number, **each).id for number, each in enumerate(options))
    assert len(tube.take_many(2, 0)) == 2
    with pytest.raises(ConnectionError), queue.transaction() as unit:
        tube.ack(locked, unit=unit)
        with psycopg.connect(plain(url)) as db:
            db.execute("UPDATE tubes_session SET ends_ms = 1 WHERE id = %s", [queue.identify().hex])
        assert [other.sweep(), other.sweep()] == [1, 0]
        with psycopg.connect(plain(url)) as db:
            # It is not forgotten; otherwise only a thorough look would find the rest
            assert len(db.execute("SELECT FROM tubes_session WHERE ends_ms = 1").fetchall()) == 1
        for expected in (free, None):
            task = other.tube.jobs.take(timeout=0)
            assert (task and task.id) == expected
        raise ConnectionError  # the server has heard of it
    assert [other.sweep(), other.sweep()] == [1, 0]
    task = other.tube.jobs.take(timeout=0)
    assert task is not None and task.id == locked
    with psycopg.connect(plain(url)) as db:
        assert db.execute("SELECT FROM tubes_session WHERE ends_ms = 1").fetchall() == []


@pytest.mark.slow
def test_more_than_a_step_s_worth_of_what_the_dead_has_locked_hides_nothing(
    connect: Connect, url: str
) -> None:
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many(range(STEP_LIMIT + 1))
    tasks = tube.take_many(STEP_LIMIT + 1, 0)
    with pytest.raises(ConnectionError), queue.transaction() as unit:
        tube.ack_many(tasks[:-1], unit=unit)
        with psycopg.connect(plain(url)) as db:
            db.execute("UPDATE tubes_session SET ends_ms = 1 WHERE id = %s", [queue.identify().hex])
        assert [other.sweep(), other.sweep()] == [1, 0]
        raise ConnectionError
    assert [other.sweep(), other.sweep()] == [STEP_LIMIT, 0]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["connection", "session"])
def test_who_dies_in_the_middle_of_leaving_or_of_a_rescue_holds_up_nobody(
    connect: Connect, url: str, row: str
) -> None:
    """Its transaction may stay open for hours. What it was removing is removed afterwards."""
    queue, dead = connect(sweep=False, busy_timeout=0.1), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    gone: Any = dead.store
    gone._left = True  # it beats no more
    with psycopg.connect(plain(url)) as db:
        if row == "session":  # its connection is gone, and its tasks are released
            db.execute("DELETE FROM tubes_connection WHERE id = %s", [gone._connection])
            db.execute("UPDATE tubes_session SET ends_ms = 1 WHERE id = %s", [gone.session])
            db.commit()
            db.execute("DELETE FROM tubes_session WHERE id = %s", [gone.session])
        else:
            db.execute("DELETE FROM tubes_connection WHERE id = %s", [gone._connection])
        eventually(lambda: store.deaths_suspected(thoroughly=True))
        for number in range(2):
            assert queue.sweep() == 0
            tube.put(number)
            task = tube.take(timeout=0)
            assert task is not None and task.data == number
        db.rollback()
    queue.sweep()
    with psycopg.connect(plain(url)) as db:
        for table in ("connection", "session"):
            assert len(db.execute(f"SELECT FROM tubes_{table}".encode()).fetchall()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["release_all", "truncate"])
def test_what_is_gone_meanwhile_ends_no_verb_for_many(connect: Connect, url: str, verb: str) -> None:
    """It does the next ones instead, and no fewer than there are."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tasks = tube.put_many(range(1202))
    if verb == "release_all":
        tube.take_many(1202, timeout=0)
    with queue.transaction() as unit:
        tube.delete(tasks[0].id, unit=unit)
        verbing, counts = waits_for_a_lock(url, getattr(tube, verb))
    ended(verbing)
    assert counts == [1201]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["release_all", "truncate"])
def test_a_verb_for_many_that_has_waited_does_not_wait_for_what_came_meanwhile(
    connect: Connect, url: str, verb: str
) -> None:
    """It holds locks by then: another transaction could wait for it, and it for the other."""
    queue, other = connect(sweep=False, busy_timeout=0.5), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tasks = tube.put_many(range(3))
    tube.take_many(3, timeout=0)
    with other.transaction() as later:
        with queue.transaction() as unit:
            tube.delete(tasks[0].id, unit=unit)
            verbing, counts = waits_for_a_lock(url, getattr(tube, verb))
            other.tube.jobs.put("new")
            new = take(other.tube.jobs)
            other.tube.jobs.delete(new.id, unit=later)
        ended(verbing)
        assert counts == [2]


def test_a_release_of_all_that_has_waited_leaves_alone_what_was_buried_meanwhile(
    connect: Connect, url: str
) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many("xy")
    first, _ = tube.take_many(2, timeout=0)
    with queue.transaction() as unit:
        tube.bury(first, unit=unit)
        releasing, counts = waits_for_a_lock(url, tube.release_all)
    ended(releasing)
    assert (counts, [task.data for task in tube.tasks("!")]) == ([1], ["x"])


@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_a_release_of_all_that_has_waited_releases_what_was_touched_meanwhile(
    connect: Connect, url: str, type: str
) -> None:
    """It was taken all the time."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", type)
    tube.put_many("xy", ttl=50)
    tasks = [take(tube)] if type == "utubettl" else tube.take_many(2, timeout=0)
    with queue.transaction() as unit:
        tube.touch(tasks[0], 10, unit=unit)
        releasing, counts = waits_for_a_lock(url, tube.release_all)
    ended(releasing)
    assert counts == [len(tasks)] and not tube.tasks("t")
    assert tube.peek(tasks[0]).ttl == 60, "it was released as it was before the touch"


def test_a_truncate_misses_nothing_that_is_moved_while_it_looks(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = connect(sweep=False), connect(sweep=False)
    tube, theirs = queue.create_tube("jobs", "utube"), other.tube.jobs
    tube.bury(tube.put("x", utube="a").id)
    tube.put("y", utube="a")
    take(theirs)
    kind: Any = queue.store.transact(type)
    rows = kind.rows

    def rows_then_kick(*given: Any) -> Any:
        found = rows(*given)
        monkeypatch.setattr(kind, "rows", rows)
        theirs.kick(1)
        return found

    monkeypatch.setattr(kind, "rows", rows_then_kick)
    assert (tube.truncate(), tube.statistics()["tasks"]["total"]) == (2, 0)


def test_a_lease_that_is_lost_while_one_waits_for_its_task_is_lost(connect: Connect, url: str) -> None:
    """Acting on what was read earlier would give one holder's task to somebody else."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifottl")
    for verb in (tube.release, tube.bury, tube.delete):
        tube.put("x")
        old = take(tube)
        with queue.transaction() as unit:
            tube.release(old, unit=unit)
            new = tube.take(timeout=0, unit=unit)
            assert new is not None
            late, errors = waits_for_a_lock(url, partial(refusal, verb, old, error=tubes.LeaseLost))
        ended(late)
        assert len(errors) == 1 and tube.peek(new) == new
        tube.ack(new)


@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_what_a_transaction_was_refused_is_not_hidden_from_who_takes(connect: Connect, type: str) -> None:
    """Even while it is open: it has changed nothing of the task."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", type)
    for verb in (tube.ack, tube.release, partial(tube.touch, delta=1), tube.bury, tube.delete):
        tube.put("x")
        old = take(tube)
        tube.release(old)
        with queue.transaction() as unit:
            refusal(verb, old, error=tubes.LeaseLost, unit=unit)
            new = take(tube)
        tube.ack(new)


def test_who_comes_to_the_front_and_is_deleted_meanwhile_strands_nobody(connect: Connect, url: str) -> None:
    """A user's own statement may delete it, which locks no sub-queue."""
    tube = connect(sweep=False).create_tube("jobs", "utube")
    _, second, third = tube.put_many(range(3), utube="a")
    with psycopg.connect(plain(url)) as other:
        other.execute("DELETE FROM tubes_task WHERE id = %s", [second.id])
        acking, done = waits_for_a_lock(url, partial(tube.ack, take(tube)))
        other.commit()
    ended(acking)
    assert len(done) == 1 and take(tube).id == third.id


def test_what_is_put_behind_one_that_is_deleted_meanwhile_is_not_stranded(connect: Connect, url: str) -> None:
    """Whoever deletes it, even by a user's own statement, waits for a put that may go behind it."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "utube")
    head = tube.put("head", utube="a")
    with psycopg.connect(plain(url), autocommit=True) as other:
        with queue.transaction() as unit:
            tube.put("next", utube="a", unit=unit)
            delete = partial(other.execute, "DELETE FROM tubes_task WHERE id = %s", [head.id])
            deleting, _ = waits_for_a_lock(url, delete)
        ended(deleting)
    assert take(tube).data == "next"


@pytest.mark.slow
def test_a_batch_is_acked_in_the_order_of_all_others(connect: Connect, url: str) -> None:
    """By id, whatever its own order; otherwise it could deadlock with others."""
    queue, other = connect(sweep=False, busy_timeout=0.1), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many("xyz")
    first, _, last = tube.take_many(3, timeout=0)
    other.identify(queue.identify())
    acked: list[list[tubes.Task]] = []
    acking = threading.Thread(target=lambda: acked.append(other.tube.jobs.ack_many([last, first])))
    with queue.transaction() as unit:
        tube.release(first, unit=unit)
        acking.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        tube.bury(last, unit=unit)
    ended(acking)
    assert acked == [[]]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["release_all", "truncate"])
def test_a_verb_for_many_locks_in_the_order_of_all_others(connect: Connect, url: str, verb: str) -> None:
    """By id, although the table is read as it lies; otherwise it could deadlock with others."""
    with psycopg.connect(plain(url), autocommit=True) as db:
        (name,) = db.execute("SELECT current_database()").fetchone() or ("",)
        db.execute(f"ALTER DATABASE {name} SET enable_indexscan = off".encode())
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube = queue.create_tube("jobs", "fifo")
    low, high = tube.put_many(["low", "high"])
    tube.release(tube.take_many(2, timeout=0)[0])  # from here on it lies behind the other
    if verb == "release_all":
        assert tube.take(timeout=0) is not None
    with queue.transaction() as unit:
        tube.delete(low.id, unit=unit)
        verbing, counts = waits_for_a_lock(url, getattr(tube, verb))
        other.tube.jobs.delete(high.id)
    ended(verbing)
    assert counts == [0]


@pytest.mark.slow
def test_sub_queues_are_locked_in_one_order(connect: Connect, url: str) -> None:
    """By key, even if the server would rather not sort; otherwise two batches could deadlock."""
    with psycopg.connect(plain(url), autocommit=True) as db:
        (name,) = db.execute("SELECT current_database()").fetchone() or ("",)
        db.execute(f"ALTER DATABASE {name} SET enable_sort = off".encode())
        queue, other = connect(sweep=False, busy_timeout=0.1), connect(sweep=False)
        tube = queue.create_tube("jobs", "utube")
        for number in range(20):
            tube.put("x", utube=f"s{number}")
        tasks = tube.take_many(20, timeout=0)
        first, *others = db.execute("SELECT utube FROM tubes_task ORDER BY tubes_key(tube, utube)").fetchall()
    other.identify(queue.identify())
    acking = threading.Thread(target=other.tube.jobs.ack_many, args=(tasks,))
    with queue.transaction() as unit:
        tube.put("y", utube=first[0], unit=unit)
        acking.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        for (sub_queue,) in others:
            tube.put("y", utube=sub_queue, unit=unit)
    ended(acking)
    assert tube.statistics()["tasks"]["total"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["release_all", "truncate"])
def test_a_verb_for_many_that_must_wait_once_more_holds_nothing_meanwhile(
    connect: Connect, url: str, verb: str
) -> None:
    """Others may lock what it held while they hold what it waits for."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube, theirs = queue.create_tube("jobs", "fifottl"), other.tube.jobs
    last = tube.put("last", pri=1)
    delay: Any = {"delay": 60} if verb == "truncate" else {}
    first, second, *_ = tube.put_many(range(STEP_LIMIT), **delay)
    if verb == "release_all":
        tube.take_many(STEP_LIMIT + 1, timeout=0)
    with other.transaction() as later:
        with queue.transaction() as unit:
            tube.delete(first.id, unit=unit)
            theirs.delete(last.id, unit=later)
            verbing, counts = waits_for_a_lock(url, getattr(tube, verb))
        eventually(lambda: waiting_for_locks(url) == 1)
        theirs.delete(second.id, unit=later)
    ended(verbing)
    assert counts == [STEP_LIMIT - 2]


@pytest.mark.slow
def test_a_truncate_that_must_wait_for_a_sub_queue_has_none_of_its_tasks_meanwhile(
    connect: Connect, url: str
) -> None:
    """It holds no task that replaces a deleted one: whoever has the sub-queue may want that task."""
    queue, other = connect(sweep=False), connect(sweep=False, busy_timeout=0.1)
    tube, theirs = queue.create_tube("jobs", "utube"), other.tube.jobs
    _, gone, *_ = tube.put_many(range(STEP_LIMIT + 1), utube="a")
    _, behind = tube.put_many("xy", utube="b")
    with other.transaction() as later:
        theirs.put("z", utube="b", unit=later)
        with queue.transaction() as unit:
            tube.delete(gone, unit=unit)
            truncating, counts = waits_for_a_lock(url, tube.truncate)
        eventually(lambda: waiting_for_locks(url) == 1)
        theirs.delete(behind, unit=later)
    ended(truncating)
    assert counts == [STEP_LIMIT + 2]


def test_a_transaction_whose_connection_cannot_be_opened_says_so_in_our_words(
    connect: Connect, url: str
) -> None:
    """A new connection checks whether the server was restarted, and the table that says so is locked."""
    queue = connect(sweep=False, busy_timeout=0.05)
    store: Any = queue.store
    with psycopg.connect(plain(url)) as db:
        db.execute("LOCK TABLE tubes_server")
        store._pool.forget_idle()
        with pytest.raises(tubes.StoreBusy), queue.transaction():
            pytest.fail("there is none")
        store.tidy()  # which is no reason to leave out a sweep


@pytest.mark.slow
def test_a_waiting_take_outlasts_a_lock_that_is_held_for_long(connect: Connect, url: str) -> None:
    """Looking only takes time: a lock held beyond the busy timeout ends it no more than a restart does."""
    tube = connect(sweep=False, busy_timeout=0.1).create_tube("jobs", "fifo")
    thread, got = waiting(tube)
    with psycopg.connect(plain(url)) as db:
        db.execute("LOCK TABLE tubes_task")
        for _ in range(2):
            eventually(lambda: waiting_for_locks(url) == 1)
            eventually(lambda: waiting_for_locks(url) == 0)
        assert thread.is_alive()
    tube.put("at last")
    ended(thread)
    assert [task and task.data for task in got] == ["at last"]


@pytest.mark.slow
@pytest.mark.parametrize("if_not_exists", [True, False])
def test_of_two_who_create_a_tube_at_once_the_second_finds_it(
    connect: Connect, url: str, if_not_exists: bool
) -> None:
    """Even if it looked before the first one committed."""
    queue = connect(sweep=False)
    got: list[tubes.Tube | tubes.TubeError] = []

    def create() -> None:
        try:
            got.append(queue.create_tube("jobs", "fifo", if_not_exists=if_not_exists))
        except tubes.TubeError as error:
            got.append(error)

    with psycopg.connect(plain(url)) as db:
        db.execute(
            "INSERT INTO tubes_tube (name, type, options, temporary, stored) VALUES ('jobs', 'fifo', '{}', false, 0)"
        )
        creating = threading.Thread(target=create)
        creating.start()
        eventually(lambda: waiting_for_locks(url) == 1)
    ended(creating)
    assert isinstance(got[0], tubes.Tube if if_not_exists else tubes.TubeExists)


@pytest.mark.slow
def test_who_joins_a_session_while_another_thread_was_refused_stays_in_it(connect: Connect) -> None:
    """A take refused in the session being left checks whether that session is over."""
    session = connect(sweep=False).identify()
    for _ in range(10):
        joiner = connect(sweep=False)
        store: Any = joiner.store
        with meanwhile(store._resume):
            joined = joiner.identify(session)
        assert joined == joiner.identify() == session


@pytest.mark.slow
def test_a_waiting_take_rescues_the_dead_where_nobody_sweeps(url: str, process: Callable[..., Any]) -> None:
    """It looks for them twice: to see whether there are any, and to end them."""
    hasty = url.replace("dead_after=1", "dead_after=0.3")
    with tubes.connect(hasty, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("held")
        tube.put("held")
        holder = process(
            "import sys, tubes; print(tubes.connect(sys.argv[1]).tube.jobs.take(0), flush=True); input()",
            hasty,
        )
        heard(holder)
        holder.kill()
        assert tube.take(timeout=10) is not None


def test_who_is_there_but_for_a_moment_rescues_the_dead(url: str, process: Callable[..., Any]) -> None:
    """Workers that lived for less than ``dead_after`` saw no silence of the dead: 0 of 12 got its task."""
    patient = changed(url, dead_after="60")
    with psycopg.connect(plain(url), autocommit=True) as db:
        rescue_in_moments(
            lambda: tubes.connect(patient, sweep=False),
            process,
            patient,
            lambda store: db.execute(store._sql.beat.text.replace("$1", "%s"), (store._connection,)),
            lambda: db.execute("UPDATE tubes_connection SET called_ms = called_ms - 20001"),
        )


def test_who_has_beaten_since_its_silence_was_seen_is_not_removed(connect: Connect) -> None:
    """Otherwise it would lose what it holds, though it lives: the look and the removal are two statements."""
    queue, other = connect(sweep=False), connect(sweep=False)
    store: Any = queue.store
    seer: Any = other.store
    store._left = True  # it beats no more
    for beats_ago, is_removed in (1, False), (0, True):
        seer._beats.see = lambda seen, _, n=beats_ago: [
            (store._connection, seen.get(store._connection, 0) - n)
        ]
        other.rescuer.rescue()
        assert store.read(store._is_known) is not is_removed


def test_a_session_that_is_left_alone_is_ended_by_whoever_looks(connect: Connect, url: str) -> None:
    """Two that leave it at once may still see each other there. A locked session is left alone."""
    queue = quiet(connect, busy_timeout=0.1)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("held")
    assert tube.take(timeout=0) is not None
    with psycopg.connect(plain(url), autocommit=True) as db:
        db.execute("INSERT INTO tubes_session (id, ttr_ms) VALUES ('~', 0)")
        db.execute("UPDATE tubes_task SET owner = '~'")
        with db.transaction():
            db.execute("SELECT FROM tubes_session WHERE id = '~' FOR UPDATE")
            assert queue.sweep() == 0
        assert take_looking_seldom(tube).data == "held"
        assert db.execute("SELECT id FROM tubes_session").fetchall() == [(queue.identify().hex,)]


def test_a_session_ends_as_its_last_process_joins_another(connect: Connect) -> None:
    """Its tasks are kept for it from then on, and not from when somebody looks."""
    clock = FakeClock()
    queue, other = connect(sweep=False, clock=clock, session_ttr=10), connect(sweep=False, clock=clock)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    assert tube.take(timeout=0)
    queue.store.join(other.identify().hex)  # it may be killed before it does anything else
    clock.advance(11)
    other.sweep()
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_who_joins_a_session_after_a_look_saw_nobody_there_keeps_it(connect: Connect) -> None:
    """What a look saw may be older than the lock it then got."""
    queue = connect(sweep=False)
    store: Any = queue.store

    class Late:
        """A transaction whose look saw the session before there was a connection in it."""

        def __init__(self, tx: Any) -> None:
            self.run = tx.run

        def rows(self, statement: Any) -> list[tuple[str]]:
            return [(store.session,)]

    store.transact(lambda tx: store._end_lonely(Late(tx), store.clock.now_ms()))
    assert store.read(lambda tx: tx.only_rows(store._sql.session, store.session)) == [(None,)]


@pytest.mark.parametrize("verb", ["rescue", "identify"])
def test_nothing_that_a_beat_needs_is_locked_while_sessions_are_ended(
    connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A process that waited with the rows of the dead locked held up all beats: each looks at all rows."""
    dead, queue = connect(sweep=False), connect(sweep=False)
    gone, store = cast("Any", dead.store), cast("Any", queue.store)
    gone._left = True  # it beats no more
    end_lonely, seen = store._end_lonely, []

    def looks(tx: Any, now: int) -> None:
        with psycopg.connect(plain(url)) as db:
            db.execute("SELECT FROM tubes_connection FOR UPDATE NOWAIT")
            seen.append(db.execute("SELECT id FROM tubes_connection").fetchall())
        end_lonely(tx, now)

    silent = {gone._connection}
    monkeypatch.setattr(store._beats, "see", lambda beats, _: [(id, beats[id]) for id in silent & {*beats}])
    monkeypatch.setattr(store, "_end_lonely", looks)
    if verb == "rescue":
        queue.rescuer.rescue()
    else:
        with pytest.raises(tubes.NoSuchSession):
            queue.identify(uuid.uuid4())
    assert seen[0] == [(store._connection,)]


def test_however_many_sessions_are_left_alone_they_are_ended_by_as_many_statements(
    connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are locked meanwhile, and whoever joins one waits."""
    store: Any = connect(sweep=False).store
    with store._pool.lent() as wire:
        kind: Any = type(wire)
    execute, statements = kind.execute, list[str]()

    def counted(self: Any, text: str, *given: Any, **more: Any) -> Any:
        if threading.current_thread() is threading.main_thread():  # not one that beats or begins to listen
            statements.append(text)
        return execute(self, text, *given, **more)

    monkeypatch.setattr(kind, "execute", counted)
    looks: list[list[str]] = []
    with psycopg.connect(plain(url), autocommit=True) as db:
        for many in 1, 50:
            db.execute(
                "INSERT INTO tubes_session (id, ttr_ms) SELECT gen_random_uuid(), 0 FROM generate_series(1, %s)",
                (many,),
            )
            statements.clear()
            ended = store.ended_sessions(store.clock.now_ms(), thoroughly=False)
            assert len(ended) == (1 if many == 1 else 51)
            looks.append([*statements])
    assert looks[0] == looks[1]


def test_who_is_hastier_by_its_url_takes_nobody_for_dead(url: str) -> None:
    with psycopg.connect(plain(url), autocommit=True) as db:
        look_in_hastier_moments(
            lambda dead_after: tubes.connect(changed(url, dead_after=str(dead_after)), sweep=False),
            lambda ms: db.execute("UPDATE tubes_connection SET called_ms = called_ms - %s", (ms,)),
        )


def test_roll_calls_of_the_same_instant_leave_what_each_other_counted(url: str) -> None:
    """A process that read the clock first and reached the rows second found them called
    in its future, and started the count again.
    """
    patient = changed(url, dead_after="60")
    now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    with tubes.connect(patient, sweep=False), psycopg.connect(plain(url), autocommit=True) as db:
        for ahead, left in (10_000, 2), (30_000, 0):  # the second is a clock that was put back
            db.execute(
                f"UPDATE tubes_connection SET called_beat = beat, absences = 2, called_ms = {now} + {ahead}"
            )
            tubes.connect(patient, sweep=False).close()
            assert db.execute("SELECT absences FROM tubes_connection").fetchall() == [(left,)]


def test_who_was_taken_for_dead_can_join_a_session(connect: Connect, url: str) -> None:
    """With another connection, since its own is no longer known."""

    def forget(connection: int) -> None:
        with psycopg.connect(plain(url)) as db:
            db.execute("DELETE FROM tubes_connection WHERE id = %s", [connection])

    join_forgotten(connect, forget)


def test_who_was_taken_for_dead_leaves_a_session_that_another_keeps_alive(connect: Connect, url: str) -> None:
    """If it stayed there without a connection, nobody would notice its death."""
    one, two = connect(sweep=False), connect(sweep=False)
    session = two.identify(one.identify())
    store: Any = one.store
    with psycopg.connect(plain(url)) as db:
        db.execute("DELETE FROM tubes_connection WHERE id = %s", [store._connection])
    store.prove_life()
    assert store.read(store._is_known)
    assert one.identify() != session == two.identify()


@pytest.mark.slow
@pytest.mark.timeout(60, method="thread")
def test_a_signal_s_handler_may_call_while_a_session_is_begun_anew(connect: Connect, url: str) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many([1, 2])
    held = take(tube)
    with psycopg.connect(plain(url)) as db:
        db.execute("DELETE FROM tubes_connection; UPDATE tubes_session SET ends_ms = 1")
        db.execute("UPDATE tubes_task SET state = 'r', owner = NULL WHERE state = 't'")
        db.commit()
        db.execute("LOCK TABLE tubes_session")
        taken: list[tubes.Task | None] = []

        def handler(number: int, frame: object) -> None:
            db.rollback()
            taken.append(tube.take(timeout=0))

        def interrupt() -> None:
            eventually(lambda: waiting_for_locks(url))
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(tubes.LeaseLost):
                tube.release(held)
        finally:
            interrupting.join()
            signal.signal(signal.SIGUSR1, before)
    assert taken[0] is not None and taken[0].owner == queue.identify()
    tube.ack(taken[0])


@pytest.mark.slow
def test_a_session_that_is_joined_while_its_last_process_leaves_goes_on(connect: Connect, url: str) -> None:
    """The leaver must not end it because of a look from before the other joined."""
    leaver, joiner = connect(session_ttr=60, sweep=False), connect(sweep=False)
    leaver.create_tube("jobs", "fifo").put("held")
    task = take(leaver.tube.jobs)
    session = leaver.identify()
    tube = joiner.tube.jobs
    store: Any = joiner.store
    with psycopg.connect(plain(url)) as db:  # the joiner has the session, and waits for its connection
        db.execute("SELECT FROM tubes_connection WHERE id = %s FOR UPDATE", [store._connection])
        joining, _ = waits_for_a_lock(url, lambda: joiner.identify(session))
        leaver.close()
    ended(joining)
    with psycopg.connect(plain(url)) as db:
        ends = db.execute("SELECT ends_ms FROM tubes_session WHERE id = %s", [session.hex]).fetchall()
    assert ends == [(None,)]
    assert joiner.identify() == session
    assert tube.ack(task).state is tubes.State.DONE


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "take"])
def test_a_drop_waits_for_who_is_at_the_tube(connect: Connect, url: str, verb: str) -> None:
    """It is refused if a task was taken meanwhile. What was put goes with the tube; no row is left."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "utube")
    tube.put("x")
    failures: list[tubes.TubeError] = []

    def drop() -> None:
        try:
            connect(sweep=False).tube.jobs.drop()
        except tubes.TubeBusy as error:
            failures.append(error)

    dropping = threading.Thread(target=drop)
    with queue.transaction() as unit:
        if verb == "put":
            tube.put("y", unit=unit)
        else:
            assert tube.take(0, unit=unit) is not None
        dropping.start()
        eventually(lambda: waiting_for_locks(url) == 1)
    ended(dropping)
    with psycopg.connect(plain(url)) as db:
        rows = db.execute("SELECT state FROM tubes_task").fetchall()
    assert (len(failures), rows) == ((0, []) if verb == "put" else (1, [("t",)]))


tubes.register_driver("limited_utube", tubes.TubeType(tubes.Features(timed=True, grouped=True, bounded=True)))


@pytest.mark.parametrize(
    "verb",
    slow_but(["ack", "expire"], ["ack", "ack_many", "delete", "expire", "expire ready", "truncate"]),
)
def test_a_put_and_what_makes_room_lock_in_one_order(connect: Connect, url: str, verb: str) -> None:
    """The tube's count, then the sub-queue; otherwise they would wait for each other."""
    clock = FakeClock()
    queue, other = (connect(sweep=False, clock=clock, busy_timeout=patience) for patience in (0.2, 20))
    tube = queue.create_tube("jobs", "limited_utube", capacity=9)
    tube.put("x", utube="a", ttl=60)
    theirs = other.tube.jobs
    task: Any = None if verb == "expire ready" else theirs.take(0)
    work: dict[str, Callable[[], object]] = {
        "ack_many": lambda: theirs.ack_many([task]), "truncate": theirs.truncate,
        "expire": other.sweep, "expire ready": other.sweep,
    }  # fmt: skip
    if verb.startswith("expire"):
        clock.advance(61)
    working = threading.Thread(target=work.get(verb) or partial(getattr(theirs, verb), task))
    with queue.transaction() as unit:
        tube.put("b", utube="b", unit=unit)
        working.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        tube.put("y", utube="a", unit=unit)
    ended(working)
    queue.sweep()  # the server frees a commit's locks one by one: the other may have met the last of them
    assert [task.data for task in tube.tasks("r")] == ["b", "y"]
    tube.put_many(range(7), utube="c")
    with pytest.raises(tubes.TubeFull):
        tube.put("z")


@pytest.mark.parametrize("others", [2, 1])
def test_a_step_of_release_all_that_finds_less_than_it_looked_for_looks_again(
    connect: Connect, url: str, others: int
) -> None:
    """One task that it waited for was acked meanwhile. A step that ends with too few would be the last."""
    queue, other = connect(sweep=False), connect(sweep=False)
    tube, theirs = queue.create_tube("jobs", "fifo"), other.tube.jobs
    tube.put_many(range(1 + others))
    first, *left = tube.take_many(3, timeout=0)
    now = queue.clock.now_ms()

    def release() -> list[int]:
        changes = other.store.transact(lambda tx: theirs.driver.release_owner(tx, None, 2, now=now))
        return [theirs.driver.normalize_task(change.raw).id for change in changes]

    with queue.transaction() as unit:
        tube.ack(first, unit=unit)
        thread, released = waits_for_a_lock(url, release)
    ended(thread)
    assert released == [[task.id for task in left]]


@pytest.mark.slow
def test_an_ack_that_cannot_give_its_room_back_is_not_done(connect: Connect, url: str) -> None:
    tube = connect(sweep=False, busy_timeout=0.1).create_tube("jobs", "limfifottl", capacity=1)
    tube.put("x")
    task = take(tube)
    with psycopg.connect(plain(url)) as db:
        db.execute("SELECT FROM tubes_tube FOR UPDATE")
        with pytest.raises(tubes.StoreBusy):
            tube.ack(task)
    assert tube.ack(task).data == "x"


@pytest.mark.slow
def test_a_truncate_locks_sub_queues_before_their_tasks(connect: Connect, url: str) -> None:
    """As every other verb does; otherwise they could deadlock."""
    queue, other = (connect(sweep=False, busy_timeout=patience) for patience in (0.2, 20))
    tube = queue.create_tube("jobs", "utube")
    _, second = tube.put_many("xy", utube="a")
    truncating = threading.Thread(target=other.tube.jobs.truncate)
    with queue.transaction() as unit:
        tube.put("z", utube="a", unit=unit)
        truncating.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        tube.delete(second, unit=unit)
    ended(truncating)
    assert [task.data for task in tube.tasks("r")] == ["z"]  # it came after the look


@pytest.mark.slow
@pytest.mark.parametrize("type", ["utube", "utubettl"])
@pytest.mark.parametrize("by", ["task", "id"])
def test_an_ack_locks_the_sub_queue_before_its_task(connect: Connect, url: str, type: str, by: str) -> None:
    """As every other verb does; otherwise they could deadlock."""
    queue, other = (connect(sweep=False, busy_timeout=patience) for patience in (0.2, 20))
    tube, theirs = queue.create_tube("jobs", type), other.tube.jobs
    tube.put("x", utube="a")
    task = take(theirs)
    refused: list[tubes.TubeError] = []

    def ack() -> None:
        try:
            theirs.ack(task if by == "task" else task.id)
        except tubes.TubeError as error:
            refused.append(error)

    acking = threading.Thread(target=ack)
    with queue.transaction() as unit:
        tube.put("y", utube="a", unit=unit)
        acking.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        tube.delete(task.id, unit=unit)
    ended(acking)
    assert (len(refused), [task.data for task in tube.tasks("r")]) == (1, ["y"])


@pytest.mark.parametrize("count", [1, 2])
def test_a_put_that_waits_for_a_drop_finds_no_tube(connect: Connect, url: str, count: int) -> None:
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    with psycopg.connect(plain(url)) as db:
        db.execute("LOCK TABLE tubes_task IN SHARE ROW EXCLUSIVE MODE")  # as a drop does
        failures: list[type[Exception]] = []

        def put() -> None:
            try:
                tube.put("x") if count == 1 else tube.put_many(range(count))
            except tubes.TubeError as error:
                failures.append(type(error))

        putting = threading.Thread(target=put)
        putting.start()
        eventually(lambda: waiting_for_locks(url) == 1)
        db.execute("DELETE FROM tubes_tube")
    ended(putting)
    assert failures == [tubes.NoSuchTube]
    with psycopg.connect(plain(url)) as db:
        assert db.execute("SELECT count(*) FROM tubes_task").fetchone() == (0,)


@pytest.mark.slow
def test_a_queue_can_be_closed_while_an_operator_has_locked_its_tables(connect: Connect, url: str) -> None:
    """Its beat waits for the lock too, and gives up."""
    queue = connect(sweep=False, busy_timeout=0.2)
    with psycopg.connect(plain(url)) as db:
        db.execute("LOCK TABLE tubes_connection")
        eventually(lambda: waiting_for_locks(url))
        closing = threading.Thread(target=queue.close)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()


def test_a_queue_whose_tables_are_gone_hides_no_error_when_it_is_closed(connect: Connect, url: str) -> None:
    with pytest.raises(KeyError), connect(sweep=False), psycopg.connect(plain(url)) as db:
        db.execute("DROP TABLE tubes_connection, tubes_session")
        db.commit()
        raise KeyError


@pytest.mark.slow
def test_a_queue_that_gets_no_connection_to_listen_on_lives_and_finds_what_is_put(
    connect: Connect, url: str
) -> None:
    """The server is full; what the listener cannot do is done on the connections that there are."""
    queue, other = connect(sweep=False), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    others = other.tube.jobs
    with queue.transaction() as unit, queue.transaction() as second, other.transaction() as third:
        asked = sa.text("SELECT pg_backend_pid()")
        working = [each.connection.scalar(asked) for each in (unit, second, third)]
    with psycopg.connect(plain(url), autocommit=True) as db:
        name = sa.make_url(url).database
        db.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0".encode())
        cut(db, but=working)
        taking, got = waiting(tube)
        time.sleep(0.3)  # its last try before it sleeps is over
        others.put("x")
        ended(taking)
        assert [task and task.data for task in got] == ["x"]

        def beat() -> Any:
            return db.execute("SELECT beat FROM tubes_connection ORDER BY id LIMIT 1").fetchone()

        before = beat()
        eventually(lambda: beat() > before)
        db.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1".encode())


@pytest.mark.parametrize(
    ("given", "expected"), [({"dead_after": "6"}, (6000, 2)), ({"tcp_user_timeout": "7000"}, (7000, 1))]
)
def test_a_network_that_is_silent_is_noticed_as_soon_as_the_dead_are(
    url: str, proxy: Proxy, given: dict[str, str], expected: tuple[int, int]
) -> None:
    """Otherwise a call, and closing the queue, would wait for hours. Settings in the URL win."""
    with tubes.connect(changed(through(proxy, url), **given), sweep=False) as queue:
        store: Any = queue.store
        with store._pool.lent() as wire, socket.socket(fileno=os.dup(wire.fileno())) as tcp:
            options = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE)
            assert tuple(tcp.getsockopt(socket.IPPROTO_TCP, option) for option in options) == expected


def test_who_beats_on_a_network_that_is_silent_notices_in_time_to_beat_again(url: str, proxy: Proxy) -> None:
    """Else a process whose connection is lost silently, by a router that starts anew say, would be taken for dead."""
    with tubes.connect(changed(through(proxy, url), dead_after="6"), sweep=False) as queue:
        store: Any = queue.store
        wire = store._listener._connect()
        with socket.socket(fileno=os.dup(wire.fileno())) as tcp:
            assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
        wire.close()


def test_a_beat_that_is_lost_with_its_connection_is_made_up_for_on_the_next(url: str) -> None:
    """The one after it may come too late for others, who have seen none since the last."""
    with (
        tubes.connect(changed(url, dead_after="86400"), sweep=False) as queue,
        psycopg.connect(plain(url)) as db,
        psycopg.connect(plain(url), autocommit=True) as other,
    ):
        listener = cast("Any", queue.store)._listener
        look = "SELECT beat FROM tubes_connection"
        before = db.execute(f"{look} FOR UPDATE".encode()).fetchone()
        listener._beat_at = 0.0  # it is due
        listener._wake_pipe.set()
        in_vain = "wait_event_type = 'Lock' AND datname = current_database()"
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {in_vain}"
        eventually(lambda: other.execute(end.encode()).fetchall())
        db.rollback()
        eventually(lambda: other.execute(look.encode()).fetchone() != before)


@pytest.fixture
def tcp_url() -> Iterator[str]:
    """A database on a server that listens on the loopback too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = PostgresServer()
    try:
        server.stop()
        with (server.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = '127.0.0.1'\nport = {port}\n")
        server.start()
        yield f"postgresql+psycopg://{OWNER}@127.0.0.1:{port}/postgres"
    finally:
        server.close()


@pytest.mark.slow
def test_a_server_notices_as_soon_that_a_client_is_gone(tcp_url: str) -> None:
    """Such as one whose host lost power in a transaction: its locks could block others for two hours."""
    asked = sa.text("SELECT name, setting FROM pg_settings WHERE name ~ '^tcp_.*(user|idle|interval)'")
    for options, expected in (
        ({"dead_after": "6"}, (6000, 2, 2)),
        ({"dead_after": "6", "tcp_user_timeout": "7000", "keepalives_idle": "3"}, (7000, 3, 2)),
        (
            {"dead_after": "6", "tcp_user_timeout": "-1"},
            (0, 2, 2),
        ),  # libpq's way to say: as the system has it
    ):
        queue = tubes.connect(changed(tcp_url, **options), migrate=True, sweep=False)
        with queue, queue.transaction() as unit:
            found = {name: setting for name, setting in unit.connection.execute(asked)}
            names = ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval")
            assert tuple(int(found[name]) for name in names) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dead_after": "6"}, ("10", 6000, 2)),
        ({"tcp_user_timeout": "7000", "connect_timeout": "3"}, ("3", 7000, 1)),
    ],
)
def test_a_network_that_is_silent_in_a_migration_is_noticed_as_soon(
    url: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    expected: tuple[str, int, int],
) -> None:
    """A migration uses a connection like any other."""
    migrations = importlib.import_module("tubes.migrations.postgresql")
    bring_up, found = migrations.bring_up, []

    def look(wire: Any, *others: Any, **options: Any) -> bool:
        lent = wire._connection
        patience = lent.info.get_parameters().get("connect_timeout")
        with socket.socket(fileno=os.dup(lent.fileno())) as tcp:
            asked = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE)
            found.append((patience, *(tcp.getsockopt(socket.IPPROTO_TCP, option) for option in asked)))
        return bool(bring_up(wire, *others, **options))

    monkeypatch.setattr(migrations, "bring_up", look)
    tubes.connect(changed(through(proxy, url), **given), namespace="new", migrate=True, sweep=False).close()
    assert found == [expected]


@pytest.mark.parametrize(("given", "expected"), [({}, "10"), ({"connect_timeout": "3"}, "3")])
def test_how_long_to_try_to_connect_is_the_user_s_to_say(
    url: str, given: dict[str, str], expected: str
) -> None:
    there = changed(url, **given)
    with tubes.connect(there, sweep=False) as queue:
        store: Any = queue.store
        with store._pool.lent() as wire:
            assert wire._connection.info.get_parameters()["connect_timeout"] == expected


def test_a_connection_that_is_lost_while_it_is_lent_is_unavailable(url: str, proxy: Proxy) -> None:
    """SQLAlchemy first asks the server something, and reports its failure like any other error."""
    with tubes.connect(through(proxy, url), sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        with pytest.raises(tubes.StoreUnavailable), queue.transaction() as unit:
            tube.put("x", unit=unit)
            proxy.cut_after = b"show transaction isolation level"
            unit.connection.exec_driver_sql("SELECT 1")
        assert proxy.cut_after is None and tube.tasks("r") == []


@pytest.mark.slow
def test_a_listener_that_was_refused_once_goes_on(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Behind a pooler, its beat sees that the server was restarted, and notes that in a transaction."""
    pooled = changed(url, pooled="yes")
    with tubes.connect(pooled, sweep=False, busy_timeout=0.1), psycopg.connect(plain(url)) as db:

        def beat() -> Any:
            return db.execute("SELECT beat FROM tubes_connection").fetchone()

        db.execute("UPDATE tubes_server SET started = 'before'")
        db.commit()
        db.execute("SELECT FROM tubes_server FOR UPDATE")
        eventually(lambda: "the listener was refused" in caplog.text)
        db.rollback()
        before = beat()
        eventually(lambda: beat() > before)


def test_a_beat_learns_the_time_again(connect: Connect) -> None:
    """The server's clock may have been set, or the host's have drifted."""
    store: Any = quiet(connect).store
    before = store.clock.now_ms()
    store.clock._offset_ms += 3_600_000
    with store._pool.lent() as wire:
        store._beat(wire)
    assert store.clock.now_ms() - before < 60_000


def test_who_has_no_listener_beats_as_it_proves_its_life(connect: Connect, url: str) -> None:
    """As when the server has room for no more connections.

    Otherwise it would be taken for dead. A waiting consumer looks then, too.
    """
    store: Any = quiet(connect).store
    store._listener._is_over = True
    store._listener._wake_pipe.set()
    store._listener._thread.join()
    eventually(lambda: store._listener.is_late)
    look = "SELECT beat FROM tubes_connection"
    with psycopg.connect(plain(url), autocommit=True) as db:
        before = db.execute(look).fetchone()
        signal = store.waiters.enter(1)
        assert not signal.wait(0)
        store.prove_life()
        assert db.execute(look).fetchone() != before and signal.wait(0)


@pytest.mark.slow
def test_a_listener_goes_on_whatever_it_meets(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its beats the process would be taken for dead."""
    store: Any = connect(sweep=False).store
    see = store._beats.see
    beats: list[bool] = []

    def fails_at_first(*seen: Any) -> Any:
        beats.append(True)
        assert len(beats) > 1
        return see(*seen)

    monkeypatch.setattr(store._beats, "see", fails_at_first)
    eventually(lambda: len(beats) > 3)
    assert "the listener failed, and tries again" in caplog.text


def test_the_longest_name_of_a_sub_queue_goes_through_every_state(connect: Connect) -> None:
    tube = connect(sweep=False).create_tube("jobs", "utubettl")
    name = random.Random(1).randbytes(1250).hex()
    task = tube.put("delayed", utube=name, delay=0.001, pri=1)
    tube.put("in front", utube=name, pri=0)
    for _ in range(2):
        taken = tube.take(timeout=1)
        assert taken is not None and taken.utube == name
        tube.bury(taken)
    assert tube.kick(2) == 2
    assert [tube.delete(id).data for id in (task.id, task.id + 1)] == ["delayed", "in front"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "put_many"])
def test_a_name_of_a_sub_queue_that_no_index_can_hold_is_refused_also_with_a_delay(
    connect: Connect, verb: str
) -> None:
    """Otherwise it is stored, and no task of the tube becomes ready after a delay any more."""
    tube = connect(sweep=False).create_tube("jobs", "utubettl")
    with pytest.raises(tubes.BadOption, match="utube must be at most 2500 bytes") as caught:
        getattr(tube, verb)(["x", "y"], utube=random.Random(1).randbytes(1500).hex(), delay=0.001)
    assert caught.value.option == "utube"
    assert tube.statistics()["tasks"]["total"] == 0


@pytest.mark.slow
def test_a_connect_that_can_start_no_thread_is_an_error_of_ours(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves nothing open, and the next connect succeeds."""
    open_files = []
    with no_new_threads(monkeypatch):
        for _ in range(2):
            with pytest.raises(tubes.StoreUnavailable, match="new thread"):
                connect(sweep=False)
            open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[0] == open_files[1]
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    waiter, got = waiting(tube)
    connect(sweep=False).tube.jobs.put("x")
    ended(waiter)
    assert [task and task.data for task in got] == ["x"]


NO_DESCRIPTORS = """
import os, resource, sys, threading, time, tubes
queue = tubes.connect(sys.argv[1], sweep=False)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), before[1]))
try:
    tubes.connect(sys.argv[1], sweep=False, namespace="other")
except tubes.StoreUnavailable as error:
    print(error)
time.sleep(0.5)  # real time: the listener's thread tries to connect
print([thread.name for thread in threading.enumerate()])
resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(queue.create_tube("jobs", "fifo").take(timeout=0.1))
queue.close()
"""


@pytest.mark.slow
def test_a_listener_that_has_no_descriptor_tries_again(url: str) -> None:
    refused, *rest = run(NO_DESCRIPTORS, url).splitlines()
    assert "cannot be used" in refused
    assert rest == ["['MainThread', 'tubes-listener']", "None"]
