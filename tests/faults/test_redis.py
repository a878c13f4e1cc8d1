"""Redis: the server restarts, hangs, is full or forgets its scripts; clients end, stop or are interrupted."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import math
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import redis
from faults.harness import (
    TYPES,
    Connect,
    EventfulClock,
    ended,
    eventually,
    heard,
    look_in_hastier_moments,
    meanwhile,
    quiet,
    rescue_in_moments,
    run,
    seconds_each,
    tell,
    waiting,
)
from faults.serving import WORKER, Load, put_when_it_can
from faults.test_forks import in_child
from faults.test_interrupts import STRESS, WAITING, check_close, check_connect, check_stress
from redis_servers import RedisServer
from slow import slow_but

import tubes
import tubes.aio
from tubes.doctor import Doctor
from tubes.driver import Ref
from tubes.testing import FakeClock
from tubes.testing.suite import take
from tubes.waiting import room

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


@pytest.fixture
def server(own_redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that a test may stop; it answers a write only once that is on disk."""
    return own_redis_server(fsync="always")


@pytest.fixture
def url(server: RedisServer) -> str:
    """A queue there; a process is taken for dead after a second."""
    return f"{server.url}&dead_after=1"


def until_wait(server: RedisServer, count: int) -> None:
    """Wait until so many connections wait for a call."""
    eventually(lambda: server.command("INFO", "clients")["blocked_clients"] == count)


def blocked(server: RedisServer) -> set[str]:
    """The connections that wait for a call."""
    return {client["id"] for client in server.command("CLIENT LIST") if client["cmd"] == "blpop"}


def connections(server: RedisServer) -> set[str]:
    """All connections but the one that asks."""
    return {client["id"] for client in server.command("CLIENT LIST") if "client" not in client["cmd"]}


def pass_time(server: RedisServer, ms: int) -> None:
    """Move the last roll call into the past by so many ms."""
    for id, entry in server.command("HGETALL", "{tubes}:roll").items():
        beat, absences, called, every = entry.decode().split()
        server.command("HSET", "{tubes}:roll", id, f"{beat} {absences} {int(called) - ms} {every}")


def waits_of(server: RedisServer) -> int:
    """How many waits have ended, in vain or not."""
    return int(server.command("INFO", "commandstats").get("cmdstat_blpop", {"calls": 0})["calls"])


# The server ends, or forgets


def test_forgotten_scripts_and_cut_connections_lose_and_double_nothing(
    connect: Connect, server: RedisServer
) -> None:
    """SCRIPT FLUSH and CLIENT KILL, again and again, at any moment."""
    queues = [connect(), connect()]
    queues[0].create_tube("jobs", "utube")
    with Load(queues, producers=1) as load:
        for turn in range(24):
            time.sleep(0.02)
            server.command("SCRIPT FLUSH")
            if turn % 4 == 0:
                server.command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        before = len(load.acked)
        eventually(lambda: len(load.acked) > before + 20)
    load.settle(connect)


@pytest.mark.slow
def test_forgotten_scripts_alone_are_no_error(connect: Connect, server: RedisServer) -> None:
    """No caller notices: the scripts are sent again."""
    tube = connect(sweep=False).create_tube("jobs", "utubettl")
    for number in range(20):
        server.command("SCRIPT FLUSH")
        tube.put(number)
        server.command("SCRIPT FLUSH")
        task = take(tube)
        server.command("SCRIPT FLUSH")
        assert tube.ack(task).data == number


@contextmanager
def lost_end(server: RedisServer) -> Iterator[None]:
    """What is done in the block is lost: the server then starts again with the disk as it was before."""
    kept = {file: file.read_bytes() for file in server.folder.rglob("*.aof*") if file.is_file()}
    yield
    server.stop("immediate")
    for file in server.folder.rglob("*.aof*"):
        if file.is_file():
            file.unlink()
    for file, content in kept.items():
        file.write_bytes(content)
    server.start()


@pytest.mark.slow
def test_who_connected_in_a_moment_that_is_lost_is_not_taken_for_another(server: RedisServer) -> None:
    """Nor does it end another's session when it leaves."""
    with tubes.connect(server.url) as queue:
        queue.create_tube("jobs", "fifo").put("x")
        with lost_end(server):
            lost = tubes.connect(server.url)
        with tubes.connect(server.url) as worker:
            task = take(worker.tube.jobs)
            lost.close()
            assert queue.tube.jobs.take(timeout=0.5) is None
            assert worker.tube.jobs.ack(task).data == "x"


def test_a_tube_whose_creation_is_lost_is_not_taken_for_another(server: RedisServer) -> None:
    with tubes.connect(server.url) as queue, tubes.connect(server.url) as other:
        queue.create_tube("old", "fifo")
        with lost_end(server):
            emails = queue.create_tube("emails", "fifo")
        images = other.create_tube("images", "utubettl")
        with pytest.raises(tubes.NoSuchTube):
            emails.put("an email")
        images.put("an image")
        with pytest.raises(tubes.NoSuchTube):
            emails.take(timeout=0)
        assert [task.data for task in images.take_many(9)] == ["an image"]
        assert other.tubes() == ["old", "images"]
        assert queue.create_tube("emails", "fifo", if_not_exists=True).put("again").id == 1


def test_who_had_joined_a_session_begins_a_new_one_with_the_ttr_that_was_its_own(
    connect: Connect, server: RedisServer
) -> None:
    """As it was before: the other's is none of its business any more."""
    one, other = connect(sweep=False, session_ttr=7), connect(sweep=False, session_ttr=3)
    joined = one.identify(other.identify())
    store: Any = one.store
    server.command("HDEL", "{tubes}:connections", store._connection)  # as whoever takes it for dead does
    one.store.prove_life()
    assert one.identify() != joined
    assert server.command("HGET", "{tubes}:sessions", one.identify().hex) == b"7000 -"


def test_a_session_ttr_that_could_not_be_stored_is_not_set(connect: Connect, server: RedisServer) -> None:
    queue = connect(sweep=False, busy_timeout=0.1)
    server.stop()
    with pytest.raises(tubes.StoreUnavailable):
        queue.configure(session_ttr=9)
    assert queue.store.session_ttr_ms == 0
    server.start()


def test_a_session_that_is_begun_anew_has_the_ttr_that_was_set_last(
    connect: Connect, server: RedisServer
) -> None:
    queue = connect(sweep=False)
    queue.configure(session_ttr=60)
    lost = queue.identify()
    store: Any = queue.store
    store.ask(scripts.LEAVE, store._connection, store.clock.now_ms())  # as if taken for dead
    store.prove_life()
    assert queue.identify() != lost
    assert server.command("HGET", "{tubes}:sessions", queue.identify().hex) == b"60000 -"


def test_a_number_that_others_have_overwritten_is_damage_and_not_a_server_that_is_away(
    connect: Connect, server: RedisServer
) -> None:
    """Otherwise a waiting consumer would wait on for ever."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    server.command("HSET", f"{{tubes:{tube.record.id}}}:meta", "next", "torn")
    with pytest.raises(tubes.StoreError, match=r"damaged data.*not an integer") as caught:
        tube.put("x")
    assert caught.type is tubes.StoreError


def test_who_waits_for_long_waits_on_one_connection(
    connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.listener"), "FLOOR", 0.05)
    waiting(connect(sweep=False).create_tube("jobs", "fifo"), timeout=10)
    waited = set[str]()

    def has_waited_often() -> bool:
        waited.update(blocked(server))
        return waits_of(server) > 5

    eventually(has_waited_often)
    assert len(waited) == 1


def test_a_script_settles_few_tasks_and_leaves_the_server_to_others_between(redis_db: str) -> None:
    """A script that settled a thousand tasks, due at the same time, would hold up everybody else."""
    clock = FakeClock()
    with tubes.connect(redis_db, clock=clock, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifottl")
        tube.put_many(range(250), ttl=1)
        tube.put("last")
        clock.advance(1)
        assert len(queue.store.transact(lambda tx: tube.driver.expire(tx, 1000, now=clock.now_ms()))) == 100
        task = tube.take(timeout=0)
        assert task is not None and task.data == "last"
        assert tube.statistics()["tasks"]["total"] == 1


@pytest.mark.usefixtures("no_floor")
def test_who_is_called_again_and_again_waits_on_one_connection(connect: Connect, server: RedisServer) -> None:
    tube = connect(busy_timeout=90).create_tube("jobs", "fifo")
    other = connect().tube.jobs

    waited = set[str]()
    for number in range(5):
        thread, got = waiting(tube)
        until_wait(server, 1)
        waited |= blocked(server)
        other.put(number)
        ended(thread)
        assert [task and task.data for task in got] == [number]
    assert len(waited) == 1


@pytest.mark.usefixtures("no_floor")
def test_who_begins_to_wait_costs_nobody_else_a_connection(connect: Connect, server: RedisServer) -> None:
    queue = connect(busy_timeout=90)
    waiting(queue.create_tube("one", "fifo"))
    until_wait(server, 1)
    before = blocked(server)
    waiting(queue.create_tube("another", "fifo"))
    until_wait(server, 2)
    assert before < blocked(server)


@pytest.mark.parametrize("is_called", [True, False], ids=["who got a task", "who came in vain"])
def test_nobody_listens_any_more_for(connect: Connect, server: RedisServer, is_called: bool) -> None:
    queue = connect(busy_timeout=90)
    tube, listener = queue.create_tube("jobs", "fifo"), queue.store._hub.listener  # type: ignore[attr-defined]
    line = f"{{tubes:{tube.record.id}}}:waiting"
    thread, _ = waiting(tube, timeout=60 if is_called else 1)
    eventually(lambda: not thread.is_alive() or blocked(server))
    if is_called:
        connect().tube.jobs.put("x")
    ended(thread)
    eventually(lambda: not server.command("EXISTS", line))
    assert not any(ear.is_resting for ear in [*listener._ears.values()])


@pytest.mark.usefixtures("no_floor")
def test_who_is_called_for_nothing_says_again_that_he_waits(
    connect: Connect, server: RedisServer, url: str
) -> None:
    """Another process was faster. The next task that another process puts finds this consumer waiting."""
    tube = connect().create_tube("jobs", "fifo")
    thread, got = waiting(tube)

    def said() -> Any:
        return server.command("ZRANGE", f"{{tubes:{tube.record.id}}}:waiting", 0, -1, "WITHSCORES")

    eventually(said)
    before = said()
    server.command("LPUSH", f"{{tubes:{tube.record.id}}}:bell", 1)
    eventually(lambda: said() and said() != before)
    until_wait(server, 1)
    run("import sys, tubes\nwith tubes.connect(sys.argv[1]) as q: q.tube.jobs.put('came')", url)
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.usefixtures("no_floor")
@pytest.mark.parametrize("type", ["limfifottl", "redis"])
def test_room_that_comes_while_who_wants_it_is_about_to_say_so_is_seen(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    """Nobody is called, since nobody waits yet as far as the server knows."""
    listener = importlib.import_module("tubes.drivers.redis.listener").Listener
    host = "sqlite://" if type == "redis" else server.url
    more: dict[str, Any] = {"url": server.url} if type == "redis" else {}
    with tubes.connect(host, sweep=False) as queue, ThreadPoolExecutor() as others:
        tube = queue.create_tube("jobs", type, capacity=1, **more)
        given = [Ref(tube.put("first").id, None)]
        wait, now = listener._wait, queue.clock.now_ms()

        def waits_late(self: Any, ear: Any) -> None:
            tube.place.transact(lambda tx: tube.driver.delete(tx, given, owner=None, now=now))
            wait(self, ear)

        monkeypatch.setattr(listener, "_wait", waits_late)
        assert others.submit(tube.put, "second", timeout=60).result(timeout=30).data == "second"


@pytest.mark.usefixtures("no_floor")
def test_who_waits_on_a_connection_that_is_cut_waits_on_another(
    connect: Connect, server: RedisServer
) -> None:
    """At once, not only when an answer is overdue."""
    thread, got = waiting(connect(busy_timeout=90).create_tube("jobs", "fifo"))
    until_wait(server, 1)
    server.command("CLIENT", "KILL", "TYPE", "normal")
    until_wait(server, 1)
    connect().tube.jobs.put("came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.slow
def test_a_bell_that_is_no_list_is_not_waited_at_without_a_rest(
    connect: Connect, server: RedisServer
) -> None:
    """Others have overwritten it, so each wait is answered by an error at once."""

    tube = connect(sweep=False).create_tube("jobs", "fifo")
    server.command("SET", f"{{tubes:{tube.record.id}}}:bell", "torn")
    waiting(tube, timeout=3)
    eventually(lambda: waits_of(server))
    began, first = time.monotonic(), waits_of(server)
    eventually(lambda: waits_of(server) >= first + 3)
    assert time.monotonic() - began > 0.5


@pytest.mark.usefixtures("no_floor")
def test_a_call_for_who_was_called_already_goes_to_another_process(
    connect: Connect, server: RedisServer
) -> None:
    """The called consumer is still busy; a call for it would leave the one in the other process asleep."""
    busy, idle, other = (connect(sweep=False, busy_timeout=seconds) for seconds in (5, 6, 7))
    tube = other.create_tube("jobs", "fifo")

    def wait(queue: tubes.Queue) -> Any:
        return queue.store.waiters.enter(queue.tube.jobs.record.id)

    called = wait(busy)
    until_wait(server, 1)
    tube.put("for the one")
    eventually(lambda: called.is_set)
    until_wait(server, 1)
    assert tube.take(timeout=0) is not None
    waits = wait(idle)
    until_wait(server, 2)
    assert not waits.is_set
    tube.put("for the other")
    eventually(lambda: waits.is_set)


@pytest.mark.slow
def test_who_waits_again_after_a_wait_in_vain_is_called_at_once(
    connect: Connect, server: RedisServer, request: pytest.FixtureRequest
) -> None:
    """The last BLPOP ended when nobody waited, so a new one must begin at once."""
    tube = connect(busy_timeout=90).create_tube("jobs", "fifo")
    other = connect()  # it shares no connection and no waiters with the first: like another process
    assert tube.take(timeout=0.1) is None
    until_wait(server, 0)
    request.getfixturevalue("no_floor")
    thread, got = waiting(tube)
    until_wait(server, 1)
    other.tube.jobs.put("came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_empties_a_temporary_tube_and_no_other(
    connect: Connect, server: RedisServer, mode: Any
) -> None:
    """The end of its last client does not. A waiting consumer waits on, and all capacity is free again."""
    first = connect()
    first.create_tube("brief", "limfifottl", capacity=2, temporary=True).put("kept so far")
    first.close()
    queue, other = connect(), connect()
    kept = queue.create_tube("kept", "fifo")
    empty = queue.create_tube("empty", "utube", temporary=True)
    brief = queue.tube.brief
    kept.put("kept")
    brief.put("ready")
    held = brief.take(timeout=0)
    assert held is not None and held.data == "kept so far"
    thread, got = waiting(empty)
    server.stop(mode)
    server.start()

    def full() -> bool:
        try:
            return len(other.tube.brief.put_many(["a", "b"])) == 2
        except tubes.StoreUnavailable:
            return False

    eventually(full)
    with pytest.raises(tubes.TubeFull):
        brief.put("c")
    with pytest.raises(tubes.NotTaken):
        brief.ack(held)
    assert [task.data for task in brief.take_many(5, timeout=0)] == ["a", "b"]
    assert [task.data for task in kept.take_many(5, timeout=0)] == ["kept"]
    assert not got
    other.tube.empty.put("came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


def holding(tube: tubes.Tube, process: Callable[..., Any], url: str) -> Any:
    """A process that holds a task."""
    tube.put("held")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert heard(worker) == "held"
    return worker


@pytest.mark.slow
def test_nobody_dies_of_a_server_that_was_away(
    connect: Connect, url: str, server: RedisServer, process: Callable[..., Any]
) -> None:
    """Even for longer than ``dead_after``: nobody could beat, but nobody loses what they hold."""
    tube = connect().create_tube("jobs", "fifo")
    worker = holding(tube, process, url)
    with pytest.raises(tubes.StoreUnavailable):
        server.stop("fast")
        tube.take(timeout=0)
    gone = time.monotonic()
    while time.monotonic() < gone + 1.5:  # calls that fail learn nothing of the others
        with pytest.raises(tubes.StoreUnavailable):
            tube.take(timeout=0)
        time.sleep(0.02)
    server.start()
    assert tube.take(timeout=0.7) is None
    tell(worker, "ack")
    assert heard(worker) == "-"


@pytest.mark.slow
def test_nobody_dies_of_a_server_that_refuses_to_write(
    connect: Connect, url: str, server: RedisServer, process: Callable[..., Any]
) -> None:
    """Even for longer than ``dead_after``: it says so, and answers looks; a waiting consumer waits on."""
    tube = connect().create_tube("jobs", "fifo")
    worker = holding(tube, process, url)
    thread, got = waiting(tube)
    server.command("CONFIG SET", "min-replicas-to-write", 1)
    refused = time.monotonic()
    while time.monotonic() < refused + 1.5:
        with pytest.raises(tubes.StoreUnavailable, match="NOREPLICAS"):
            tube.put("x")
        with pytest.raises(tubes.StoreUnavailable, match="NOREPLICAS"):
            tubes.connect(url)
        assert tube.statistics()["tasks"]["taken"] == 1
        time.sleep(0.02)  # real time: that of beats
    tell(worker, "ack")
    assert heard(worker) == "StoreUnavailable"
    server.command("CONFIG SET", "min-replicas-to-write", 0)
    assert tube.take(timeout=0.7) is None
    tell(worker, "ack")
    assert heard(worker) == "-"
    tube.put("came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.slow
def test_what_a_restored_server_does_not_know_is_refused(connect: Connect, server: RedisServer) -> None:
    """Sessions, tubes and takes since the backup are. What was already taken by then is rescued."""
    early = connect()
    tube = early.create_tube("jobs", "fifo")
    tube.put_many(["taken", "free"])
    assert [task.data for task in tube.take_many(1, timeout=0)] == ["taken"]
    with lost_end(server):
        late = connect()
        made = late.create_tube("late", "fifo")
        held = take(late.tube.jobs)
        early.close()
    with pytest.raises(tubes.NoSuchTube):
        put_when_it_can(made, "x")
    with pytest.raises(tubes.LeaseLost):
        late.tube.jobs.ack(held)
    assert [task and task.data for task in (late.tube.jobs.take(timeout=5) for _ in "ab")] == [
        "free",
        "taken",
    ]


# Clients end, stop, fork, or are interrupted


def test_who_was_taken_for_dead_and_does_not_know_it_takes_in_a_new_session(connect: Connect) -> None:
    """The take itself finds it out, before any beat does."""
    queue, other = connect(), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many(["first", "second"])
    lost = take(other.tube.jobs)
    store: Any = other.store
    session = store.session
    store._hub.listener.remove_beat(store._beat)
    task = tube.take_many(2, timeout=0)[0]
    eventually(lambda: tube.statistics()["tasks"]["ready"])  # what it held
    tube.release(task)
    again = other.tube.jobs.take(timeout=0)
    assert again is not None and again.owner is not None
    assert again.owner.hex == store.session != session
    with pytest.raises(tubes.LeaseLost):
        other.tube.jobs.ack(lost)
    queue.sweep()
    assert other.tube.jobs.ack(again).state is tubes.State.DONE


def test_who_was_taken_for_dead_hears_of_it_with_a_sweep_too(connect: Connect) -> None:
    store: Any = connect().store
    session = store.session
    store._hub.listener.remove_beat(store._beat)
    store._leave()
    eventually(lambda: store.session != session)


def test_who_is_there_but_for_a_moment_rescues_the_dead(
    server: RedisServer, process: Callable[..., Any]
) -> None:
    """When no worker lived as long as ``dead_after``, none used to notice the silence of the dead."""
    patient = f"{server.url}&dead_after=60"

    rescue_in_moments(
        lambda: tubes.connect(patient, sweep=False),
        process,
        patient,
        lambda store: store.ask(scripts.BEAT, store._connection),
        lambda: pass_time(server, 20_001),
    )
    assert server.command("HLEN", "{tubes}:connections") == 0


def test_who_is_hastier_by_its_url_takes_nobody_for_dead(server: RedisServer) -> None:
    look_in_hastier_moments(
        lambda dead_after: tubes.connect(f"{server.url}&dead_after={dead_after}", sweep=False),
        partial(pass_time, server),
    )


def test_a_connection_whose_id_is_no_text_is_in_nobodys_way(server: RedisServer) -> None:
    """From the fourth roll call on it is among the dead, which must not keep others from connecting."""
    patient = f"{server.url}&dead_after=60"
    server.command("HSET", "{tubes}:connections", b"\xff", "session 0 label")
    for _ in range(5):
        tubes.connect(patient, sweep=False).close()
        pass_time(server, 20_001)


def test_a_beat_says_that_its_session_is_over_or_its_connection_taken_for_dead(
    connect: Connect, server: RedisServer
) -> None:
    store: Any = connect(sweep=False).store
    session, connection = store.session, store._connection  # the store goes on with others by itself
    beat = partial(store.ask, scripts.BEAT, connection)
    assert beat() == 1
    server.command("HSET", "{tubes}:sessions", session, "0 1")
    assert beat() == 0
    server.command("HSET", "{tubes}:sessions", session, "0 -")
    assert beat() == 1
    server.command("HDEL", "{tubes}:connections", connection)
    assert beat() == 0


def test_a_session_whose_last_process_died_is_joined_by_nobody(connect: Connect, server: RedisServer) -> None:
    """Even if nobody has noticed yet."""
    dead, queue = connect(sweep=False), connect(sweep=False)
    session = dead.identify()
    dead.store._close()  # type: ignore[attr-defined]
    server.command("HDEL", "{tubes}:connections", dead.store._connection)  # type: ignore[attr-defined]
    with pytest.raises(tubes.NoSuchSession):
        queue.identify(session)


def test_who_was_taken_for_dead_and_does_not_know_it_joins_another_session(connect: Connect) -> None:
    queue, other = connect(sweep=False), connect(sweep=False)
    store: Any = queue.store
    other.store.ask(scripts.LEAVE, store._connection, store.clock.now_ms())  # type: ignore[attr-defined]
    assert queue.identify(other.identify()) == other.identify()


def test_a_damaged_tube_is_not_taken_for_one_that_was_dropped(connect: Connect, server: RedisServer) -> None:
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    server.command("SET", f"{{tubes:{tube.record.id}}}:states", "damaged")
    with pytest.raises(tubes.StoreError, match="WRONGTYPE"):
        tube.peek(7)


def test_a_step_of_several_scripts_leaves_its_tube_to_the_next(connect: Connect) -> None:
    """It had the tube to itself, since callbacks are told of its changes."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")

    def kick_twice() -> None:
        def step(tx: Any) -> Any:
            return [tube.driver.kick(tx, 1, now=0) for _ in range(2)]

        queue.store.transact(step, lambda changes: None)

    kick_twice()
    with ThreadPoolExecutor() as others:
        others.submit(kick_twice).result(timeout=30)


def test_who_joins_a_session_while_another_thread_proves_life_stays_in_it(connect: Connect) -> None:
    session = connect(sweep=False).identify()
    for _ in range(20):
        joiner = connect(sweep=False)
        with meanwhile(joiner.store.prove_life):
            joined = joiner.identify(session)
        assert joined == joiner.identify() == session


def test_who_is_let_in_asks_for_no_other_session(server: RedisServer) -> None:
    """Thousands of processes that start at once, and each read all, would do nothing else."""

    def reads_of_all() -> int:
        return int(server.command("INFO", "commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])

    with tubes.connect(f"{server.url}&dead_after=3600", sweep=False) as queue:  # no beat reads them all
        tube: Any = queue.create_tube("jobs", "fifo")
        store: Any = queue.store
        before = reads_of_all()
        store._admit(tube.driver)
        assert store.look_at(tube.record.id, "sessions", "SMEMBERS") == [store.session.encode()]
        assert reads_of_all() == before


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["forgotten", "not forgotten yet"])
def test_who_dies_between_being_let_in_and_looking_strands_nothing(
    connect: Connect, is_forgotten: bool
) -> None:
    """Another thread takes in the session that is over, just before that is taken off the list again.

    It takes more tasks than one step gives back.
    """
    queue, other = connect(sweep=False), connect(sweep=False)
    tube: Any = queue.create_tube("jobs", "fifo")
    tube.put_many(range(1001))
    store: Any = queue.store
    elsewhere: Any = other.store
    over_at, seen = store._over_at, list[float]()

    def dies_after_the_first_look(session: str) -> float:
        if seen:
            given = (tube.driver.flags, 0, 0, session, 1001, 1000)
            store.run(tube.driver, scripts.TAKE, given, is_repeatable=False)
        seen.append(over_at(session))
        if len(seen) == 1:
            elsewhere.ask(scripts.LEAVE, store._connection, store.clock.now_ms())
            for ended in elsewhere.ended_sessions(store.clock.now_ms(), thoroughly=True):
                other.tube.jobs._release_some(ended)
                if is_forgotten:
                    elsewhere.forget_sessions([ended])
        return seen[-1]

    store._over_at = dies_after_the_first_look
    store._admit(tube.driver)
    assert seen[0] == math.inf > seen[1]
    assert tube.statistics()["tasks"]["taken"] == 0
    task = other.tube.jobs.take(timeout=0)
    assert task is not None and task.attempts == 2


def test_a_connection_that_cannot_be_read_keeps_no_session_alive(
    connect: Connect, server: RedisServer
) -> None:
    """Its beat cannot be read either; otherwise the session's tasks would stay taken for ever."""
    queue, other = connect(sweep=False), connect(sweep=False)
    queue.create_tube("jobs", "fifo").put("x")
    assert other.tube.jobs.take(timeout=0) is not None
    server.command("HSET", "{tubes}:connections", other.store._connection, other.store.session)  # type: ignore[attr-defined]
    assert queue.sweep() == 1
    assert not queue.store.deaths_suspected(thoroughly=True)


def test_a_session_that_lives_keeps_what_it_holds_while_a_thread_is_let_in(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between being let in and looking, another thread takes, and a third one joins another session."""
    other, queue = connect(sweep=False).identify(), connect(sweep=False, session_ttr=60)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    store: Any = queue.store
    over_at, held, looks = store._over_at, list[tubes.Task | None](), list[str]()

    def looks_late(session: str) -> float:
        if threading.current_thread() is threading.main_thread():
            looks.append(session)
            if len(looks) == 2:
                with ThreadPoolExecutor() as others:
                    held.append(others.submit(tube.take, timeout=0).result())
                    others.submit(queue.identify, other).result()
        return float(over_at(session))

    monkeypatch.setattr(store, "_over_at", looks_late)
    assert tube.take(timeout=0) is None
    assert held[0] is not None
    assert tube.tasks("t") == held


def test_a_child_forked_while_another_thread_connects_begins_anew(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nothing would show that it lives: what its parent had begun has no listener in the child."""
    answers: list[Any] = []

    def child() -> list[str]:
        with tubes.connect(url, sweep=False):
            return [thread.name for thread in threading.enumerate()]

    def gethostname() -> str:  # asked when a session begins
        if not answers:
            answers.append(None)
            answers[0] = in_child(child)
        return ""

    monkeypatch.setattr(socket, "gethostname", gethostname)
    with ThreadPoolExecutor() as others:
        others.submit(lambda: tubes.connect(url, sweep=False).close()).result()
    assert "tubes-listener" in answers[0]
    with importlib.import_module("tubes.drivers.redis.hub").Hub._lock:
        assert "tubes-listener" in in_child(child)


def test_a_forked_child_works_in_a_session_of_its_own(connect: Connect) -> None:
    """All its threads do, even when they begin at once and its parent waits. The parent keeps what it had."""
    queue = connect()
    tube = queue.create_tube("jobs", "utube")
    tube.put_many(range(3), utube="a")
    mine = take(tube)
    thread, got = waiting(tube)

    def child() -> list[Any]:
        start = threading.Barrier(8)
        sessions: list[str] = []

        def work(number: int) -> None:
            start.wait()
            tube.put("theirs", utube=number)
            if number == 0:
                tube.put("the parent's", utube="b")
            task = tube.take(timeout=10)
            assert task is not None
            tube.ack(task)
            sessions.append(str(task.owner))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return [len(sessions), len(set(sessions)), str(queue.identify()) in sessions]

    assert in_child(child) == [8, 1, True]
    tube.ack(mine)
    ended(thread)
    assert got[0] is not None
    assert tube.ack(got[0]).state is tubes.State.DONE


def test_a_forked_child_listens_as_its_parent_did(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the capacity, so it is told at once of room that was there before it listened."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.listener"), "FLOOR", 60)
    tube = connect(sweep=False).create_tube("jobs", "limfifottl", capacity=1)

    def child() -> bool:
        tube.statistics()  # its store is opened
        return bool(tube._store.waiters.enter(room(tube.record.id)).wait(10))

    assert in_child(child) is True


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once_by_all_threads_of_a_child(
    connect: Connect, server: RedisServer
) -> None:
    tube = connect(busy_timeout=0.1, sweep=False).create_tube("jobs", "fifo")

    def put() -> None:
        with pytest.raises(tubes.StoreUnavailable):
            tube.put("x")

    with server.hung():
        took: list[float] = in_child(lambda: seconds_each(4, put))
    assert len(took) == 4 and max(took) < 2 * min(took), took


@pytest.mark.parametrize("who", ["another thread", "a signal's handler"])
def test_a_queue_that_is_closed_while_it_begins_anew_in_a_child_leaves_nothing_open(
    connect: Connect, who: str
) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    begin = store._begin_session

    def child() -> list[object]:
        # from Python 3.13 on, a thread that was made before the fork cannot be started
        closing = threading.Thread(target=queue.close)

        def begins() -> None:
            begin()
            if who == "another thread":
                closing.start()
                eventually(lambda: store._is_closed)
            else:
                signal.raise_signal(signal.SIGUSR1)

        store._begin_session = begins
        signal.signal(signal.SIGUSR1, lambda *_: queue.close())
        try:
            said = str(tube.tasks("r"))
        except tubes.StoreUnavailable as error:
            said = str(error)
        if who == "another thread":
            closing.join()
        return [said, [thread.name for thread in threading.enumerate()]]

    assert in_child(child) == ["this queue is closed", ["MainThread"]]


def test_a_child_forgets_its_parent_s_connections_once(connect: Connect) -> None:
    """One of the program's hooks may use a queue before another queue hears of the fork."""
    queue, late = connect(sweep=False), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")

    def child() -> bool:
        tube.put("x")
        late.store.forked()
        for each in (queue, late):
            each.close()
        return True

    assert in_child(child) is True


def test_an_interrupted_connect_leaves_no_answer_to_another_call(
    connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes after a command and before its answer, and two queues share the connection."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put_many("abc")
    wire: Any = importlib.import_module("tubes.drivers.redis.wire").Wire
    send, pid = wire._send, server.pid
    assert pid is not None

    def sends(self: Any, commands: bytes, **options: Any) -> None:
        if scripts.BEGIN_SESSION.packed in commands:
            os.kill(pid, signal.SIGSTOP)
            send(self, commands, **options)
            signal.raise_signal(signal.SIGINT)
        send(self, commands, **options)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "_send", sends)
        with pytest.raises(KeyboardInterrupt):
            connect(sweep=False)
    going_on = threading.Timer(0.2, lambda: os.kill(pid, signal.SIGCONT))
    going_on.start()
    assert tube.put("d").id == 4
    going_on.join()
    assert [task.data for task in tube.tasks("r")] == ["a", "b", "c", "d"]


def test_a_connect_that_a_signal_cuts_short_leaves_nothing_open(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_connect(connect, 2, monkeypatch)


def test_no_interrupt_strands_a_task(url: str) -> None:
    """Signals rain on a main thread that takes and acks: it holds only what it was given, and goes on."""
    code = STRESS.replace('"sqlite:///" + path', "path")
    check_stress(run(code, url, "waiting", "normal", 150, 20), 150)


@pytest.mark.parametrize(("name", "status"), [("INT", 2), ("TERM", 3)])
def test_a_signal_ends_a_waiting_take_at_once(
    url: str, process: Callable[..., Any], name: str, status: int
) -> None:
    """The handler runs in the wait, not after it; the process goes on, or ends in order."""
    worker = process(WAITING.replace('"sqlite:///" + sys.argv[1]', "sys.argv[1]"), url, name)
    assert heard(worker) == "waiting"
    worker.send_signal(getattr(signal, f"SIG{name}"))
    assert worker.wait(20) == status  # nothing else would end it
    if name == "INT":
        assert heard(worker) == "after"


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_handler_may_close_a_queue_while_another_is_connected(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    hub: Any = importlib.import_module("tubes.drivers.redis.hub").Hub
    other, before = tubes.connect(server.url), signal.getsignal(signal.SIGUSR1)
    url = f"{server.url}&client_name=x" if is_first else server.url

    class Hubs(dict[Any, Any]):
        def get(self, *given: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return super().get(*given)

    monkeypatch.setattr(hub, "_all", Hubs(hub._all))
    signal.signal(signal.SIGUSR1, lambda *_: other.close())
    try:
        with tubes.connect(url) as queue:
            assert other.is_closed
            assert queue.create_tube("jobs", "fifo").put("x").id == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("where", ["__setitem__", "__delitem__"])
def test_a_handler_may_close_a_queue_while_another_begins_or_ends(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """They share the list of queues that beat, and the lock by which queues find each other's connections."""
    other, before = tubes.connect(server.url), signal.getsignal(signal.SIGUSR1)
    store: Any = other.store

    class Interrupted(dict[Any, Any]):
        def __setitem__(self, *given: Any) -> None:
            signal.raise_signal(signal.SIGUSR1)
            super().__setitem__(*given)

        def __delitem__(self, *given: Any) -> None:
            signal.raise_signal(signal.SIGUSR1)
            super().__delitem__(*given)

    signal.signal(signal.SIGUSR1, lambda *_: other.close())
    try:
        if where == "__setitem__":
            monkeypatch.setattr(store._hub.listener, "_beats", Interrupted(store._hub.listener._beats))
            tubes.connect(server.url).close()
        else:
            with tubes.connect(f"{server.url}&client_name=x", sweep=False) as queue:
                last: Any = queue.store
                monkeypatch.setattr(type(last._hub), "_all", Interrupted(last._hub._all))
                last.leave()
                last.close()
        assert other.is_closed
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.slow
def test_a_close_that_a_signal_cuts_short_keeps_nothing(connect: Connect) -> None:
    """What it held is ready at once: others need not find out first that it is dead."""
    check_close(connect, step=20)


# The server refuses, or does not answer


def test_a_full_memory_refuses_puts_and_nothing_else(
    connect: Connect, url: str, server: RedisServer, process: Callable[..., Any], caplog: Any
) -> None:
    """Even for longer than ``dead_after``. Stored tasks can be taken and finished, which makes room."""
    queue = connect()
    tube = queue.create_tube("jobs", "utubettl", ttr=60)
    tube.put_many([f"task {number}" for number in range(20)], utube="a")
    held = tube.take(timeout=0)
    tube.put("theirs", utube="b")
    queue.create_tube("other", "fifo").put("x")
    worker = process(WORKER, url)
    tell(worker, "take")
    assert held is not None and heard(worker) == "theirs"
    server.command("CONFIG SET", "maxmemory", 1)
    for put in (tube.put, lambda data: tube.put_many([data, data])):
        with pytest.raises(tubes.StoreUnavailable, match="maxmemory") as caught:
            put("no room")
        refused = caught.value.__cause__
        assert refused and isinstance(refused.__cause__, redis.ResponseError)  # what the server said is kept
    with pytest.raises(tubes.StoreUnavailable, match="maxmemory"):
        queue.create_tube("more", "fifo")
    late = connect(session_ttr=60)
    assert tube.touch(held, 60)
    time.sleep(1.5)
    assert tube.release(held)
    for data in ("task 0", "task 1"):
        with connect() as other:
            task = other.tube.jobs.take(timeout=1)
            assert task is not None and task.data == data
            other.tube.jobs.ack(task)
    task = late.tube.jobs.take(timeout=0)
    assert task is not None and task.data == "task 2"
    tube.bury(task.id)
    assert tube.kick() == 1
    assert late.identify(queue.identify()) == queue.identify()
    queue.tube.other.drop()
    tell(worker, "ack")
    assert heard(worker) == "-"  # its session lived on
    statistics = tube.statistics()
    assert statistics["tasks"]["total"] == 18 and statistics["calls"]["ack"] >= 2
    server.command("CONFIG SET", "maxmemory", 0)
    assert tube.put("room again")
    assert tube.truncate() == 19
    assert len(caplog.records) < 10


@pytest.mark.parametrize("type", TYPES)
def test_a_full_memory_is_emptied_by_taking(connect: Connect, server: RedisServer, type: str) -> None:
    """Whatever the type of the tube."""
    tube = connect(sweep=False).create_tube("jobs", type)
    tube.put_many([1, 2, 3])
    server.command("CONFIG SET", "maxmemory", 1)
    with pytest.raises(tubes.StoreUnavailable, match="maxmemory"):
        tube.put("no room")
    task = take(tube)
    assert [done.data for done in tube.ack_many([task])] == [1]
    last = tube.take(timeout=0, ack=take(tube))
    assert last is not None and tube.release(last).data == 3
    assert tube.take(timeout=0)
    assert tube.release_all() == 1
    assert tube.delete(last.id)
    assert tube.statistics()["tasks"]["total"] == 0


def test_a_full_memory_refuses_no_script_that_adds_a_little(
    connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers say that they wait, counts are stored, a lonely session ends, a temporary tube is emptied.

    And what is damaged is repaired.
    """
    for module in ("examining", "redis.examiner"):
        monkeypatch.setattr(importlib.import_module(f"tubes.drivers.{module}"), "PATIENCE", 0)
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifottl")
    store: Any = queue.store
    lonely, lost = "f" * 32, "e" * 32
    server.command("HSET", "{tubes}:sessions", lonely, "0 -")
    server.command("HSET", "{tubes}:connections", "9", f"{lost} 0 here/1")
    server.command("HSET", "{tubes}:last", "tube", "torn")
    tube.bury(tube.put("x"))
    server.command("CONFIG SET", "maxmemory", 1)
    assert store._run_on(tube.record.id, scripts.WAIT, "me", 1000, "t", 0) == 0
    assert tube.kick() == 1
    assert server.command("LLEN", f"{{tubes:{tube.record.id}}}:bell") == 1  # which calls a waiting consumer
    assert store._run_on(tube.record.id, scripts.ADD_CALLS, "put", 5) == 1
    assert store.ask(scripts.END_SESSIONS, store.clock.now_ms()) == [lonely.encode()]
    assert store.ask(scripts.BEAT, store._connection) == 1
    server.command("HDEL", f"{{tubes:{tube.record.id}}}:meta", "next")
    assert [finding.kind.value for finding in Doctor(queue).repair()] == ["session", "count", "count"]
    assert [*Doctor(queue).examine()] == []
    queue.configure(session_ttr=5)
    assert [store._run_on(tube.record.id, scripts.EMPTY, run) for run in ("one", "one", "other")] == [0, 0, 1]
    with pytest.raises(tubes.StoreUnavailable, match="maxmemory"):
        tube.put("no room")


@pytest.mark.parametrize(
    "durability", ["normal", pytest.param("full", marks=pytest.mark.redis(since="Redis 7.2"))]
)
def test_a_payload_beyond_what_redis_takes_is_an_error(
    connect: Connect, server: RedisServer, durability: str
) -> None:
    """The server says so and hangs up during the payload; the whole put fails, and is not tried again."""
    server.command("CONFIG SET", "proto-max-bulk-len", 1 << 20)
    tube = connect(durability=durability).create_tube("jobs", "fifo")
    for large in (b"x" * (1 << 20 | 1), "x" * 8_000_000):
        with pytest.raises(tubes.StoreError, match=r"larger than Redis at .* accepts"):
            tube.put_many(["small", large])
    tube.put(b"x" * (1 << 20))
    tube.put("small")
    assert [len(task.data) for task in tube.tasks("r")] == [1 << 20, 5]


@pytest.mark.redis(before="Redis 7")
def test_a_batch_beyond_what_redis_takes_is_told_from_a_payload(
    connect: Connect, server: RedisServer
) -> None:
    """Redis 6.2 takes a million words in a command; a put needs two of them for each task."""
    tube = connect().create_tube("jobs", "fifo")
    with pytest.raises(tubes.StoreError, match=r"the batch is larger than Redis at .* accepts"):
        tube.put_many([0] * 530_000)
    assert tube.put("x").id == 1


def test_a_server_that_only_reads_says_so_and_is_used_again_afterwards(
    connect: Connect, server: RedisServer, caplog: Any
) -> None:
    """Such as one that has become a replica. The log is not flooded meanwhile."""
    queue = connect(busy_timeout=0.3)
    tube = queue.create_tube("jobs", "fifo")
    thread, got = waiting(tube)
    server.command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(tubes.StoreUnavailable, match=r"(?i)read.?only"):
        tube.put("x")
    time.sleep(1)
    assert not got and len(caplog.records) < 10, caplog.text
    server.command("REPLICAOF", "NO", "ONE")
    tube.put("came")
    ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.parametrize("serves_stale", ["yes", "no"])
def test_a_connection_to_a_server_that_only_reads_is_used_no_more(
    connect: Connect, server: RedisServer, serves_stale: str
) -> None:
    """By now the name of its host may lead to another server, which is the master."""
    tube = connect(sweep=False, busy_timeout=0.3).create_tube("jobs", "fifo")
    before = connections(server)
    server.command("CONFIG SET", "replica-serve-stale-data", serves_stale)
    server.command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(tubes.StoreUnavailable, match=r"(?i)read.?only|MASTER is down"):
        tube.put("x")
    eventually(lambda: not before & connections(server))
    server.command("REPLICAOF", "NO", "ONE")
    assert tube.put("x").id == 1


@pytest.mark.parametrize("serves_stale", ["yes", "no"])
def test_a_call_that_meets_a_server_that_only_reads_waits_for_the_one_that_takes_over(
    connect: Connect, server: RedisServer, serves_stale: str
) -> None:
    """Nothing of it was done, so it is done when the name of its host leads to the master again, here itself."""
    tube = connect(sweep=False, busy_timeout=60).create_tube("jobs", "fifo")
    server.command("CONFIG SET", "replica-serve-stale-data", serves_stale)
    before = connections(server)
    server.command("REPLICAOF", "127.0.0.1", 1)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(tube.put, "x")
        eventually(lambda: not before & connections(server))
        server.command("REPLICAOF", "NO", "ONE")
        assert put.result(60).id == 1
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_a_connection_in_use_while_its_server_begins_only_to_read_is_used_no_more(
    server: RedisServer,
) -> None:
    """Another thread is in the middle of a look there, which is refused nothing."""
    url = f"{server.url}&dead_after=3600"
    with quiet(partial(tubes.connect, url, busy_timeout=0.3)) as queue:
        store: Any = queue.store
        tube = queue.create_tube("jobs", "fifo")
        is_asked, is_over = threading.Event(), threading.Event()

        def look(wire: Any) -> Any:
            is_asked.set()
            return is_over.wait(60) and wire.command("PING")

        thread = threading.Thread(target=lambda: store._hub.nodes.call(None, look, is_repeatable=True))
        thread.start()
        assert is_asked.wait(60)
        before = connections(server)
        server.command("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(tubes.StoreUnavailable, match=r"(?i)read.?only"):
            tube.put("x")
        assert len(before & connections(server)) == 1
        is_over.set()
        ended(thread)
        eventually(lambda: not before & connections(server))
        server.command("REPLICAOF", "NO", "ONE")
        assert tube.put("x").id == 1


@pytest.mark.parametrize("type", slow_but(["fifo", "utubettl"], TYPES))
def test_a_server_that_only_reads_denies_no_lease(connect: Connect, server: RedisServer, type: str) -> None:
    """It may not know yet of a task that was taken at its master, by another connection of the same process."""
    tube = connect(sweep=False, busy_timeout=0.3).create_tube("jobs", type)
    tube.put("x")
    task = take(tube)
    tube.ack(task)  # it knows as little of this task as of one that it will hear of
    denying: list[Callable[[], object]] = [
        partial(tube.ack, task),
        partial(tube.ack, task.id),
        partial(tube.take, timeout=0, ack=task),
        partial(tube.release, task),
        partial(tube.bury, task),
        partial(tube.delete, task.id),
    ]
    if tube.features.timed:
        denying.append(partial(tube.touch, task, 1))
    for deny in denying:
        with pytest.raises((tubes.NotTaken, tubes.TaskNotFound)):
            deny()
    server.command("REPLICAOF", "127.0.0.1", 1)
    for deny in denying:
        with pytest.raises(tubes.StoreUnavailable, match=r"(?i)read.?only"):
            deny()


def test_a_server_that_only_reads_calls_no_tube_full(connect: Connect, server: RedisServer) -> None:
    """Somebody may have made room at its master since."""
    tube = connect(sweep=False, busy_timeout=0.3).create_tube("jobs", "limfifottl", capacity=1)
    tube.put("x")
    with pytest.raises(tubes.TubeFull):
        tube.put("y", timeout=0)
    server.command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(tubes.StoreUnavailable, match=r"(?i)read.?only"):
        tube.put("y", timeout=0)


def test_who_waits_looks_no_more_at_a_server_that_only_reads(server: RedisServer) -> None:
    """It refuses no look, so it would be asked until it refuses the next beat."""
    with quiet(partial(tubes.connect, f"{server.url}&dead_after=60")) as queue:
        tube = queue.create_tube("jobs", "fifo")
        thread, got = waiting(tube)
        until_wait(server, 1)
        before = connections(server)
        server.command("REPLICAOF", "127.0.0.1", 1)
        eventually(lambda: not before & connections(server))
        server.command("REPLICAOF", "NO", "ONE")
        tube.put("came")
        ended(thread)
    assert [task and task.data for task in got] == ["came"]


@pytest.mark.slow
def test_a_server_that_hangs_is_not_waited_for_for_ever(connect: Connect, server: RedisServer) -> None:
    """After busy_timeout and a second, a put's outcome is unknown and a look fails; later all goes on."""
    queue = connect(busy_timeout=0.2, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    thread, got = waiting(connect(busy_timeout=0.3, sweep=False).tube.jobs)
    with server.hung():
        began = time.monotonic()
        with pytest.raises(tubes.OutcomeUnknown, match="connection died"):
            tube.put("maybe")
        put_at = time.monotonic()
        with pytest.raises(tubes.StoreUnavailable):
            tube.peek(1)
        assert put_at - began < 5 and time.monotonic() - put_at < 5
        assert not got
    put_when_it_can(tube, "surely")
    ended(thread)
    assert got[0] is not None and got[0].data in ("maybe", "surely")


def test_a_server_that_is_away_is_asked_for_no_more_than_the_first_thing_at_a_close(
    server: RedisServer,
) -> None:
    """Each further thing would be waited for as long: longer than most processes are given to end."""
    queue = tubes.connect(f"{server.url}&dead_after=3600", sweep=False)  # no beat gets in the way
    queue.create_tube("jobs", "fifo")
    server.stop()
    came = 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{server.folder}/redis.sock")
        listener.listen()

        def cut() -> None:
            nonlocal came
            with suppress(OSError):
                while True:
                    asker, _ = listener.accept()
                    came += 1
                    asker.close()

        threading.Thread(target=cut, daemon=True).start()
        queue.close()
        assert came == importlib.import_module("tubes.drivers.retries").MOST_LOSSES
        listener.shutdown(socket.SHUT_RDWR)


def test_a_server_that_hangs_is_not_waited_for_by_who_wants_another(connect: Connect) -> None:
    failed: list[BaseException] = []

    def hang() -> None:
        try:
            tubes.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        except tubes.StoreUnavailable as error:
            failed.append(error)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=hang)
        thread.start()
        client, _ = silent.accept()
        connect().close()
        assert not failed
        client.close()
    ended(thread)
    assert failed


@pytest.mark.slow
def test_a_server_is_given_more_time_for_a_large_batch(connect: Connect, server: RedisServer) -> None:
    tube = connect(busy_timeout=0.1).create_tube("jobs", "fifo")  # an answer is waited for a second longer
    with redis.Redis.from_url(server.url) as client:
        client.client_pause(1300, all=False)
        assert len(tube.put_many([*range(3000)])) == 3000
        client.client_pause(20_000, all=False)
        with pytest.raises(tubes.OutcomeUnknown):
            tube.put("x")
        client.client_unpause()


@pytest.mark.slow
def test_a_server_is_given_more_time_for_a_large_answer(connect: Connect, server: RedisServer) -> None:
    """To a take or a list, by how much was asked for."""
    tube = connect(busy_timeout=0.1, sweep=False).create_tube("jobs", "fifo")
    tube.put_many([*range(10)])
    with redis.Redis.from_url(server.url) as client:

        def paused(call: Callable[[], Any]) -> Any:
            client.client_pause(1300, all=True)
            return call()

        assert len(paused(lambda: tube.take_many(3000, timeout=0))) == 10
        assert len(paused(lambda: tube.tasks("t", limit=2**40))) == 10


@pytest.mark.slow
def test_what_follows_a_large_batch_is_given_no_more_time_than_otherwise(
    connect: Connect, server: RedisServer
) -> None:
    queue = connect(busy_timeout=0.1, sweep=False)
    tube = queue.create_tube("jobs", "fifottl", ttr=60)
    store: Any = queue.store
    tube.put("x")
    assert len(tube.take_many(20_000, timeout=0)) == 1
    with redis.Redis.from_url(server.url) as client:
        client.client_pause(4000, all=True)
        with pytest.raises(tubes.StoreUnavailable):
            store.next_dues(None, [tube.record])
        client.client_unpause()


@pytest.mark.slow
@pytest.mark.parametrize("is_dropped_by", ["itself", "another"])
def test_tubes_that_come_and_go_leave_nothing_in_a_process(connect: Connect, is_dropped_by: str) -> None:
    listener: Any = importlib.import_module("tubes.drivers.redis.listener")
    queue, other = connect(sweep=False), connect(sweep=False)

    def come_and_go() -> int:
        tube = queue.create_tube("jobs", "utubettl", temporary=True, on_task_change=lambda task, event: None)
        tube.put("x")
        tube.ack(tube.take(timeout=1) or 0)
        (queue if is_dropped_by == "itself" else other).drop_tube("jobs")
        del tube
        queue.sweep()
        other.sweep()
        gc.collect()
        return len(listener.Listener.drivers)

    for _ in range(2):  # what earlier tests left is not always freed by one collection
        come_and_go()
    before = come_and_go()
    assert [come_and_go() for _ in range(3)] == [before] * 3


def test_a_queue_that_was_closed_beside_another_is_forgotten(connect: Connect, url: str) -> None:
    """Even though the thread that beat for it goes on for the other."""
    connect(sweep=False)
    queue = tubes.connect(url, sweep=False)
    store = weakref.ref(queue.store)
    queue.close()
    del queue
    gc.collect()
    assert store() is None


# Callbacks


@pytest.mark.slow
def test_callbacks_of_a_tube_come_in_the_order_of_its_commits(connect: Connect) -> None:
    """Whichever thread commits."""
    tube = connect().create_tube("jobs", "fifo")
    told: list[int] = []
    tube.on_task_change(lambda task, event: told.append(task.id))
    with ThreadPoolExecutor(8) as pool:
        put = [*pool.map(lambda _: tube.put("x").id, range(400))]
    assert told == sorted(put) == [*range(1, 401)]


# Durability


@pytest.mark.redis(since="Redis 7.2")
def test_full_durability_says_when_the_disk_has_not_got_it(connect: Connect, server: RedisServer) -> None:
    """The put was done, but the server has not written it to its disk: a power cut may lose it."""
    tube = connect(durability="full", busy_timeout=0.2).create_tube("jobs", "fifo")
    tube.put("on disk")
    server.command("CONFIG SET", "appendfsync", "no")
    with pytest.raises(tubes.OutcomeUnknown, match="disk"):
        tube.put("not yet")
    server.command("CONFIG SET", "appendfsync", "always")
    server.command("CONFIG SET", "appendonly", "no")
    with pytest.raises(tubes.OutcomeUnknown, match="disk"):
        tube.put("never")
    server.command("CONFIG SET", "appendonly", "yes")
    eventually(lambda: server.command("INFO", "persistence")["aof_rewrite_in_progress"] == 0)
    assert [task.data for task in tube.tasks("r")] == ["on disk", "not yet", "never"]
    task = tube.take(timeout=0)
    assert task is not None and tube.ack(task).data == "on disk"


@pytest.mark.redis(since="Redis 7.2")
def test_full_durability_waits_until_a_new_tube_is_on_the_disk(connect: Connect, server: RedisServer) -> None:
    """Its name as well as its keys: they may be on two nodes."""
    queue = connect(durability="full", sweep=False)
    queue.create_tube("first", "fifo")  # so that the server knows the scripts
    with redis.Redis.from_url(server.url) as client, client.monitor() as seen:
        queue.create_tube("jobs", "fifo")
        server.command("ECHO", "created")
        said = [*iter(lambda: seen.next_command()["command"], "ECHO created")]
    names = {scripts.ADD_TUBE.sha: "name", scripts.OPEN.sha: "keys", "WAITAOF": "wait"}
    told = [name for command in said for word, name in names.items() if word in command.split()]
    assert told[:3] == ["name", "wait", "keys"] and told[-1] == "wait"


@pytest.mark.redis(since="Redis 7.2")
@pytest.mark.parametrize("may_ask", [True, False])
def test_full_durability_needs_a_server_that_syncs(
    own_redis_server: Callable[..., RedisServer], may_ask: bool
) -> None:
    """Even if the user may not ask for its settings. A connect that is refused leaves nothing there."""
    server = own_redis_server(fsync="no")
    server.command(
        "ACL SETUSER", "worker", "on", ">pw", "~{tubes*", "+@all", *(() if may_ask else ("-config",))
    )
    url = server.url.replace("unix://", "unix://worker:pw@")
    with pytest.raises(tubes.NotSupported, match=r"durability='full'.*appendfsync"):
        tubes.connect(url, durability="full", busy_timeout=0.2)
    assert not server.command("EXISTS", "{tubes}:connections")
    server.command("CONFIG SET", "appendfsync", "always")
    with tubes.connect(url, durability="full", busy_timeout=5, sweep=False) as queue:
        assert queue.create_tube("jobs", "fifo").put("x").id == 1


@pytest.mark.redis(since="Redis 7.2")
@pytest.mark.slow
def test_full_durability_waits_once_for_a_script_that_the_server_does_not_know(
    connect: Connect, server: RedisServer
) -> None:
    """The first try waits for an earlier write, maybe in vain; the second has only the time that is left."""
    tube = connect(durability="full", busy_timeout=0.8, sweep=False).create_tube("jobs", "fifo")
    server.command("CONFIG SET", "appendfsync", "no")
    took = []
    for _ in range(2):
        server.command("SCRIPT FLUSH")
        began = time.monotonic()
        with pytest.raises(tubes.OutcomeUnknown, match="disk"):
            tube.put("x")
        took.append(time.monotonic() - began)
    assert max(took) < 1.4


def test_a_connect_that_is_refused_leaves_nothing_open(own_redis_server: Callable[..., RedisServer]) -> None:
    """Neither a connection nor a thread that listens."""
    server = own_redis_server(fsync="no")
    hubs = importlib.import_module("tubes.drivers.redis.hub").Hub._all
    before = {*hubs}
    with pytest.raises(tubes.NotSupported, match="appendfsync"):
        tubes.connect(server.url, durability="full")
    assert {*hubs} == before
    eventually(lambda: len(server.command("CLIENT LIST")) == 1)


@pytest.mark.redis(before="Redis 7.2")
def test_full_durability_needs_a_newer_server(connect: Connect) -> None:
    with pytest.raises(tubes.NotSupported, match="WAITAOF"):
        connect(durability="full")


def test_full_durability_needs_a_file(own_redis_server: Callable[..., RedisServer]) -> None:
    """Without one, or without the command, it is not supported."""
    with pytest.raises(tubes.NotSupported, match=r"durability='full'.*WAITAOF"):
        tubes.connect(own_redis_server(fsync=None).url, durability="full")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"fsync": None}, "its AOF is off"),
        ({"settings": "maxmemory 1gb\nmaxmemory-policy allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
    ],
)
def test_a_server_that_may_lose_tasks_is_warned_of_once(
    own_redis_server: Callable[..., RedisServer], caplog: Any, settings: dict[str, Any], warning: str
) -> None:
    url = own_redis_server(**settings).url
    with caplog.at_level(logging.WARNING), tubes.connect(url), tubes.connect(url):
        pass
    assert [warning in record.getMessage() for record in caplog.records] == [True]


def test_a_server_that_loses_nothing_is_not_warned_of(url: str, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING), tubes.connect(url):
        pass
    assert not caplog.records


def test_a_tube_whose_keys_were_lost_is_made_again_where_it_is_asked_for(
    connect: Connect, server: RedisServer
) -> None:
    """It stays the same tube, and gives no id that an earlier tube gave."""
    queue, other = connect(sweep=False), connect(sweep=False)
    earlier = queue.create_tube("earlier", "fifo")
    earlier.put_many(range(3))
    earlier.truncate()
    earlier.drop()
    tube: Any = queue.create_tube("jobs", "fifo")
    with redis.Redis.from_url(server.url) as client:
        for asking in (queue, other):
            client.delete(*tube.driver.keys)
            again = asking.create_tube("jobs", "fifo", if_not_exists=True)
            assert again.record == tube.record
            assert again.put("x").id == 4


def test_who_makes_a_tube_as_another_does_has_that_one(connect: Connect) -> None:
    """The tube was not there when its maker looked."""
    clock = EventfulClock()
    queue, other = connect(sweep=False, clock=clock), connect(sweep=False)
    made: list[tubes.Tube] = []
    clock.then = lambda: made.append(other.create_tube("jobs", "fifo"))
    tube = queue.create_tube("jobs", "fifo", if_not_exists=True)
    assert tube.record == made[0].record
    clock.then = lambda: made.append(other.create_tube("more", "fifo"))
    with pytest.raises(tubes.TubeExists):
        queue.create_tube("more", "fifo")
    assert other.tube.more.record == made[1].record


def test_counts_are_stored_once_though_those_of_another_tube_cannot_be(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect(sweep=False)
    first, second = queue.create_tube("first", "fifo"), queue.create_tube("second", "fifo")
    first.put("x")
    second.put("x")
    store: Any = queue.store
    stored = store._add_calls

    def refuses_the_second(tube: int, calls: Any) -> None:
        if tube == second.record.id:
            raise tubes.StoreUnavailable("no")
        stored(tube, calls)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_add_calls", refuses_the_second)
        for _ in range(3):
            with pytest.raises(tubes.StoreUnavailable):
                queue.flush_counts()
    assert first.statistics()["calls"]["put"] == 1
    assert second.statistics()["calls"]["put"] == 1


def test_counts_of_a_damaged_tube_hold_up_no_others_and_are_kept(
    connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect(sweep=False)
    damaged, unknown, other = (queue.create_tube(name, "fifo") for name in ("damaged", "unknown", "other"))
    for tube in (damaged, unknown, other):
        tube.put("x")
    key = f"{{tubes:{damaged.record.id}}}:calls"
    server.command("SET", key, "torn")
    store: Any = queue.store
    stored = store._add_calls

    def does_not_know(tube: int, calls: Any) -> None:
        stored(tube, calls)
        if tube == unknown.record.id:
            raise tubes.OutcomeUnknown("it was stored")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_add_calls", does_not_know)
        with pytest.raises(tubes.OutcomeUnknown):
            queue.flush_counts()
    with pytest.raises(tubes.StoreError, match="WRONGTYPE"):
        queue.flush_counts()
    assert server.command("HGET", key.replace(str(damaged.record.id), str(other.record.id)), "put") == b"1"
    server.command("DEL", key)
    for tube in (damaged, unknown, other):
        assert tube.statistics()["calls"]["put"] == 1


@pytest.mark.slow
def test_a_connect_that_is_cancelled_leaves_no_session(server: RedisServer, url: str) -> None:
    """The server answers only when nobody waits any more."""
    pid = server.pid
    assert pid is not None

    async def main(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        going_on = threading.Timer(2.5, lambda: os.kill(pid, signal.SIGCONT))
        going_on.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tubes.aio.connect(url), 0.3)
        going_on.join()

    asyncio.run(main(pid))
    with redis.Redis.from_url(server.url) as client:
        eventually(lambda: "cmdstat_hset" in client.info("commandstats"))  # it had begun one
        eventually(lambda: client.hlen("{tubes}:sessions") == 0)
        assert client.hlen("{tubes}:connections") == 0


def test_a_temporary_tube_that_could_not_be_emptied_is_emptied_by_the_next_call(connect: Connect) -> None:
    driver: Any = connect(sweep=False).create_tube("jobs", "fifo", temporary=True).driver
    tries = []

    class RestartedWire:
        run_id = "another"

        def evaluate(self, *given: Any) -> None:
            tries.append(given)
            if len(tries) == 1:
                raise ConnectionError

    for _ in range(3):
        with suppress(ConnectionError):
            driver.empty_after_restart(RestartedWire())
    assert len(tries) == 2


def test_a_connect_that_is_cut_short_at_its_end_beats_no_more(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another queue's thread would beat for it, and its session would live as long as that."""
    store: Any = connect(sweep=False).store
    hub = store._hub
    add_beat = hub.listener.add_beat

    def add_and_be_cut_short(*given: Any) -> None:
        add_beat(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(hub.listener, "add_beat", add_and_be_cut_short)
    with pytest.raises(KeyboardInterrupt):
        connect(sweep=False)
    assert hub._users == len(hub.listener._beats) == 1


def test_a_server_that_is_away_is_not_taken_for_one_that_has_nothing_to_say(server: RedisServer) -> None:
    nodes = importlib.import_module("tubes.drivers.redis.nodes").Nodes(server.url, 0.1)
    nodes.open()
    server.stop("immediate")
    with pytest.raises(tubes.StoreUnavailable):
        nodes.each(lambda wire: wire.command("PING"))
