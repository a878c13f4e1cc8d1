"""What an idle process does: little, however many tubes there are, but not too little."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import Connect, eventually, quiet
from redis_servers import RedisServer

import tubes

Asked = Callable[[tubes.Queue], int]


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """Which store: each has its own way to look at all tubes."""
    return str(request.param)


@pytest.fixture
def server(own_redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that only this test uses."""
    return own_redis_server(fsync="always")


@pytest.fixture
def url(request: pytest.FixtureRequest, store: str, url: str) -> str:
    """A queue there, in which nobody beats during the test."""
    if store == "postgresql":
        database: str = request.getfixturevalue("own_migrated_db")
        slow = sa.make_url(database).update_query_dict({"dead_after": "6000"})
        return slow.render_as_string(hide_password=False)
    if store == "redis":
        return f"{request.getfixturevalue('server').url}&dead_after=6000"
    return url


@pytest.fixture
def asked(request: pytest.FixtureRequest, store: str, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Tells how many statements or scripts a store has run so far."""
    count = 0

    def noted(*statement: object) -> None:
        nonlocal count
        count += threading.current_thread() is threading.main_thread()  # not one that beats or listens

    def of_sqlite(queue: Any) -> int:
        queue.store._reader.set_trace_callback(noted)
        with queue.store.writer.held() as db:
            db.set_trace_callback(noted)
        return count

    def of_redis(queue: tubes.Queue) -> int:
        stats = request.getfixturevalue("server").command("INFO", "commandstats")
        return int(stats["cmdstat_evalsha"]["calls"])

    if store == "postgresql":
        wire = importlib.import_module("tubes.drivers.sql.postgresql_wire").Wire
        execute = wire.execute

        def counted(*given: Any, **named: Any) -> Any:
            noted()
            return execute(*given, **named)

        monkeypatch.setattr(wire, "execute", counted)
        return lambda queue: count
    return of_sqlite if store == "sqlite" else of_redis


def idle(queue: Any, asked: Asked) -> int:
    """How many statements or scripts one turn of the background thread runs."""
    queue._sweeps = True
    before = asked(queue)
    queue._background()
    return asked(queue) - before


@pytest.mark.slow
def test_a_process_that_has_nothing_to_do_asks_no_more_where_there_are_many_tubes(
    connect: Connect, asked: Asked
) -> None:
    queue = quiet(connect)

    def least() -> int:
        """The least of several turns: the first also looks for unknown sessions, a late one for the dead."""
        return min(idle(queue, asked) for _ in range(4))

    queue.create_tube("first", "fifottl")
    few = least()
    for n in range(20):
        queue.create_tube(f"tube_{n}", "utubettl")
    assert 0 < least() <= few


def test_who_goes_asks_no_more_where_there_are_many_tubes(connect: Connect, asked: Asked) -> None:
    """Each close used to ask every tube twice who holds tasks there, which slowed short-lived processes."""
    queue = quiet(connect)

    def cost() -> int:
        other = quiet(connect)
        before = asked(other)
        other.close()
        return asked(queue) - before

    queue.create_tube("first", "fifo")
    asked(queue)
    few = cost()
    for n in range(20):
        queue.create_tube(f"tube_{n}", "fifo")
    assert 0 < cost() < few + 10  # a listener may begin to listen meanwhile


def test_what_is_due_in_many_tubes_is_what_each_of_them_says(connect: Connect) -> None:
    queue: Any = connect(sweep=False)
    made = [
        queue.create_tube("empty", "fifottl"),
        queue.create_tube("delayed", "fifottl"),
        queue.create_tube("taken", "utubettl", ttr=60),
        queue.create_tube("both", "limfifottl", ttl=100, ttr=60),
        queue.create_tube("temporary", "fifottl", temporary=True),
    ]
    queue.create_tube("untimed", "fifo").put("x")
    _, delayed, taken, both, temporary = made
    delayed.put("x", delay=50)
    for tube in (taken, both, temporary):
        tube.put_many(["x", "y"], ttl=200, ttr=30)
    for tube in (taken, both):
        tube.take(timeout=0)
    seen = queue._open_tubes.asked_of_many("next_dues", made)
    assert seen == {tube.record.id: tube.next_due_ms() for tube in made}
    assert [due is None for due in seen.values()].count(True) == 1


def test_the_dead_are_asked_for_only_in_tubes_where_they_hold_something(
    connect: Connect, asked: Asked
) -> None:
    """Otherwise a take that finds them dead would wait until each had been looked for in every tube."""
    queue: Any = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    for n in range(30):
        queue.create_tube(f"tube_{n}", "fifo")

    def cost(dead: int) -> int:
        tube.put_many(range(dead))
        held = [connect(sweep=False, session_ttr=0.05) for _ in range(dead)]
        assert all(other.tube.jobs.take(timeout=0) for other in held)
        for other in held:
            other.close()
        ended = queue.clock.now_ms() + 50
        eventually(lambda: queue.clock.now_ms() > ended)
        before = asked(queue)
        queue.rescuer.rescue()
        found = asked(queue) - before
        assert len(tube.tasks("r")) == dead
        tube.truncate()
        return found

    assert cost(5) - cost(1) < 4 * 30


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis"])
def test_what_a_session_holds_that_the_server_lost_comes_back_in_the_background(
    connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubes.queue.UNKNOWN_EVERY", 0.1)
    queue, other = connect(), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    assert other.tube.jobs.take(timeout=0) is not None
    lose(server, other)
    eventually(lambda: tube.statistics()["tasks"]["ready"] == 1)


@pytest.mark.parametrize("store", ["redis"])
def test_a_server_that_is_back_is_asked_at_once_for_what_it_lost(
    connect: Connect, server: RedisServer
) -> None:
    queue: Any = connect(sweep=False)
    other = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    assert other.tube.jobs.take(timeout=0) is not None
    queue._sweeps = True
    queue._background()
    server.stop()
    with pytest.raises(tubes.StoreUnavailable):
        queue._background()
    server.start()
    lose(server, other)
    queue._background()
    assert tube.statistics()["tasks"]["ready"] == 1


def lose(server: RedisServer, queue: Any) -> None:
    """Have the server forget a session that holds something."""
    server.command("HDEL", "{tubes}:connections", queue.store._connection)
    server.command("HDEL", "{tubes}:sessions", queue.store.session)


@pytest.mark.parametrize("store", ["redis"])
def test_a_damaged_tube_keeps_no_other_from_being_swept(connect: Connect, server: RedisServer) -> None:
    """The look at all tubes leaves out only the damaged one."""
    queue: Any = connect(sweep=False)
    damaged, whole = (queue.create_tube(name, "fifottl") for name in ("damaged", "whole"))
    whole.put("x", ttl=0.001)
    server.command("SET", f"{{tubes:{damaged.record.id}}}:due", "x")
    eventually(lambda: whole.next_due_ms() <= queue.clock.now_ms())
    assert [*queue._open_tubes.asked_of_many("next_dues", [damaged, whole])] == [whole.record.id]
    with pytest.raises(tubes.StoreError, match="WRONGTYPE"):
        queue.sweep()
    assert whole.statistics()["tasks"]["total"] == 0
