"""A unit is a transaction of the queue's own: its connection, its errors, its end; odd ends of a user's."""

from __future__ import annotations

import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import ended, eventually, strike
from servers import PostgresServer
from sqlalchemy import orm
from transactions.conftest import INSERT, Place

import tubes
from tubes.testing import FakeClock
from tubes.testing.suite import take


class Stop(Exception):
    """Raised to roll back."""


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_unit_s_connection_gets_no_old_snapshot(postgres_place: Place, level: str) -> None:
    """With one, what is put into a tube that has been dropped since would be lost."""
    tube = postgres_place.tube()
    with postgres_place.queue.transaction() as unit:  # SQLAlchemy asks the server something the first time
        unit.connection.execute(sa.text("SELECT 1"))
    said = pytest.raises(sa.exc.DBAPIError, match="must be called before any query")
    with said, postgres_place.queue.transaction() as unit:
        unit.connection.execute(sa.text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
    with pytest.raises(tubes.NoSuchTube), postgres_place.queue.transaction() as unit:
        unit.connection.execute(sa.text("SELECT * FROM mine"))
        tube.drop()
        tube.put("x", unit=unit)


def test_a_unit_s_connection_is_in_its_transaction(place: Place) -> None:
    """What the user executes there is committed together with tasks and events."""
    tube = place.tube()
    tube.put("first")
    task = take(tube)
    place.changes.clear()
    with place.queue.transaction() as unit:
        unit.connection.execute(INSERT, {"what": "row"})
        tube.put("x", unit=unit)
        tube.ack(task, unit=unit)
        assert unit.connection is unit.connection
        assert unit.connection.execute(sa.text("SELECT what FROM mine")).scalars().all() == ["row"]
        assert place.rows() == [] and place.changes == []
    assert place.rows() == ["row"] and place.changes == [("put", "x"), ("ack", "first")]


def test_a_unit_that_raises_rolls_back_what_was_done_on_its_connection(place: Place) -> None:
    tube = place.tube()
    for _ in range(2):  # the second time with the connection that was lent before
        with pytest.raises(Stop), place.queue.transaction() as unit:
            tube.put("x", unit=unit)
            unit.connection.execute(INSERT, {"what": "row"})
            raise Stop
    assert place.rows() == [] and place.changes == [] and tube.tasks("r") == []


def test_a_transaction_in_which_a_statement_has_failed_does_not_pass_for_committed(
    postgres_place: Place,
) -> None:
    """The server would roll back and say nothing."""
    tube = postgres_place.tube()
    with (
        pytest.raises(tubes.StoreError, match="has already failed"),
        postgres_place.queue.transaction() as unit,
    ):
        tube.put("x", unit=unit)
        with suppress(sa.exc.DBAPIError):
            unit.connection.execute(sa.text("SELECT 1 / 0"))
    assert postgres_place.changes == [] and tube.tasks("r") == []


def test_savepoints_on_a_unit_s_connection_are_followed(place: Place) -> None:
    tube = place.tube()
    with place.queue.transaction() as unit:
        with unit.connection.begin_nested():
            tube.put("a", unit=unit)
        with pytest.raises(Stop), unit.connection.begin_nested():
            unit.connection.execute(INSERT, {"what": "row"})
            tube.put("b", unit=unit)
            raise Stop
        tube.put("c", unit=unit)
    assert place.rows() == [] and place.changes == [("put", "a"), ("put", "c")]
    assert [task.data for task in tube.tasks("r")] == ["a", "c"]


def test_a_unit_s_connection_forgets_no_statement_of_the_queue_s(postgres_place: Place) -> None:
    """After a rollback to a savepoint, psycopg deallocates all that is prepared, if any of it is its own."""
    tube = postgres_place.tube()
    for number in range(2):
        with postgres_place.queue.transaction() as unit:
            for row in range(8):  # often enough for psycopg to prepare it
                unit.connection.execute(INSERT, {"what": f"{number} {row}"})
            with unit.connection.begin_nested() as savepoint:
                savepoint.rollback()
            unit.connection.execute(sa.text("SELECT 1"))
            tube.put(number, unit=unit)
        tube.put(number)
    assert [task.data for task in tube.tasks("r")] == [0, 0, 1, 1]


@pytest.mark.timeout(60, method="thread")
def test_threads_that_share_a_unit_wait_for_its_statements_too(place: Place) -> None:
    """The statements of its connection and those of its tubes share one wire."""
    tube = place.tube()
    with ThreadPoolExecutor() as others, place.queue.transaction() as unit:
        connection = unit.connection

        def execute() -> list[int]:
            return [connection.execute(sa.text(f"SELECT {n}")).scalar_one() for n in range(300)]

        executing = others.submit(execute)
        for n in range(300):
            tube.put(n, unit=unit)
        assert executing.result() == [*range(300)]
    assert [task.data for task in tube.tasks("r", limit=300)] == [*range(300)]


@pytest.mark.parametrize(
    "does", ["SET search_path = ''", "SET default_transaction_read_only = on", "DEALLOCATE ALL"]
)
def test_what_is_done_to_a_unit_s_connection_ends_with_the_unit(postgres_place: Place, does: str) -> None:
    """Otherwise the next call on it could find no tables, or another queue's, or none of its statements."""
    tube = postgres_place.tube()
    with postgres_place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        unit.connection.exec_driver_sql(does)
    tube.put("y")
    assert [task.data for task in tube.tasks("r")] == ["x", "y"]


def test_what_is_left_on_a_unit_s_connection_ends_with_the_unit(postgres_place: Place) -> None:
    """Otherwise its next user would hold the session's lock, and a temporary table would hide ours."""
    tube = postgres_place.tube()
    for _ in range(2):
        with postgres_place.queue.transaction() as unit:
            unit.connection.exec_driver_sql("SELECT pg_advisory_lock(7)")
            unit.connection.exec_driver_sql("CREATE TEMPORARY TABLE tubes_task (id int)")
        assert tube.put("x")
        with postgres_place.engine.begin() as connection:
            assert connection.scalar(sa.text("SELECT pg_try_advisory_xact_lock(7)"))


@pytest.mark.parametrize(
    ("leaves", "is_left"),
    [
        ('PREPARE "Ha""lf" AS SELECT 1', "SELECT FROM pg_prepared_statements WHERE from_sql"),
        ("DEALLOCATE ALL; PREPARE t0 AS SELECT 1", "SELECT FROM pg_prepared_statements WHERE from_sql"),
        ("DECLARE half CURSOR WITH HOLD FOR SELECT 1", "SELECT FROM pg_cursors WHERE is_holdable"),
        ("LISTEN half", "SELECT pg_listening_channels()"),
    ],
)
def test_what_has_a_name_on_a_unit_s_connection_ends_with_the_unit(
    postgres_place: Place, leaves: str, is_left: str
) -> None:
    """The next unit may make it again. The connection is kept, unless what is prepared on it has changed."""
    tube, processes = postgres_place.tube(), set()
    for turn in range(3):
        with postgres_place.queue.transaction() as unit:
            tube.put(turn, unit=unit)
            processes.add(unit.tx._wire.backend_pid)
            assert unit.connection.exec_driver_sql(is_left).first() is None
            for statement in leaves.split("; "):
                unit.connection.exec_driver_sql(statement)
        assert tube.put("x")
        with postgres_place.queue.transaction() as unit:
            names = sa.text("SELECT name FROM pg_prepared_statements WHERE NOT from_sql")
            prepared = {*unit.connection.scalars(names)}
            assert {name.decode() for name in unit.tx._wire._prepared.values()} <= prepared
    assert [task.data for task in tube.tasks("r")] == [0, "x", 1, "x", 2, "x"]
    assert len(processes) == 1 or "PREPARE" in leaves


@pytest.mark.slow
def test_who_a_unit_s_connection_is_ends_with_the_unit(own_postgres_db: str) -> None:
    url = sa.make_url(own_postgres_db).set(username="postgres").render_as_string(hide_password=False)
    with tubes.connect(url, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        with queue.transaction() as unit:
            tube.put("x", unit=unit)
            unit.connection.exec_driver_sql("SET SESSION AUTHORIZATION pg_monitor")
        tube.put("y")


def test_a_unit_alone_ends_its_transaction(place: Place) -> None:
    """Its connection refuses commit, rollback and close, and goes on; a Session leaves that to the unit."""
    tube = place.tube()
    for end in ("commit", "rollback"):
        with pytest.raises(tubes.BadOption, match="the end of its block"), place.queue.transaction() as unit:
            tube.put("never", unit=unit)
            getattr(unit.connection, end)()
    with place.queue.transaction() as unit:
        for end in ("commit", "rollback", "close") * 2:
            with pytest.raises(tubes.BadOption, match="the end of its block"):
                getattr(unit.connection, end)()
        with orm.Session(unit.connection) as session:
            session.execute(INSERT, {"what": "row"})
            tube.put("x", connection=session)
            session.commit()
        assert place.rows() == []
        tube.put("y", connection=unit.connection)
    assert place.rows() == ["row"] and place.changes == [("put", "x"), ("put", "y")]


@pytest.mark.parametrize("ends", ["ROLLBACK", "COMMIT"])
def test_a_unit_that_a_statement_has_ended_says_so(place: Place, ends: str) -> None:
    """What was rolled back behind its back is not announced as committed; what follows is no part of it."""
    tube, says = place.tube(), "COMMIT or ROLLBACK, has ended it"
    with pytest.raises(tubes.StoreError, match=says), place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        unit.connection.exec_driver_sql(ends)
    with pytest.raises(tubes.StoreError, match=says), place.queue.transaction() as unit:
        unit.connection.exec_driver_sql(ends)
        with pytest.raises(tubes.StoreError, match=says):
            tube.put("y", unit=unit)
    assert place.changes == []
    assert [task.data for task in tube.tasks("r")] == (["x"] if ends == "COMMIT" else [])


@pytest.mark.parametrize("ends", ["ROLLBACK", "COMMIT"])
def test_a_statement_after_that_end_begins_nothing_else(place: Place, ends: str) -> None:
    """Otherwise the commit of what began in its place would announce what was rolled back."""
    tube = place.tube()
    with pytest.raises(tubes.StoreError), place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        unit.connection.exec_driver_sql(ends)
        with pytest.raises(tubes.StoreError):
            unit.connection.exec_driver_sql("BEGIN")
        with pytest.raises(tubes.StoreError):
            tube.put("y", unit=unit)
    assert place.changes == []
    assert [task.data for task in tube.tasks("r")] == (["x"] if ends == "COMMIT" else [])


def test_a_unit_whose_connection_was_cut_has_committed_nothing(postgres_place: Place) -> None:
    """That is certain, since its commit was not sent."""
    tube = postgres_place.tube()
    with pytest.raises(tubes.StoreUnavailable), postgres_place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        pid = unit.connection.scalar(sa.text("SELECT pg_backend_pid()"))
        with postgres_place.engine.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
    assert postgres_place.changes == [] and tube.tasks("r") == []


@pytest.mark.parametrize("error", [KeyError, None])
def test_a_unit_whose_connection_was_lost_hides_no_error(
    postgres_place: Place, error: type[Exception] | None
) -> None:
    """SQLAlchemy lets nobody use a connection that it has found lost; the user's error comes first."""
    tube = postgres_place.tube()
    suicide = sa.text("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(error or tubes.StoreUnavailable), postgres_place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        with pytest.raises(sa.exc.OperationalError):
            unit.connection.execute(suicide)
        if error is not None:
            raise error
    with postgres_place.queue.transaction() as unit:
        unit.connection.execute(INSERT, {"what": "row"})
    assert postgres_place.changes == [] and tube.tasks("r") == [] and postgres_place.rows() == ["row"]


def test_a_unit_s_connection_ends_with_it(place: Place) -> None:
    with place.queue.transaction() as unit:
        kept = unit.connection
    assert kept.closed
    with pytest.raises(tubes.BadOption, match="over"):
        _ = unit.connection
    with pytest.raises(sa.exc.ResourceClosedError):
        kept.execute(sa.text("SELECT 1"))


def test_a_unit_s_connection_is_another_queue_s_to_others(place: Place) -> None:
    place.tube()
    other = place.connect().tube.jobs
    with place.queue.transaction() as unit, pytest.raises(tubes.BadOption, match="a unit of another queue"):
        other.put("x", connection=unit.connection)


def test_a_queue_in_memory_has_a_unit_s_connection() -> None:
    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifo")
        with queue.transaction() as unit:
            unit.connection.execute(sa.text("CREATE TABLE mine (what TEXT)"))
            unit.connection.execute(INSERT, {"what": "row"})
            tube.put("x", unit=unit)
        with queue.transaction() as unit:
            assert unit.connection.execute(sa.text("SELECT count(*) FROM mine")).scalar() == 1
        assert tube.take(0) is not None


@pytest.mark.timeout(60, method="thread")
def test_who_waits_for_no_lock_at_all_is_told_at_once_that_it_is_held(place: Place) -> None:
    """On PostgreSQL a lock_timeout of 0 would mean for ever."""
    tube = place.tube()
    tube.put("x")
    impatient = place.connect(busy_timeout=0).tube.jobs
    with place.queue.transaction() as unit:
        task = tube.take(0, unit=unit)
        assert task is not None
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(impatient.delete, task.id).exception(20), tubes.StoreBusy)


def test_a_unit_that_is_over_or_another_queue_s_is_refused(place: Place) -> None:
    tube = place.tube()
    other = place.connect(busy_timeout=0.2).tube.jobs
    with place.queue.transaction() as unit:
        for call in (other.put, other.peek):
            with pytest.raises(tubes.BadOption, match="belongs to another queue"):
                call(1, unit=unit)
        tube.put("x", unit=unit)
    for call in (tube.put, tube.peek):
        with pytest.raises(tubes.BadOption, match="over"):
            call(1, unit=unit)
    with pytest.raises(tubes.BadOption, match=r"pass the unit from queue\.transaction\(\), not"):
        tube.put("x", unit="a unit")  # type: ignore[arg-type]
    assert place.changes == [("put", "x")]


def test_a_closed_queue_has_no_transactions(place: Place) -> None:
    tube = place.tube()
    place.queue.close()
    with pytest.raises(tubes.StoreUnavailable, match="closed"), place.queue.transaction():
        pass
    assert place.changes == []
    with pytest.raises(tubes.StoreUnavailable):
        tube.put("x")


@pytest.mark.parametrize("used_again", ["tube", "connection", None])
def test_a_queue_that_is_closed_inside_a_transaction_commits_nothing(
    place: Place, used_again: str | None
) -> None:
    tube = place.tube()
    with pytest.raises(tubes.StoreUnavailable), place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        place.queue.close()
        if used_again == "tube":
            tube.put("y", unit=unit)
        elif used_again == "connection":
            unit.connection.execute(INSERT, {"what": "y"})
    assert place.changes == [] and place.connect().tube.jobs.tasks("r") == []


@pytest.mark.slow
@pytest.mark.timeout(60, method="thread")
def test_a_queue_that_is_closed_inside_a_transaction_does_not_wait_for_a_sweep_that_waits_for_that(
    sqlite_place: Place,
) -> None:
    queue = sqlite_place.connect(sweep=True)
    tube = queue.create_tube("swept", "fifo")
    store: Any = queue.store
    tube.put("x")  # which is counted a second later
    with pytest.raises(tubes.StoreUnavailable), queue.transaction():
        eventually(lambda: store.writer._waiting)
        queue.close()


@pytest.mark.slow
def test_a_queue_that_is_closed_after_a_transaction_waits_for_the_sweep(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = sqlite_place.connect(sweep=True)
    sweeping, left = threading.Event(), threading.Event()
    leave, are_early = queue.store.leave, []

    def tidy() -> None:
        sweeping.set()
        eventually(lambda: queue.is_closed)
        are_early.append(left.wait(0.1))

    def leave_and_say() -> bool:
        left.set()
        return leave()

    monkeypatch.setattr(queue.store, "tidy", tidy)
    monkeypatch.setattr(queue.store, "leave", leave_and_say)
    with queue.transaction():
        pass
    assert sweeping.wait(20)
    queue.close()
    assert are_early == [False]


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyError, None])
def test_a_queue_that_is_closed_over_a_result_leaves_nothing_locked(
    sqlite_place: Place, error: type[Exception] | None
) -> None:
    """The user's own error comes first."""
    tube = sqlite_place.tube()
    tube.put("x")
    with pytest.raises(error or tubes.StoreUnavailable), sqlite_place.queue.transaction() as unit:
        result = unit.connection.execute(sa.text("SELECT * FROM tubes_task"))
        sqlite_place.queue.close()
        if error is not None:
            raise error
    sqlite_place.connect(busy_timeout=0.1).tube.jobs.put("y")
    result.close()


def test_a_put_in_a_unit_cannot_wait(place: Place) -> None:
    tube = place.tube("limfifottl", capacity=1)
    with place.queue.transaction() as unit:
        with pytest.raises(tubes.BadOption, match="cannot wait"):
            tube.put("x", timeout=5, unit=unit)
        tube.put("x", unit=unit)
        with pytest.raises(tubes.TubeFull):
            tube.put("y", unit=unit)


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_what_is_over_takes_no_room_from_a_put_in_a_transaction(place: Place, how: str) -> None:
    """What is over goes in the same transaction, and is there again after a rollback."""
    clock = FakeClock()
    tube = place.connect(clock=clock, sweep=False).create_tube("jobs", "limfifottl", capacity=1)
    tube.on_task_change(lambda task, event: place.changes.append((str(event), task.data)))
    tube.put("over", ttl=1)
    clock.advance(2)
    place.changes.clear()
    for is_kept in (False, True):
        with place.engine.connect() as connection, suppress(Stop):
            with tube._queue.transaction() if how == "unit" else nullcontext() as unit:
                where: Any = {"unit": unit} if how == "unit" else {"connection": connection}
                assert tube.put("new", **where).data == "new"
                with pytest.raises(tubes.TubeFull):
                    tube.put("another", **where)
                if not is_kept:
                    raise Stop
            if how == "connection":
                connection.commit()
        assert place.changes == ([("ttl", "over"), ("put", "new")] if is_kept else [])
    assert [task.data for task in tube.tasks("r")] == ["new"]


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_errors_inside_are_of_our_tree(place: Place, how: str) -> None:
    """The database's own error is the cause, and nothing is left of the transaction."""
    tube = place.tube()
    gone = sa.text("ALTER TABLE tubes_task RENAME TO tubes_gone")
    if how == "unit":
        with pytest.raises(tubes.StoreError) as caught, place.queue.transaction() as unit:
            unit.connection.execute(gone)
            tube.put("x", unit=unit)
    else:
        with pytest.raises(tubes.StoreError) as caught, place.engine.begin() as connection:
            tube.peek(tube.put("x", connection=connection), connection=connection)
            connection.execute(gone)
            tube.put("y", connection=connection)
    assert caught.value.__cause__ is not None
    tube.put("z")
    assert place.changes == [("put", "z")]


def test_a_commit_that_a_foreign_key_of_the_user_s_refuses_says_so(place: Place) -> None:
    tube = place.tube()
    with pytest.raises(tubes.StoreError, match=r"(?i)foreign key"), place.queue.transaction() as unit:
        unit.connection.exec_driver_sql(
            "CREATE TABLE theirs (what TEXT REFERENCES mine DEFERRABLE INITIALLY DEFERRED)"
        )
        unit.connection.exec_driver_sql("INSERT INTO theirs VALUES ('nothing')")
        tube.put("x", unit=unit)
    assert place.changes == [] and tube.tasks("r") == []


def test_an_error_of_the_user_s_own_database_is_left_as_it_is(place: Place) -> None:
    """Whatever goes wrong there, the queue's own database has not failed."""
    tube = place.tube()
    with closing(sqlite3.connect(":memory:")) as theirs:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            with place.queue.transaction() as unit:
                tube.put("x", unit=unit)
                theirs.execute("SELECT * FROM nowhere")
    assert place.changes == [] and tube.tasks("r") == []


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_a_failed_call_leaves_nothing_in_the_transaction(sqlite_place: Place, how: str) -> None:
    """Not even a call of several statements: the place it took in a bounded tube is free again."""
    place = sqlite_place
    tube = place.tube("limfifottl", capacity=1)

    def limited(raw: sqlite3.Connection) -> None:
        raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)

    if how == "unit":
        with place.queue.transaction() as unit:
            limited(unit.connection.connection.driver_connection)
            with pytest.raises(tubes.StoreError, match="larger"):
                tube.put("x" * 2_000, unit=unit)
            tube.put("fits", unit=unit)
    else:
        with place.engine.begin() as connection:
            limited(connection.connection.driver_connection)  # type: ignore[arg-type]
            with pytest.raises(tubes.StoreError, match="larger"):
                tube.put("x" * 2_000, connection=connection)
            tube.put("fits", connection=connection)
    assert place.changes == [("put", "fits")]


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_a_call_that_its_driver_fails_halfway_leaves_nothing(place: Place, how: str) -> None:
    """The server knows nothing of such an error, and would commit what was done before it."""
    tube = place.tube()
    tube.put("x")
    take = tube.driver.take

    def fail(*args: Any, **kwargs: Any) -> None:
        take(*args, **kwargs)
        raise ValueError

    tube.driver.take = fail  # type: ignore[method-assign, assignment]
    with suppress(tubes.StoreError):  # PostgreSQL was told to commit nothing
        if how == "unit":
            with place.queue.transaction() as unit, pytest.raises(ValueError) as caught:
                tube.take(0, unit=unit)
        else:
            with place.engine.begin() as connection, pytest.raises(ValueError) as caught:
                tube.take(0, connection=connection)
    assert caught.type is ValueError
    assert [task.data for task in tube.tasks("r")] == ["x"]


@pytest.mark.parametrize("how", ["unit", "invalidate", "close"])
def test_what_a_driver_fails_with_is_told_where_the_connection_is_gone_too(
    postgres_place: Place, how: str
) -> None:
    tube = postgres_place.tube()
    put = tube.driver.put

    def fail(tx: Any, *args: Any, **kwargs: Any) -> None:
        put(tx, *args, **kwargs)
        if how == "unit":
            tx._wire.close()
        else:
            getattr(tx.connection, how)()
        raise ValueError

    tube.driver.put = fail  # type: ignore[method-assign, assignment]
    if how == "unit":
        with pytest.raises(tubes.StoreUnavailable), postgres_place.queue.transaction() as unit:
            with pytest.raises(ValueError) as caught:
                tube.put("x", unit=unit)
    else:
        with postgres_place.engine.connect() as connection, pytest.raises(ValueError) as caught:
            tube.put("x", connection=connection)
    assert caught.type is ValueError and tube.tasks("r") == []


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_a_call_that_its_driver_fails_at_once_spoils_nothing(place: Place, how: str) -> None:
    """What earlier calls have done is kept."""
    tube = place.tube()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError

    tube.driver.take = fail  # type: ignore[method-assign, assignment]
    if how == "unit":
        with place.queue.transaction() as unit:
            tube.put("x", unit=unit)
            with pytest.raises(ValueError):
                tube.take(0, unit=unit)
    else:
        with place.engine.begin() as connection:
            tube.put("x", connection=connection)
            with pytest.raises(ValueError):
                tube.take(0, connection=connection)
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_a_transaction_that_sqlite_has_rolled_back_publishes_nothing(sqlite_place: Place) -> None:
    """As it does when the disk is full: later calls say so, and the commit of nothing publishes nothing."""
    tube = sqlite_place.tube()
    with sqlite_place.engine.connect() as connection:
        tube.put("x", connection=connection)
        connection.exec_driver_sql("ROLLBACK")
        with pytest.raises(tubes.StoreError, match="rolled back"):
            tube.put("y", connection=connection)
        connection.commit()
        assert sqlite_place.changes == []
        tube.put("z", connection=connection)
        connection.commit()
    with pytest.raises(tubes.StoreError), sqlite_place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        unit.connection.exec_driver_sql("ROLLBACK")
        with pytest.raises(tubes.StoreError, match="rolled back"):
            tube.put("y", unit=unit)
    assert sqlite_place.changes == [("put", "z")]
    assert [task.data for task in tube.tasks("r")] == ["z"]


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_a_statement_after_such_a_rollback_does_not_hide_it(sqlite_place: Place, how: str) -> None:
    """pysqlite begins another transaction with it; on a unit's own connection it would commit at once."""
    place = sqlite_place
    tube = place.tube()
    again = sa.text("INSERT OR ROLLBACK INTO mine (what) VALUES ('row')")
    with place.engine.begin() as connection:
        connection.execute(INSERT, {"what": "row"})
    if how == "connection":
        with place.engine.connect() as connection:
            tube.put("lost", connection=connection)
            with pytest.raises(sa.exc.IntegrityError):
                connection.execute(again)
            connection.execute(INSERT, {"what": "mine"})
            with pytest.raises(tubes.StoreError, match="rolled back"):
                tube.put("too late", connection=connection)
            connection.commit()
        assert place.rows() == ["mine", "row"]
    else:
        with pytest.raises(tubes.StoreError, match="rolled back"), place.queue.transaction() as unit:
            tube.put("lost", unit=unit)
            with pytest.raises(sa.exc.IntegrityError):
                unit.connection.execute(again)
            unit.connection.execute(INSERT, {"what": "mine"})
        assert place.rows() == ["row"]
    assert place.changes == [] and tube.tasks("r") == []


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "take", "take_many"])
def test_a_signal_in_a_unit_s_call_parts_nothing(place: Place, verb: str) -> None:
    """Wherever its handler raises, the block goes on: what is committed is told, and no task stays taken."""
    tube = place.tube()
    tube.put_many(range(5))
    given: dict[str, tuple[Any, ...]] = {"put": ("x",), "take": (0,), "take_many": (2, 0)}

    def call(unit: tubes.Unit) -> None:
        getattr(tube, verb)(*given[verb], unit=unit)

    at, is_struck = 0, True
    while is_struck:
        at += 1
        try:
            with place.queue.transaction() as unit:
                is_struck = strike(partial(call, unit), at)
        except tubes.StoreError as error:  # PostgreSQL was told to give up, and has done so
            assert "already failed" in str(error)
        assert not (is_struck and tube.tasks("t"))
    assert at > 10
    told = [event for event, _ in place.changes]
    assert told.count("put") == len(tube.tasks("r", limit=1000)) + len(tube.tasks("t"))
    assert told.count("take") == told.count("release") + len(tube.tasks("t"))


@pytest.mark.parametrize("how", ["unit", "connection"])
def test_threads_may_share_a_unit(place: Place, how: str) -> None:
    """They wait for each other."""
    tube = place.tube()
    got: list[tubes.Task] = []

    def put(unit: tubes.Unit, number: int) -> None:
        got.extend(tube.put([number, n], unit=unit) for n in range(50))

    def share(unit: tubes.Unit) -> None:
        threads = [threading.Thread(target=put, args=(unit, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        ended(*threads)

    if how == "unit":
        with place.queue.transaction() as unit:
            share(unit)
    else:
        with place.engine.begin() as connection:
            share(place.queue.join_transaction(connection))
    stored = {task.id: task.data for task in tube.tasks("r", limit=1000)}
    assert len(got) == 200 and stored == {task.id: task.data for task in got}
    assert len(place.changes) == 200


def test_a_result_that_is_not_read_to_its_end_keeps_nobody_from_writing(sqlite_place: Place) -> None:
    """It would hold on to what it saw, and SQLite refuses to write over that."""
    place = sqlite_place
    tube = place.tube()
    with place.queue.transaction() as unit:
        for what in "abc":
            unit.connection.execute(INSERT, {"what": what})
    with place.queue.transaction() as unit:
        result = unit.connection.execute(sa.text("SELECT what FROM mine"))
        assert result.fetchone() == ("a",)
    with place.engine.begin() as connection:
        connection.execute(INSERT, {"what": "another's"})
    tube.put("x")
    with pytest.raises(sa.exc.SQLAlchemyError):
        result.fetchone()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_in_one_queue_s_callback_hides_no_commit_from_another(
    place: Place, interruption: type[BaseException]
) -> None:
    """A Ctrl-C or an alarm. It ends the user's commit, which has been done."""
    one, two = place.tube(), place.connect().tube.jobs
    seen: list[object] = []
    two.on_task_change(lambda task, event: seen.append(task.data))

    def handle(number: int, frame: object) -> None:
        raise interruption

    one.on_task_change(lambda task, event: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with place.engine.connect() as connection:
            one.put("one", connection=connection)
            two.put("two", connection=connection)
            with pytest.raises(interruption):
                connection.commit()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == ["two"]


def test_a_take_in_a_transaction_says_that_the_tube_is_gone(place: Place) -> None:
    tube = place.tube()
    place.connect().drop_tube("jobs")
    with place.queue.transaction() as unit, pytest.raises(tubes.NoSuchTube, match="jobs"):
        tube.take(0, unit=unit)
    with place.engine.connect() as connection, pytest.raises(tubes.NoSuchTube, match="jobs"):
        tube.take_many(3, timeout=0, connection=connection)


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_temporary_tubes_take_part(place: Place, type: str) -> None:
    tube = place.tube(type, temporary=True)
    with place.engine.connect() as connection:
        tube.put("x", connection=connection)
        connection.rollback()
        tube.put_many(["y", b"z"], connection=connection)
        task = tube.take(0, connection=connection)
        assert task is not None
        tube.ack(task, connection=connection)
        connection.commit()
    assert [event for event, _ in place.changes] == ["put", "put", "take", "ack"]
    assert [task.data for task in tube.tasks("r")] == [b"z"]


@pytest.mark.parametrize("pool", [sa.NullPool, sa.StaticPool, sa.QueuePool, sa.SingletonThreadPool])
def test_any_pool_will_do(place: Place, pool: Any) -> None:
    tube = place.tube()
    engine = sa.create_engine(place.url, poolclass=pool)
    for n in range(3):
        with engine.connect() as connection:
            tube.put(n, connection=connection)
            if n != 1:
                connection.commit()
    engine.dispose()
    assert place.changes == [("put", 0), ("put", 2)]


def test_the_user_s_settings_are_not_meant_for_our_statements(place: Place) -> None:
    """A schema of another name for the user's tables, server-side cursors, batches of rows."""
    tube = place.tube()
    with place.engine.connect() as connection:
        connection = connection.execution_options(
            schema_translate_map={None: "elsewhere"}, stream_results=True, yield_per=1
        )
        tube.put_many(["a", "b"], connection=connection)
        assert len(tube.take_many(5, 0, connection=connection)) == 2
        connection.commit()
    assert len(place.changes) == 4


def test_two_phases_publish_at_the_second(postgres_place: Place) -> None:
    """Even if the first is left out. A rollback publishes nothing."""
    tube = postgres_place.tube()
    with postgres_place.engine.connect() as connection:
        for name, end in (("a", "commit"), ("b", "rollback")):
            transaction = connection.begin_twophase()
            tube.put(name, connection=connection)
            assert ("put", name) not in postgres_place.changes
            getattr(transaction, end)()
    assert postgres_place.changes == [("put", "a")]


@pytest.mark.slow
def test_a_prepared_transaction_publishes_when_it_is_committed(tmp_path: Path) -> None:
    """On a server that allows it, which servers do not by default."""
    server = PostgresServer(settings="max_prepared_transactions = 5")
    try:
        engine = sa.create_engine(server.url)
        with tubes.connect(server.url, migrate=True, sweep=False) as queue:
            tube = queue.create_tube("jobs", "utube")
            seen: list[Any] = []
            tube.on_task_change(lambda task, event: seen.append(task.data))
            with engine.connect() as connection:
                for name, end in (("a", "commit"), ("b", "rollback")):
                    transaction = connection.begin_twophase()
                    tube.put(name, utube="x", connection=connection)
                    transaction.prepare()
                    with pytest.raises(tubes.BadOption, match="is prepared"):
                        tube.put("too late", utube="x", connection=connection)
                    assert name not in seen
                    getattr(transaction, end)()
            assert seen == ["a"] and [task.data for task in tube.tasks("r")] == ["a"]
        engine.dispose()
    finally:
        server.close()


def test_what_an_application_does_to_all_connections_is_not_done_to_a_unit_s(sqlite_place: Place) -> None:
    """The writer keeps its settings, and has already begun; functions for SQL are there each time."""

    def tune(raw: Any, _: object) -> None:
        raw.execute("PRAGMA synchronous=EXTRA")
        raw.execute("PRAGMA locking_mode=EXCLUSIVE")
        raw.text_factory = bytes
        raw.create_function("twice", 1, lambda number: 2 * number)

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    tube = sqlite_place.tube()
    sa.event.listen(sa.Engine, "connect", tune)
    sa.event.listen(sa.Engine, "begin", begin)
    try:
        for _ in range(2):
            with sqlite_place.queue.transaction() as unit:
                tube.put("x", unit=unit)
                assert unit.connection.scalar(sa.text("SELECT twice(21)")) == 42
    finally:
        sa.event.remove(sa.Engine, "connect", tune)
        sa.event.remove(sa.Engine, "begin", begin)
    assert sqlite_place.changes == [("put", "x")] * 2
    with sqlite_place.queue.transaction() as unit:
        assert unit.connection.scalar(sa.text("PRAGMA synchronous")) == 0
        assert unit.connection.scalar(sa.text("PRAGMA locking_mode")) == "normal"


@pytest.mark.parametrize("how", ["commit", "autocommit"])
def test_an_application_that_commits_each_new_connection_does_not_commit_a_unit(
    postgres_place: Place, how: str
) -> None:
    """psycopg requires that of whoever sets something for longer than a transaction."""

    def tune(raw: Any, _: object) -> None:
        if how == "autocommit":
            raw.autocommit = True
        raw.execute("SET TIME ZONE 'UTC'")
        if how == "autocommit":
            raw.autocommit = False
        else:
            raw.commit()

    postgres_place.tube()
    queue = postgres_place.connect(busy_timeout=7 if how == "commit" else 8)  # with connections of its own
    tube = queue.tube.jobs
    sa.event.listen(sa.Engine, "connect", tune)
    try:
        with pytest.raises(Stop), queue.transaction() as unit:
            tube.put("x", unit=unit)
            assert unit.connection.scalar(sa.text("SELECT 1")) == 1
            raise Stop
    finally:
        sa.event.remove(sa.Engine, "connect", tune)
    assert tube.tasks("r") == []
    with queue.transaction() as unit:
        tube.put("y", unit=unit)
        unit.connection.execute(sa.text("SELECT 1"))
    assert [task.data for task in tube.tasks("r")] == ["y"]


def test_an_application_may_execute_something_on_each_connection_it_gets(place: Place) -> None:
    def ping(connection: sa.Connection) -> None:
        assert connection.scalar(sa.text("SELECT 1")) == 1

    tube = place.tube()
    sa.event.listen(sa.Engine, "engine_connect", ping)
    try:
        for _ in range(2):
            with place.queue.transaction() as unit:
                tube.put("x", unit=unit)
                assert unit.connection.scalar(sa.text("SELECT 2")) == 2
            with pytest.raises(Stop), place.queue.transaction() as unit:
                tube.put("never", connection=unit.connection)
                raise Stop
    finally:
        sa.event.remove(sa.Engine, "engine_connect", ping)
    assert place.changes == [("put", "x")] * 2


def test_a_unit_has_a_connection_again_after_an_application_has_refused_one(place: Place) -> None:
    """As where its listener needs to know for whom a connection is."""
    refusals = [Stop()]

    def check(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT 1"))
        if refusals:
            raise refusals.pop()

    tube = place.tube()
    sa.event.listen(sa.Engine, "engine_connect", check)
    try:
        with pytest.raises(Stop), place.queue.transaction() as unit:
            unit.connection.execute(sa.text("SELECT 1"))
        with place.queue.transaction() as unit:
            tube.put("x", unit=unit)
            assert unit.connection.scalar(sa.text("SELECT 2")) == 2
    finally:
        sa.event.remove(sa.Engine, "engine_connect", check)
    assert place.changes == [("put", "x")]
