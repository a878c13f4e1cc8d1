"""Redis: workers are killed and stopped, connections cut, scripts forgotten, the server restarted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from faults.harness import ENOUGH, Crew, Meanwhile, drain, settle, torment
from faults.test_postgresql_kills import DEAD_AFTER, configure
from faults.test_postgresql_kills import crew_on as crew_on_postgresql
from redis_servers import RedisServer
from slow import slow_but


def crew_on(server: RedisServer, folder: Path) -> Crew:
    """Workers on that server, who are taken for dead after a second."""
    return Crew(folder, connect={}, server=f"{server.url}&dead_after={DEAD_AFTER}", patience=10)


@pytest.fixture
def server(own_redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that answers a write only once that is on disk."""
    return own_redis_server(fsync="always")


@pytest.fixture
def crew(tmp_path: Path, server: RedisServer) -> Iterator[Crew]:
    """Workers that are killed when the test is over."""
    made = crew_on(server, tmp_path)
    yield made
    made.disband()


def trouble(server: RedisServer) -> None:
    """If it is there, end a third of its connections, and let it forget all scripts."""
    with suppress(redis.RedisError):
        for client in server.command("CLIENT LIST"):
            if random.random() < 0.3:
                server.command("CLIENT KILL", "ID", client["id"])
        server.command("SCRIPT FLUSH")


def restart(server: RedisServer) -> None:
    """Shut it down in order, or crash it; then start it again."""
    server.stop(random.choice(("fast", "immediate")))
    server.start()


@pytest.mark.parametrize("type", slow_but(["utubettl"], ["limfifottl", "utubettl"]))
def test_kills_stops_cuts_and_flushes_lose_no_task_and_ack_none_twice(
    crew: Crew, server: RedisServer, type: str
) -> None:
    """None is stuck either. A worker that is stopped for too long is taken for dead, and comes back."""
    configure(crew, type)
    with Meanwhile(crew, 0.1, lambda: trouble(server)) as troubles:
        killed = torment(
            crew, 2, 3, producers=1, consumers=2, longest_stop=2 * DEAD_AFTER, meanwhile=[(troubles, 6)]
        )
    account = settle(crew.lines(), drain(crew))
    assert killed >= 3 and troubles.times > 5 and account.acked >= ENOUGH, account


@pytest.mark.slow
def test_restarts_under_processes_lose_no_task_and_ack_none_twice(crew: Crew, server: RedisServer) -> None:
    """The same, with a server that shuts down in order or crashes."""
    configure(crew, "utubettl")
    with Meanwhile(crew, 0.7, lambda: restart(server)) as restarts:
        torment(crew, 3, 2, producers=1, consumers=2, meanwhile=[(restarts, 2)])
    account = settle(crew.lines(), drain(crew))
    assert restarts.times >= 2 and account.acked >= ENOUGH, account


@pytest.mark.slow
@pytest.mark.parametrize("host", ["sqlite", "postgresql", "redis"])
def test_a_tube_in_a_queue_of_another_store_loses_no_task_and_acks_none_twice(
    host: str, server: RedisServer, own_redis_server: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The queue's own store tells who lives, whatever happens to the tube's server. No ttr helps."""
    if host == "sqlite":
        crew = Crew(tmp_path)
    elif host == "postgresql":
        crew = crew_on_postgresql(request.getfixturevalue("own_postgres_db"), tmp_path)
    else:
        crew = crew_on(own_redis_server(), tmp_path)
    crew.type, crew.tube = "redis", {"url": server.url}
    crew.patience = 20  # what an unknown session holds is looked for every ten seconds
    try:
        with Meanwhile(crew, 0.7, lambda: restart(server)) as restarts:
            torment(
                crew, 3, 3, producers=1, consumers=2, longest_stop=2 * DEAD_AFTER, meanwhile=[(restarts, 2)]
            )
        account = settle(crew.lines(), drain(crew))
    finally:
        crew.disband()
    assert restarts.times >= 2 and account.acked >= ENOUGH, account
