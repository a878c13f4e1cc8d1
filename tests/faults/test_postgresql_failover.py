"""PostgreSQL: a standby replaces its primary while producers, takers and holders are at work."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from faults.harness import Connect, ended, eventually, waiting
from faults.serving import Load
from servers import OWNER, PostgresServer, PostgresStandby

import tubes
from tubes.testing.suite import take

pytestmark = pytest.mark.slow


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """A private server: a test stops it for good."""
    made = PostgresServer()
    yield made
    made.close()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresStandby]:
    """A synchronous standby: commits on the primary wait for it."""
    made = PostgresStandby(primary)
    with psycopg.connect(user="postgres", host=str(primary.folder), autocommit=True) as db:
        db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        db.execute("SELECT pg_reload_conf()")
        eventually(lambda: db.execute("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall())
    yield made
    made.close()


@pytest.fixture
def url(primary: PostgresServer, standby: PostgresStandby) -> str:
    """Both servers; connections go to the one that takes writes."""
    made = (
        f"postgresql+psycopg://{OWNER}@/postgres?host={primary.folder},{standby.folder}"
        "&target_session_attrs=read-write&dead_after=2"
    )
    tubes.connect(made, migrate=True).close()
    return made


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_all_go_on_at_the_standby_and_lose_nothing(
    connect: Connect, primary: PostgresServer, standby: PostgresStandby, mode: str
) -> None:
    """The primary shuts down or crashes.

    Waiting takes go on waiting, and held tasks stay held; temporary tubes are emptied.
    """
    queue, queues = connect(), [connect(), connect()]
    queue.create_tube("jobs", "utubettl")
    bounded = queue.create_tube("bounded", "limfifottl", temporary=True, capacity=1)
    bounded.put("gone")
    held = queue.create_tube("held", "fifo")
    held.put("held")
    task = take(held)
    thread, got = waiting(queue.create_tube("awaited", "fifo"))
    with Load(queues) as load:
        eventually(lambda: len(load.acked) > 20)
        primary.stop(mode)
        standby.promote()
        before = len(load.acked)
        eventually(lambda: len(load.acked) > before + 20)
    assert held.ack(task).data == "held"
    queue.tube.awaited.put("came")
    ended(thread)
    assert [one and one.data for one in got] == ["came"]
    assert bounded.put("new", timeout=0).data == "new"
    load.settle(connect)
