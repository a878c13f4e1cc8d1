"""The async twins of SQLAlchemy's connections and sessions are joined, through both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import EventfulClock
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from transactions.conftest import INSERT, Place

import tubes
import tubes.aio

Scene = Callable[[AsyncEngine], Awaitable[None]]


def play(place: Place, scene: Scene) -> None:
    """Run a scene with an async engine on the place's database."""
    url = sa.make_url(place.url)

    async def run() -> None:
        engine = create_async_engine(url.set(drivername="sqlite+aiosqlite") if place.is_sqlite else url)
        try:
            await scene(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_the_plain_door_joins_in_run_sync(place: Place) -> None:
    tube = place.tube()

    def work(connection: Any) -> None:
        connection.execute(INSERT, {"what": "row"})
        tube.put("a", connection=connection)
        task = tube.take(0, connection=connection)
        assert task is not None
        tube.ack(task, connection=connection)
        tube.put_many(["b", "c"], connection=connection)

    async def scene(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.run_sync(work)
            await connection.rollback()
            assert place.changes == []
        async with AsyncSession(engine) as session:
            await session.run_sync(work)
            assert place.changes == []
            await session.commit()

    play(place, scene)
    names = ["put a", "take a", "ack a", "put b", "put c"]
    assert [f"{event} {data}" for event, data in place.changes] == names
    assert place.rows() == ["row"]


def test_the_async_twins_are_unwrapped(place: Place) -> None:
    """They may be passed as they are if SQLAlchemy's greenlet is already running."""
    tube = place.tube()

    async def scene(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await connection.run_sync(lambda _: tube.put("a", connection=connection))
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(lambda _: tube.put("b", connection=session))

    play(place, scene)
    assert place.changes == [("put", "a"), ("put", "b")]


def test_an_async_scoped_session_is_its_session(place: Place) -> None:
    """In the asyncio API as a scoped_session is in the synchronous one."""
    place.tube()

    async def scene(engine: AsyncEngine) -> None:
        session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with tubes.aio.connect(place.url) as queue:
            tube = await queue.get_tube("jobs")
            await tube.put("a", connection=session)
            await session.commit()
            await tube.put("b", connection=session)
            await session.rollback()
            await tube.put("c", connection=session())
            await session.commit()
            await session.remove()

    play(place, scene)
    assert [task.data for task in place.queue.tube.jobs.tasks("r")] == ["a", "c"]


@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])
def test_the_async_door_joins_with_await(place: Place, kind: type) -> None:
    """Commit, rollback, savepoints; callbacks are called by the first turn of the loop after the commit."""
    place.tube()

    async def scene(engine: AsyncEngine) -> None:
        seen: list[Any] = []
        async with tubes.aio.connect(place.url, sweep=False) as queue:
            tube = await queue.tube.jobs
            tube.on_task_change(lambda task, event: seen.append((str(event), task.data)))
            opened: Any = engine.connect() if kind is AsyncConnection else AsyncSession(engine)
            async with opened as connection:
                await connection.execute(INSERT, {"what": "row"})
                await tube.put("a", connection=connection)
                nested = await connection.begin_nested()
                await tube.put("undone", connection=connection)
                await nested.rollback()
                await tube.put("b", connection=connection)
                assert seen == []
                await connection.commit()
                await asyncio.sleep(0)
                assert seen == [("put", "a"), ("put", "b")]
                task = await tube.take(0, connection=connection)
                assert task is not None
                await tube.ack(task, connection=connection)
                await connection.rollback()
                task = await tube.take(0)
                assert task is not None and task.attempts == 1
                with pytest.raises(tubes.NotTaken):
                    await tube.ack(task.id + 1, connection=connection)
                await tube.ack(task, connection=connection)
                await connection.commit()
            assert [event for event, _ in seen] == ["put", "put", "take", "ack"]

    play(place, scene)
    assert place.rows() == ["row"]


@pytest.mark.parametrize("call", ["put", "take"])
def test_a_cancelled_call_is_cancelled_and_ends_the_transaction(place: Place, call: str) -> None:
    """Even while its error is kept, and with it the result that was not read."""
    tube = place.tube()

    async def scene(engine: AsyncEngine) -> None:
        async with tubes.aio.connect(place.url, sweep=False, busy_timeout=1) as queue:
            jobs = await queue.tube.jobs
            async with engine.connect() as connection:
                await jobs.put("before", connection=connection)
                cancel_at("tubes_task", connection)
                with pytest.raises(asyncio.CancelledError) as kept:
                    if call == "put":
                        await jobs.put("cancelled", connection=connection)
                    else:
                        await jobs.take(0, connection=connection)
            await jobs.put("next")
            async with engine.begin() as connection:
                await jobs.put("after", connection=connection)
            del kept

    play(place, scene)
    assert [task.data for task in tube.tasks("r")] == ["next", "after"]


def test_a_first_call_that_is_cancelled_leaves_nothing_locked(sqlite_place: Place) -> None:
    """It is cancelled while it looks at the connection, on which the user has written."""
    tube = sqlite_place.tube()

    async def scene(engine: AsyncEngine) -> None:
        async with tubes.aio.connect(sqlite_place.url, sweep=False, busy_timeout=1) as queue:
            jobs = await queue.tube.jobs
            async with engine.connect() as connection:
                await connection.execute(INSERT, {"what": "row"})
                cancel_at("database_list", connection)
                with pytest.raises(asyncio.CancelledError) as kept:
                    await jobs.put("cancelled", connection=connection)
            await jobs.put("next")
            del kept

    play(sqlite_place, scene)
    assert [task.data for task in tube.tasks("r")] == ["next"] and sqlite_place.rows() == []


def cancel_at(what: str, connection: AsyncConnection) -> None:
    """Cancel the current task at each statement that contains ``what``."""
    this: Any = asyncio.current_task()

    def cancel(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if what in statement:
            this.cancel()

    sa.event.listen(connection.sync_connection, "before_cursor_execute", cancel)


def test_many_tasks_join_transactions_of_their_own_at_once(place: Place) -> None:
    """Each is published by its own commit. On SQLite they wait for each other."""
    place.tube()

    async def scene(engine: AsyncEngine) -> None:
        async with tubes.aio.connect(place.url, sweep=False) as queue:
            tube = await queue.tube.jobs

            async def one(n: int) -> None:
                async with AsyncSession(engine) as session:
                    await tube.put(n, connection=session)
                    await asyncio.sleep(0)
                    await (session.rollback() if n % 3 == 0 else session.commit())

            await asyncio.gather(*[one(n) for n in range(12)])
            stored = [task.data for task in await tube.tasks("r")]
            assert sorted(stored) == [n for n in range(12) if n % 3]

    play(place, scene)


def test_what_cannot_be_joined_is_refused(place: Place) -> None:
    """A plain connection in the asyncio API, an async one in the synchronous API, one that is not started."""
    tube = place.tube()

    async def scene(engine: AsyncEngine) -> None:
        async with tubes.aio.connect(place.url, sweep=False) as queue:
            awaited = await queue.tube.jobs
            with place.engine.connect() as plain, pytest.raises(tubes.BadOption, match="AsyncConnection"):
                await awaited.put("x", connection=plain)
            for put in (awaited.put, tube.put):
                with pytest.raises(tubes.BadOption, match="not started"):
                    answer: Any = put("x", connection=engine.connect())
                    await answer
            async with engine.connect() as connection:
                with pytest.raises(tubes.BadOption, match="greenlet"):
                    tube.put("x", connection=connection)

    play(place, scene)
    assert place.changes == []


def test_what_is_no_unit_is_refused(place: Place) -> None:
    async def main() -> None:
        async with tubes.aio.connect(place.url, sweep=False) as queue:
            tube = await queue.create_tube("jobs", "fifo", if_not_exists=True)
            nonsense: list[Any] = [[], {}, "unit"]
            for unit in nonsense:
                with pytest.raises(tubes.BadOption, match="pass the unit from"):
                    await tube.put("x", unit=unit)
                with pytest.raises(tubes.BadOption, match="pass the unit from"):
                    await queue.run_sync(lambda connection: connection, unit=unit)

    asyncio.run(main())


def test_statements_run_in_no_other_queue_s_unit(place: Place) -> None:
    """Nor in a thread of this queue, beside those of the other."""

    async def main() -> None:
        connect = partial(tubes.aio.connect, place.url, sweep=False)
        async with connect() as queue, connect() as other, other.transaction() as unit:
            with pytest.raises(tubes.BadOption, match="belongs to another queue"):
                await queue.run_sync(lambda connection: connection.execute(INSERT, {"what": "x"}), unit=unit)

    asyncio.run(main())
    assert place.rows() == []


def test_what_a_take_brings_that_was_cancelled_in_a_transaction_goes_back_in_it() -> None:
    """Even if the block ends at once: nothing could give it back after that."""

    async def scene() -> None:
        clock, has_begun, may_end = EventfulClock(), Event(), Event()

        def hold_up() -> None:
            has_begun.set()
            may_end.wait(30)

        async with tubes.aio.connect("sqlite://", clock=clock, sweep=False) as queue:
            jobs = await queue.create_tube("jobs", "fifo")
            await jobs.put("x")
            async with queue.transaction() as unit:
                clock.then = hold_up
                take = asyncio.create_task(jobs.take(0, unit=unit))
                while not has_begun.is_set():
                    await asyncio.sleep(0.001)  # another thread sets it, and no task can await that
                take.cancel()
                may_end.set()
            assert [task.data for task in await jobs.tasks("r")] == ["x"]

    asyncio.run(scene())
