"""The type redis: tubes in Redis that live in a queue of another store."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
import redis
from faults.harness import HOLDER, begin, ended, eventually, finish, heard, run, seconds_each, waiting
from faults.test_forks import in_child
from redis_servers import RedisServer
from server_kit import ServerKit

import tubes
from tubes import Queue
from tubes.clock import SystemClock
from tubes.testing import FakeClock
from tubes.testing.suite import Connect, MakeTube, take
from tubes.tube import Tube

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


class TestRedisInSqlite(ServerKit):
    """All features at once, on a SQLite file."""

    type = "redis"
    topics = ("agreement", "capacity", "reopening")
    transactions = False

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        type(self).options = {"url": redis_url}

    def test_a_temporary_tube_comes_back_empty(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        """Only after a restart of the server, as a test below shows; not when its last client has gone."""
        make_tube(temporary=True).put("a")
        queue.close()
        task = make_queue().tube.jobs.take(0)
        assert task is not None and task.data == "a"

    def test_it_is_part_of_no_transaction(self, queue: Queue, tube: Tube) -> None:
        with queue.transaction() as unit, pytest.raises(tubes.NotSupported, match="several calls"):
            tube.put("x", unit=unit)
        with pytest.raises(tubes.NotSupported, match="several calls"):
            tube.put("x", connection=object())
        assert tube.statistics()["tasks"]["total"] == 0

    def test_what_it_is_given_beside_its_options_is_no_other_option(self, queue: Queue, tube: Tube) -> None:
        """A new number in Redis is drawn whenever its options are checked."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", tubes.TubesWarning)
            assert queue.create_tube(tube.name, self.type, if_not_exists=True, **self.options) is tube
        with pytest.warns(tubes.TubesWarning, match="with a different capacity, which"):
            queue.create_tube(tube.name, self.type, if_not_exists=True, capacity=7, **self.options)


def test_a_handler_may_call_in_the_middle_of_a_call(tmp_path: Path, redis_db: str) -> None:
    """On a tube with callbacks, which hear of its changes in order."""
    code = """
import os, signal, sys, tubes
from tubes.interrupts import interruptible
called = []
queue = tubes.connect("sqlite:///" + sys.argv[1])
tube = queue.create_tube(
    "jobs", "redis", url=sys.argv[2], on_task_change=lambda task, event: called.append(task.data)
)
put = tube.driver.put

def interrupted(*given, **options):
    tube.driver.put = put
    interruptible(os.kill, os.getpid(), signal.SIGTERM)  # as it waits to try again
    return put(*given, **options)

signal.signal(signal.SIGTERM, lambda number, frame: tube.put("the handler's"))
tube.driver.put = interrupted
tube.put("interrupted")
print(sorted(called))
queue.close()
"""
    assert run(code, tmp_path / "jobs.db", redis_db) == """['interrupted', "the handler's"]"""


def test_it_needs_a_server(tmp_path: Path) -> None:
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        for url in (None, "", "sqlite://", "REDIS://nowhere", 7):
            with pytest.raises(tubes.BadOption, match="redis://"):
                queue.create_tube("hot", "redis", url=url)
        with pytest.raises(tubes.StoreUnavailable, match="nowhere"):
            queue.create_tube("hot", "redis", url="unix:///nowhere/redis.sock")
        with pytest.raises(tubes.BadOption, match="dead_after belongs in the URL of the queue"):
            queue.create_tube("hot", "redis", url="redis://localhost/0?db=0&dead_after=3")
        assert queue.tubes() == []


@pytest.mark.parametrize("stands", ["in the query", "before the host"])
def test_no_password_is_stored(
    tmp_path: Path,
    own_redis_server: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    stands: str,
) -> None:
    server = own_redis_server()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "open,sesame")
    with_password = f"{server.url}&password=open%2Csesame"
    if stands == "before the host":
        with_password = server.url.replace("://", "://:open%2Csesame@")
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store) as queue:
        tube = queue.create_tube("hot", "redis", url=with_password)
        tube.put("x", utube="a")
        assert "sesame" not in json.dumps([dict(record.options) for record in queue.records()])
    assert b"sesame" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    hosted = importlib.import_module("tubes.drivers.redis.hosted")
    monkeypatch.setattr(hosted, "_given", {})  # as in another process
    with tubes.connect(store) as queue:  # opens, though it cannot use the tube
        with pytest.raises(tubes.StoreUnavailable, match=hosted.PASSWORD):
            queue.tube.hot.put("y")
        with pytest.raises(tubes.StoreUnavailable):  # a wrong one is not remembered
            queue.create_tube("more", "redis", url=with_password.replace("sesame", "wrong"))
    monkeypatch.setenv(hosted.PASSWORD, "open,sesame")
    with tubes.connect(store) as queue:
        task = queue.tube.hot.take(0)
        assert task is not None and task.data == "x"


@pytest.mark.parametrize(
    ("url", "complete"),
    [
        ("redis://host:6379/0", "redis://:a%252Fb%2F%40@host:6379/0"),
        ("rediss://me@host?socket_keepalive=1", "rediss://me:a%252Fb%2F%40@host?socket_keepalive=1"),
        ("unix:///a@b/redis.sock?db=0", "unix://:a%252Fb%2F%40@/a@b/redis.sock?db=0"),
    ],
)
def test_a_password_from_the_environment_stands_where_any_redis_py_decodes_it_once(
    url: str, complete: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py 5.2, and many later ones, decode a value in the query twice."""
    hosted = importlib.import_module("tubes.drivers.redis.hosted")
    monkeypatch.setenv(hosted.PASSWORD, "a%2Fb/@")
    assert hosted._with_password(url) == complete
    settings: Any = redis.ConnectionPool.from_url(complete).connection_kwargs
    assert settings["password"] == "a%2Fb/@" and settings.get("username") in (None, "me")


def test_the_password_of_a_client_s_key_is_stored_as_little() -> None:
    urls = importlib.import_module("tubes.drivers.redis.urls")
    shown = "rediss://me@host/0?ssl_keyfile=key.pem"
    assert urls.without_passwords(f"{shown}&ssl_password=sesame") == (shown, True)
    assert urls.without_passwords(shown) == (shown, False)
    watched = "rediss://mymaster/0?sentinel=host1:26379,host2"
    assert urls.without_passwords(f"{watched}&sentinel_password=sesame") == (watched, True)


def test_two_queues_on_other_files_have_tubes_of_their_own(tmp_path: Path, redis_url: str) -> None:
    with (
        tubes.connect(f"sqlite:///{tmp_path / 'one.db'}") as one,
        tubes.connect(f"sqlite:///{tmp_path / 'two.db'}") as two,
    ):
        first, second = (queue.create_tube("hot", "redis", url=redis_url) for queue in (one, two))
        first.put("x")
        assert second.take(0) is None
        assert first.take(0) is not None


def test_a_server_that_is_away_disturbs_no_other_tube(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    server = own_redis_server(fsync="always")
    clock = FakeClock()
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock, sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=server.url)
        cold = queue.create_tube("cold", "fifottl")
        hot.put("x")
        cold.put("y", ttl=1)
        server.stop("immediate")
        clock.advance(1)
        with pytest.raises(tubes.StoreUnavailable):
            queue.sweep()
        assert queue.statistics() == {"cold": cold.statistics()}
        assert cold.statistics()["calls"]["ttl"] == 1
        with pytest.raises(tubes.StoreUnavailable):
            queue.statistics("hot")
        with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock, sweep=False) as other:
            with pytest.raises(tubes.StoreUnavailable) as caught:
                other.tube.hot.put("z")
            assert "PASSWORD" not in str(caught.value)  # which is not the problem
        with pytest.raises(tubes.StoreError):
            hot.put("z")
        server.start()
        task = hot.take(0)
        assert task is not None and task.data == "x"


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.tube.hot.peek(1),
        lambda queue: queue.tube.hot.tasks("r"),
        lambda queue: queue.tube.hot.statistics(),
        lambda queue: queue.tube.hot.truncate(),
        lambda queue: queue.tube.hot.drop(),
        lambda queue: queue.tube.unopened,
    ],
    ids=["peek", "tasks", "statistics", "truncate", "drop", "open"],
)
def test_a_server_that_hangs_holds_up_no_other_tube(
    tmp_path: Path,
    own_redis_server: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Queue], object],
) -> None:
    """Neither in this process nor in others: no lock of the queue's own store is held meanwhile."""
    server, store = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    with (
        tubes.connect(store, sweep=False) as queue,
        tubes.connect(store, sweep=False, busy_timeout=0.1) as other,
    ):
        queue.create_tube("hot", "redis", url=server.url).put("x", utube="a")
        other.create_tube("unopened", "redis", url=server.url)
        cold = queue.create_tube("cold", "fifo")
        asked = threading.Event()
        thread = threading.Thread(target=call, args=(queue,))
        wire = importlib.import_module("tubes.drivers.redis.wire").Wire
        receive = wire.receive

        def noted(self: Any) -> Any:
            if threading.current_thread() is thread:
                asked.set()
            return receive(self)

        monkeypatch.setattr(wire, "receive", noted)
        with server.hung():
            thread.start()
            assert asked.wait(10)
            id = cold.put("y").id
            assert cold.peek(id).data == other.tube.cold.put("y").data
            assert thread.is_alive()
        ended(thread)


def test_a_restart_of_the_server_empties_a_temporary_tube(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    server = own_redis_server(fsync="always")
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        brief = queue.create_tube("brief", "redis", url=server.url, temporary=True)
        lasting = queue.create_tube("lasting", "redis", url=server.url)
        for tube in (brief, lasting):
            tube.put("x")
        server.stop("fast")
        server.start()
        assert [tube.statistics()["tasks"]["total"] for tube in (brief, lasting)] == [0, 1]
        brief.put("y")
        assert brief.statistics()["tasks"]["total"] == 1


def test_a_session_is_joined_also_while_a_server_is_away(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    """The queue's store alone knows who is in it."""
    server, store = own_redis_server(fsync="always"), f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as queue, tubes.connect(store, sweep=False) as other:
        hot = queue.create_tube("hot", "redis", url=server.url)
        hot.put("x", utube="a")
        task = take(other.tube.hot)
        server.stop("immediate")
        assert queue.identify(other.identify()) == other.identify()
        other.close()
        server.start()
        assert hot.ack(task).data == "x"


def test_a_take_is_in_the_session_that_the_queue_has_joined(tmp_path: Path, redis_db: str) -> None:
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as one, tubes.connect(file, sweep=False) as two:
        tube = one.create_tube("jobs", "redis", url=redis_db)
        tube.put("x")
        one.identify(two.identify())
        assert take(tube).owner == two.identify()
        assert two.tube.jobs.ack(1).data == "x"


def test_who_takes_is_on_the_tube_s_list_until_its_session_ends(tmp_path: Path, redis_db: str) -> None:
    """Redis knows nothing else of a session."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as queue, redis.Redis.from_url(redis_db) as client:
        tube: Any = queue.create_tube("jobs", "redis", url=redis_db)
        tube.put("x")
        with tubes.connect(file, sweep=False) as other:
            take(other.tube.jobs)
            assert tube.driver.holders(None) == {other.identify().hex}
        assert tube.driver.holders(None) == set()
        assert take(tube).attempts == 2
        assert not client.keys("{tubes_hosted}:sessions") and not client.keys("{tubes_hosted}:connections")


@pytest.mark.parametrize("part", ["driver", "step"])
def test_a_take_goes_on_in_the_session_that_the_queue_joins_meanwhile(
    tmp_path: Path, redis_db: str, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Another thread may join it at any moment. What that session holds stays its own."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as one, tubes.connect(file, sweep=False) as two:
        tube = one.create_tube("jobs", "redis", url=redis_db)
        for name in "ab":
            tube.put(name, utube=name)
        held, joined = two.tube.jobs.take(0), two.identify()
        assert held is not None
        driver: Any = tube.driver
        overtaken = {"driver": driver, "step": driver._redis}[part]
        go_on = overtaken.ack_and_take

        def join_first(*given: Any, **options: Any) -> Any:
            monkeypatch.setattr(overtaken, "ack_and_take", go_on)
            one.identify(joined)
            two.close()
            return go_on(*given, **options)

        monkeypatch.setattr(overtaken, "ack_and_take", join_first)
        task = tube.take(0)
        assert task is not None and task.data == "b" and task.owner == joined
        assert tube.ack(held).data == "a"


def test_who_has_joined_a_session_keeps_what_it_holds_there_when_the_other_ends(
    tmp_path: Path, redis_db: str
) -> None:
    """The tube's server hears of it at once, even with nothing to rescue: else the session is empty there."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False, session_ttr=60) as one, tubes.connect(file, sweep=False) as two:
        tube = one.create_tube("jobs", "redis", url=redis_db)
        tube.put("x")
        held = two.tube.jobs.take(0)
        one.identify(two.identify())
        two.close()
        with tubes.connect(file, sweep=False) as three:
            assert three.tube.jobs.take(0) is None
        assert held is not None and tube.ack(held).data == "x"


def test_who_takes_where_a_server_has_lost_everything_goes_on(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    """The queue remembers the tube: it is there again, and empty. A waiter waits on, as in any store."""
    server = own_redis_server(fsync=None)
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=server.url)
        hot.put("lost", utube="a")
        held = hot.take(0)
        thread, got = waiting(hot)
        server.stop("immediate")
        with pytest.raises(tubes.StoreUnavailable):
            hot.take(0)
        server.start()
        with pytest.raises(tubes.NotTaken):
            hot.take(0, ack=held)
        assert hot.take(0) is None
        hot.put("x", utube="a")
        ended(thread)
        assert [task and task.data for task in got] == ["x"]


@pytest.mark.parametrize("verb", ["put", "take", "open"])
def test_who_holds_what_a_server_has_lost_acks_nothing_else(
    verb: str, tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    """The queue's session lives on, so only the id can tell what it took before from what it takes now."""
    server, store = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=server.url)
        assert hot.put("lost").id == 1
        lost = take(hot)
        server.command("FLUSHALL")
        if verb == "take":
            assert hot.take(0) is None
        elif verb == "open":
            with tubes.connect(store, sweep=False) as other:
                assert other.tube.hot.put("first").id > lost.id
            hot.ack(take(hot))
        hot.put("x")
        task = take(hot)
        assert task.id > lost.id
        with pytest.raises(tubes.LeaseLost):
            hot.ack(lost)
        assert hot.ack(task).data == "x"


def test_a_server_that_only_reads_is_an_error_of_ours(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis_server()
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube = queue.create_tube("jobs", "redis", url=server.url)
        tube.put("x")
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(tubes.StoreUnavailable, match="read only"):
            tube.take(timeout=0)
        server.command("REPLICAOF", "NO", "ONE")
        assert tube.take(timeout=0)


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one thread after the other, if several call before one could open the tube's store."""
    server, store = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    hosted = importlib.import_module("tubes.drivers.redis.hosted")
    monkeypatch.setattr(hosted, "PATIENCE", 0.1)

    def put() -> None:
        with pytest.raises(tubes.StoreUnavailable, match="cannot be used"):
            hot.put("x")

    with tubes.connect(store, sweep=False) as queue:
        queue.create_tube("hot", "redis", url=server.url)
    server.stop()
    with tubes.connect(store, sweep=False) as queue:
        hot = queue.tube.hot
        server.start()
        with server.hung():
            took = seconds_each(4, put)
    assert len(took) == 4 and max(took) < 2 * min(took), took


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "peek"])
def test_a_server_that_hangs_is_waited_for_once_by_what_nobody_waits_for(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Not once for each tube there. Whoever calls a tube waits as ever; the first answer ends this."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    server, url = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    names = {"a", "b", "c", "d"}
    with tubes.connect(url, sweep=False) as queue:
        for name in names:
            queue.create_tube(name, "redis", url=server.url)
        with server.hung():
            with pytest.raises(tubes.StoreError):
                getattr(queue.tube.a, verb)(1)
            began = time.monotonic()
            assert queue.statistics() == {}
            with pytest.raises(tubes.StoreUnavailable, match="did not answer a moment ago"):
                queue.sweep()
            with tubes.connect(url, sweep=False) as other:
                assert other.statistics() == {}
            assert time.monotonic() - began < 1  # an answer is waited for 1.1 s
            with pytest.raises(tubes.StoreError, match="Timeout"):
                queue.tube.b.put("x")
        assert queue.statistics() == {}
        queue.tube.c.put("x")
        assert queue.statistics().keys() == names


def test_a_server_that_hangs_while_a_put_opens_the_tube_s_store_is_noted_too(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.nodes"), "AWAY_FOR", 600.0)
    server, url = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url, sweep=False) as queue:
        queue.create_tube("hot", "redis", url=server.url)
    server.stop()
    with tubes.connect(url, sweep=False) as queue:
        hot = queue.tube.hot
        server.start()
        with server.hung():
            with pytest.raises(tubes.StoreUnavailable, match="Timeout"):
                hot.put("x")
            with pytest.raises(tubes.StoreUnavailable, match="did not answer a moment ago"):
                queue.sweep()
        hot.put("x")
        assert queue.sweep() == 0


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once_by_a_close(
    own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    server = own_redis_server()
    queue = tubes.connect("sqlite://", sweep=False)
    for name in ("a", "b", "c", "d"):
        queue.create_tube(name, "redis", url=server.url)
    with server.hung():
        began = time.monotonic()
        queue.close()
        assert time.monotonic() - began < 2  # an answer is waited for 1.1 s


@pytest.mark.slow
def test_calls_that_are_told_of_wait_for_one_another_no_longer_than_for_an_answer(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.hosted"), "PATIENCE", 0.1)
    server = own_redis_server()
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=server.url, on_task_change=lambda task, event: None)

        def put() -> None:
            with pytest.raises(tubes.StoreError):
                hot.put("x")

        with server.hung():
            took = seconds_each(6, put)
    assert len(took) == 6 and max(took) < 4, took  # one answer, or two in turn, are waited for 1.1 s each


@pytest.mark.parametrize("is_hosted", [True, False])
def test_a_damaged_task_of_the_dead_is_in_the_way_of_no_other(
    tmp_path: Path, redis_db: str, monkeypatch: pytest.MonkeyPatch, is_hosted: bool
) -> None:
    """Nor of what other dead ones hold, or of what is due. A sweep, which is not in a hurry, says what is wrong."""
    monkeypatch.setattr("tubes.rescuer.LOOK_EVERY", 0.0)
    store, clock = f"sqlite:///{tmp_path / 'jobs.db'}" if is_hosted else redis_db, FakeClock()
    with ExitStack() as stack:
        connects = [tubes.connect(store, sweep=False, clock=clock) for _ in range(8)]
        queue, *others = map(stack.enter_context, connects)
        if is_hosted:
            tube = queue.create_tube("hot", "redis", url=redis_db)
            keys = f"{{tubes_hosted:{tube.record.options['number']}}}"
        else:
            tube = queue.create_tube("hot", "utubettl")
            keys = f"{{tubes:{tube.record.id}}}"
        for number in range(7):
            tube.put(number, utube=str(number))
        held = [take(other.tube.hot) for other in others]
        client = stack.enter_context(redis.Redis.from_url(redis_db))
        client.hset(f"{keys}:tasks", f"{held[1].id:016d}", "torn")
        for other in others:
            other.store.leave()
        assert sorted(task.data for task in tube.take_many(9, 0)) == [0, 2, 3, 4, 5, 6]
        tube.put("more", utube="more")
        assert take(tube).data == "more", "though the damaged task is now all that there is to rescue"
        later = tube.put("later", utube="later", delay=1)
        clock.advance(1)
        with pytest.raises(tubes.StoreError, match="damaged data"):
            queue.sweep()
        assert tube.peek(later.id).state is tubes.State.READY


def test_a_damaged_task_of_the_dead_keeps_no_room_from_a_put(tmp_path: Path, redis_db: str) -> None:
    """Room that an expired task leaves, in a tube that is full."""
    file, clock = f"sqlite:///{tmp_path / 'jobs.db'}", FakeClock()
    with (
        tubes.connect(file, sweep=False, clock=clock) as queue,
        tubes.connect(file, sweep=False, clock=clock) as other,
        redis.Redis.from_url(redis_db) as client,
    ):
        tube = queue.create_tube("hot", "redis", url=redis_db, capacity=2)
        tube.put("torn", utube="a")
        held = take(other.tube.hot)
        tube.put("old", utube="b", ttl=1)
        client.hset(f"{{tubes_hosted:{tube.record.options['number']}}}:tasks", f"{held.id:016d}", "torn")
        other.store.leave()
        assert queue.rescuer.rescue() == 0
        clock.advance(1)
        assert tube.put("new", utube="c").data == "new"


def test_callbacks_hear_of_what_a_sweep_rescues(tmp_path: Path, redis_url: str) -> None:
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as one, tubes.connect(file, sweep=False) as two:
        tube = one.create_tube("hot", "redis", url=redis_url)
        tube.put("x")
        assert two.tube.hot.take(0) is not None
        two.store.leave()
        heard: list[tubes.Event] = []
        tube.on_task_change(lambda task, event: heard.append(event))
        one.sweep()
        assert heard == [tubes.Event.RELEASE]


def test_tubes_are_apart_also_when_the_server_forgot_what_it_had(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    server = own_redis_server()
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        mail = queue.create_tube("mail", "redis", url=server.url)
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        billing = queue.create_tube("billing", "redis", url=server.url)
        mail.put("for mail")
        billing.put("for billing")
        assert [task.data for task in mail.take_many(9, 0)] == ["for mail"]
        assert [task.data for task in billing.take_many(9, 0)] == ["for billing"]


def test_a_step_does_not_wait_for_the_queue_s_own_store(tmp_path: Path, redis_url: str) -> None:
    """Nor is it done again if a commit there fails."""
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False, busy_timeout=0.2) as queue:
        hot = queue.create_tube("hot", "redis", url=redis_url)
        told: list[str] = []
        hot.on_task_change(lambda task, event: told.append(event.value))
        with queue.transaction():
            hot.put("x")
            task = take(hot)
            hot.ack(task)
        assert told == ["put", "take", "ack"]
    with pytest.raises(tubes.StoreUnavailable, match="closed"):
        hot.put("y")


def test_a_take_of_unknown_outcome_is_given_back_whatever_the_clocks_say(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=redis_url)
        hot.put("x")
        driver: Any = hot.driver
        take = driver._redis.ack_and_take

        def lost(*given: Any, **options: Any) -> Any:
            take(*given, **options)
            raise tubes.OutcomeUnknown("the answer was lost")

        ours = driver._now
        monkeypatch.setattr(driver, "_now", lambda now: ours(now) + 137)  # the server's clock differs
        with monkeypatch.context() as patch:
            patch.setattr(driver._redis, "ack_and_take", lost)
            with pytest.raises(tubes.OutcomeUnknown):
                hot.take(0)
        task = hot.take(0)
        assert task is not None and (task.data, task.attempts) == ("x", 2)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wait_goes_by_the_server_s_clock_whatever_the_queue_s_own_says(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer], hours: int
) -> None:
    """A delay ends in time, and a consumer that waits for that does not ask the server over and over."""

    class Other(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + hours * 3_600_000

    server = own_redis_server()

    def commands() -> int:
        return int(server.command("INFO", "stats")["total_commands_processed"])

    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", clock=Other()) as queue:
        hot = queue.create_tube("hot", "redis", url=server.url)
        put = hot.put("x", delay=0.3)
        assert abs(put.created_at - datetime.now(UTC)) < timedelta(minutes=30)
        before = commands()
        task = hot.take(timeout=30)
        assert task is not None and task.data == "x"
        assert commands() - before < 1000


def test_each_of_two_servers_has_a_clock_of_its_own(
    redis_url: str, postgres_queue_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the queue's own tells the time in its other tubes, whatever a tube's server says."""
    wire = importlib.import_module("tubes.drivers.redis.wire").Wire
    tells = wire.time_ms
    monkeypatch.setattr(wire, "time_ms", lambda self: tells(self) + 3_600_000)
    with tubes.connect(postgres_queue_url, sweep=False) as queue:
        hot = queue.create_tube("hot", "redis", url=redis_url).put("x")
        cold = queue.create_tube("cold", "fifo").put("x")
        assert timedelta(minutes=50) < hot.created_at - cold.created_at < timedelta(minutes=70)
        queue.drop_tube("hot")


def test_the_clock_of_a_tube_s_server_is_looked_at_with_each_beat(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be set while the tube is open."""
    wire = importlib.import_module("tubes.drivers.redis.wire").Wire
    tells = wire.time_ms
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube: Any = queue.create_tube("hot", "redis", url=redis_url)
        before = tube.put("x").created_at
        monkeypatch.setattr(wire, "time_ms", lambda self: tells(self) + 3_600_000)
        tube.driver._store._beat()
        assert timedelta(minutes=50) < tube.put("x").created_at - before


def test_who_comes_while_unknown_sessions_are_looked_for_keeps_what_it_takes(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may take is read before who is known: a session that comes in between is not in the first list."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with ExitStack() as others, tubes.connect(file, sweep=False) as queue:
        tube = queue.create_tube("hot", "redis", url=redis_url)
        tube.put("x")
        came: list[Tube] = []

        def then_one_comes(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def looked(tx: Any) -> Any:
                found = look(tx)
                if not came:
                    came.append(others.enter_context(tubes.connect(file, sweep=False)).tube.hot)
                    take(came[0])
                return found

            return looked

        monkeypatch.setattr(tube.driver, "holders", then_one_comes(cast(Any, tube.driver).holders))
        monkeypatch.setattr(queue.store, "known_sessions", then_one_comes(queue.store.known_sessions))
        assert queue.sweep() == 0
        assert [task.data for task in came[0].tasks("t")] == ["x"]


def forget(session: UUID, folder: Path) -> None:
    """As if others had taken it for dead, and rescued all that it held."""
    with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as db:
        for of_session in "connection WHERE session", "session WHERE id":
            db.execute(f"DELETE FROM tubes_{of_session} = ?", (session.hex,))


@pytest.mark.parametrize("is_other_there", [False, True])
def test_who_ends_while_it_is_admitted_leaves_nothing_that_nobody_looks_for(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, is_other_there: bool
) -> None:
    """The tube was rescued before the session came on its list. Another thread may even have taken there."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as one, tubes.connect(file, sweep=False) as two:
        tube: Any = one.create_tube("hot", "redis", url=redis_url)
        tube.put("x", utube="x")
        tube.put("y", utube="y")
        driver: Any = two.tube.hot.driver
        evaluate, ended = driver._store._evaluate, two.identify()

        def ends_first(keys: Any, script: Any, given: Any, **options: Any) -> Any:
            is_it = script is scripts.ADMIT and given[-1] == ended.hex
            if is_it:
                forget(ended, tmp_path)
            done = evaluate(keys, script, given, **options)
            if is_it and is_other_there:
                taking = (driver._redis.flags, given[1], 0, ended.hex, 1, 100)
                evaluate(keys, scripts.TAKE, taking)
            return done

        monkeypatch.setattr(driver._store, "_evaluate", ends_first)
        task = take(two.tube.hot)
        assert task.owner == two.identify() != ended
        assert (task.data, task.attempts) == ("x", 1 + is_other_there)
        assert tube.driver.holders(None) == {two.identify().hex}


@pytest.mark.parametrize("is_thorough", [False, True])
def test_what_an_unknown_session_holds_is_given_back_by_a_thorough_sweep(
    tmp_path: Path, redis_url: str, is_thorough: bool
) -> None:
    """Such as that of a queue whose server has lost its last commits."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(file, sweep=False) as one, tubes.connect(file, sweep=False) as two:
        tube = one.create_tube("hot", "redis", url=redis_url)
        tube.put("x")
        take(two.tube.hot)
        forget(two.identify(), tmp_path)
        heard: list[tubes.Event] = []
        tube.on_task_change(lambda task, event: heard.append(event))
        one._sweep(thoroughly=is_thorough)
        assert heard == [tubes.Event.RELEASE] * is_thorough


@pytest.mark.slow
def test_every_tube_gives_back_what_a_session_held_that_was_taken_for_dead(
    redis_url: str, postgres_queue_url: str
) -> None:
    """As the queue's own tubes do."""
    url = postgres_queue_url
    with tubes.connect(url) as queue:
        for name in "xy":
            queue.create_tube(name, "redis", url=redis_url).put(name)
        holder = begin(HOLDER, url, "x", "y")
        try:
            assert heard(holder) == "holds"
            holder.send_signal(signal.SIGSTOP)
            eventually(lambda: all(queue.tube[name].statistics()["tasks"]["ready"] == 1 for name in "xy"))
        finally:
            holder.send_signal(signal.SIGCONT)
            finish(holder)
        for name in "xy":
            queue.drop_tube(name)


def test_who_waits_for_a_task_says_so_at_once(tmp_path: Path, redis_db: str) -> None:
    """In Redis, so that others call it, and not only when the listener comes by."""
    with (
        tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue,
        redis.Redis.from_url(redis_db) as client,
        ThreadPoolExecutor() as others,
    ):
        tube: Any = queue.create_tube("jobs", "redis", url=redis_db)
        take = others.submit(tube.take, timeout=60)
        waiting = f"{{tubes_hosted:{tube.driver._tube_in_redis.id}}}:waiting"
        eventually(lambda: take.done() or client.zcard(waiting))
        assert client.zcard(waiting) == 1
        tube.put("x")
        assert take.result().data == "x"


def test_who_waits_for_room_is_called_by_others(tmp_path: Path, redis_db: str) -> None:
    """By their scripts: nothing in the queue's own store tells of it."""
    with (
        tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue,
        redis.Redis.from_url(redis_db) as client,
        ThreadPoolExecutor() as others,
    ):
        tube: Any = queue.create_tube("jobs", "redis", url=redis_db, capacity=1)
        tube.put("x")
        put = others.submit(tube.put, "y", timeout=60)
        seeking = f"{{tubes_hosted:{tube.driver._tube_in_redis.id}}}:seeking"
        eventually(lambda: put.done() or client.zcard(seeking))
        assert client.zcard(seeking) == 1
        tube.truncate()
        assert put.result().data == "y"


def test_who_takes_there_has_at_once_what_the_dead_held(tmp_path: Path, redis_db: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url, sweep=False) as queue:
        tube = queue.create_tube("x", "redis", url=redis_db)
        tube.put("held")
        holder = begin(HOLDER, url, "x")
        assert heard(holder) == "holds"
        finish(holder)
        task = tube.take(timeout=0)
        assert task is not None and task.attempts == 2


def test_who_takes_elsewhere_leaves_the_dead_of_a_server_that_hangs_to_others(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    """To whoever takes there, and to the sweep: once the server goes on, the rescue is immediate again."""
    server, url = own_redis_server(), f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url, sweep=False) as queue:
        made = [queue.create_tube("x", "redis", url=server.url), queue.create_tube("y", "fifo")]
        made.append(queue.create_tube("z", "redis", url=server.url))
        for tube in made:
            tube.put(tube.name)
        holder = begin(HOLDER, url, "x", "y", "z")
        assert heard(holder) == "holds"
        with server.hung():
            finish(holder)
            began = time.monotonic()
            task = queue.tube.y.take(timeout=0)
            took = time.monotonic() - began
        assert task is not None and task.attempts == 2
        assert took < 3
        task = queue.tube.x.take(timeout=0)
        assert task is not None and task.attempts == 2
        assert queue.sweep() == 1
        assert queue.tube.z.statistics()["tasks"]["ready"] == 1
        queue.sweep()  # and then it is forgotten
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            assert db.execute("SELECT id FROM tubes_session").fetchall() == [(queue.identify().hex,)]


def test_a_forked_child_has_a_connection_of_its_own(tmp_path: Path, redis_url: str) -> None:
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube: Any = queue.create_tube("hot", "redis", url=redis_url)
        id = tube.put("x").id

        def client() -> int:
            """The server's number for the connection that the next call is made on."""
            tube.peek(id)
            return int(tube.driver._store._hub.nodes.ask(None, "CLIENT", "ID"))

        assert in_child(client) != client()


def test_who_waits_in_a_forked_child_is_called(tmp_path: Path, redis_db: str) -> None:
    """By the child's own listener, which knows of the child's waiters only."""
    with (
        tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue,
        redis.Redis.from_url(redis_db) as client,
    ):
        tube: Any = queue.create_tube("jobs", "redis", url=redis_db)
        tube.put("the parent's")
        tube.ack(take(tube))
        pid = os.fork()
        if pid == 0:
            task = tube.take(timeout=60)
            os._exit(0 if task is not None and task.data == "x" else 1)
        try:
            waiting = f"{{tubes_hosted:{tube.driver._tube_in_redis.id}}}:waiting"
            eventually(lambda: client.zcard(waiting))
        finally:
            tube.put("x")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_while_a_thread_opens_its_store_leaves_a_child_that_can(
    tmp_path: Path, redis_url: str
) -> None:
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube: Any = queue.create_tube("hot", "redis", url=redis_url)
        locks = tube.driver._opening, tube.place._in_order
        with ThreadPoolExecutor(1) as other:
            for lock in locks:
                other.submit(lock.acquire).result()
            pid = os.fork()
            if pid == 0:
                locks = tube.driver._opening, tube.place._in_order
                os._exit(0 if all(lock.acquire(timeout=5) for lock in locks) else 1)
            for lock in locks:
                other.submit(lock.release).result()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_that_does_nothing_else_acks_no_task_of_its_parent(
    tmp_path: Path, redis_db: str
) -> None:
    """Even if it asks the queue's own store for nothing first."""
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube = queue.create_tube("hot", "redis", url=redis_db)
        tube.put("x")
        (held,) = tube.take_many(1, timeout=0)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if tube.ack_many([held]) == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert tube.ack(held).data == "x"


def test_a_tube_that_could_not_be_made_leaves_nothing_open(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    hubs = importlib.import_module("tubes.drivers.redis.hub").Hub._all
    before, server = {*hubs}, own_redis_server()
    server.command("ACL", "SETUSER", "half", "on", ">s3cret", "~{tubes_hosted}:*", "+@all")
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        with pytest.raises(tubes.StoreUnavailable, match=r"(?i)no permissions"):
            queue.create_tube("jobs", "redis", url=f"{server.url}&username=half&password=s3cret")
        assert queue.tubes() == []
        assert {*hubs} == before


def test_a_tube_that_is_used_after_its_drop_leaves_nothing_open(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    hubs = importlib.import_module("tubes.drivers.redis.hub").Hub._all
    before, server = {*hubs}, own_redis_server()
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        tube = queue.create_tube("jobs", "redis", url=server.url)
        tube.drop()
        with pytest.raises(tubes.NoSuchTube, match="'jobs'"):
            tube.put(1)
        with pytest.raises(tubes.NoSuchTube, match="'jobs'"):
            tube.take(timeout=0)
    for late in (lambda: tube.put(1), lambda: tube.driver.count(None)):  # as in the middle of a call
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            late()
    assert {*hubs} == before


def test_a_tube_that_others_dropped_and_made_anew_leaves_nothing_open(tmp_path: Path, redis_db: str) -> None:
    """Otherwise, what was opened for the first of that name would beat as long as the process lives."""
    hubs = importlib.import_module("tubes.drivers.redis.hub").Hub._all
    before = {*hubs}
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as other, tubes.connect(store, sweep=False) as queue:
        other.create_tube("jobs", "redis", url=redis_db)
        assert queue.tube.jobs.truncate() == 0
        other.drop_tube("jobs")
        other.create_tube("jobs", "redis", url=redis_db).put("x")
        assert queue.tube.jobs.truncate() == 1
    assert {*hubs} == before


def test_a_queue_that_is_closed_is_listened_for_no_longer(tmp_path: Path, redis_db: str) -> None:
    """Otherwise, a process that opens and closes many beside one that stays listens for more and more."""
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as stays:
        tube: Any = stays.create_tube("jobs", "redis", url=redis_db)
        sources = [*tube.driver._store._hub.listener._sources]
        with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
            queue.tube.jobs.put("x")
            assert len(tube.driver._store._hub.listener._sources) == len(sources) + 1
        assert tube.driver._store._hub.listener._sources == sources


def test_a_tube_that_others_dropped_is_not_made_anew_where_the_server_has_lost_everything(
    tmp_path: Path, own_redis_server: Callable[..., RedisServer]
) -> None:
    """The note of its drop, kept there for a day, is lost. A put would go into a tube that nobody opens."""
    server = own_redis_server()
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as queue, tubes.connect(store, sweep=False) as other:
        queue.create_tube("jobs", "redis", url=server.url)
        tube = other.tube.jobs
        tube.put(1)
        queue.drop_tube("jobs")
        server.command("FLUSHALL")
        with pytest.raises(tubes.NoSuchTube, match="'jobs'"):
            tube.put(2)
        with pytest.raises(tubes.NoSuchTube, match="'jobs'"):
            tube.take(timeout=0)


def test_a_tube_gives_no_id_of_one_that_was_dropped_while_it_was_made(
    tmp_path: Path, redis_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the options were checked, the other was still there."""
    hosted: Any = importlib.import_module("tubes.drivers.redis.hosted")
    check = hosted._check_server
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(store, sweep=False) as other, tubes.connect(store, sweep=False) as queue:
        tube = other.create_tube("jobs", "redis", url=redis_db)
        before = {task.id for task in tube.put_many(range(5))}

        def check_and_drop(url: str) -> None:
            check(url)
            tube.drop()

        monkeypatch.setattr(hosted, "_check_server", check_and_drop)
        anew = queue.create_tube("jobs", "redis", url=redis_db, if_not_exists=True)
        assert not before & {task.id for task in anew.put_many(range(5))}


@pytest.mark.parametrize("type", ["fifottl", "redis"])
def test_a_tube_whose_usual_priority_no_task_can_have_is_not_made(redis_db: str, type: str) -> None:
    """Redis cannot tell higher ones apart, so every put into the tube would be refused."""
    hosts = {"fifottl": redis_db, "redis": "sqlite://"}
    more: dict[str, Any] = {"url": redis_db} if type == "redis" else {}
    with tubes.connect(hosts[type], sweep=False) as queue:
        with pytest.raises(tubes.BadOption, match=r"pri must be at most 2\*\*53"):
            queue.create_tube("jobs", type, pri=2**53 + 1, **more)
        assert queue.tubes() == []
        assert queue.create_tube("jobs", type, pri=2**53, **more).put("x").pri == 2**53


def test_a_last_id_that_cannot_be_read_stops_no_new_tube(redis_db: str) -> None:
    """A key of another type does stop it, and a drop, and is named."""
    with tubes.connect("sqlite://", sweep=False) as queue, redis.Redis.from_url(redis_db) as client:
        client.hset("{tubes_hosted}:last", "task", "x")
        assert queue.create_tube("jobs", "redis", url=redis_db).put("x").id == 1
        client.delete("{tubes_hosted}:last")
        client.set("{tubes_hosted}:last", "torn")
        with pytest.raises(tubes.StoreError, match=r"WRONGTYPE.*\{tubes_hosted\}:last") as caught:
            queue.create_tube("more", "redis", url=redis_db)
        assert caught.type is tubes.StoreError
        with pytest.raises(tubes.StoreError, match=r"WRONGTYPE.*\{tubes_hosted\}:last"):
            queue.drop_tube("jobs")
        client.delete("{tubes_hosted}:last")
        queue.drop_tube("jobs")
        assert client.hget("{tubes_hosted}:last", "task") == b"1"


def test_two_queues_of_a_process_that_wait_for_one_tube_are_called_both(redis_db: str) -> None:
    """They share a listener, but no waiters: when one stops waiting, the other still waits."""
    with (
        tubes.connect(redis_db, sweep=False) as queue,
        tubes.connect(redis_db, sweep=False, busy_timeout=6) as other,
        redis.Redis.from_url(redis_db) as client,
        ThreadPoolExecutor() as pool,
    ):
        tube = queue.create_tube("hot", "redis", url=redis_db)
        takes = [pool.submit(each.tube.hot.take, 20) for each in (queue, other)]
        waiting = f"{{tubes_hosted:{tube.record.options['number']}}}:waiting"
        eventually(lambda: client.zcard(waiting) == 2)
        for utube in "ab":
            tube.put("x", utube=utube)
        assert all(take.result() for take in takes)


def test_it_lives_in_every_store(redis_url: str, postgres_queue_url: str) -> None:
    for url in ("sqlite://", redis_url, postgres_queue_url):
        with tubes.connect(url) as queue:
            tube = queue.create_tube("hot", "redis", url=redis_url, ttr=60)
            tube.put("later", pri=2, utube="a")
            tube.put("now", pri=1, utube="a")
            now = tube.take(0)
            assert now is not None and now.data == "now"
            assert tube.take(0) is None
            later = tube.take(0, ack=now)
            assert later is not None and later.data == "later"
            assert tube.release_all() == 1
            tube.drop()


def test_a_take_beside_a_close_says_that_the_queue_is_closed(tmp_path: Path, redis_db: str) -> None:
    """It has left its session by then, and begins no new one."""
    with tubes.connect(f"sqlite:///{tmp_path / 'jobs.db'}", sweep=False) as queue:
        tube: Any = queue.create_tube("hot", "redis", url=redis_db)
        tube.put("x")
        queue.store.leave()
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            tube.take(0)
        assert tube.peek(1).state is tubes.State.READY
