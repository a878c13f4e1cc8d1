"""The type utubettl on Redis."""

import importlib
from typing import Any

from redis_kit import RedisKit

from tubes import Queue
from tubes.tube import Tube

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


class TestRedisUtubettl(RedisKit):
    type = "utubettl"

    def test_a_name_that_is_no_text_holds_up_nobody(self, queue: Queue, tube: Tube) -> None:
        """Clients in other languages may give a sub-queue such a one."""
        driver: Any = tube.driver
        now = queue.clock.now_ms()
        record = b"r 0 %d %d - - - 0 - j \xff\\" % (now, now)
        queue.store.transact(lambda tx: driver._write(tx, scripts.PUT, now, [0, record, b"1"]))
        task = tube.take(timeout=0)
        assert task is not None and task.utube == r"\xff" + "\\"
        assert tube.ack(task).data == 1
