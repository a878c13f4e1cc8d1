"""The asyncio API: calls, waits, transactions and callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from aio.running import PATIENCE, awaited, connect, in_line, threads_since, until
from faults.harness import eventually

import tubes
from tubes import aio, bridge
from tubes.testing import FakeClock
from tubes.waiting import room

REQUEST = ContextVar("REQUEST", default="nobody's")


@awaited
async def test_a_tube_is_opened_by_name_as_an_item_or_an_attribute(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        assert await queue.tube["jobs"] is await queue.tube.jobs is await queue.get_tube("jobs") is jobs
        assert [name async for name in queue.tube] == await queue.tubes() == ["jobs"]
        with pytest.raises(tubes.NoSuchTube):
            await queue.tube.nothing
        with pytest.raises(TypeError, match="'Tubes' object is not iterable"):
            list(queue.tube)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="'Tubes'"):
            assert "jobs" in queue.tube  # type: ignore[misc]
        for asked in ("__wrapped__", "_ipython_display_", "_repr_html_"):
            assert not hasattr(queue.tube, asked), "what Python or a notebook asks for is no coroutine"


@awaited
async def test_a_tube_is_dropped_by_itself_or_by_name(url: str) -> None:
    async with connect(url) as queue:
        for is_named in (False, True):
            jobs = await queue.create_tube("jobs", "fifo")
            await jobs.put("x")
            held = await jobs.take(0)
            assert held is not None
            with pytest.raises(tubes.TubeBusy):
                await queue.drop_tube("jobs" if is_named else jobs)
            await jobs.ack(held)
            await queue.drop_tube("jobs" if is_named else jobs)
            assert await queue.tubes() == []
            with pytest.raises(tubes.NoSuchTube):
                await jobs.put("y")


@awaited
async def test_a_queue_that_was_awaited_is_closed_by_hand(url: str) -> None:
    before = threading.enumerate()
    queue = await connect(url)
    await queue.create_tube("jobs", "fifo")
    await queue.close()
    assert queue.is_closed
    await queue.close()
    for call in (queue.tubes(), queue.create_tube("more", "fifo"), queue.tube.jobs):
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            await call
    await until(lambda: not threads_since(before))


@awaited
async def test_a_queue_that_was_awaited_is_closed_by_its_block(url: str) -> None:
    queue = await connect(url)
    async with queue as entered:
        assert entered is queue and not queue.is_closed
    assert queue.is_closed


@awaited
async def test_what_connect_returns_is_entered_once_at_a_time(tmp_path: Path) -> None:
    before = threading.enumerate()
    missing = connect(f"sqlite:///{tmp_path}/nowhere/jobs.db")
    for _ in range(2):
        with pytest.raises(tubes.StoreUnavailable):
            await missing.__aenter__()
    opening = connect(f"sqlite:///{tmp_path}/jobs.db")
    for _ in range(2):
        async with opening as queue:
            with pytest.raises(
                RuntimeError, match=r"open already: call tubes\.aio\.connect\(\) once for each"
            ):
                async with opening:
                    pass
            assert await queue.tubes() == []
        assert queue.is_closed
    await until(lambda: not threads_since(before))


@awaited
async def test_a_url_that_cannot_be_opened_is_an_error_and_leaves_no_thread(url: str) -> None:
    before = threading.enumerate()
    with pytest.raises(tubes.TubeError):
        await connect(f"{url}/no/such/place")
    with pytest.raises(tubes.BadOption):
        async with connect("nowhere"):
            pass
    await until(lambda: not threads_since(before))


@awaited
async def test_a_hundred_waiting_takes_need_no_thread_each(url: str) -> None:
    before = threading.enumerate()
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = [asyncio.create_task(jobs.take()) for _ in range(100)]
        await in_line(jobs, 100)
        others = 3  # the listener, the scheduler and its worker
        assert len(threads_since(before)) <= aio.MOST_THREADS + others
        await jobs.put_many(range(100))
        tasks = await asyncio.gather(*takes)
        assert sorted(task.data for task in tasks if task is not None) == [*range(100)]


@awaited
async def test_its_threads_end_with_the_queue(sql_url: str) -> None:
    before = threading.enumerate()
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def put_in_transaction() -> None:
            async with queue.transaction() as unit:
                await jobs.put("x", unit=unit)

        await asyncio.gather(*[put_in_transaction() for _ in range(3)])
        assert not queue._units
        await asyncio.gather(*[jobs.put(n) for n in range(20)])
        assert threads_since(before)
    await until(lambda: not threads_since(before))


@awaited
async def test_waiting_takes_are_served_in_the_order_in_which_they_came(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = []
        for n in range(12):
            takes.append(asyncio.create_task(jobs.take()))
            await in_line(jobs, n + 1)
        for n, take in enumerate(takes):
            await jobs.put(n)
            task = await take
            assert task is not None and task.data == n


@awaited
async def test_takes_that_begin_together_are_served_in_the_order_in_which_they_were_called(url: str) -> None:
    """Though threads take turns at their first look, and some get into line before those called earlier."""
    clock = FakeClock()
    async with connect(url, clock=clock) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = [asyncio.create_task(jobs.take()) for _ in range(30)]
        await until(lambda: clock.waiting == len(takes))
        for n, take in enumerate(takes):
            await jobs.put(n)
            task = await take
            assert task is not None and task.data == n


@awaited
async def test_puts_that_wait_for_room_together_get_it_in_the_order_in_which_they_were_called(
    url: str,
) -> None:
    clock = FakeClock()
    async with connect(url, clock=clock) as queue:
        jobs = await queue.create_tube("jobs", "limfifottl", capacity=1)
        last = await jobs.put("first")
        puts = [asyncio.create_task(jobs.put(n, timeout=None)) for n in range(30)]
        await until(lambda: clock.waiting == len(puts))
        for n, put in enumerate(puts):
            await jobs.delete(last)
            last = await put
            assert last.data == n


@awaited
async def test_a_take_returns_none_when_its_time_is_over(url: str) -> None:
    clock = FakeClock()
    async with connect(url, clock=clock) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        takes = [asyncio.create_task(jobs.take(timeout)) for timeout in (5, 7)]
        await until(lambda: clock.waiting == 2)
        clock.advance(5)
        assert await takes[0] is None
        assert not takes[1].done()
        clock.advance(2)
        assert await takes[1] is None


@awaited
async def test_a_real_timeout_ends_too(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        assert await asyncio.gather(*[jobs.take(0.02 * n) for n in range(5)]) == [None] * 5


@pytest.mark.parametrize("far", ["timeout", "delay"])
@awaited
async def test_a_wait_may_be_longer_than_the_system_can_wait(url: str, far: str) -> None:
    """The system can wait for 292 years."""
    ages = 500 * 365 * 86400
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifottl")
        if far == "delay":
            await jobs.put("late", delay=ages)
        take = asyncio.create_task(jobs.take(ages if far == "timeout" else None))
        await until(lambda: any(worker._naps for worker in queue._crew._all()))
        async with asyncio.timeout(PATIENCE):
            await jobs.put("x")
            task = await take
        assert task is not None and task.data == "x"


@pytest.mark.slow
@awaited
async def test_many_short_waits_keep_no_list_of_their_timeouts(url: str) -> None:
    """Even while a take whose time is over before theirs is still waiting."""
    async with connect(url) as queue:
        jobs, nothing = [await queue.create_tube(name, "fifo") for name in ("jobs", "nothing")]
        waiting = asyncio.create_task(nothing.take(1000))
        await in_line(nothing, 1)
        for n in range(150):
            take = asyncio.create_task(jobs.take(3600))
            await in_line(jobs, 1)
            await jobs.put(n)
            await take
        kept = [len(worker._naps) for worker in queue._crew._all()]
        assert sum(kept) < 100
    assert await waiting is None


@awaited
async def test_a_call_gets_into_the_shortest_line() -> None:
    crew, may_end = bridge.Crew(2), [threading.Event(), threading.Event()]
    busy = [asyncio.create_task(crew.run(partial(each.wait, PATIENCE))) for each in may_end]
    await until(lambda: len(crew._all()) == 2 and not any(map(bridge.Worker.line_length, crew._all())))
    behind = [asyncio.create_task(crew.run(lambda: "x")) for _ in busy]
    await asyncio.sleep(0)  # until they stand in line
    may_end[1].set()
    assert await behind[1] == "x" and not behind[0].done()
    may_end[0].set()
    assert await asyncio.gather(*busy, *behind) == [True, True, "x", "x"]
    crew.disband()


@awaited
async def test_a_thread_is_reserved_again_when_all_its_calls_are_over() -> None:
    crew, may_end = bridge.Crew(1), [threading.Event() for _ in range(9)]
    with crew.reserved() as worker:
        calls = [
            asyncio.create_task(crew.run(partial(each.wait, PATIENCE), worker=worker)) for each in may_end
        ]
        await asyncio.sleep(0)  # they are under way
    for each in may_end[:-1]:
        each.set()
    await asyncio.gather(*calls[:-1])
    with crew.reserved() as other:
        assert other is not worker
    may_end[-1].set()
    await calls[-1]
    assert {crew._spare_one(), crew._spare_one()} == {worker, other} and crew._spare_one() is None
    worker.stop()
    other.stop()
    crew.disband()


def test_a_thread_is_reserved_again_by_another_loop_when_its_own_is_over() -> None:
    """Nobody tells a loop that is over that its last call has ended."""
    may_end = threading.Event()

    async def begin() -> tuple[bridge.Crew, bridge.Worker]:
        crew = bridge.Crew(1)
        with crew.reserved() as worker:
            call = asyncio.create_task(crew.run(partial(may_end.wait, PATIENCE), worker=worker))
            await asyncio.sleep(0)  # it is under way
        call.cancel()
        await asyncio.wait([call])
        return crew, worker

    async def reserve(crew: bridge.Crew) -> bridge.Worker:
        with crew.reserved() as worker:
            return worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge, "PATIENCE", 0.0)
        crew, worker = asyncio.run(begin())
    may_end.set()
    eventually(lambda: not worker.under_way)
    assert asyncio.run(reserve(crew)) is worker
    crew.disband()


@awaited
async def test_closing_ends_waiting_takes(url: str) -> None:
    queue = await connect(url)
    jobs = await queue.create_tube("jobs", "fifo")
    takes = [asyncio.create_task(jobs.take()) for _ in range(20)]
    await in_line(jobs, 20)
    await queue.close()
    assert await asyncio.gather(*takes) == [None] * 20


@awaited
async def test_a_spare_thread_may_go_to_the_loop_of_another_thread() -> None:
    """It was there a moment ago, but without a GIL that loop may have it by now."""

    class Spare(list[bridge.Worker]):
        def remove(self, worker: bridge.Worker) -> None:
            theirs.append(self.pop())
            super().remove(worker)

    crew, theirs = bridge.Crew(1), list[bridge.Worker]()
    with crew.reserved():
        pass
    crew._spare = Spare(crew._spare)
    with crew.reserved() as ours:
        assert await crew.run(lambda: "x") == "x"
    assert theirs != [] and ours not in theirs
    theirs[0].stop()
    await crew.close(lambda: None)


@awaited
async def test_a_close_waits_for_answers_that_the_loop_comes_to_late(url: str) -> None:
    before = threading.enumerate()
    queue = await connect(url)
    jobs = await queue.create_tube("jobs", "fifo")
    take = asyncio.create_task(jobs.take())
    await in_line(jobs, 1)
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)  # it begins
    eventually(lambda: all(worker._is_over for worker in queue._crew._all()))  # which holds up the loop
    await closing
    assert await take is None
    await until(lambda: not threads_since(before))


@awaited
async def test_a_put_waits_for_room_and_gets_it(url: str) -> None:
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "limfifottl", capacity=1)
        first = await jobs.put("first")
        waiting = asyncio.create_task(jobs.put("second", timeout=20))
        waiters = queue.store.waiters
        await until(lambda: waiters.count(room(jobs.record.id)))
        await jobs.delete(first)
        assert (await waiting).data == "second"


# Transactions


@awaited
async def test_a_transaction_is_committed_as_one(sql_url: str) -> None:
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        waiting = asyncio.create_task(jobs.take())
        await in_line(jobs, 1)
        async with queue.transaction() as unit:
            for n in range(3):
                await jobs.put(n, unit=unit)
            assert not waiting.done()
        task = await waiting
        assert task is not None and task.data == 0
        assert (await jobs.statistics())["tasks"]["total"] == 3


@awaited
async def test_a_transaction_that_raises_or_is_cancelled_leaves_nothing(sql_url: str) -> None:
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        with pytest.raises(ZeroDivisionError):
            async with queue.transaction() as unit:
                await jobs.put("x", unit=unit)
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), queue.transaction() as unit:
                await jobs.put("x", unit=unit)
                await asyncio.Event().wait()
        assert (await jobs.statistics())["tasks"]["total"] == 0
        with pytest.raises(tubes.BadOption, match="over"):
            await jobs.put("x", unit=unit)


@awaited
async def test_a_closed_queue_begins_no_transaction(sql_url: str) -> None:
    """Even if the threads of several that were open at once are kept for the next."""

    async def open_one() -> None:
        async with queue.transaction():
            await asyncio.sleep(0)  # no time: the others' turn, so that all are open at once

    async with connect(sql_url) as queue:
        await asyncio.gather(open_one(), open_one(), open_one())
    with pytest.raises(tubes.StoreUnavailable, match="closed"):
        await asyncio.wait_for(open_one(), 10)


@awaited
async def test_a_queue_that_is_closed_in_the_middle_of_a_transaction_ends_it(postgres_db: str) -> None:
    """Even one whose thread served another before."""
    async with connect(postgres_db) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        async with queue.transaction():
            pass
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            async with queue.transaction() as unit:
                await jobs.put("x", unit=unit)
                await asyncio.create_task(queue.close())
                await asyncio.wait_for(jobs.put("y", unit=unit), 10)


@awaited
async def test_statements_of_ones_own_run_in_the_transaction(sql_url: str) -> None:
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        count = sa.text("SELECT count(*) FROM tubes_task")
        async with queue.transaction() as unit:
            await jobs.put("x", unit=unit)
            assert await queue.run_sync(lambda connection: connection.scalar(count), unit=unit) == 1
            REQUEST.set("ours")
            assert await queue.run_sync(lambda _: REQUEST.get(), unit=unit) == "ours"
        with pytest.raises(tubes.BadOption, match="over"):
            await queue.run_sync(lambda connection: connection.scalar(count), unit=unit)


@awaited
async def test_a_statement_of_one_s_own_that_finds_nothing_next_ends() -> None:
    """A StopIteration would be lost on its way to the loop, and the transaction would wait for ever."""
    async with connect("sqlite://") as queue, queue.transaction() as unit:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(queue.run_sync(lambda connection: next(iter(())), unit=unit), 10)


@awaited
async def test_several_tasks_use_one_unit_at_once(sql_url: str) -> None:
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        async with queue.transaction() as unit:
            await asyncio.gather(*[jobs.put(n, unit=unit) for n in range(10)])
        assert len(await jobs.take_many(20, 0)) == 10


@awaited
async def test_transactions_of_many_tasks_take_turns(sql_url: str) -> None:
    async with connect(sql_url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def move(n: int) -> None:
            async with queue.transaction() as unit:
                await jobs.put(n, unit=unit)
                await jobs.put(n, unit=unit)

        await asyncio.gather(*[move(n) for n in range(40)])
        tasks = await jobs.take_many(100, 0)
        assert len(tasks) == 80


@pytest.mark.slow
@awaited
async def test_transactions_inside_others_wait_for_nobody(postgres_db: str) -> None:
    """Two tasks open more between them than there is room for, and neither waits for the other's."""
    both_have_half = asyncio.Barrier(2)

    async with connect(postgres_db) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def one_inside_another(depth: int) -> None:
            async with queue.transaction() as unit:
                await jobs.put(depth, unit=unit)
                if depth == 1:
                    await both_have_half.wait()
                if depth < aio.MOST_TRANSACTIONS // 2 + 1:
                    await one_inside_another(depth + 1)

        await asyncio.gather(*(one_inside_another(1) for _ in range(2)))
        assert len(await jobs.take_many(100, 0)) == aio.MOST_TRANSACTIONS + 2


@awaited
async def test_one_inside_another_after_the_next_waits_for_nobody(
    postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outer one keeps its thread and its place when an inner one ends."""
    monkeypatch.setattr(aio, "MOST_TRANSACTIONS", 1)
    async with connect(postgres_db) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        async with queue.transaction() as outer:
            for n in range(2):
                async with queue.transaction() as inner:
                    await jobs.put(n, unit=inner)
            await jobs.put(2, unit=outer)
        assert [task.data for task in await jobs.take_many(5, 0)] == [0, 1, 2]


@awaited
async def test_transactions_one_after_another_share_a_thread(sql_url: str) -> None:
    before = threading.enumerate()
    async with connect(sql_url) as queue:
        for _ in range(20):
            async with queue.transaction():
                pass
        assert (
            sum(thread.name == "tubes-aio" for thread in threads_since(before)) == 2
        )  # theirs and that of the connect


def test_a_queue_may_outlast_a_loop_also_where_transactions_wait_for_their_turn(sql_url: str) -> None:
    async def transactions(queue: aio.Queue) -> int:
        jobs = await queue.get_tube("jobs")

        async def put(data: int) -> None:
            async with queue.transaction() as unit:
                await jobs.put(data, unit=unit)

        await asyncio.gather(*map(put, range(2 * aio.MOST_TRANSACTIONS)))
        return len(await jobs.take_many(100, 0))

    async def open_and_use() -> aio.Queue:
        queue = await connect(sql_url)
        await queue.create_tube("jobs", "fifo")
        assert await transactions(queue) == 2 * aio.MOST_TRANSACTIONS
        return queue

    async def use_and_close(queue: aio.Queue) -> None:
        assert await transactions(queue) == 2 * aio.MOST_TRANSACTIONS
        await queue.close()

    queue = asyncio.run(open_and_use())
    asyncio.run(use_and_close(queue))


@awaited
async def test_a_call_that_would_wait_for_its_own_transaction_is_refused(tmp_path: Any) -> None:
    """On SQLite, which has one writer."""
    async with connect(f"sqlite:///{tmp_path / 'aio.db'}") as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        async with queue.transaction() as unit:
            with pytest.raises(tubes.StoreBusy, match="unit="):
                await jobs.put("x")
            other = asyncio.create_task(jobs.put("another task's waits its turn"))
            await jobs.put("y", unit=unit)
        await other
        assert [task.data for task in await jobs.take_many(3, 0)] == ["y", "another task's waits its turn"]


# Callbacks


@awaited
async def test_a_callback_runs_in_the_event_loop_before_the_verb_returns(url: str) -> None:
    seen: list[tuple[str, int]] = []

    def note(task: tubes.Task, event: tubes.Event) -> None:
        seen.append((event.value, threading.get_ident()))

    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=note)
        await jobs.put("x")
        here = threading.get_ident()
        assert seen == [("put", here)]
        task = await jobs.take(0)
        assert task is not None
        await jobs.ack(task)
        assert seen == [("put", here), ("take", here), ("ack", here)]


@awaited
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_callbacks_see_the_context_variables_of_who_connected(url: str, is_awaited: bool) -> None:
    """Whoever calls the verb: one of several calls at once may report the changes of all."""
    seen: list[str] = []

    def plain(task: tubes.Task, event: tubes.Event) -> None:
        seen.append(REQUEST.get())

    async def coroutine(task: tubes.Task, event: tubes.Event) -> None:
        await asyncio.sleep(0)
        seen.append(REQUEST.get())

    async def put(request: str) -> None:
        REQUEST.set(request)
        await jobs.put("x")

    REQUEST.set("who connected")
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=coroutine if is_awaited else plain)
        async with asyncio.TaskGroup() as group:
            for request in "abc":
                group.create_task(put(request))
    assert seen == ["who connected"] * 3


@awaited
async def test_a_callback_is_replaced_and_removed(url: str) -> None:
    first: list[Any] = []
    second: list[Any] = []
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")
        listen = lambda task, event: first.append(event)  # noqa: E731
        assert jobs.on_task_change(listen) is None
        remove = jobs.add_listener(lambda task, event: second.append(event))
        await jobs.put("x")
        assert jobs.on_task_change(None) is listen
        remove()
        await jobs.put("y")
        assert first == second == [tubes.Event.PUT]
        with pytest.raises(tubes.BadOption):
            jobs.add_listener("no callback")  # type: ignore[arg-type]
        with pytest.raises(tubes.BadOption):
            await queue.create_tube("more", "fifo", on_task_change="no callback")  # type: ignore[arg-type]


@awaited
async def test_a_coroutine_function_is_awaited_one_change_at_a_time_in_order(url: str) -> None:
    seen: list[Any] = []
    may_go_on = asyncio.Event()

    async def note(task: tubes.Task, event: tubes.Event) -> None:
        seen.append(("begin", task.data))
        await may_go_on.wait()
        await asyncio.sleep(0)  # the next could begin here
        seen.append(("end", task.data))

    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=note)
        await jobs.put("a")
        await jobs.put_many("bc")  # does not wait for it
        assert seen == [("begin", "a")]
        may_go_on.set()
    assert seen == [(what, data) for data in "abc" for what in ("begin", "end")]  # the close waited


@awaited
async def test_a_close_waits_for_the_callback_that_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all its other work is done before the callback ends."""
    is_closed, ended = asyncio.Event(), []

    async def note(task: tubes.Task, event: tubes.Event) -> None:
        await is_closed.wait()
        await asyncio.sleep(0)  # so that a close that waits for nothing would be over before
        ended.append(task.data)

    queue = await connect("sqlite://")
    jobs = await queue.create_tube("jobs", "fifo", on_task_change=note)
    await jobs.put("x")
    close = queue._crew.close

    async def close_and_say(work: Callable[[], None]) -> None:
        await close(work)
        is_closed.set()

    monkeypatch.setattr(queue._crew, "close", close_and_say)
    await queue.close()
    assert ended == ["x"]


def test_who_closes_in_another_loop_waits_for_no_callback_of_the_first() -> None:
    """Nothing would resume it: that loop has ended."""

    async def begin() -> aio.Queue:
        queue = await connect("sqlite://")
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=note)
        await jobs.put("x")
        return queue

    async def note(task: tubes.Task, event: tubes.Event) -> None:
        begun.append(asyncio.current_task())
        await asyncio.Event().wait()

    begun: list[asyncio.Task[None] | None] = []
    loop = asyncio.new_event_loop()
    queue = loop.run_until_complete(begin())
    assert len(begun) == 1
    asyncio.run(asyncio.wait_for(queue.close(), PATIENCE))
    assert begun[0] is not None and begun[0].cancel()
    loop.run_until_complete(asyncio.wait({begun[0]}))
    loop.close()


def test_who_closes_in_another_loop_waits_for_no_answer_that_the_first_has_left(tmp_path: Path) -> None:
    """The first loop may still run again some day."""

    async def begin() -> tuple[aio.Queue, asyncio.Task[tubes.Task | None]]:
        queue = await connect(f"sqlite:///{tmp_path / 'aio.db'}")
        jobs = await queue.create_tube("jobs", "fifo")
        take = asyncio.create_task(jobs.take())
        await in_line(jobs, 1)
        return queue, take

    before = threading.enumerate()
    loop = asyncio.new_event_loop()
    queue, take = loop.run_until_complete(begin())
    asyncio.run(asyncio.wait_for(queue.close(), PATIENCE))
    asyncio.run(until(lambda: not threads_since(before)))
    assert loop.run_until_complete(take) is None
    loop.close()


@awaited
async def test_a_callback_that_is_cancelled_keeps_nobody_from_the_next(url: str) -> None:
    seen: list[Any] = []
    go_on = asyncio.Event()

    async def give_up(task: tubes.Task, event: tubes.Event) -> None:
        seen.append(task.data)
        await go_on.wait()
        raise asyncio.CancelledError

    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=give_up)
        await jobs.put_many("ab")
        go_on.set()
        await until(lambda: seen == ["a", "b"])


@awaited
async def test_a_plain_callback_that_raises_a_cancellation_keeps_nobody_from_the_next(url: str) -> None:
    """As ``result()`` of a cancelled future does. Its calls stand in line behind an awaited callback."""
    seen: list[Any] = []
    go_on = asyncio.Event()

    async def wait(task: tubes.Task, event: tubes.Event) -> None:
        await go_on.wait()

    def give_up(task: tubes.Task, event: tubes.Event) -> None:
        seen.append(task.data)
        raise asyncio.CancelledError

    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=wait)
        jobs.add_listener(give_up)
        await jobs.put_many("ab")
        go_on.set()
        await until(lambda: len(seen) == 2)


@pytest.mark.parametrize("in_task", [False, True])
@awaited
async def test_a_callback_may_close_the_queue(url: str, in_task: bool) -> None:
    """The close waits for every awaited callback except the one that calls it, if by a task that this begins."""
    closed = asyncio.Event()
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def close(task: tubes.Task, event: tubes.Event) -> None:
            await (asyncio.gather(queue.close()) if in_task else queue.close())
            closed.set()

        jobs.on_task_change(close)
        await jobs.put("x")
        await closed.wait()
        assert queue.is_closed


@awaited
async def test_a_callback_may_call_the_tube(url: str) -> None:
    seen: list[Any] = []
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo")

        async def follow(task: tubes.Task, event: tubes.Event) -> None:
            seen.append(task.data)
            if task.data < 3:
                await jobs.put(task.data + 1)

        jobs.on_task_change(follow)
        await jobs.put(0)
        await until(lambda: seen == [0, 1, 2, 3])


@awaited
async def test_a_callback_that_raises_is_logged_and_changes_nothing(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(task: tubes.Task, event: tubes.Event) -> None:
        raise ValueError("plain")

    async def fail_later(task: tubes.Task, event: tubes.Event) -> None:
        raise ValueError("awaited")

    seen: list[Any] = []
    async with connect(url) as queue:
        jobs = await queue.create_tube("jobs", "fifo", on_task_change=fail_later)
        jobs.add_listener(fail)
        jobs.add_listener(lambda task, event: seen.append(event))
        with caplog.at_level(logging.ERROR, "tubes.events"):
            await jobs.put("x")
            await until(lambda: seen)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["awaited", "plain"]
