"""Faults that either server must survive: it restarts, workers die or stop, clocks differ."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy as sa
from faults.harness import (
    DESCRIPTORS,
    Connect,
    ended,
    eventually,
    heard,
    quiet,
    run,
    take_looking_seldom,
    tell,
    waiting,
)
from faults.serving import SKEWED, WORKER, Load, check_clocks
from redis_servers import RedisServer
from servers import PostgresServer
from slow import slow_but

import tubes
from tubes.clock import ServerClock
from tubes.testing import FakeClock
from tubes.testing.suite import refusal, take
from tubes.waiting import room

Server = PostgresServer | RedisServer


@pytest.fixture(params=["postgresql", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    """A server that a test may stop; it answers a write only once that is on disk."""
    found: Server
    if request.param == "postgresql":
        found = request.getfixturevalue("postgres_server")
    else:
        found = request.getfixturevalue("own_redis_server")(fsync="always")
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, server: Server) -> str:
    """A queue there; a process is taken for dead after a second."""
    if isinstance(server, RedisServer):
        return f"{server.url}&dead_after=1"
    database: str = request.getfixturevalue("own_migrated_db")
    return sa.make_url(database).update_query_dict({"dead_after": "1"}).render_as_string(hide_password=False)


def test_a_task_that_was_taken_in_another_queue_is_not_held_here(connect: Connect) -> None:
    """Not even if its tube's name, its id and its token are the same in both."""
    queues = connect(sweep=False), connect(sweep=False, namespace="other", migrate=True)
    here, there = (queue.create_tube("jobs", "utubettl", ttr=60) for queue in queues)
    here.put("x")
    there.put("y")
    mine, theirs = take(here), take(there)
    assert (mine.id, mine.token) == (theirs.id, theirs.token)
    for verb in (here.ack, here.release, partial(here.touch, delta=1), here.bury, here.delete):
        refusal(verb, theirs, error=tubes.NotTaken)
    assert here.ack_many([theirs]) == []
    assert here.peek(mine) == mine


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts_under_load_loses_and_doubles_nothing(
    connect: Connect, server: Server, mode: Any
) -> None:
    """Calls fail with a StoreError while the server is away, and work again by themselves when it is back."""
    queues = [connect(), connect()]
    queues[0].create_tube("jobs", "fifo")
    with Load(queues) as load:
        eventually(lambda: len(load.acked) > 50)
        for _ in range(2):
            server.stop(mode)
            server.start()
            before = len(load.acked)
            eventually(lambda n=before: len(load.acked) > n + 50)  # type: ignore[misc]
    load.settle(connect)
    assert load.errors


def test_a_waiting_take_is_called_after_a_restart(
    deaf: None,
    connect: Connect,
    server: Server,
    url: str,
    process: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never looks by itself, but another process calls it as soon as that has heard again that it waits."""
    listening = importlib.import_module("tubes.drivers.sql.postgresql_listener")
    monkeypatch.setattr(listening, "ANNOUNCE_EVERY", 0.05)
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert heard(worker) == "None"
    thread, got = waiting(tube)
    server.stop("fast")
    server.start()
    assert not got

    def has_put_and_called() -> bool:
        tell(worker, "put")
        return bool(heard(worker) and got)

    eventually(has_put_and_called)
    ended(thread)
    assert [task and task.data for task in got] == ["x"]


def test_a_put_that_waits_for_room_waits_on_while_the_server_is_away(
    deaf: None, connect: Connect, server: Server
) -> None:
    """It looks in vain, and is done when there is room."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    tube.put("first")
    task = take(tube)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(tube.put, "second", timeout=10)
        eventually(lambda: clock.waiting)
        (waiter,) = queue.store.waiters.line[room(tube.record.id)]
        server.stop("immediate")
        waiter.set()
        eventually(lambda: put.done() or not waiter.is_set)
        eventually(lambda: put.done() or clock.waiting)  # it has looked
        assert not put.done()
        server.start()

        def is_acked() -> bool:
            with suppress(tubes.StoreUnavailable):
                return tube.ack(task).state is tubes.State.DONE
            return False

        eventually(is_acked)
        assert put.result(60).data == "second"


def test_a_put_whose_time_is_over_while_the_server_is_away_says_so(
    deaf: None, connect: Connect, server: Server
) -> None:
    """Not that there was no room, which nobody knows."""
    clock = FakeClock()
    tube = connect(clock=clock, sweep=False).create_tube("jobs", "limfifottl", capacity=1)
    tube.put("first")
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(tube.put, "second", timeout=10)
        eventually(lambda: clock.waiting)
        server.stop("immediate")
        clock.advance(10)
        assert isinstance(put.exception(60), tubes.StoreUnavailable)
        server.start()


def test_a_take_whose_time_is_over_while_the_server_is_away_says_so(connect: Connect, server: Server) -> None:
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    with ThreadPoolExecutor(1) as pool:
        take = pool.submit(tube.take, timeout=10)
        eventually(lambda: queue.store.waiters)
        server.stop("immediate")
        clock.advance(10)
        assert isinstance(take.exception(30), tubes.StoreUnavailable)
        server.start()


def test_who_is_hastier_by_its_url_and_stays_takes_nobody_for_dead(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While processes restart with a shorter ``dead_after``, the old ones beat too seldom for the new."""
    now = 1000.0
    patient = url.replace("dead_after=1", "dead_after=60")
    with tubes.connect(patient, sweep=False), tubes.connect(url, sweep=False) as hasty:
        monkeypatch.setattr(importlib.import_module("tubes.drivers.watch"), "real_monotonic", lambda: now)
        found = []
        for _ in range(130):
            found.append(hasty.store.deaths_suspected(thoroughly=True))
            now += 0.5
        monkeypatch.undo()
        assert found.index(True) == 121


@pytest.mark.slow
def test_who_looks_seldom_finds_the_dead_too(connect: Connect, url: str, process: Callable[..., Any]) -> None:
    """No sweeper looks between its takes."""
    tube = connect(sweep=False).create_tube("jobs", "utube")
    tube.put("held")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert heard(worker) == "held"
    worker.kill()
    assert take_looking_seldom(tube).data == "held"


def test_what_a_killed_process_holds_is_ready_again(
    connect: Connect, url: str, process: Callable[..., Any]
) -> None:
    tube = connect().create_tube("jobs", "utube")
    tube.put("held")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert heard(worker) == "held"
    assert tube.take(timeout=0) is None
    worker.kill()
    task = tube.take(timeout=20)
    assert task is not None and task.data == "held" and task.attempts == 2
    tube.ack(task)


@pytest.mark.slow
def test_who_lives_keeps_its_task_for_longer_than_the_dead_are_waited_for(connect: Connect) -> None:
    """Even if it does nothing meanwhile, and does not sweep."""
    queue, other = connect(sweep=False), connect()
    tube = queue.create_tube("jobs", "utube")
    tube.put("held")
    task = take(tube)
    assert other.tube.jobs.take(timeout=2.5) is None
    assert tube.ack(task).data == "held"


def test_who_was_taken_for_dead_takes_in_a_new_session(connect: Connect) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    session = queue.identify().hex
    end(queue)
    task = tube.take(timeout=0)
    assert task is not None and task.owner is not None
    assert task.owner.hex == queue.store.session != session


def test_who_was_taken_for_dead_hears_of_it_with_a_beat(connect: Connect) -> None:
    queue = connect(sweep=False)
    session = queue.store.session
    end(queue)
    eventually(lambda: queue.store.session != session)


def test_a_clock_that_stood_still_is_put_right_with_the_new_session(connect: Connect, url: str) -> None:
    """That of a frozen virtual machine does. Else what is put until the next beat would be over at once."""
    with closing(quiet(partial(tubes.connect, url.replace("dead_after=1", "dead_after=3600")))) as queue:
        tube, clock = queue.create_tube("jobs", "fifottl"), cast("ServerClock", queue.clock)
        clock._offset_ms -= 60_000
        end(queue)
        assert tube.take(timeout=0) is None
        tube.put("x", ttl=30)
        assert take(connect().tube.jobs).data == "x"


def end(queue: tubes.Queue) -> None:
    """Have the store take this queue's process for dead."""
    store: Any = queue.store
    store._leave()


def test_who_has_left_begins_no_session_anew(connect: Connect) -> None:
    """Not even if a thread's call finds out just then that the session is over."""
    store: Any = connect(sweep=False).store
    session = store.session
    assert store.leave()
    store._resume()
    assert store.session == session and not store.lost_sessions


def test_a_process_that_was_stopped_beyond_its_death_strands_and_doubles_nothing(
    connect: Connect, url: str, process: Callable[..., Any]
) -> None:
    """Its ack is refused; its next take is in a new session, and keeps its task."""
    tube = connect().create_tube("jobs", "fifo")
    tube.put("held")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert heard(worker) == "held"
    os.kill(worker.pid, signal.SIGSTOP)
    task = tube.take(timeout=20)
    assert task is not None and task.data == "held"
    os.kill(worker.pid, signal.SIGCONT)
    tell(worker, "ack")
    assert heard(worker) in ("LeaseLost", "NotTaken")
    tube.ack(task)
    tube.put("next")
    tell(worker, "take")
    assert heard(worker) == "next"
    assert tube.take(timeout=0) is None
    tell(worker, "ack")
    assert heard(worker) == "-"
    assert tube.statistics()["tasks"]["total"] == 0


@pytest.mark.parametrize("hours", slow_but([1], [-1, 1]))
def test_clients_whose_clocks_differ_agree(
    connect: Connect, url: str, process: Callable[..., Any], hours: int
) -> None:
    """The server's clock decides on ttl, ttr and delay, whoever puts or takes."""
    check_clocks(connect().create_tube("jobs", "fifottl", ttr=0.5), process(SKEWED, url, hours))


FEW_FILES = """
import errno, importlib.metadata, os, sys, threading, tubes

importlib.metadata.version("redis")  # the folder is known now: redis-py opens the file, which it may not
for count in range(6):
    with free_descriptors(count):
        try:
            tubes.connect(sys.argv[1], namespace=f"few_{count}", migrate=True).close()
        except tubes.StoreUnavailable as error:
            assert os.strerror(errno.EMFILE) in str(error) or "no error details" in str(error), error
queue = tubes.connect(sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
stored, odd = [], []

def put():
    for number in range(100):
        try:
            stored.append(tube.put(number).id)
        except tubes.StoreUnavailable:
            pass
        except Exception as error:
            odd.append(error)

def put_at_once():
    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

with free_descriptors(0):
    put_at_once()
assert not odd, odd[0]
assert [task.id for task in tube.tasks("r", limit=1000)] == sorted(stored)
tube.put("when there are some again")
queue.close()
print(len(stored) > 0)
"""


@pytest.mark.slow
def test_where_few_files_can_be_opened_a_call_is_done_or_refused_by_an_error_of_ours(url: str) -> None:
    """That holds for a connect, and for calls from more threads than there can be connections."""
    assert run(DESCRIPTORS + FEW_FILES, url) == "True"
