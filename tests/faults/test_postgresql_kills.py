"""Workers are killed and stopped, connections cut, the server restarted. The long form: ``tests/soak``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import ENOUGH, Crew, Meanwhile, drain, settle, torment
from servers import PostgresServer, conninfo, cut
from slow import slow_but

import tubes

DEAD_AFTER = 1.0


def crew_on(database: str, folder: Path) -> Crew:
    """Workers on a new database, taken for dead after a second of silence."""
    tubes.connect(database, migrate=True).close()
    url = sa.make_url(database).update_query_dict({"dead_after": str(DEAD_AFTER)})
    return Crew(folder, connect={}, server=url.render_as_string(hide_password=False), patience=10)


@pytest.fixture
def crew(tmp_path: Path, own_postgres_db: str) -> Iterator[Crew]:
    """Workers that are killed when the test is over."""
    made = crew_on(own_postgres_db, tmp_path)
    yield made
    made.disband()


def configure(crew: Crew, type: str) -> None:
    """Let the crew work on a tube of that type."""
    crew.type = type
    if type not in ("fifo", "utube"):
        crew.tube = {"ttr": 2}
    if type == "limfifottl":
        crew.tube |= {"capacity": 100}


def cut_some(url: str) -> None:
    """End some of the database's connections, if the server is up."""
    with suppress(psycopg.OperationalError), psycopg.connect(conninfo(url), autocommit=True) as db:
        cut(db, share=0.3, within=0)


@pytest.mark.parametrize("type", slow_but(["utubettl"], ["limfifottl", "utubettl"]))
def test_kills_stops_and_cuts_lose_no_task_and_ack_none_twice(
    crew: Crew, own_postgres_db: str, type: str
) -> None:
    """Every task is accounted for, and none is stuck.

    Workers that are stopped for too long are taken for dead, and come back.
    """
    configure(crew, type)
    with Meanwhile(crew, 0.1, lambda: cut_some(own_postgres_db)) as cuts:
        killed = torment(
            crew, 2, 3, producers=1, consumers=2, longest_stop=2 * DEAD_AFTER, meanwhile=[(cuts, 6)]
        )
    account = settle(crew.lines(), drain(crew))
    assert killed >= 3 and cuts.times > 5 and account.acked >= ENOUGH, account


def restart(server: PostgresServer) -> None:
    """Shut it down or crash it, and start it again."""
    server.stop(random.choice(("fast", "immediate")))
    server.start()


@pytest.mark.slow
def test_restarts_under_processes_lose_no_task_and_ack_none_twice(
    crew: Crew, postgres_server: PostgresServer
) -> None:
    """The server shuts down or crashes each time."""
    configure(crew, "utubettl")
    with Meanwhile(crew, 1.0, lambda: restart(postgres_server)) as restarts:
        torment(crew, 4, 2, producers=1, consumers=2, meanwhile=[(restarts, 2)])
    account = settle(crew.lines(), drain(crew))
    assert restarts.times >= 2 and account.acked >= ENOUGH, account
