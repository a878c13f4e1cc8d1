"""How many round trips a call takes: what docs/explanation/round-trips.md says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import sqlalchemy as sa
from faults.harness import Connect, quiet
from faults.proxy import Proxy
from redis_servers import RedisServer
from servers import PostgresServer

import tubes
from tubes.testing import FakeClock

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "round-trips.md"


@pytest.fixture(params=["PostgreSQL", "Redis"])
def store(request: pytest.FixtureRequest) -> str:
    """A column of the table."""
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, store: str) -> RedisServer | PostgresServer:
    """The server of that store."""
    if store == "PostgreSQL":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        return postgres
    made: RedisServer = request.getfixturevalue("own_redis_server")()
    return made


@pytest.fixture
def proxy(server: RedisServer | PostgresServer) -> Iterator[Proxy]:
    """A relay in front of it, which counts."""
    name = "redis.sock" if isinstance(server, RedisServer) else ".s.PGSQL.5432"
    made = Proxy(server.folder / name)
    yield made
    made.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, store: str, proxy: Proxy) -> str:
    """A store behind it, in which nobody beats, and nobody looks for the dead twice, during the test."""
    if store == "Redis":
        return f"redis://127.0.0.1:{proxy.port}/0?dead_after=6000"
    there = sa.make_url(request.getfixturevalue("own_migrated_db"))
    query = {"host": "127.0.0.1", "port": str(proxy.port), "dead_after": "6000"}
    return there.update_query_dict(query).render_as_string(hide_password=False)


def said(store: str) -> dict[str, int]:
    """The column of the table, by call; several that cost the same are in one row."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.count("|") == 4
    ]
    column = {"PostgreSQL": 1, "Redis": 2}[store]
    return {call: int(row[column]) for row in rows for call in re.findall(r"`(.+?)`", row[0])}


def used(queue: Any, others: int) -> tuple[tubes.Tube, tubes.Tube, tubes.Tube, tubes.Tube]:
    """Tubes of all kinds, and some more, each of them used, so that nothing is done for the first time."""
    made: list[tubes.Tube] = []
    for type in ("fifo", "fifottl", "utube", "limfifottl", *["fifo"] * others):
        options = {"capacity": 1000} if type == "limfifottl" else {}
        made.append(queue.create_tube(f"{type}_{len(made)}", type, **options))
    for tube in made:
        tube.put("x")
        tube.ack_many(tube.take_many(1, timeout=0))
    queue.flush_counts()
    fifo, timed, grouped, bounded = made[:4]
    return fifo, timed, grouped, bounded


def of_redis_py(proxy: Proxy) -> int:
    """How many there are before the first command: 2 in redis-py 8.1."""
    number = len(proxy.turns)
    connection = cast("Any", redis).Connection(port=proxy.port, protocol=2)
    connection.connect()
    connection.disconnect()
    return proxy.turns[number]


def test_a_call_takes_as_many_round_trips_as_the_page_says(
    connect: Connect, proxy: Proxy, store: str
) -> None:
    queue = quiet(connect)
    fifo, timed, grouped, bounded = used(queue, others=20)

    def put(tube: tubes.Tube = fifo) -> tubes.Task:
        return tube.put("x")

    def taken(tube: tubes.Tube = fifo) -> Any:
        put(tube)
        return tube.take(timeout=0)

    def taken_and_one_more() -> Any:
        task = taken()
        put()
        return task

    def buried() -> Any:
        return fifo.bury(put())

    calls: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "put": (lambda: None, lambda _: put()),
        "put_many": (lambda: None, lambda _: fifo.put_many([1] * 10)),
        "take": (put, lambda _: fifo.take(timeout=0)),
        "take_many": (put, lambda _: fifo.take_many(10, timeout=0)),
        "ack": (taken, fifo.ack),
        "ack_many": (lambda: [taken(), taken()], fifo.ack_many),
        "peek": (put, lambda task: fifo.peek(task.id)),
        "take(ack=task)": (taken_and_one_more, lambda task: fifo.take(timeout=0, ack=task)),
        "release": (taken, fifo.release),
        "touch": (lambda: taken(timed), lambda task: timed.touch(task, 1)),
        "bury": (put, fifo.bury),
        "kick": (buried, lambda _: fifo.kick()),
        "delete": (put, fifo.delete),
        "utube.release": (lambda: taken(grouped), grouped.release),
        "limfifottl.put": (lambda: None, lambda _: put(bounded)),
        "limfifottl.ack": (lambda: taken(bounded), bounded.ack),
        "take(timeout=0)": (fifo.truncate, lambda _: fifo.take(timeout=0)),
        "take()": (timed.truncate, lambda _: cast("Any", timed)._look()),
        "queue.tubes()": (lambda: None, lambda _: queue.tubes()),
        "queue.tube[name]": (lambda: None, lambda _: queue.tube[fifo.name]),
        "tube.statistics()": (put, lambda _: fifo.statistics()),
        "queue.statistics()": (lambda: None, lambda _: queue.statistics()),
        "queue.sweep()": (queue.sweep, lambda _: queue.sweep()),
        "create_tube(name, type)": (lambda: None, lambda _: queue.create_tube("new", "fifo")),
        "create_tube(..., if_not_exists=True)": (
            lambda: None,
            lambda _: queue.create_tube("new", "fifo", if_not_exists=True),
        ),
    }
    found = {}
    for name, (prepare, call) in calls.items():
        for _ in range(1 if "create" in name else 2):  # the first of them may do something for the first time
            given = prepare()
            before = proxy.turns[0]
            call(given)
            found[name] = proxy.turns[0] - before
    queue.close()
    first = len(proxy.turns)
    queue = quiet(connect, clock=FakeClock())
    found["connect"] = proxy.turns[first] + 2  # two ask for the time, where the server is far away
    if store == "Redis":
        found["connect"] += 2 - of_redis_py(proxy)
    before = proxy.turns[first]
    queue.close()
    found["close"] = proxy.turns[first] - before
    assert found == said(store)
