"""What cannot be joined is refused with a clear error, and neither side is harmed."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import sqlalchemy as sa
from faults.harness import Growing, ended, eventually
from servers import new_database
from sqlalchemy import orm
from transactions.conftest import INSERT, Place

import tubes
from tubes.testing.suite import take


@pytest.fixture
def engine_of(place: Place) -> Any:
    """``engine_of(**settings)`` makes one more engine on the place's database."""
    made: list[sa.Engine] = []

    def make(url: str = place.url, **settings: Any) -> sa.Engine:
        made.append(sa.create_engine(url, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def refused(tube: tubes.Tube, connection: Any, why: str, error: type[Exception] = tubes.BadOption) -> None:
    """Every kind of call says why, and nothing is stored."""
    calls: list[Callable[[], object]] = [
        lambda: tube.put("x", connection=connection),
        lambda: tube.take(0, connection=connection),
        lambda: tube.kick(connection=connection),
        lambda: tube.peek(1, connection=connection),
    ]
    for call in calls:
        with pytest.raises(error, match=why):
            call()
    assert tube.statistics()["tasks"]["total"] == 0


@pytest.mark.parametrize("given", ["a string", 7, object(), sa.create_engine("sqlite://")])
def test_what_is_no_connection_is_refused(place: Place, given: object) -> None:
    refused(place.tube(), given, "connection must be a SQLAlchemy Connection or Session")


def test_a_closed_connection_is_refused(place: Place) -> None:
    connection = place.engine.connect()
    connection.close()
    refused(place.tube(), connection, "closed")


def test_a_lost_connection_is_unavailable(place: Place) -> None:
    """Its transaction is gone, with what was in it; after the rollback all works."""
    tube = place.tube()
    with place.engine.connect() as connection:
        tube.put("lost", connection=connection)
        connection.invalidate()
        refused(tube, connection, "lost", tubes.StoreUnavailable)
        connection.rollback()
        tube.put("kept", connection=connection)
        connection.commit()
    assert place.changes == [("put", "kept")]


@pytest.mark.parametrize("how", ["engine", "option"])
def test_an_autocommit_connection_is_refused(place: Place, engine_of: Any, how: str) -> None:
    tube = place.tube()
    engine = engine_of(**({"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}))
    with engine.connect() as connection:
        if how == "option":
            connection.execution_options(isolation_level="AUTOCOMMIT")
        refused(tube, connection, "AUTOCOMMIT")


def test_a_connection_that_only_reads_is_refused(place: Place, engine_of: Any) -> None:
    tube = place.tube()
    with place.engine.connect() as connection:
        setting = "PRAGMA query_only=ON" if place.is_sqlite else "SET TRANSACTION READ ONLY"
        connection.execute(sa.text(setting))
        refused(tube, connection, "is read-only")
        connection.rollback()
        if place.is_sqlite:
            connection.execute(sa.text("PRAGMA query_only=OFF"))
    if place.is_sqlite:
        file = sa.make_url(place.url).database
        with engine_of(f"sqlite:///file:{file}?mode=ro&uri=true").connect() as connection:
            with pytest.raises(tubes.BadOption, match="is read-only"):
                tube.put("x", connection=connection)


@pytest.mark.slow
def test_a_connection_to_another_database_is_refused(
    place: Place, engine_of: Any, tmp_path: Path, postgres_url: str
) -> None:
    """Another file or database that holds a queue too, none at all, and one of another kind."""
    tube = place.tube()
    if place.is_sqlite:
        others = [f"sqlite:///{tmp_path / 'other.db'}", "sqlite://"]
        tubes.connect(others[0]).close()
        for other in others:
            with engine_of(other).connect() as connection:
                refused(tube, connection, "the queue is on SQLite file")
        with engine_of(postgres_url).connect() as connection:
            refused(tube, connection, "a postgresql connection cannot be joined")
    else:
        with new_database(postgres_url) as other:
            tubes.connect(other, migrate=True).close()
            with engine_of(other).connect() as connection:
                refused(tube, connection, "does not see the tables of this queue")
        with place.engine.connect() as connection:
            connection.execute(sa.text("SET LOCAL search_path = pg_catalog"))
            refused(tube, connection, "does not see the tables of this queue")
        with engine_of("sqlite://").connect() as connection:
            refused(tube, connection, "a sqlite connection cannot be joined")


def test_a_connection_to_a_copy_of_the_database_is_refused(own_migrated_db: str) -> None:
    """In the copy, the table has the same number."""
    with (
        new_database(own_migrated_db, template=own_migrated_db) as copy,
        tubes.connect(own_migrated_db, sweep=False) as queue,
        sa.create_engine(copy, poolclass=sa.NullPool).connect() as connection,
    ):
        refused(queue.create_tube("jobs", "fifo"), connection, "does not see the tables of this queue")


def test_a_waiting_call_is_refused(place: Place) -> None:
    """Before anything else happens: the connection has not even begun a transaction."""
    tube = place.tube("limfifottl", capacity=1)
    with place.engine.connect() as connection:
        for timeout in (None, 5):
            with pytest.raises(tubes.BadOption, match="cannot wait"):
                tube.take(timeout, connection=connection)
            with pytest.raises(tubes.BadOption, match="cannot wait"):
                tube.take_many(2, timeout, connection=connection)
            with pytest.raises(tubes.BadOption, match="cannot wait"):
                tube.put("x", timeout=timeout, connection=connection)
        assert not connection.in_transaction()
        tube.put("x", connection=connection)
        with pytest.raises(tubes.TubeFull):
            tube.put("y", timeout=0, connection=connection)
        connection.commit()
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_wrong_arguments_are_refused_before_a_transaction_begins(place: Place) -> None:
    tube = place.tube()
    with place.engine.connect() as connection:
        with pytest.raises(tubes.NotSupported):
            tube.put("x", ttl=5, connection=connection)
        with pytest.raises(TypeError):
            tube.put(object(), connection=connection)
        with pytest.raises(tubes.BadOption):
            tube.ack(-1, connection=connection)
        assert not connection.in_transaction()


def test_the_connection_of_another_queue_s_unit_is_refused(place: Place) -> None:
    """The other queue would not hear of the end of the unit that it joined."""
    tube, other = place.tube(), place.connect().tube.jobs
    with place.queue.transaction() as unit:
        tube.put("x", unit=unit)
        with pytest.raises(tubes.BadOption, match="a unit of another queue"):
            other.put("y", connection=unit.connection)
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_a_unit_and_a_connection_are_too_many(place: Place) -> None:
    tube = place.tube()
    with place.engine.connect() as connection, place.queue.transaction() as unit:
        with pytest.raises(tubes.BadOption, match="pass one"):
            tube.put("x", unit=unit, connection=connection)


def test_a_closed_queue_joins_nothing(place: Place) -> None:
    """What was joined before is still committed, and its callbacks still come."""
    tube = place.tube()
    with place.engine.connect() as connection:
        tube.put("before", connection=connection)
        place.queue.close()
        for call in (tube.put, tube.peek):
            with pytest.raises(tubes.StoreUnavailable, match="closed"):
                call(1, connection=connection)
        connection.commit()
    assert place.changes == [("put", "before")]
    assert [task.data for task in place.connect().tube.jobs.tasks("r")] == ["before"]


def test_a_queue_that_is_closed_while_it_joins_is_unavailable(place: Place) -> None:
    """Another thread may do that at any moment; here it is done between two statements of the call."""
    tube = place.tube()
    with place.engine.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", lambda *_: place.queue.close())
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            tube.put("x", connection=connection)
        connection.rollback()
    assert place.connect().tube.jobs.tasks("r") == []


def test_a_session_that_must_be_rolled_back_is_refused(place: Place) -> None:
    tube = place.tube()
    with orm.Session(place.engine) as session:
        session.begin_nested()
        tube.put("x", connection=session)
        session.connection().invalidate()
        with pytest.raises(tubes.TubeError, match=r"cannot be joined|lost"):
            tube.put("y", connection=session)
        session.rollback()
    assert place.changes == []


def test_a_session_that_cannot_connect_is_unavailable(place: Place, engine_of: Any, tmp_path: Path) -> None:
    nowhere = f"sqlite:///{tmp_path}/no/file" if place.is_sqlite else "postgresql+psycopg://127.0.0.1:1/none"
    with orm.Session(engine_of(nowhere)) as session:
        refused(place.tube(), session, "cannot connect", tubes.StoreUnavailable)


def test_a_session_of_several_engines_is_asked_for_its_connection(place: Place) -> None:
    tube = place.tube()
    with orm.Session(binds={orm.DeclarativeBase: place.engine}) as session:
        refused(tube, session, "several engines")
        tube.put("x", connection=session.connection(bind_arguments={"bind": place.engine}))
        session.commit()
    assert place.changes == [("put", "x")]


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_savepoint_that_is_over_within_its_block_is_refused(place: Place, is_joined: bool) -> None:
    """SQLAlchemy refuses it too; we say so in our words. The transaction around it goes on."""
    tube = place.tube()
    with place.engine.begin() as connection:
        if is_joined:
            tube.put("before", connection=connection)
        with connection.begin_nested() as savepoint:
            savepoint.rollback()
            with pytest.raises(tubes.BadOption, match="closed transaction inside"):
                tube.put("inside", connection=connection)
        tube.put("after", connection=connection)
    assert [task.data for task in tube.tasks("r")] == ["before"] * is_joined + ["after"]


def test_a_detached_connection_will_do(place: Place) -> None:
    """Whether it is detached before it is joined or after."""
    tube = place.tube()
    with place.engine.connect() as connection:
        connection.detach()
        tube.put("x", connection=connection)
        connection.commit()
    with place.engine.connect() as connection:
        tube.put("y", connection=connection)
        connection.detach()
        connection.commit()
    assert place.changes == [("put", "x"), ("put", "y")]


# On SQLite


@pytest.mark.slow
def test_a_plain_call_of_the_thread_that_holds_the_lock_is_refused_at_once(sqlite_place: Place) -> None:
    """Through any queue on the file: it would wait for itself. Reads are answered, and later calls work."""
    place = sqlite_place
    tube = place.tube()
    other = place.connect(busy_timeout=600).tube.jobs
    elsewhere = place.connect(busy_timeout=600, namespace="elsewhere").create_tube("jobs", "fifo")
    with place.engine.connect() as connection, place.engine.connect() as second:
        tube.put("inside", connection=connection)
        began = time.monotonic()
        calls: list[Callable[[], object]] = [
            lambda: tube.put("x"),
            lambda: other.put("x"),
            lambda: other.take(0),
            lambda: elsewhere.put("x"),
            lambda: tube.put("x", connection=second),
            lambda: place.queue.transaction().__enter__(),
        ]
        for call in calls:
            with pytest.raises(tubes.StoreBusy, match="pass connection="):
                call()
        assert time.monotonic() - began < 60
        assert tube.tasks("r") == []
        connection.commit()
        tube.put("outside")
    assert place.changes == [("put", "inside"), ("put", "outside")]


def test_a_plain_call_is_refused_at_once_in_the_thread_that_went_on_with_the_transaction(
    sqlite_place: Place,
) -> None:
    """It need not be the thread that began it."""
    tube = sqlite_place.tube()
    other = sqlite_place.connect(busy_timeout=600).tube.jobs
    began = time.monotonic()
    with sqlite_place.engine.connect() as connection:
        first = threading.Thread(target=tube.put, args=("first",), kwargs={"connection": connection})
        first.start()
        first.join()
        tube.put("second", connection=connection)
        with pytest.raises(tubes.StoreBusy, match="pass connection="):
            other.put("x")
        connection.commit()
    assert time.monotonic() - began < 60
    assert sqlite_place.changes == [("put", "first"), ("put", "second")]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["put", "joined put", "transaction", "put of another queue"])
@pytest.mark.parametrize("inside", ["a user's transaction", "the queue's"])
def test_a_call_waits_while_another_thread_ends_the_transaction(
    sqlite_place: Place, inside: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a web framework runs a request in several threads, and this one has the next request."""
    monkeypatch.setattr("tubes.drivers.sql.sqlite_writer.ENDED_ELSEWHERE", 20.0)
    tube, engine = sqlite_place.tube(), sqlite_place.engine
    other = sqlite_place.connect().tube.jobs
    connection = engine.connect()
    end: Callable[[], object] = connection.commit
    if inside == "the queue's":
        block = sqlite_place.queue.transaction()
        tube.put("inside", unit=block.__enter__())
        end = partial(block.__exit__, None, None, None)
    else:
        tube.put("inside", connection=connection)
    elsewhere = threading.Timer(0.1, end)
    elsewhere.start()
    if call == "put":
        tube.put("outside")
    elif call == "put of another queue":
        other.put("outside")
    elif call == "joined put":
        with engine.begin() as second:
            tube.put("outside", connection=second)
    else:
        with sqlite_place.queue.transaction() as unit:
            tube.put("outside", unit=unit)
    elsewhere.join()
    connection.close()
    assert [task.data for task in tube.tasks("r")] == ["inside", "outside"]


def test_who_holds_the_lock_is_known_while_others_join_transactions(sqlite_place: Place) -> None:
    shared: Any = sqlite_place.queue.store._shared  # type: ignore[attr-defined]
    with sqlite_place.engine.connect() as one, sqlite_place.engine.connect() as two:
        one.begin_nested(), two.begin_nested()
        shared.joined = Growing(lambda: sqlite_place.queue.join_transaction(two))
        sqlite_place.queue.join_transaction(one)
        with pytest.raises(tubes.StoreBusy):
            shared.check_not_locked_here()
        assert shared.joined.other is not None


@pytest.mark.slow
def test_a_call_of_another_queue_inside_a_transaction_of_this_one_is_refused_at_once(
    sqlite_place: Place,
) -> None:
    """On the same file it would wait for itself, even for other tables there."""
    place = sqlite_place
    tube = place.tube()
    others = [
        place.connect(busy_timeout=600).tube.jobs,
        place.connect(busy_timeout=600, namespace="elsewhere").create_tube("jobs", "fifo"),
    ]
    began = time.monotonic()
    with place.queue.transaction() as unit:
        tube.put("inside", unit=unit)
        for other in others:
            for call in (partial(other.put, "x"), partial(other.take, 0)):
                with pytest.raises(tubes.StoreBusy, match="another queue on the same file"):
                    call()
        with pytest.raises(tubes.StoreBusy, match="another queue on the same file"):
            place.connect(busy_timeout=600)
    assert time.monotonic() - began < 60
    for other in others:
        other.put("outside")
    assert [task.data for task in tube.tasks("r")] == ["inside", "outside"]
    assert [task.data for task in others[1].tasks("r")] == ["outside"]


@pytest.mark.parametrize("durability", ["off", "full"])
def test_a_call_behind_one_that_waits_for_the_transaction_of_the_callers_thread_is_refused(
    sqlite_place: Place, durability: str
) -> None:
    """Whether commits are shared or not, it stands in line, and would wait for itself."""
    sqlite_place.tube()
    tube: Any = sqlite_place.connect(busy_timeout=600, durability=durability).tube.jobs
    with sqlite_place.engine.connect() as connection:
        tube.put("inside", connection=connection)
        other = threading.Thread(target=tube.put, args=("outside",))
        other.start()
        eventually(tube._store.writer._turn.locked)
        began = time.monotonic()
        with pytest.raises(tubes.StoreBusy, match="pass connection="):
            tube.put("x")
        assert time.monotonic() - began < 60
        connection.commit()
    other.join()
    assert [task.data for task in tube.tasks("r")] == ["inside", "outside"]


def test_a_connection_inside_a_transaction_of_the_queue_is_refused_at_once(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    with sqlite_place.engine.connect() as connection, sqlite_place.queue.transaction() as unit:
        tube.put("inside", unit=unit)
        with pytest.raises(tubes.StoreBusy, match="pass unit="):
            tube.put("outside", connection=connection)
    assert sqlite_place.changes == [("put", "inside")]


def test_a_transaction_that_has_read_before_others_wrote_is_busy(sqlite_place: Place) -> None:
    """SQLite cannot let it write; the error says at once what to do."""
    tube = sqlite_place.tube()
    with sqlite_place.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT * FROM mine").all()
        tube.put("others")
        with pytest.raises(tubes.StoreBusy, match="BEGIN IMMEDIATE"):
            tube.put("x", connection=connection)
        connection.rollback()
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("SELECT * FROM mine").all()
        tube.put("y", connection=connection)
        connection.commit()
    assert sqlite_place.changes == [("put", "others"), ("put", "y")]


def test_a_queue_in_memory_has_no_connection_but_its_own(sqlite_place: Place) -> None:
    with tubes.connect("sqlite://") as queue, sqlite_place.engine.connect() as connection:
        refused(queue.create_tube("jobs", "fifo"), connection, "in memory")


def test_recursive_triggers_are_refused(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    with sqlite_place.engine.connect() as connection:
        connection.execute(sa.text("PRAGMA recursive_triggers=ON"))
        refused(tube, connection, "recursive_triggers=OFF")
        connection.execute(sa.text("PRAGMA recursive_triggers=OFF"))


def test_a_connection_with_another_sqlite_is_refused(sqlite_place: Place) -> None:
    """As of pysqlite3. Two in one process do not see each other's locks."""
    other = ModuleType("other")
    vars(other).update(vars(sqlite3.dbapi2) | {"Error": type("Error", (Exception,), {})})
    engine, tube = sa.create_engine(sqlite_place.url, module=other), sqlite_place.tube()
    with engine.connect() as connection:
        refused(tube, connection, "a SQLite of its own")
    engine.dispose()


def test_a_connection_that_reads_text_as_bytes_is_refused(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    with sqlite_place.engine.connect() as connection:
        cast(Any, connection.connection.dbapi_connection).text_factory = bytes
        refused(tube, connection, "text_factory")
        connection.begin_nested().rollback()
        refused(tube, connection, "text_factory")
        connection.invalidate()  # nobody else gets it


@pytest.mark.parametrize("type", ["fifo", "limfifottl", "utubettl"])
def test_a_put_into_a_dropped_tube_is_refused(place: Place, type: str) -> None:
    """Foreign keys are off on most connections to SQLite, so this must not depend on them."""
    tube = place.tube(type)
    tube.drop()
    with place.engine.connect() as connection:
        for call in (tube.put, tube.put_many):
            with pytest.raises(tubes.NoSuchTube, match="jobs"):
                call(["x", "y"], connection=connection)


# On PostgreSQL


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_sub_queue_is_not_changed_with_an_old_snapshot(postgres_place: Place, level: Any) -> None:
    """Tubes without sub-queues may be."""
    tube, plain = postgres_place.tube("utube"), postgres_place.tube("fifo", "plain")
    with postgres_place.engine.connect() as connection:
        connection.execution_options(isolation_level=level)
        with pytest.raises(tubes.BadOption, match="must be READ COMMITTED, not REPEATABLE READ"):
            tube.put("x", utube="a", connection=connection)
        with pytest.raises(tubes.StoreError, match="can only be rolled back"):  # the server has refused
            plain.put("y", connection=connection)
        connection.rollback()
        plain.put("y", connection=connection)
        connection.commit()
    assert postgres_place.changes == [("put", "y")]


@pytest.mark.slow
def test_a_connection_that_runs_no_triggers_is_refused(own_postgres_db: str) -> None:
    """A superuser's may run none: an ack on it would leave the next of its sub-queue behind nobody."""
    engine = sa.create_engine(sa.make_url(own_postgres_db).set(username="postgres"))
    with tubes.connect(own_postgres_db, migrate=True, sweep=False) as queue, engine.connect() as connection:
        tube = queue.create_tube("jobs", "utube")
        connection.execute(sa.text("SET session_replication_role = replica"))
        refused(tube, connection, "session_replication_role")
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["role", "url"])
def test_a_queue_whose_connections_run_no_triggers_is_refused(own_postgres_db: str, by: str) -> None:
    """A role or a URL can make them so; for a role, even when the queue is already open."""
    tubes.connect(own_postgres_db, migrate=True, sweep=False).close()
    admin, role = sa.make_url(own_postgres_db).set(username="postgres"), f"replica_{os.getpid()}"
    given = admin.set(username=role)
    if by == "url":
        given = admin.update_query_dict({"options": "-csession_replication_role=replica"})
    engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT")
    with engine.connect() as db, ExitStack() as ending:
        ending.callback(db.exec_driver_sql, f"DROP ROLE {role}")
        db.exec_driver_sql(f"CREATE ROLE {role} LOGIN SUPERUSER")
        if by == "role":
            queue = ending.enter_context(tubes.connect(given.render_as_string(), sweep=False))
            tube = queue.create_tube("jobs", "utube")
            db.exec_driver_sql(f"ALTER ROLE {role} SET session_replication_role = replica")
            with (
                queue.transaction() as unit,
                pytest.raises(tubes.BadOption, match="session_replication_role"),
            ):
                tube.put("before", utube="a", unit=unit)
                tube.put("x", utube="a")
            assert [task.data for task in tube.tasks("r")] == ["before"]
        for pooled in ("yes", "no"):
            url = given.update_query_dict({"pooled": pooled}).render_as_string()
            with pytest.raises(tubes.BadOption, match="session_replication_role = replica") as caught:
                tubes.connect(url)
            assert caught.value.option == "url"
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize("sets", ["SET LOCAL", "SET"])
def test_a_unit_whose_connection_runs_no_triggers_is_refused(
    own_postgres_db: str, sets: str, is_bare: bool
) -> None:
    """As long as it runs none; the next unit is not affected."""
    admin = sa.make_url(own_postgres_db).set(username="postgres").render_as_string()
    with tubes.connect(admin, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "utube")
        tube.put_many(["a", "b"], utube="u")
        task = take(tube)
        with queue.transaction() as unit:
            statement = f"{sets} Session_Replication_Role = replica"
            unit.connection.exec_driver_sql(statement, execution_options={"no_parameters": is_bare})
            for call in (lambda: tube.ack(task, unit=unit), lambda: tube.put_many(["c", "d"], unit=unit)):
                with pytest.raises(tubes.BadOption, match="session_replication_role = replica") as caught:
                    call()
                assert caught.value.option == "unit"
            unit.connection.exec_driver_sql(f"{sets} session_replication_role = origin")
            tube.put("e", utube="u", unit=unit)
            unit.connection.exec_driver_sql(f"{sets} session_replication_role = replica")
        with queue.transaction() as unit:
            unit.connection.exec_driver_sql("SELECT 1")
            tube.ack(task, unit=unit)
        assert [each.data for each in tube.take_many(9, 0)] == ["b"]


def test_a_unit_whose_connection_is_in_another_encoding_is_refused(postgres_place: Place) -> None:
    """What is put would be read as other characters. The next unit is not affected."""
    tube = postgres_place.tube("utube")
    for is_set in (True, False):
        with postgres_place.queue.transaction() as unit:
            if is_set:
                unit.connection.exec_driver_sql("SET client_encoding = latin1")
                with pytest.raises(tubes.BadOption, match="client_encoding") as caught:
                    tube.put("neither", utube="\N{POUND SIGN}", unit=unit)
                assert caught.value.option == "unit"
            else:
                tube.put("\N{POUND SIGN}", utube="\N{POUND SIGN}", unit=unit)
    assert [(task.data, task.utube) for task in tube.tasks("r")] == [("\N{POUND SIGN}", "\N{POUND SIGN}")]


def test_a_conflict_of_serializable_transactions_is_said_and_not_repeated(postgres_place: Place) -> None:
    tube = postgres_place.tube()
    task = tube.put("x")
    with postgres_place.engine.connect() as connection:
        connection.execution_options(isolation_level="REPEATABLE READ")
        connection.execute(sa.text("SELECT * FROM mine"))
        tube.delete(task)
        with pytest.raises(tubes.Conflict, match="roll the transaction back and try again"):
            tube.delete(task, connection=connection)
        connection.rollback()
    assert [event for event, _ in postgres_place.changes] == ["put", "delete"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("call", ["put", "put_many"])
def test_nothing_is_put_into_a_tube_that_an_old_snapshot_alone_knows(
    postgres_place: Place, level: Any, call: str
) -> None:
    """The row would be there, but no tube that it belongs to."""
    tube, other = postgres_place.tube(), postgres_place.tube("fifo", "other")
    with postgres_place.engine.connect() as connection:
        connection.execution_options(isolation_level=level)
        connection.execute(sa.text("SELECT * FROM mine"))
        tube.drop()
        with pytest.raises(tubes.Conflict, match="roll the transaction back and try again"):
            getattr(tube, call)(["x", "y"], connection=connection)
        connection.rollback()
        with pytest.raises(tubes.NoSuchTube):
            getattr(tube, call)(["x", "y"], connection=connection)
        connection.rollback()
        connection.execute(sa.text("SELECT * FROM mine"))
        other.put("before")
        getattr(other, call)(["x", "y"], connection=connection)
        connection.commit()
    rows = "SELECT count(*) FROM tubes_task"
    with postgres_place.engine.connect() as connection:
        assert connection.scalar(sa.text(rows)) == len(other.tasks("r")) == {"put": 2, "put_many": 3}[call]


def test_a_transaction_that_has_failed_commits_nothing(postgres_place: Place) -> None:
    """The server treats its COMMIT as a ROLLBACK, and does not say so."""
    tube = postgres_place.tube()
    with postgres_place.engine.connect() as connection:
        tube.put("never", connection=connection)
        with pytest.raises(sa.exc.ProgrammingError):
            connection.execute(sa.text("SELECT * FROM nowhere"))
        with pytest.raises(tubes.StoreError, match="can only be rolled back"):
            tube.put("neither", connection=connection)
        connection.commit()
        assert postgres_place.changes == [] and tube.tasks("r") == []
        tube.put("b", connection=connection)
        with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
            tube.put("undone", connection=connection)
            connection.execute(INSERT, {"what": None})
            connection.execute(INSERT, [{"what": "twice"}, {"what": "twice"}])
        connection.commit()
    assert postgres_place.changes == [("put", "b")]


def test_a_savepoint_in_a_session_s_failed_transaction_is_refused_as_such(postgres_place: Place) -> None:
    """The session makes it only when it is asked for its connection; the server is there."""
    tube = postgres_place.tube()
    with orm.Session(postgres_place.engine) as session:
        with pytest.raises(sa.exc.ProgrammingError):
            session.execute(sa.text("SELECT * FROM nowhere"))
        session.begin_nested()
        with pytest.raises(tubes.StoreError, match="savepoint: current transaction is aborted") as refusal:
            tube.put("never", connection=session)
        assert refusal.type is tubes.StoreError
        session.rollback()
    assert tube.tasks("r") == []


@pytest.mark.parametrize("setting", ["array_nulls", "standard_conforming_strings"])
def test_settings_that_change_what_arrays_mean_change_no_task(postgres_place: Place, setting: str) -> None:
    tube, given = postgres_place.tube(), ["text", b"a\\b\x00c", "NULL", {"a": "\\"}]
    with postgres_place.engine.begin() as connection:
        connection.execute(sa.text(f"SET LOCAL {setting} = off"))
        tube.put_many(given, connection=connection)
    assert [task.data for task in tube.tasks("r")] == given


def test_what_the_connection_s_encoding_cannot_carry_is_an_error_of_ours(postgres_place: Place) -> None:
    """The driver says so before it sends anything, and nothing is spoilt."""
    tube = postgres_place.tube()
    engine = sa.create_engine(postgres_place.url, connect_args={"client_encoding": "latin1"})
    with engine.begin() as connection:
        with pytest.raises(tubes.StoreError, match="encoding"):
            tube.put("\N{EURO SIGN}", connection=connection)
        tube.put("\N{POUND SIGN}", connection=connection)
    engine.dispose()
    assert [task.data for task in tube.tasks("r")] == ["\N{POUND SIGN}"]


def test_what_a_connection_cannot_carry_takes_no_room(postgres_place: Place) -> None:
    """An earlier statement had reserved the room, and a commit would have kept that."""
    tube = postgres_place.tube("limfifottl", capacity=1)
    engine = sa.create_engine(postgres_place.url, connect_args={"client_encoding": "latin1"})
    with engine.begin() as connection:
        with pytest.raises(tubes.StoreError, match="encoding"):
            tube.put("\N{EURO SIGN}", connection=connection)
        with pytest.raises(tubes.StoreError, match="can only be rolled back"):
            tube.put("neither", connection=connection)
    engine.dispose()
    tube.put("there is room")


def test_a_session_taken_for_dead_takes_nothing_and_begins_anew(postgres_place: Place) -> None:
    """The take is refused, since the task would be stranded; after a rollback it goes on in a new session."""
    tube, queue = postgres_place.tube(), postgres_place.queue
    tube.put_many(["held", "x"])
    held = tube.take(0)
    session = queue.identify()
    with postgres_place.engine.connect() as connection:
        connection.execute(
            sa.text("UPDATE tubes_session SET ends_ms = 1 WHERE id = :id"), {"id": session.hex}
        )
        connection.commit()
        with pytest.raises(tubes.Conflict, match="session has ended"):
            tube.take(0, connection=connection)
        connection.rollback()
        task = tube.take(0, connection=connection)
        assert task is not None and task.owner == queue.identify() != session
        tube.ack(task, connection=connection)
        connection.commit()
    with pytest.raises(tubes.LeaseLost):
        tube.ack(held or 0)


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_lost_server_connection_is_unavailable(postgres_place: Place, is_joined: bool) -> None:
    tube = postgres_place.tube()
    with postgres_place.engine.connect() as connection, postgres_place.engine.connect() as other:
        if is_joined:
            tube.put("x", connection=connection)
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar()
        other.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(tubes.StoreUnavailable, match="lost"):
            tube.put("y", connection=connection)
        connection.rollback()
        tube.put("z", connection=connection)
        connection.commit()
    assert postgres_place.changes == [("put", "z")]


def waits_for_lock(place: Place) -> bool:
    """Whether anybody waits for what another transaction holds."""
    with place.engine.connect() as connection:
        asked = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return connection.execute(sa.text(asked)).first() is not None


def test_an_ack_waits_for_another_s_transaction(postgres_place: Place) -> None:
    """A second ack of a task waits for the first to end, which decides whether it is refused or accepted."""
    tube = postgres_place.tube()
    tube.put_many(["a", "b"])
    held = tube.take_many(2, 0)
    for task, commits in zip(held, (True, False), strict=True):
        outcomes: list[object] = []

        def ack(task: tubes.Task = task, outcomes: list[object] = outcomes) -> None:
            try:
                outcomes.append(tube.ack(task).data)
            except tubes.NotTaken:
                outcomes.append("refused")

        with postgres_place.engine.connect() as connection:
            tube.ack(task, connection=connection)
            second = threading.Thread(target=ack)
            second.start()
            eventually(lambda: waits_for_lock(postgres_place))
            assert not outcomes
            (connection.commit if commits else connection.rollback)()
            ended(second)
        assert outcomes == ["refused" if commits else "b"]
    assert [event for event, _ in postgres_place.changes].count("ack") == 2
