"""The servers that tests ask for: started once a run, when the first test wants one. None is ever skipped."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import redis
import sleeper
import sqlalchemy as sa
from faults.harness import eventually, finish, heard
from hypothesis import HealthCheck, settings
from interpreter import PIPE, Process
from redis_servers import RedisCluster, RedisServer, find_redis, numbered, version_of
from servers import PostgresServer, empty_database, new_database

import tubes
from tubes.waiting import room

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell sets it for background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else four workers, and some four hundred processes that tests start, would each compile the same modules
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a busy machine is no fault
os.environ.setdefault("TUBES_KIT_EXAMPLES", "3")  # different ones each time, for each type on each store

LEFT_ROWS = """
SET LOCAL lock_timeout = '30s'; SET LOCAL synchronous_commit = off;
DELETE FROM tubes_tube; DELETE FROM tubes_task; DELETE FROM tubes_temporary_task; DELETE FROM tubes_calls;
DELETE FROM tubes_connection WHERE id <> {connection}; DELETE FROM tubes_session WHERE id <> '{session}'
"""
"""Removes all rows of ours but those of one open queue."""


def _is_left_out(collector: pytest.Collector, test: Any) -> bool:
    """Whether the class of a kit names ``topics`` and the test is of another: the slow tests run those."""
    topics: Collection[str] = getattr(getattr(collector, "cls", None), "topics", ())
    package, _, topic = getattr(test, "__module__", "").rpartition(".")
    return package == "tubes.testing" and bool(topics) and topic not in topics


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    """If no slow tests are run, make none of these: they are more than a third of all tests."""
    is_left_out = collector.config.option.markexpr == "not slow" and _is_left_out(collector, obj)
    return [] if is_left_out and name.startswith("test") else None


def _is_for(item: pytest.Item, version: str) -> bool:
    """Whether a test shows anything on this version of Redis; Valkey sorts after them all."""
    limits = item.get_closest_marker("redis")
    return limits is None or limits.kwargs.get("since", "") <= version < limits.kwargs.get("before", "~")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.get_closest_marker("redis") for item in items):
        with suppress(RuntimeError):  # where there is none, the tests that need one say so
            version = version_of(find_redis())
            items[:] = [item for item in items if _is_for(item, version)]
    for item in items:
        if item.parent is not None and _is_left_out(item.parent, getattr(item, "function", None)):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Ten thousand tests live until the end: the garbage collector need not keep looking through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the collector from looking through them afterwards, too."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer waiting in a queue opened after this never looks by itself: only a call gets it a task."""
    sleeper.deafen(monkeypatch.setattr)


@pytest.fixture
def asleep() -> Iterator[Callable[..., Process]]:
    """``asleep(queue, url, tube)`` is a process that sleeps until it is called for a task, as the queue has heard.

    Given data as well, it waits for room to put that.
    """
    with ExitStack() as started:

        def start(queue: tubes.Queue, url: str, tube: str, *put: str) -> Process:
            awaited = (room if put else int)(queue.tube[tube].record.id)
            before = sleeper.number_known(queue, awaited)
            process = Process([sleeper.__file__, url, tube, *put], stdin=PIPE, stdout=PIPE, text=True)
            started.callback(finish, process)
            assert heard(process) == "asleep"
            eventually(lambda: before is None or (sleeper.number_known(queue, awaited) or 0) > before)
            return process

        yield start


@pytest.fixture(scope="session")
def _shared_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_server(_shared_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The run's own PostgreSQL, which a test may stop and start."""
    yield _shared_postgres
    if _shared_postgres.pid is None:
        _shared_postgres.start()


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> str:
    """The server that TUBES_TEST_POSTGRES_URL names, else the run's own."""
    url = os.environ.get("TUBES_TEST_POSTGRES_URL")
    if url is None:
        server: PostgresServer = request.getfixturevalue("_shared_postgres")
        return server.url
    return sa.make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def _postgres_database(postgres_url: str) -> Iterator[str]:
    with new_database(postgres_url) as url:
        yield url


@pytest.fixture
def postgres_db(_postgres_database: str) -> str:
    """The URL of an empty database: what a test leaves, even connections, is gone before the next."""
    empty_database(_postgres_database)
    return _postgres_database


@contextmanager
def _own_database(server: PostgresServer, template: str | None = None) -> Iterator[str]:
    with new_database(server.url, template=template) as url:
        yield url
        if server.pid is None:  # else the database could not be dropped
            server.start()


@pytest.fixture
def own_postgres_db(postgres_server: PostgresServer) -> Iterator[str]:
    """The same on ``postgres_server``, for tests that stop it, whatever TUBES_TEST_POSTGRES_URL says."""
    with _own_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_template(_shared_postgres: PostgresServer) -> Iterator[str]:
    with new_database(_shared_postgres.url) as url:
        tubes.connect(url, migrate=True, sweep=False).close()
        yield url


@pytest.fixture
def own_migrated_db(postgres_server: PostgresServer, _postgres_template: str) -> Iterator[str]:
    """The same with our tables, copied, which costs less than migrating."""
    with _own_database(postgres_server, _postgres_template) as url:
        tubes.connect(url, sweep=False).close()  # the first after a server start has more to do
        yield url


@pytest.fixture(scope="session")
def _postgres_queue_database(postgres_url: str) -> Iterator[tuple[str, tubes.Queue, sa.Engine]]:
    with new_database(postgres_url) as url:
        hasty = (
            sa.make_url(url).update_query_dict({"dead_after": "2.5"}).render_as_string(hide_password=False)
        )
        with tubes.connect(hasty, migrate=True, sweep=False, durability="off") as queue:
            engine = sa.create_engine(url, pool_pre_ping=True)  # some tests start the server again
            yield hasty, queue, engine  # the tests' queues use connections of this one
            engine.dispose()


@pytest.fixture
def postgres_queue_url(_postgres_queue_database: tuple[str, tubes.Queue, sa.Engine]) -> str:
    """A database with our tables that notices the dead soon; rows of ours that tests leave are gone before the next.

    For tests that leave nothing else, and do not mind that one more queue is open there.
    """
    url, queue, engine = _postgres_queue_database
    store: Any = queue.store
    with engine.begin() as db:
        db.exec_driver_sql(LEFT_ROWS.format(connection=store._connection, session=store.session))
    return url


@pytest.fixture(scope="session")
def _postgres_oracle_database(postgres_url: str) -> Iterator[sa.Engine]:
    with new_database(postgres_url) as url:
        with tubes.connect(url, migrate=True, sweep=False, durability="off"):
            engine = sa.create_engine(
                url, pool_pre_ping=True
            )  # one connection for all: a new one takes longer
            yield engine
            engine.dispose()


@pytest.fixture
def postgres_oracle_url(
    _postgres_oracle_database: sa.Engine, deaf: None, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A database with our tables, all empty.

    Only what the scenario does may wake a waiter: its clock stands still meanwhile. Nobody else hears of it.
    """
    listener = importlib.import_module("tubes.drivers.sql.postgresql_listener")
    monkeypatch.setattr(listener, "ANNOUNCE_EVERY", float("inf"))
    tables = ("tube", "task", "temporary_task", "session", "connection", "calls")
    with _postgres_oracle_database.begin() as db:
        db.exec_driver_sql("; ".join(f"DELETE FROM tubes_{table}" for table in tables))
    return _postgres_oracle_database.url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def _shared_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> Iterator[RedisServer]:
    """The run's own Redis, which a test may stop and start; it writes its data to the disk every second."""
    yield _shared_redis
    if _shared_redis.pid is None:
        _shared_redis.start()


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest, worker_id: str) -> str:
    """A database that nobody empties, on the server that TUBES_TEST_REDIS_URL names, else on the run's own."""
    url = os.environ.get("TUBES_TEST_REDIS_URL")
    if url is None:
        server: RedisServer = request.getfixturevalue("_shared_redis")
        return server.url
    return numbered(url, 2 * _number(worker_id))


@pytest.fixture(scope="session")
def _redis_database(redis_url: str, worker_id: str) -> Iterator[tuple[str, redis.Redis]]:
    shared = "TUBES_TEST_REDIS_URL" in os.environ
    url = numbered(redis_url, 2 * _number(worker_id) + 1 if shared else 1)
    with redis.Redis.from_url(url) as client:  # one for all: redis-py takes long to make one
        yield url, client


@pytest.fixture
def redis_db(_redis_database: tuple[str, redis.Redis]) -> str:
    """Another, empty database on that server."""
    url, client = _redis_database
    client.flushdb()
    return url


@pytest.fixture
def redis_oracle_url(redis_db: str, deaf: None) -> str:
    """An empty database in which only what the scenario does may wake a waiter."""
    return redis_db


def _number(worker_id: str) -> int:
    """A worker's number: workers run tests at once, and may share a server that is not theirs."""
    return int(worker_id.removeprefix("gw")) if worker_id != "master" else 0


@pytest.fixture
def own_redis_server() -> Iterator[Callable[..., RedisServer]]:
    """Starts a server that ends with the test; takes the arguments of ``RedisServer``."""
    with ExitStack() as started:

        def start(**options: Any) -> RedisServer:
            server = RedisServer(**options)
            started.callback(server.close)
            return server

        yield start


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[RedisCluster]:
    cluster = RedisCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def redis_cluster(_shared_cluster: RedisCluster) -> str:
    """The URL of one of the three nodes of the run's own cluster."""
    return _shared_cluster.url


@pytest.fixture
def cluster_oracle_url(redis_cluster: str, deaf: None) -> Iterator[str]:
    """The same on the cluster, where all tests share one database: what it leaves is not for the next to sweep."""
    with redis.RedisCluster.from_url(redis_cluster) as client:
        client.flushall(target_nodes="primaries")
        yield redis_cluster
        client.flushall(target_nodes="primaries")
