"""A cancelled call loses no task: what it took is given back, whenever the cancellation comes."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aio.running import PATIENCE, awaited, connect, in_line, threads_since, until
from faults.harness import eventually

import tubes
from tubes import aio, bridge
from tubes.waiting import room


async def free_again(tube: aio.Tube) -> bool:
    return (await tube.statistics())["tasks"]["taken"] == 0


@awaited
async def test_a_cancelled_wait_leaves_the_line(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = [asyncio.create_task(jobs.take()) for _ in range(3)]
        await in_line(jobs, 3)
        takes[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await takes[0]
        await in_line(jobs, 2)
        await jobs.put("x")
        await jobs.put("y")
        tasks = [await take for take in takes[1:]]
        assert sorted(task.data for task in tasks if task is not None) == ["x", "y"]


@awaited
async def test_timeouts_of_asyncio_end_a_wait(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await jobs.take()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(jobs.take(), 0.02)
        await in_line(jobs, 0)
        await jobs.put("x")
        task = await asyncio.wait_for(jobs.take(), 20)
        assert task is not None and task.data == "x"


@pytest.mark.parametrize(
    "moment", ["before it begins", "as it begins", "when it has committed", "at its answer"]
)
@awaited
async def test_a_take_that_is_cancelled_in_any_moment_keeps_nothing(
    url: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its task may be committed and on its way to a caller that is gone."""
    answered = bridge.Call._succeed

    def cancel_when_taken(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.TAKE:  # the loop learns of it before it has the answer
            take.cancel()

    def cancel_when_answered(call: Any, parcel: Any) -> None:
        answered(call, parcel)
        take.cancel()

    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        await jobs.put("x")
        for many in (False, True):
            take = asyncio.ensure_future(jobs.take_many(5) if many else jobs.take())
            with monkeypatch.context() as patch:
                if moment == "when it has committed":
                    jobs.on_task_change(cancel_when_taken)
                elif moment == "at its answer":
                    patch.setattr(bridge.Call, "_succeed", cancel_when_answered)
                else:
                    if moment == "as it begins":
                        await asyncio.sleep(0)
                    take.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await take
            jobs.on_task_change(None)
            assert await free_again(jobs)
        task = await jobs.take(0)
        assert task is not None and task.data == "x"
        if moment != "as it begins":  # the thread may be faster
            assert task.attempts == (1 if moment == "before it begins" else 3)


class Crowd:
    """Consumers that are cancelled at random moments, and what they finished."""

    def __init__(self, tube: aio.Tube, seed: int) -> None:
        self._tube = tube
        self._random = random.Random(seed)
        self.done: list[int] = []

    async def consume_and_be_cancelled(self) -> None:
        for _ in range(10):
            take = asyncio.create_task(self._tube.take())
            await asyncio.sleep(self._random.random() * 0.004)
            take.cancel()
            try:
                task = await take
            except asyncio.CancelledError:
                continue
            assert task is not None
            self.done.append(task.data)
            await self._tube.ack(task)


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
@awaited
async def test_takes_that_are_cancelled_at_random_moments_lose_nothing_and_leave_nothing_taken(
    url: str, type: str
) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", type)
        crowd = Crowd(jobs, seed=1)

        async def produce() -> None:
            for n in range(120):
                options: dict[str, Any] = {"utube": str(n % 7)} if type == "utubettl" else {}
                await jobs.put(n, **options)

        await asyncio.gather(produce(), *[crowd.consume_and_be_cancelled() for _ in range(20)])
        assert await free_again(jobs)
        while (task := await jobs.take(0)) is not None:
            crowd.done.append(task.data)
            await jobs.ack(task)
        assert sorted(crowd.done) == [*range(120)]
        await in_line(jobs, 0)


@awaited
async def test_a_cancelled_take_with_an_ack_has_acked(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        await jobs.put("x")
        task = await jobs.take(0)
        take = asyncio.create_task(jobs.take(ack=task))
        await in_line(jobs, 1)
        take.cancel()
        with pytest.raises(asyncio.CancelledError):
            await take
        assert (await jobs.statistics())["tasks"]["total"] == 0


@awaited
async def test_a_cancelled_wait_for_room_puts_nothing(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "limfifottl", capacity=1)
        await jobs.put("x")
        put = asyncio.create_task(jobs.put("y", timeout=20))
        waiters, key = queue.store.waiters, room(jobs.record.id)
        await until(lambda: waiters.count(key))
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        await until(lambda: not waiters.count(key))
        await jobs.delete((await jobs.tasks("r"))[0])
        assert (await jobs.statistics())["tasks"]["total"] == 0


@awaited
async def test_what_waits_for_a_transaction_can_be_cancelled(tmp_path: Path) -> None:
    """The wait cannot be interrupted, so nobody waits for its end, and what comes of it is rolled back."""
    async with connect(f"sqlite:///{tmp_path / 'aio.db'}") as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def in_transaction() -> None:
            async with queue.transaction() as unit:
                await jobs.put("never", unit=unit)

        async with queue.transaction() as unit:
            await jobs.put("x", unit=unit)
            waiting = asyncio.create_task(in_transaction())
            await until(lambda: len(queue._crew._reserved) == 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with queue.transaction() as unit:
            await jobs.put("y", unit=unit)
        assert [task.data for task in await jobs.take_many(5, 0)] == ["x", "y"]


@awaited
async def test_a_transaction_has_no_thread_in_which_a_cancelled_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the file; the transaction after the cancelled one does not know that."""
    monkeypatch.setattr(bridge, "PATIENCE", 0.01)
    path = tmp_path / "aio.db"
    async with connect(f"sqlite:///{path}", busy_timeout=20) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def in_transaction(data: str) -> None:
            async with queue.transaction() as unit:
                await jobs.put(data, unit=unit)

        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await in_transaction("never")
            next = asyncio.create_task(in_transaction("x"))
            await until(lambda: queue._crew._reserved)
            other.execute("ROLLBACK")
        await next
        await until(lambda: [worker.under_way for worker in queue._crew._spare] == [set(), set()])
        assert [places._value for places in queue._places.values()] == [aio.MOST_TRANSACTIONS]
        assert [task.data for task in await jobs.take_many(5, 0)] == ["x"]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@awaited
async def test_a_transaction_whose_end_is_cancelled_is_rolled_back(sql_url: str, ending: str) -> None:
    """Its thread is busy, and gets to the end when nobody waits for it any more."""
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        may_go_on = threading.Event()
        units: list[Any] = []
        others: list[asyncio.Future[Any]] = []

        async def in_transaction() -> None:
            async with queue.transaction() as unit:
                units.append(unit)
                await jobs.put("never", unit=unit)
                busy = queue.run_sync(lambda connection: may_go_on.wait(PATIENCE), unit=unit)
                others.append(asyncio.ensure_future(busy))
                await asyncio.sleep(0)  # it has begun
                asyncio.get_running_loop().call_soon(cancelled.cancel)
                asyncio.get_running_loop().call_later(0.01, may_go_on.set)
                if ending == "rollback":
                    raise ZeroDivisionError

        cancelled = asyncio.create_task(in_transaction())
        with pytest.raises(asyncio.CancelledError) as kept:  # it keeps alive all that it refers to
            await cancelled
        assert not units[0].is_open
        await asyncio.gather(*others)
        async with asyncio.timeout(PATIENCE):
            await jobs.put("x")
            async with queue.transaction() as unit:
                await jobs.put("y", unit=unit)
        assert [task.data for task in await jobs.take_many(5, 0)] == ["x", "y"]
        del kept


@pytest.mark.parametrize("many", [False, True])
@awaited
async def test_what_a_cancelled_take_took_in_a_transaction_is_given_back_in_it(
    sql_url: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back when the transaction has committed, however long the take needed."""
    monkeypatch.setattr(bridge, "PATIENCE", 0.0)
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        await jobs.put_many("xy")
        driver, may_go_on, has_begun = jobs._plain.driver, threading.Event(), threading.Event()
        at_once = driver.take

        def slowly(*args: Any, **kwargs: Any) -> Any:
            has_begun.set()
            may_go_on.wait(PATIENCE)
            return at_once(*args, **kwargs)

        monkeypatch.setattr(driver, "take", slowly)
        async with queue.transaction() as unit:
            await jobs.put("z", unit=unit)
            take = asyncio.ensure_future(jobs.take_many(5, 0, unit=unit) if many else jobs.take(0, unit=unit))
            await until(has_begun.is_set)
            take.cancel()
            with pytest.raises(asyncio.CancelledError):
                await take
            asyncio.get_running_loop().call_soon(may_go_on.set)
        assert await free_again(jobs)
        assert [task.data for task in await jobs.take_many(5, 0)] == ["x", "y", "z"]


@awaited
async def test_a_cancelled_connect_leaves_no_thread_and_no_session(url: str) -> None:
    before, opened = threading.enumerate(), []
    begun, may_go_on = threading.Event(), threading.Event()

    def connecting() -> tubes.Queue:
        begun.set()
        may_go_on.wait(PATIENCE)
        opened.append(tubes.connect(url, sweep=False))
        return opened[-1]

    for moment in ("before it begins", "as it begins", "while it is at it"):
        may_go_on.clear()
        cancelled = asyncio.ensure_future(aio.Connecting(connecting)._open())
        if moment == "as it begins":
            await asyncio.sleep(0)
        elif moment == "while it is at it":
            begun.clear()
            await until(begun.is_set)
        cancelled.cancel()
        asyncio.get_running_loop().call_soon(may_go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    await until(lambda: not threads_since(before))
    assert opened and all(queue.is_closed for queue in opened)


@awaited
async def test_a_cancelled_close_closes(url: str) -> None:
    before, queues = threading.enumerate(), []
    for turns in range(4):
        queue = await connect(url)
        queues.append(queue)
        ending = asyncio.ensure_future(queue.close())
        for _ in range(turns):
            await asyncio.sleep(0)  # one turn of the loop
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending
        await queue.close()
    await until(lambda: all(queue._plain.is_closed for queue in queues))
    await until(lambda: not threads_since(before))


def test_a_close_whose_loop_ends_in_the_middle_keeps_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the close any more: it goes on, and no loop is told."""
    monkeypatch.setattr(bridge, "PATIENCE", 0.0)
    before = threading.enumerate()
    begun, may_go_on = threading.Event(), threading.Event()

    async def begin() -> tubes.Queue:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}")
        close = queue._plain.close

        def slowly() -> None:
            begun.set()
            may_go_on.wait(PATIENCE)
            close()

        monkeypatch.setattr(queue._plain, "close", slowly)
        ending = asyncio.create_task(queue.close())
        await until(begun.is_set)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        return queue._plain

    plain = asyncio.run(begin())
    may_go_on.set()
    asyncio.run(until(lambda: not threads_since(before)))
    assert plain.is_closed


@pytest.mark.parametrize("ends", [False, True])
def test_a_cancelled_connect_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """What it opens is closed again, even when the loop is over by then."""
    monkeypatch.setattr(bridge, "PATIENCE", 0.01)
    before = threading.enumerate()
    begun, may_go_on = threading.Event(), threading.Event()
    opened: list[tubes.Queue] = []

    def slowly() -> tubes.Queue:
        begun.set()
        may_go_on.wait(PATIENCE)
        opened.append(tubes.connect(f"sqlite:///{tmp_path / 'aio.db'}", sweep=False))
        return opened[0]

    async def connecting() -> None:
        async with aio.Connecting(slowly):
            pass

    async def impatient() -> None:
        connect = asyncio.create_task(connecting())
        await until(begun.is_set)
        connect.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connect
        assert not opened
        if not ends:
            may_go_on.set()
            await until(lambda: not threads_since(before))

    asyncio.run(impatient())
    may_go_on.set()
    asyncio.run(until(lambda: not threads_since(before)))
    assert opened[0].is_closed


def test_a_loop_that_ends_without_its_takes_loses_nothing(tmp_path: Path) -> None:
    """``run_until_complete`` ends at once, whatever is still under way; the answer finds no loop."""
    loop = asyncio.new_event_loop()

    async def begin() -> aio.Tube:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}", sweep=True)
        tube = await queue.create_tube("jobs", "fifo")
        left.append(asyncio.ensure_future(tube.take()))
        await in_line(tube, 1)
        return tube

    left: list[asyncio.Future[tubes.Task | None]] = []
    tube = loop.run_until_complete(begin())
    with tubes.connect(f"sqlite:///{tmp_path / 'aio.db'}") as other:
        loop.close()
        other.tube.jobs.put("x")
        task = None
        while task is None:  # the abandoned take may get it once, and gives it back
            task = other.tube.jobs.take(20)
        assert task.data == "x"
    tube._queue._plain.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("calls", [0, 1])
def test_a_transaction_that_a_loop_has_left_is_rolled_back(tmp_path: Path, calls: int) -> None:
    """Once nothing refers to its task; then others may write. Its thread does not refer to the last call."""
    loop = asyncio.new_event_loop()

    async def begin() -> aio.Tube:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}")
        tube = await queue.create_tube("jobs", "fifo")
        begun = asyncio.Event()

        async def stay() -> None:
            async with queue.transaction() as unit:
                for _ in range(calls):
                    await tube.put("never committed", unit=unit)
                begun.set()
                await asyncio.Event().wait()

        left = asyncio.ensure_future(stay())
        await begun.wait()
        assert not left.done()
        return tube

    async def go_on() -> None:
        assert (await asyncio.wait_for(tube.put("x"), PATIENCE)).data == "x"
        await tube._queue.close()

    tube = loop.run_until_complete(begin())
    loop.close()
    connect_now = partial(tubes.connect, f"sqlite:///{tmp_path / 'aio.db'}", busy_timeout=0)

    def others_may_write() -> bool:
        gc.collect()  # each time: its thread may still be finishing the last call
        with suppress(tubes.StoreBusy):
            connect_now().close()
            return True
        return False

    eventually(others_may_write)
    with connect_now() as other:
        other.tube.jobs.put("y")
        asyncio.run(go_on())
        assert [task.data for task in other.tube.jobs.tasks("r")] == ["y", "x"]


def test_a_transaction_whose_loop_ends_as_it_begins_keeps_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database takes longer to begin it than a cancelled call is waited for."""
    monkeypatch.setattr(bridge, "PATIENCE", 0.01)
    before = threading.enumerate()

    async def begin() -> aio.Queue:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}")
        others.execute("BEGIN IMMEDIATE")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05), queue.transaction():
                pass
        return queue

    with closing(sqlite3.connect(tmp_path / "aio.db", isolation_level=None)) as others:
        queue = asyncio.run(begin())
    asyncio.run(queue.close())
    asyncio.run(until(lambda: not threads_since(before)))


@pytest.mark.parametrize("turns", [0, 1])
def test_a_loop_that_ends_before_an_answer_has_arrived_loses_nothing(tmp_path: Path, turns: int) -> None:
    """The loop has been given it, or has noted it and need only resume its waiter."""
    loop: Any = asyncio.new_event_loop()

    async def begin() -> tuple[aio.Tube, asyncio.Future[tubes.Task | None]]:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}")
        tube = await queue.create_tube("jobs", "fifo")
        take = asyncio.ensure_future(tube.take())
        await in_line(tube, 1)
        return tube, take

    tube, take = loop.run_until_complete(begin())
    tube._plain.put("x")
    asyncio.run(until(lambda: loop._ready))
    for _ in range(turns):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert not take.done()
    task = tube._plain.take(5)
    assert task is not None and task.data == "x"
    tube._queue._plain.close()
