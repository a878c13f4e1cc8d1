"""The user's engine on PostgreSQL may use any driver; what its commit says holds for the tasks too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.types.json import JsonDumper
from psycopg.types.string import StrDumper, TextLoader
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import tubes
from tubes.testing.suite import take

from .conftest import INSERT, Place

Scene = Callable[[Session], None]

BACKEND = sa.text("SELECT pg_backend_pid()")
KILL = sa.text("SELECT pg_terminate_backend(:pid, 5000)")


def url_for(place: Place, driver: str) -> sa.URL:
    url = sa.make_url(place.url).set(drivername=f"postgresql+{driver}")
    folder = url.query.get("host")
    if driver != "pg8000" or folder is None:
        return url
    return url.difference_update_query(["host"]).update_query_dict(
        {"unix_sock": f"{folder}/.s.PGSQL.{url.port or 5432}"}
    )


def in_thread(place: Place, scene: Scene) -> None:
    engine = sa.create_engine(url_for(place, "pg8000"))
    try:
        with Session(engine) as session, session.begin():
            scene(session)
    finally:
        engine.dispose()


def in_loop(place: Place, scene: Scene, driver: str) -> None:
    async def main() -> None:
        engine = create_async_engine(url_for(place, driver))
        try:
            async with AsyncSession(engine) as session, session.begin():
                await session.run_sync(scene)
        finally:
            await engine.dispose()

    asyncio.run(main())


PLAYS: dict[str, Callable[[Place, Scene], None]] = {
    "pg8000": in_thread,
    "asyncpg": lambda place, scene: in_loop(place, scene, "asyncpg"),
    "psycopg": lambda place, scene: in_loop(place, scene, "psycopg"),
}


@pytest.fixture(params=PLAYS)
def play(request: pytest.FixtureRequest, postgres_place: Place) -> Scene:
    """Play a scene in a transaction of the user's, through a driver."""
    plays: Any = PLAYS[request.param]
    return lambda scene: plays(postgres_place, scene)


def test_a_commit_brings_tasks_and_rows(postgres_place: Place, play: Any) -> None:
    place, tube = postgres_place, postgres_place.tube("utubettl")
    payloads = ["Zürich 😀", b"\x00\xff", {"a": [1, None]}]

    def put(session: Session) -> None:
        session.execute(INSERT, {"what": "row"})
        for payload in payloads:
            tube.put(payload, utube="a:b%", ttl=60, connection=session)
        tube.put_many(payloads, connection=session)

    def finish(session: Session) -> None:
        task = tube.take(timeout=0, connection=session)
        assert task is not None
        tube.ack(task, connection=session)

    play(put)
    assert place.rows() == ["row"]
    assert [task.data for task in tube.tasks("r")] == payloads * 2
    assert [event for event, _ in place.changes] == ["put"] * 6
    play(finish)
    assert len(tube.tasks("r")) == 5 and [event for event, _ in place.changes[6:]] == ["take", "ack"]


def test_bytes_are_read_as_they_were_put_or_not_at_all(postgres_place: Place, play: Any) -> None:
    """Whatever the connection's ``bytea_output``, which pg8000 does not heed."""
    tube, taken = postgres_place.tube(), list[Any]()
    tube.put(b"abcdef")

    def scene(session: Session) -> None:
        session.execute(sa.text("SET LOCAL bytea_output = escape"))
        with suppress(tubes.BadOption):
            taken.extend(task.data for task in tube.take_many(2, 0, connection=session))

    play(scene)
    assert taken + [task.data for task in tube.tasks("r")] == [b"abcdef"]


def test_values_are_sent_as_ours_whatever_an_application_makes_of_them(postgres_place: Place) -> None:
    """Such as JSON of lists, or a text that PostgreSQL takes for nothing else."""
    engine, tube = sa.create_engine(postgres_place.url), postgres_place.tube("utubettl")

    @sa.event.listens_for(engine, "connect")
    def register(raw: Any, _: object) -> None:
        raw.adapters.register_dumper(list, JsonDumper)
        raw.adapters.register_dumper(str, StrDumper)

    payloads = [b"\\x00", "'", {"a": 1}]
    with engine.begin() as connection:
        tube.put_many(payloads, utube="x", connection=connection)
        for payload in payloads:
            taken = tube.take_many(2, timeout=0, connection=connection)
            assert [task.data for task in taken] == [payload]
            assert len(tube.ack_many(taken, connection=connection)) == 1
    engine.dispose()


def test_json_is_not_encoded_once_more_where_an_application_has_asyncpg_encode_it(
    postgres_place: Place,
) -> None:
    """As asyncpg's documentation shows."""
    tube = postgres_place.tube("utubettl")

    async def main() -> list[tubes.Task]:
        engine = create_async_engine(url_for(postgres_place, "asyncpg"))

        @sa.event.listens_for(engine.sync_engine, "connect")
        def register(raw: Any, _: object) -> None:
            codec = {"encoder": json.dumps, "decoder": json.loads, "schema": "pg_catalog"}
            raw.run_async(lambda connection: connection.set_type_codec("json", **codec))

        def put_and_ack(connection: sa.Connection) -> list[tubes.Task]:
            tube.put("one", utube="a", connection=connection)
            tube.put("two", utube="b", connection=connection)
            return tube.ack_many(tube.take_many(2, timeout=0, connection=connection), connection=connection)

        async with engine.begin() as connection:
            done = await connection.run_sync(put_and_ack)
        await engine.dispose()
        return done

    assert [task.data for task in asyncio.run(main())] == ["one", "two"]


@pytest.mark.parametrize("name", ["int8", "bytea"])
def test_a_connection_that_reads_values_in_another_way_is_refused(postgres_place: Place, name: str) -> None:
    engine, tube = sa.create_engine(postgres_place.url), postgres_place.tube()

    @sa.event.listens_for(engine, "connect")
    def register(raw: Any, _: object) -> None:
        raw.adapters.register_loader(name, TextLoader)

    with engine.connect() as connection, pytest.raises(tubes.BadOption, match="reads b"):
        tube.put("never", connection=connection)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "ack"])
def test_a_connection_that_dies_before_the_commit_is_told(
    postgres_place: Place, play: Any, verb: str
) -> None:
    """Nothing was done then, and nobody may think that it was."""
    place, tube = postgres_place, postgres_place.tube()
    tube.put("held")
    held = take(tube)
    place.changes.clear()

    def scene(session: Session) -> None:
        pid = session.execute(BACKEND).scalar()
        session.execute(INSERT, {"what": "row"})
        if verb == "put":
            tube.put("never", connection=session)
        else:
            tube.ack(held, connection=session)
        with place.engine.connect() as other:
            other.execute(KILL, {"pid": pid})

    with pytest.raises((sa.exc.DBAPIError, OSError)):
        play(scene)
    assert place.rows() == [] and place.changes == []
    assert tube.tasks("t") == [held] and tube.statistics()["tasks"]["total"] == 1
    assert tube.ack(held).data == "held"


def test_after_a_statement_that_failed_a_commit_brings_nothing(postgres_place: Place, play: Any) -> None:
    """The server treats it as a rollback; pg8000 says so."""
    place, tube = postgres_place, postgres_place.tube()

    def scene(session: Session) -> None:
        tube.put("never", connection=session)
        with pytest.raises(sa.exc.DBAPIError):
            session.connection().exec_driver_sql("SELECT 1/0")

    with suppress(sa.exc.InterfaceError):
        play(scene)
    assert place.changes == [] and tube.statistics()["tasks"]["total"] == 0


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_server_that_is_not_there_is_unavailable(postgres_place: Place, driver: str) -> None:
    tube = postgres_place.tube()
    nowhere = sa.URL.create(f"postgresql+{driver}", "tubes", host="127.0.0.1", port=1, database="none")

    async def main() -> None:
        engine = create_async_engine(nowhere)
        async with AsyncSession(engine) as session:
            put: Awaitable[Any] = session.run_sync(lambda sync: tube.put("x", connection=sync))
            with pytest.raises(tubes.StoreUnavailable, match="cannot connect"):
                await put
        await engine.dispose()

    asyncio.run(main())


def test_a_pool_that_is_exhausted_is_unavailable(postgres_place: Place) -> None:
    tube = postgres_place.tube()
    engine = sa.create_engine(postgres_place.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with engine.connect(), Session(engine) as session:
        with pytest.raises(tubes.StoreUnavailable, match="cannot connect"):
            tube.put("x", connection=session)
    engine.dispose()
