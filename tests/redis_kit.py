"""The kit on Redis: one database, in which each test makes and drops its own tubes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis
from server_kit import ServerKit

import tubes
from tubes import Queue
from tubes.tube import Tube


class SomeConnection:
    """What somebody gives as ``connection=``, at either door."""

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
        """End a connection without a word; then, without waiting for its beats, what is done with the dead."""
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
        """Clients in other languages may ask so."""
        transact, driver, now = queue.store.transact, tube.driver, queue.clock.now_ms()
        tube.put("ready")
        tube.bury(tube.put("buried"))
        assert not transact(lambda tx: driver.take(tx, 0, owner=None, now=now))
        assert not transact(lambda tx: driver.kick(tx, 0, now=now))
        assert not transact(lambda tx: driver.truncate(tx, 0))
        assert tube.statistics()["tasks"]["total"] == 2


class ClusterKit(RedisKit):
    """The same on a Cluster of three nodes: the tubes of its queues lie on all of them."""

    client = redis.RedisCluster

    @pytest.fixture
    def store_url(self, redis_cluster: str) -> str:
        return f"{redis_cluster}?dead_after=2.5"
