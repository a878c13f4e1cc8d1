"""The long form of ``tests/faults/test_kills.py`` and of the interrupts: a minute of kills a type."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import test_redis_kills as on_redis
from faults.harness import TYPES, Crew, Meanwhile, drain, run, settle, torment
from faults.test_interrupts import STRESS
from faults.test_postgresql_kills import DEAD_AFTER, configure, crew_on, cut_some, restart
from redis_servers import RedisServer
from servers import PostgresServer

SECONDS = float(os.environ.get("TUBES_SOAK_SECONDS", 60))
KILLS = int(os.environ.get("TUBES_SOAK_KILLS", 100))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_kills_and_stops_loses_nothing(
    crew: Crew, type: str, record_property: Callable[[str, object], None]
) -> None:
    """Producers and consumers are killed and stopped at random; then every task is accounted for."""
    crew.type = type
    if type not in ("fifo", "utube"):
        crew.tube = {"ttr": 0.5}
    if type == "limfifottl":
        crew.tube |= {"capacity": 200}
    killed = torment(crew, SECONDS, KILLS, producers=3, consumers=4)
    account = settle(crew.lines(), drain(crew))
    record_property("account", repr(account))
    print(f"\n{type}: {killed} killed, {account}")
    assert killed >= KILLS and account.acked > KILLS


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_kills_cuts_and_restarts_on_postgresql_loses_nothing(
    tmp_path: Path, own_postgres_db: str, postgres_server: PostgresServer, type: str
) -> None:
    """The same; some are stopped until taken for dead, connections are cut, the server stops or crashes."""
    crew = crew_on(own_postgres_db, tmp_path)
    configure(crew, type)
    try:
        with (
            Meanwhile(crew, 0.3, lambda: cut_some(own_postgres_db)) as cuts,
            Meanwhile(crew, 10.0, lambda: restart(postgres_server)) as restarts,
        ):
            killed = torment(crew, SECONDS, KILLS, producers=3, consumers=4, longest_stop=2 * DEAD_AFTER)
        account = settle(crew.lines(), drain(crew))
    finally:
        crew.disband()
    print(f"\n{type} on PostgreSQL: {killed} killed, {cuts.times} cuts, {restarts.times} restarts, {account}")
    assert killed >= KILLS and account.acked > KILLS


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_kills_cuts_flushes_and_restarts_on_redis_loses_nothing(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], type: str
) -> None:
    """The same, and scripts are forgotten. The server has on disk whatever it has answered."""
    server = own_redis_server(fsync="always")
    crew = on_redis.crew_on(server, tmp_path)
    configure(crew, type)
    try:
        with (
            Meanwhile(crew, 0.3, lambda: on_redis.trouble(server)) as troubles,
            Meanwhile(crew, 10.0, lambda: on_redis.restart(server)) as restarts,
        ):
            killed = torment(crew, SECONDS, KILLS, producers=3, consumers=4, longest_stop=2 * DEAD_AFTER)
        account = settle(crew.lines(), drain(crew))
    finally:
        crew.disband()
    print(f"\n{type} on Redis: {killed} killed, {troubles.times} cuts, {restarts.times} restarts, {account}")
    assert killed >= KILLS and account.acked > KILLS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["off", "full"])
@pytest.mark.parametrize("manner", ["busy", "waiting"])
def test_thousands_of_interrupts_strand_no_task(tmp_path: Path, manner: str, durability: str) -> None:
    """Signals rain on a main thread that takes and acks: all it holds is what it was given."""
    lines = run(STRESS, tmp_path / "soak.db", manner, durability, 3000, "inf", within=600).splitlines()
    assert lines == ["3000 0", "True"]
