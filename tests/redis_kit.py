"""The kit on Redis: one database, in which each test makes and drops its own tubes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis
from server_kit import ServerKit

import tubes
from tubes import Queue
from tubes.errors import NoSuchTube
from tubes.testing.suite import take
from tubes.tube import Tube

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


class SomeConnection:
    """Something to pass as ``connection=``, in either API."""

    async def run_sync(self, work: Callable[[Any], Any]) -> Any:
        return work(self)


class RedisKit(ServerKit):
    """Each class of tests names a type."""

    transactions = False
    client: ClassVar[Any] = redis.Redis

    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return f"{redis_url}{'&' if '?' in redis_url else '?'}dead_after=2.5"

    def die(self, queue: Queue) -> None:
        """End a connection without a word, and treat it as dead without waiting for its beats to stop."""
        store: Any = queue.store
        store.close()
        queue.close()
        with self.client.from_url(store._url) as client:
            client.hdel(store._keys[2], store._connection)

    def test_there_are_no_transactions_over_several_calls(self, queue: Queue, tube: Tube) -> None:
        with pytest.raises(tubes.NotSupported, match="take\\(ack=task\\)"), queue.transaction():
            pass
        with pytest.raises(tubes.NotSupported, match="several calls"):
            tube.put("x", connection=SomeConnection())
        assert tube.statistics()["tasks"]["total"] == 0

    def test_a_script_that_is_asked_for_nothing_does_nothing(self, queue: Queue, tube: Tube) -> None:
        """Clients in other languages may ask for that."""
        transact, driver, now = queue.store.transact, tube.driver, queue.clock.now_ms()
        tube.put("ready")
        tube.bury(tube.put("buried"))
        assert not transact(lambda tx: driver.take(tx, 0, owner=None, now=now))
        assert not transact(lambda tx: driver.kick(tx, 0, now=now))
        assert not transact(lambda tx: driver.truncate(tx, 0))
        assert tube.statistics()["tasks"]["total"] == 2

    @pytest.mark.parametrize("is_owner", [True, False], ids=["owner", "administrator"])
    @pytest.mark.parametrize("has_token", [True, False], ids=["by token", "by id"])
    @pytest.mark.parametrize("is_wanted", [1, 0], ids=["payload", "no payload"])
    def test_an_ack_is_the_same_whatever_is_given_and_asked_for(
        self, queue: Queue, tube: Tube, is_owner: bool, has_token: bool, is_wanted: int
    ) -> None:
        """Clients in other languages may combine these as they like."""
        store: Any = queue.store
        driver: Any = tube.driver
        tube.put("x")
        task, now = take(tube), queue.clock.now_ms()
        id, token = f"{task.id:016d}", task.token if has_token else "-"
        given = [store.session if is_owner else "-", id, token, is_wanted]
        answer = store.transact(lambda tx: driver._write(tx, scripts.ACK, now, given))
        assert answer[:2] == [b"ack", id.encode()] and answer[3] == (b'"x"' if is_wanted else b"")
        assert tube.statistics()["tasks"]["total"] == 0

    def test_in_a_dropped_tube_there_is_nothing_to_take_nor_to_come(self, queue: Queue, tube: Tube) -> None:
        """A consumer that finds nothing is told by the tube that it is gone, and the sweeper goes on."""
        tube.put("x")
        tube.drop()
        assert not queue.store.read(tube.driver.can_take)
        assert queue.store.read(tube.driver.next_due) is None

    def test_a_drop_that_finds_taken_tasks_removes_nothing(self, queue: Queue, tube: Tube) -> None:
        """Even if there were none when the tube last looked."""
        tube.put("x")
        task = take(tube)
        with pytest.raises(tubes.TubeBusy, match="1 of its tasks"):
            queue.store.transact(lambda tx: tube.driver.drop(tx))
        assert tube.ack(task).data == "x"

    def test_a_dropped_tube_leaves_nothing_for_longer_than_a_day(self, queue: Queue, tube: Tube) -> None:
        """Whatever others that have it open do later."""
        store: Any = queue.store
        tag = f"{{{store._namespace}:{tube.record.id}}}:"
        last, now = tube.put("x").id, queue.clock.now_ms()
        with self.client.from_url(store._url.partition("?dead_after")[0]) as client:
            for line in ("waiting", "seeking"):
                client.zadd(f"{tag}{line}", {"stranger": 2**52})
            tube.drop()
            after = client.hget(f"{{{store._namespace}}}:last", "task")
            assert after == b"%d" % last  # the next tube's ids begin after that
            with pytest.raises(NoSuchTube):
                store.transact(lambda tx: tube.driver.take(tx, 1, owner=store.session, now=now))
            store.add_calls([(tube.record.id, {"take": 1})])
            left = {key.decode(): client.ttl(key) for key in client.scan_iter(match=f"{tag}*")}
            assert abs(int(client.hget(f"{tag}meta", "dropped")) / 1000 - time.time()) < 60
        assert {key.removeprefix(tag) for key in left} == {"meta", "bell", "room"}
        assert all(0 < seconds <= 86_400 for seconds in left.values()), left


class ClusterKit(RedisKit):
    """The same on a Cluster of three nodes: the tubes of its queues lie on all of them."""

    client = redis.RedisCluster

    @pytest.fixture
    def store_url(self, redis_cluster: str) -> str:
        return f"{redis_cluster}?dead_after=2.5"
