"""The store goes away while asyncio tasks wait for it; Ctrl-C; a loop that is closed under them; a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aio.running import PATIENCE, awaited, connect, in_line, threads_since, until
from faults.harness import begin, finish, heard, no_new_threads
from faults.test_redis_cluster import SESSIONS, owner_of, slot_of
from redis_servers import RedisCluster, RedisServer
from servers import PostgresServer

import tubes
from tubes.aio import MOST_THREADS
from tubes.bridge import Call, Worker


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@awaited
async def test_waiting_takes_go_on_waiting_when_the_server_is_started_again(
    postgres_server: PostgresServer, own_postgres_db: str, mode: str
) -> None:
    async with connect(own_postgres_db, durability="full") as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = [asyncio.create_task(jobs.take()) for _ in range(20)]
        await in_line(jobs, 20)
        await asyncio.to_thread(postgres_server.stop, mode)
        with pytest.raises((tubes.StoreUnavailable, tubes.OutcomeUnknown)):
            await jobs.take(0)
        takes.pop().cancel()
        await asyncio.to_thread(postgres_server.start)
        await jobs.put_many(range(19))
        tasks = await asyncio.gather(*takes)
        assert sorted(task.data for task in tasks if task is not None) == [*range(19)]
        assert len(await jobs.ack_many([task for task in tasks if task is not None])) == 19


@awaited
async def test_where_no_more_threads_can_be_had_calls_take_turns_in_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connect("sqlite://", sweep=False) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        with no_new_threads(monkeypatch):
            tasks = await asyncio.gather(*(jobs.put(n) for n in range(3)))
            assert [task.data for task in tasks] == [0, 1, 2]
            with pytest.raises(tubes.StoreUnavailable, match="cannot start a thread"):
                await connect("sqlite://")


@awaited
async def test_where_no_more_threads_can_be_had_a_queue_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.enumerate()
    queue = await connect("sqlite://", sweep=False)
    jobs = await queue.create_tube("jobs", "fifo")
    take = asyncio.create_task(jobs.take())
    await in_line(jobs, 1)
    with no_new_threads(monkeypatch):
        with pytest.raises(tubes.StoreUnavailable, match="cannot start a thread"):
            async with queue.transaction():
                pass
        await queue.close()
    assert await take is None
    await until(lambda: not threads_since(before))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a tube of the type redis waits for longer than a test makes its server hang."""
    monkeypatch.setattr("tubes.drivers.redis.hosted.PATIENCE", PATIENCE)


@awaited
async def test_calls_at_a_server_that_hangs_hold_up_no_other_tube(
    tmp_path: Path, redis_server: RedisServer, patient: None
) -> None:
    """However many they are: calls to a tube in another store have threads of their own."""
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        hot = await queue.create_tube("hot", "redis", url=redis_server.url)
        cold = await queue.create_tube("cold", "fifo")
        await hot.put("x", utube="a")
        async with hung(redis_server, hot) as calls:
            await cold.put("z")
            assert not any(call.done() for call in calls)


@awaited
async def test_calls_at_a_server_that_hangs_hold_up_no_tube_on_another_server(
    tmp_path: Path,
    redis_server: RedisServer,
    own_redis_server: Callable[..., RedisServer],
    patient: None,
) -> None:
    """And the threads of both end with the queue."""
    before = threading.enumerate()
    async with connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        hot = await queue.create_tube("hot", "redis", url=redis_server.url)
        warm = await queue.create_tube("warm", "redis", url=own_redis_server().url)
        for tube in (hot, warm):
            await tube.put("x", utube="a")
        async with hung(redis_server, hot) as calls:
            await warm.put("z", utube="b")
            assert not any(call.done() for call in calls)
    await until(lambda: not any(thread.name == "tubes-aio" for thread in threads_since(before)))


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """A cluster whose nodes a test may stop."""
    made = RedisCluster()
    yield made
    made.close()


@pytest.mark.slow
@awaited
async def test_calls_at_a_node_that_hangs_hold_up_no_tube_on_another_node(cluster: RedisCluster) -> None:
    async with connect(cluster.url, sweep=False) as queue:
        home, found = owner_of(cluster, SESSIONS), dict[bool, tubes.aio.Tube]()
        while len(found) < 2:
            tube = await queue.create_tube(f"tube_{len(await queue.tubes())}", "fifo")
            found[owner_of(cluster, slot_of(tube._plain)) is home] = tube
        for tube in found.values():
            await tube.put("x")
        away = owner_of(cluster, slot_of(found[False]._plain))
        async with hung(away, found[False]) as calls:
            await found[True].put("z")
            assert not any(call.done() for call in calls)


@asynccontextmanager
async def hung(server: RedisServer, tube: tubes.aio.Tube) -> AsyncIterator[list[asyncio.Task[tubes.Task]]]:
    """Hang a server, and have more calls wait for it than there are threads; at the end it goes on."""
    with server.hung():
        calls = [asyncio.create_task(tube.put("y")) for _ in range(2 * MOST_THREADS)]
        await asyncio.sleep(0)  # they begin
        yield calls
    await asyncio.gather(*calls)


@awaited
async def test_waiting_takes_go_on_waiting_when_redis_is_started_again(redis_server: RedisServer) -> None:
    """They also get what was put before it stopped, thanks to its append-only file."""
    async with connect(redis_server.url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        first = await jobs.put("x")
        await jobs.bury(first)
        takes = [asyncio.create_task(jobs.take()) for _ in range(20)]
        await in_line(jobs, 20)
        await asyncio.to_thread(redis_server.stop)
        with pytest.raises((tubes.StoreUnavailable, tubes.OutcomeUnknown)):
            await jobs.take(0)
        takes.pop().cancel()
        await asyncio.to_thread(redis_server.start)
        await jobs.kick()
        await jobs.put_many(range(18))
        tasks = await asyncio.gather(*takes)
        assert sorted(str(task.data) for task in tasks if task is not None) == sorted(
            [*map(str, range(18)), "x"]
        )
        assert len(await jobs.ack_many([task for task in tasks if task is not None])) == 19
        await jobs.drop()


@pytest.mark.slow
@awaited
async def test_what_a_cancelled_take_cannot_give_back_at_once_is_given_back_later(
    postgres_server: PostgresServer, own_postgres_db: str
) -> None:
    async with connect(own_postgres_db, durability="full") as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        await jobs.put("x")
        take = asyncio.ensure_future(jobs.take())
        taken = asyncio.Event()
        jobs.on_task_change(lambda task, event: taken.set())
        await taken.wait()  # one turn of the loop before the take would return
        postgres_server.stop("immediate")
        take.cancel()
        with pytest.raises(asyncio.CancelledError):
            await take
        await until(lambda: jobs._plain._unknown)
        await asyncio.to_thread(postgres_server.start)
        task = await jobs.take(20)
        assert task is not None and task.data == "x"


PROGRAM = """
import asyncio, sys
import tubes.aio

async def main():
    async with tubes.aio.connect(sys.argv[1]) as queue:
        jobs = await queue.tube.jobs
        takes = [asyncio.create_task(jobs.take()) for _ in range(10)]
        while queue.store.waiters.count(jobs.record.id) < 10:
            await asyncio.sleep(0.01)
        print("waiting", flush=True)
        await asyncio.gather(*takes)

asyncio.run(main())
"""


def test_ctrl_c_ends_a_program_that_waits_and_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'aio.db'}"
    with tubes.connect(url, durability="off") as queue:
        jobs = queue.create_tube("jobs", "fifo")
        program = begin(PROGRAM, url)
        try:
            assert heard(program) == "waiting"
            program.send_signal(signal.SIGINT)
            assert program.wait(20) != 0
        finally:
            finish(program)
        jobs.put("x")
        task = jobs.take(20)
        assert task is not None and task.data == "x"


@pytest.mark.parametrize(("strikes", "where"), [(Worker, "post"), (Call, "_succeed"), (Worker, "forget")])
def test_what_a_signal_raises_at_an_answer_keeps_no_queue_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strikes: type, where: str
) -> None:
    """Such as SystemExit from a SIGTERM handler: its traceback refers to what the loop was running."""
    url = f"sqlite:///{tmp_path / 'aio.db'}"
    closed: list[tubes.aio.Queue] = []

    def strike(*_: object) -> None:
        monkeypatch.undo()
        raise SystemExit

    async def main() -> None:
        queue = await connect(url)
        try:
            jobs = await queue.create_tube("jobs", "fifo")
            await jobs.put("x")
            monkeypatch.setattr(strikes, where, in_main_thread(strike, getattr(strikes, where)))
            await jobs.take(0)
        finally:
            await asyncio.wait_for(queue.close(), PATIENCE)
            closed.append(queue)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert closed
    with tubes.connect(url, durability="off") as queue:
        task = queue.tube.jobs.take(0)
        assert task is not None and task.data == "x"


def in_main_thread(there: Callable[..., object], elsewhere: Callable[..., object]) -> Callable[..., object]:
    """A function that calls the first in the main thread, and the second in any other."""
    main = threading.main_thread()
    return lambda *args: (there if threading.current_thread() is main else elsewhere)(*args)


def test_a_forked_child_goes_on_in_a_loop_of_its_own(tmp_path: Path) -> None:
    """It has none of its parent's threads, and its session is new."""
    url = f"sqlite:///{tmp_path / 'aio.db'}"
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[tubes.aio.Queue, tubes.aio.Tube]:
        queue = await connect(url)
        async with queue.transaction():  # whose thread is kept for the next
            pass
        return queue, await queue.create_tube("jobs", "fifo")

    async def put() -> None:
        async with queue.transaction() as unit:
            await jobs.put("from the child", unit=unit)
            for _ in range(20):
                assert await asyncio.create_task(jobs.tasks("r")) == []  # in another thread
        assert len([thread for thread in threading.enumerate() if thread.name == "tubes-aio"]) == 2

    queue, jobs = loop.run_until_complete(begin())
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(put(), 20))
            os._exit(0)
        finally:
            os._exit(1)  # or it would go on with the other tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    task = loop.run_until_complete(jobs.take(20))
    assert task is not None and task.data == "from the child"
    loop.run_until_complete(queue.close())
    loop.close()
