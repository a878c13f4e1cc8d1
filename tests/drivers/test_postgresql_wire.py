"""One connection to PostgreSQL: what travels together, and what is known when it fails."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import eventually, run
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from servers import conninfo, cut
from tubes.drivers.sql import postgresql_listener
from tubes.drivers.sql.postgresql import DIALECT, PostgresStore
from tubes.drivers.sql.postgresql_pool import Pool
from tubes.drivers.sql.postgresql_tx import PostgresTx
from tubes.drivers.sql.postgresql_wire import Lost, Refused, Wire
from tubes.drivers.sql.statements import Statement

import tubes

INSERT = "INSERT INTO numbers (number) VALUES ($1)"

ECHO = "SELECT $1::text"

LARGE = "é" * 1_000_000
"""More than a socket holds."""


@pytest.fixture
def db(postgres_db: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection to a database with a table of numbers."""
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        db.execute("CREATE TABLE numbers (number int PRIMARY KEY)")
        yield db


@pytest.fixture
def wire(postgres_db: str, db: psycopg.Connection) -> Iterator[Wire]:
    wire = Wire(conninfo(postgres_db), "the test's database", "full")
    yield wire
    wire.close()


def numbers(db: psycopg.Connection) -> list[int]:
    return [number for (number,) in db.execute("SELECT number FROM numbers ORDER BY number")]


def shut(wire: Wire) -> None:
    """Let nothing more come from the server."""
    with socket.socket(fileno=os.dup(wire.fileno())) as its:
        its.shutdown(socket.SHUT_RDWR)


def test_a_statement_that_was_refused_when_it_was_new_can_be_executed_again(
    wire: Wire, db: psycopg.Connection
) -> None:
    db.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(Refused) as caught:
        wire.execute(INSERT, (1,))
    assert caught.value.code == "23505"
    assert wire.execute("SELECT max(number) FROM numbers", ()).rows == [(1,)]
    assert wire.execute(INSERT, (2,)).count == 1
    assert numbers(db) == [1, 2]


@pytest.mark.slow
def test_what_the_client_has_no_buffer_for_is_too_large_and_no_server_away(postgres_db: str) -> None:
    """As beyond a gigabyte; here because memory is short, with enough for half of it.

    Part of it is under way by then, and the answer to anything sent after it would be awaited for ever.
    """
    program = f"""
import resource, signal, tubes
from pathlib import Path
from tubes.drivers.sql.postgresql_wire import Lost, Refused, Wire
signal.alarm(10)
wire, large = Wire({conninfo(postgres_db)!r}, "", "full"), "x" * 60_000_000
wire.execute("SELECT 1", ())
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 90_000_000, resource.RLIM_INFINITY))
try:
    wire.execute("SELECT $1::text", (large,))
except Refused as error:
    print(error.code, error)
try:
    wire.execute("SELECT 1", ())
except Lost as error:
    print(wire.is_lost, error.was_sent)
"""
    said = run(program)
    assert said.startswith("54000 ") and "output buffer" in said and said.endswith("True False")


def test_a_queue_goes_on_where_the_type_of_a_column_was_altered(
    postgres_db: str, db: psycopg.Connection
) -> None:
    """The server refuses for ever what was prepared before."""
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        for type in ("bigint", "integer"):
            tube.put_many(["one", "two"])
            tube.ack_many(tube.take_many(2, 0))
            db.execute(f"ALTER TABLE tubes_task ALTER attempts TYPE {type}".encode())
            task = tube.put("altered")
            assert tube.peek(task).data == "altered" and tube.take(0) == tube.peek(task)
            assert tube.ack(task).data == "altered"


def test_a_statement_that_cannot_be_prepared_is_refused_each_time_until_it_can(
    wire: Wire, db: psycopg.Connection
) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="nowhere"):
            wire.execute("SELECT nothing FROM nowhere", ())
    assert wire.execute("SELECT 1", ()).rows == [(1,)]
    db.execute("CREATE TABLE nowhere (nothing int)")
    assert wire.execute("SELECT nothing FROM nowhere", ()).rows == []


@pytest.mark.parametrize("is_known", [False, True])
def test_a_transaction_begins_with_its_first_statement(
    wire: Wire, db: psycopg.Connection, is_known: bool
) -> None:
    if is_known:
        wire.execute(INSERT, (1,))
    wire.execute(INSERT, (2,), begin="BEGIN")
    assert wire.in_transaction
    assert 2 not in numbers(db)
    wire.simple("ROLLBACK")
    wire.execute(INSERT, (3,), begin="BEGIN")
    wire.simple("COMMIT")
    assert numbers(db) == ([1, 3] if is_known else [3])


def test_a_transaction_whose_first_statement_is_refused_can_only_be_rolled_back(wire: Wire) -> None:
    wire.execute(INSERT, (1,))
    with pytest.raises(Refused):
        wire.execute(INSERT, (1,), begin="BEGIN")
    assert wire.has_failed
    wire.simple("ROLLBACK")
    wire.execute(INSERT, (2,))


@pytest.mark.parametrize("does", ["run", "many", "lend"])
def test_nothing_is_done_outside_a_transaction_whose_begin_was_refused(
    wire: Wire, db: psycopg.Connection, does: str
) -> None:
    """As by a cancel that comes just then: the next statement of the transaction sends the BEGIN again."""
    insert = Statement("INSERT INTO numbers (number) VALUES (:number)", DIALECT)
    wire.execute(insert.text, (0,))
    tx = PostgresTx(wire, "BEGIN AND BE REFUSED")
    tx.begin()
    for _ in range(2):
        with pytest.raises(Refused, match="syntax error"):
            if does == "run":
                tx.run(insert, 1)
            elif does == "many":
                tx.many(insert, [(1,), (2,)])
            else:
                tx.open_lender()
    assert numbers(db) == [0] and not wire.in_transaction


@pytest.mark.slow
@pytest.mark.parametrize("before", range(4))
def test_what_is_refused_after_others_of_one_text_is_told(wire: Wire, before: int) -> None:
    with pytest.raises(Refused, match="division by zero"):
        wire.simple("SELECT 1; " * before + "SELECT 1 / 0; SELECT 2")
    assert wire.execute("SELECT 3", ()).rows == [(3,)]


def test_what_is_refused_behind_a_pooler_leaves_no_transaction(
    postgres_db: str, db: psycopg.Connection
) -> None:
    """The statement has brought its BEGIN along, and its COMMIT was skipped."""
    wire = Wire(conninfo(postgres_db), "the test's database", "full", pooled=True)
    db.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(Refused):
        wire.execute(INSERT, (1,))
    assert wire.execute(ECHO, ("x",)).rows == [("x",)]
    wire.close()


def test_of_several_rows_one_refused_row_stores_none(wire: Wire, db: psycopg.Connection) -> None:
    with pytest.raises(Refused):
        wire.pipeline(INSERT, [(1,), (2,), (1,), (3,)])
    assert not wire.in_transaction
    assert numbers(db) == []


@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_what_a_server_refuses_when_it_ends_a_connection_was_not_done(
    wire: Wire, db: psycopg.Connection, begin: str
) -> None:
    db.execute("SELECT pg_terminate_backend(%s, 20000)", [wire.backend_pid])
    with pytest.raises(Lost) as caught:
        wire.execute(INSERT, (1,), begin=begin)
    assert not caught.value.was_sent
    assert wire.is_lost


@pytest.mark.timeout(60, method="thread")
def test_a_flight_that_breaks_off_in_the_middle_is_not_taken_for_done(
    wire: Wire, db: psycopg.Connection
) -> None:
    """Its preparation has been answered: the first row's answer is more than the server keeps back."""
    asleep = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"

    def break_off() -> None:
        eventually(lambda: is_waiting_for_server() and db.execute(asleep, [wire.backend_pid]).fetchall())
        shut(wire)

    with ThreadPoolExecutor(1) as pool, pytest.raises(Lost) as caught:
        pool.submit(break_off)
        wire.pipeline("SELECT repeat('x', 1000000), pg_sleep($1)", [(0,), (60,)])
    assert wire.is_lost and caught.value.was_sent


@pytest.mark.parametrize("timeout", ["idle_session_timeout", "idle_in_transaction_session_timeout"])
def test_what_is_sent_just_as_the_server_ends_an_idle_connection_was_not_done(
    wire: Wire, db: psycopg.Connection, timeout: str
) -> None:
    wire.execute(INSERT, (1,))
    wire.simple(f"SET {timeout} = 10")
    if timeout != "idle_session_timeout":
        wire.execute(INSERT, (2,), begin="BEGIN")
    others = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
    eventually(lambda: db.execute(others, [wire.backend_pid]).fetchone() is None)
    with pytest.raises(Lost) as caught:
        if timeout == "idle_session_timeout":
            wire.execute(INSERT, (2,))
        else:
            wire.simple("COMMIT")
    assert not caught.value.was_sent
    assert numbers(db) == [1]


def test_a_connection_does_not_stand_that_the_server_has_said_to_end(
    wire: Wire, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server said has come, but the connection's end has not."""
    assert wire.is_connected()
    cut(db)
    comes = [True, False]
    monkeypatch.setattr(wire, "_poll", SimpleNamespace(poll=lambda timeout: comes.pop(0)))
    eventually(lambda: select.select([wire], [], [], 0)[0])
    assert not wire.is_connected()
    assert wire.is_lost


def test_what_a_role_is_set_to_is_not_meant_for_our_statements(postgres_db: str) -> None:
    """Such as an isolation level in which a statement fails if it has waited for another's."""
    ours = {
        "array_nulls": "on",
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        "plan_cache_mode": "force_generic_plan",
        "synchronous_commit": "on",
        "transaction_isolation": "read committed",
    }
    theirs = "array_nulls=off jit=on plan_cache_mode=auto synchronous_commit=off".split()
    theirs += "default_transaction_isolation=serializable enable_bitmapscan=on enable_seqscan=on".split()
    options = " ".join(f"-c{each}" for each in theirs)
    wire = Wire(make_conninfo(conninfo(postgres_db), options=options), "the test's database", "full")
    for _ in ("new", "used by others"):
        asked = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"
        assert dict(wire.execute(asked, (list(ours),)).rows) == ours
        wire.lender()
        wire.clean_up()
    wire.close()


class AsText(Loader):
    """An application's own way to read values."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


@pytest.fixture
def theirs() -> Iterator[None]:
    """An application has registered ways of its own to read what comes from a server, for all new connections."""
    oids = [psycopg.adapters.types[name].oid for name in ("int8", "bool", "text", "bytea")]
    kept = {oid: psycopg.adapters.get_loader(oid, psycopg.pq.Format.TEXT) for oid in oids}
    for oid in oids:
        psycopg.adapters.register_loader(oid, AsText)
    yield
    for oid, loader in kept.items():
        assert loader is not None
        psycopg.adapters.register_loader(oid, loader)


@pytest.mark.usefixtures("theirs")
def test_what_an_application_reads_values_as_is_not_meant_for_our_statements(postgres_db: str) -> None:
    with tubes.connect(postgres_db, migrate=True) as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=60)
        jobs.put_many([b"\x00", "text"])
        assert [jobs.ack(task).data for task in jobs.take_many(2, timeout=0)] == [b"\x00", "text"]
        with queue.transaction() as unit:
            assert unit.connection.scalar(sa.text("SELECT CAST(1 AS bigint)")) == "1"


@pytest.mark.parametrize("how", ["lost", "inherited"])
def test_nothing_is_sent_on_what_was_lost_or_is_the_parent_s(
    wire: Wire, db: psycopg.Connection, how: str
) -> None:
    wire.execute(INSERT, (1,))
    for call in (
        partial(wire.execute, INSERT, (2,)),
        partial(wire.execute, "INSERT INTO numbers VALUES (3)", ()),
        partial(wire.pipeline, INSERT, [(4,), (5,)]),
        partial(wire.simple, "INSERT INTO numbers VALUES (6)"),
    ):
        wire.is_lost, wire._opened_by = how == "lost", os.getpid() - (how == "inherited")
        with pytest.raises(Lost) as caught:
            call()
        assert wire.is_lost and not caught.value.was_sent
    wire.is_lost = how == "lost"
    assert not wire.is_connected()
    wire._opened_by = os.getpid()
    assert numbers(db) == [1]


def test_what_could_not_be_sent_was_not_done(wire: Wire) -> None:
    wire.execute(INSERT, (1,))
    wire._pg.finish()
    with pytest.raises(Lost) as caught:
        wire.execute(INSERT, (2,))
    assert wire.is_lost and not caught.value.was_sent


@pytest.mark.timeout(60, method="thread")
def test_what_is_larger_than_a_socket_holds_is_sent_whole(wire: Wire) -> None:
    for _ in ("new", "prepared"):
        assert wire.execute(ECHO, (LARGE,)).rows == [(LARGE,)]


@pytest.mark.timeout(60, method="thread")
def test_a_statement_that_takes_long_is_waited_for_asleep(wire: Wire) -> None:
    begun = time.thread_time()
    wire.simple("SELECT pg_sleep(0.5)")
    assert time.thread_time() - begun < 0.25


@pytest.mark.slow
def test_a_server_that_answers_while_more_is_being_sent_is_heard(wire: Wire) -> None:
    """The server stops reading while nobody reads its answers."""
    assert [result.rows for result in wire.pipeline(ECHO, [(LARGE,)] * 20)] == [[(LARGE,)]] * 20


class Interrupted(Exception):
    """Raised by a signal's handler."""


Interrupt = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def interrupted_when() -> Iterator[Interrupt]:
    """``with interrupted_when(holds, then)`` raises Interrupted there once ``holds()``, then calls ``then``.

    ``first`` is what the signal's handler does before it raises.
    """
    has_landed = threading.Event()
    does: list[Callable[[], object]] = []

    def raising(number: int, frame: FrameType | None) -> None:
        if not has_landed.is_set():
            has_landed.set()
            does[0]()
            raise Interrupted

    @contextmanager
    def interrupted(
        holds: Callable[[], object], then: Callable[[], object] = bool, *, first: Callable[[], object] = bool
    ) -> Iterator[None]:
        does[:] = [first]

        def interrupt() -> None:
            try:
                eventually(holds)
                for _ in range(40):  # Python misses a signal that comes right before it falls asleep
                    os.kill(os.getpid(), signal.SIGUSR1)
                    if has_landed.wait(0.5):
                        break
            finally:
                then()

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    before = signal.signal(signal.SIGUSR1, raising)
    yield interrupted
    signal.signal(signal.SIGUSR1, before)


def is_waiting_for_server() -> bool:
    """Whether the main thread is waiting for the server."""
    main = threading.main_thread().ident
    return main is not None and sys._current_frames()[main].f_code is Wire._wait.__code__


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize(("begin", "is_known"), [("", False), ("BEGIN", False), ("", True)])
def test_an_interrupt_cancels_a_statement_that_waits_for_a_lock(
    wire: Wire, db: psycopg.Connection, interrupted_when: Interrupt, begin: str, is_known: bool
) -> None:
    if is_known:
        wire.execute(INSERT, (2,))
        db.execute("DELETE FROM numbers")

    def waits_for_lock() -> bool:
        asked = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        return is_waiting_for_server() and bool(db.execute(asked, [wire.backend_pid]).fetchall())

    with db.transaction():
        db.execute("LOCK TABLE numbers")
        with interrupted_when(waits_for_lock), pytest.raises(Interrupted):
            wire.execute(INSERT, (1,), begin=begin)
    if begin:
        wire.simple("ROLLBACK")
    assert wire.execute(INSERT, (2,)).count == 1
    assert numbers(db) == [2]


def test_a_child_cancels_nothing_of_its_parent_s(wire: Wire, db: psycopg.Connection) -> None:
    waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        with db.transaction():
            db.execute("LOCK TABLE numbers")
            put = pool.submit(wire.execute, INSERT, (1,))
            eventually(lambda: db.execute(waits, [wire.backend_pid]).fetchall())
            wire._opened_by = os.getpid() - 1
            assert wire.cancel()
            wire._opened_by = os.getpid()
        assert put.result(20).count == 1


@pytest.mark.timeout(60, method="thread")
def test_an_interrupt_while_more_is_being_sent_leaves_the_connection_usable(
    wire: Wire, interrupted_when: Interrupt
) -> None:
    wire.execute(ECHO, ("",))
    go_on = partial(os.kill, wire.backend_pid, signal.SIGCONT)
    with interrupted_when(is_waiting_for_server, go_on), pytest.raises(Interrupted):
        os.kill(wire.backend_pid, signal.SIGSTOP)
        wire.execute(ECHO, (LARGE,))
    assert wire.execute(ECHO, ("after",)).rows == [("after",)]


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("how", ["ended", "silent"])
@pytest.mark.parametrize("sends", ["one", "flight", "text"])
def test_an_interrupt_is_what_is_raised_where_the_connection_breaks_just_then(
    wire: Wire, db: psycopg.Connection, interrupted_when: Interrupt, sends: str, how: str
) -> None:
    """Its cancel comes too late: the server has ended the connection, or nothing more comes from it."""
    sleep = "SELECT pg_sleep($1)"
    if sends == "one":
        wire.execute(sleep, (0,))

    breaks = partial(cut, db) if how == "ended" else partial(shut, wire)
    with interrupted_when(is_waiting_for_server, first=breaks), pytest.raises(Interrupted):
        if sends == "text":
            wire.simple("SELECT pg_sleep(60)")
        else:
            wire.execute(sleep, (60,))
    assert not wire.is_connected()


def test_an_interrupt_while_a_transaction_is_rolled_back_costs_no_connection_s_place(
    postgres_db: str, db: psycopg.Connection, interrupted_when: Interrupt
) -> None:
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        pool = cast("Any", queue.store)._pool
        with ExitStack() as block, pytest.raises(Interrupted), queue.transaction() as unit:
            tube.put(1, unit=unit)
            backend = unit.tx._wire.backend_pid
            block.enter_context(
                interrupted_when(is_waiting_for_server, partial(os.kill, backend, signal.SIGCONT))
            )
            os.kill(backend, signal.SIGSTOP)
            db.execute("SELECT pg_terminate_backend(%s)", [backend])
            raise ConnectionError
        assert len(pool._places) == len(pool._idle)
        assert tube.put(2).data == 2


def connections(db: psycopg.Connection) -> int:
    asked = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return len(db.execute(asked + " AND backend_type = 'client backend'").fetchall())


def test_a_queue_that_is_used_for_a_moment_has_one_connection(
    postgres_db: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting is most of what its use costs."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        queue.create_tube("jobs", "fifo").put(1)
        assert connections(db) == 1
    eventually(lambda: connections(db) == 0)


@pytest.mark.parametrize("takes", [0.0, 0.2], ids=["at once", "after a while"])
def test_a_server_with_room_for_one_connection_is_migrated_on_that(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch, takes: float
) -> None:
    """The server ends a closed connection at once, or after a while, as when it is busy."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    name = sa.make_url(postgres_db).database
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        others = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

        def let_go_on(pid: int) -> None:
            with suppress(ProcessLookupError):  # let go on before, it has ended
                os.kill(pid, signal.SIGCONT)

        def late(close: Callable[..., None]) -> Callable[..., None]:
            def closed_late(*given: Any) -> None:
                for (pid,) in db.execute(others).fetchall():
                    os.kill(pid, signal.SIGSTOP)
                    threading.Timer(takes, let_go_on, [pid]).start()
                close(*given)

            return closed_late

        cut(db)
        if takes:
            monkeypatch.setattr(Pool, "forget_idle", late(Pool.forget_idle))
            monkeypatch.setattr(type(DIALECT), "do_close", late(type(DIALECT).do_close))
        db.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 2".encode())  # this one and another
        try:
            with pytest.raises(tubes.SchemaMismatch, match="tubes migrate"):
                tubes.connect(postgres_db, sweep=False)
            eventually(lambda: not db.execute(others).fetchall())
            with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
                assert queue.create_tube("jobs", "fifo").put(1).id == 1
        finally:
            db.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1".encode())


def test_the_queues_of_a_process_share_their_connections(
    postgres_db: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one closes them, whichever it is."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    first = tubes.connect(postgres_db, migrate=True, sweep=False)
    for _ in range(2):
        with tubes.connect(postgres_db, sweep=False) as queue:
            assert queue.tubes() == []
            assert connections(db) == 1
    assert first.tubes() == []
    with tubes.connect(postgres_db, sweep=False) as queue:
        first.close()
        assert queue.tubes() == []
        assert connections(db) == 1
    eventually(lambda: connections(db) == 0)


def test_what_a_queue_borrows_as_the_last_of_the_others_is_closed_is_closed_with_it(
    postgres_db: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to open, and goes on with connections of its own."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    first = tubes.connect(postgres_db, migrate=True, sweep=False)
    begin = PostgresStore._begin_session

    def begin_late(store: PostgresStore) -> None:
        begin(store)
        first.close()

    with monkeypatch.context() as patch:
        patch.setattr(PostgresStore, "_begin_session", begin_late)
        queue = tubes.connect(postgres_db, sweep=False)
    with queue:
        assert queue.create_tube("jobs", "fifo").put(1).id == 1
        eventually(lambda: connections(db) == 1)
    eventually(lambda: connections(db) == 0)


def test_a_queue_opens_though_the_connections_of_others_end_at_their_next_use(
    postgres_db: str, db: psycopg.Connection
) -> None:
    """After the first that ends, it tries no other."""
    with tubes.connect(postgres_db, migrate=True, sweep=False) as first:
        with first.transaction(), first.transaction(), first.transaction():
            pass
        idle = [wire.backend_pid for wire in cast("Any", first.store)._pool._idle]
        assert len(idle) == 3
        ends = f"pg_backend_pid() <> ALL (ARRAY{idle}) OR pg_terminate_backend(pg_backend_pid())"
        db.execute("ALTER TABLE tubes_version RENAME TO version_kept")
        db.execute(f"CREATE VIEW tubes_version AS SELECT * FROM version_kept WHERE {ends}".encode())
        tubes.connect(postgres_db, sweep=False).close()


@pytest.mark.parametrize(
    ("environment", "in_url", "patience"), [("", "", "10"), ("7", "", "7"), ("7", "8", "8")]
)
def test_a_server_is_waited_for_as_long_as_the_user_says(
    postgres_db: str, environment: str, in_url: str, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment:
        monkeypatch.setenv("PGCONNECT_TIMEOUT", environment)
    url = sa.make_url(postgres_db).update_query_dict({"connect_timeout": in_url} if in_url else {})
    with (
        tubes.connect(url.render_as_string(hide_password=False), sweep=False, migrate=True) as queue,
        cast("Any", queue.store)._pool.lent() as wire,
    ):
        assert wire._connection.info.get_parameters()["connect_timeout"] == patience


@pytest.mark.parametrize("lacks", ["all tables", "a table"])
def test_a_queue_that_cannot_be_used_leaves_no_connection(
    postgres_db: str, db: psycopg.Connection, lacks: str
) -> None:
    """Even while somebody keeps the error."""
    if lacks == "a table":
        tubes.connect(postgres_db, migrate=True, sweep=False).close()
        db.execute("DROP TABLE tubes_session CASCADE")
    with pytest.raises(tubes.SchemaMismatch) as caught:
        tubes.connect(postgres_db)
    eventually(lambda: connections(db) == 0)
    assert caught.value.__traceback__


def test_a_connection_on_which_a_table_is_missed_is_not_left_open(
    postgres_db: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while somebody keeps the error."""
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue, queue.transaction():
        db.execute("DROP TABLE tubes_server")
        with pytest.raises(tubes.SchemaMismatch) as caught:
            queue.tubes()
        eventually(lambda: connections(db) == 1)
    assert caught.value.__traceback__


def test_a_queue_that_stays_listens_on_another(postgres_db: str, db: psycopg.Connection) -> None:
    with tubes.connect(postgres_db, migrate=True, sweep=False):
        eventually(lambda: connections(db) == 2)


def test_who_waits_listens_at_once(
    postgres_db: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_listener, "CONNECT_AFTER", 3600.0)
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        waiting = threading.Thread(target=tube.take)
        waiting.start()
        eventually(lambda: connections(db) == 2)
        tube.put(1)
        waiting.join()


class Opened:
    """An open connection, for a pool."""

    is_inherited = is_read_only = is_lost = is_closed = False

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.slow
def test_connections_that_threads_lose_at_the_same_time_cost_no_places() -> None:
    """Without a GIL, another thread may come between two steps of a count."""
    pool = Pool(cast("Any", Opened), 5.0, "this")

    def lose(_: int) -> None:
        for _ in range(50_000):
            with pool.lent() as wire:
                wire.is_lost = True

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lose, range(3)))
    assert len(pool._places) == len(pool._idle) == 0
