"""The type utubettl on Redis."""

import importlib
from typing import Any

import redis
from redis_kit import RedisKit

from tubes import Queue
from tubes.tube import Tube

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


class TestRedisUtubettl(RedisKit):
    type = "utubettl"

    def test_a_name_that_is_no_text_holds_up_nobody(self, queue: Queue, tube: Tube) -> None:
        """Clients in other languages may give a sub-queue such a name."""
        driver: Any = tube.driver
        now = queue.clock.now_ms()
        record = b"r 0 %d %d - - - 0 - j \xff\\" % (now, now)
        queue.store.transact(lambda tx: driver._write(tx, scripts.PUT, now, [0, record, b"1"]))
        task = tube.take(timeout=0)
        assert task is not None and task.utube == r"\xff" + "\\"
        assert tube.ack(task).data == 1

    def test_tasks_of_all_come_back_by_priority_and_id(self, queue: Queue, tube: Tube) -> None:
        tasks = [tube.put(n, pri=n * 5 % 3, utube=f"{n}") for n in range(20)]
        assert len(tube.take_many(20, 0)) == 20
        driver, now = tube.driver, queue.clock.now_ms()
        changes = queue.store.transact(lambda tx: driver.release_owner(tx, None, 20, now=now))
        came = [driver.normalize_task(change.raw).id for change in changes]
        assert came == [task.id for task in sorted(tasks, key=lambda task: (task.pri, task.id))]

    def test_a_session_is_on_the_list_as_long_as_it_holds_something(self, queue: Queue, tube: Tube) -> None:
        """If the process that rescues its tasks dies between two steps, others still see whose they are."""
        for n in range(3):
            tube.put(n, utube=f"{n}")
        owner, driver, now = queue.store.session, tube.driver, queue.clock.now_ms()
        assert len(tube.take_many(3, 0)) == 3
        for released, is_listed in (2, True), (1, False):
            changes = queue.store.transact(lambda tx: driver.release_owner(tx, owner, 2, now=now))
            store: Any = queue.store
            (listed,) = store.holders(None, [tube.record]).values()
            assert (len(changes), owner in listed) == (released, is_listed)

    def test_nothing_of_a_temporary_tube_is_left_when_the_server_is_another(
        self, queue: Queue, redis_url: str
    ) -> None:
        """In whatever state its tasks were."""
        tube = queue.create_tube("brief", "utubettl", temporary=True)
        driver: Any = tube.driver
        tube.put_many("ab", utube="a")
        tube.put("later", delay=5)
        tube.bury(tube.put("aside", utube="b"))
        assert tube.take(timeout=0)
        with redis.Redis.from_url(redis_url) as client:
            tag = f"{{tubes:{tube.record.id}}}:"
            was = {key.decode().removeprefix(tag) for key in client.scan_iter(match=f"{tag}*")}
            assert {"tasks", "states", "ready", "line", "busy", "held", "buried", "due"} <= was | {"ready"}
            client.zadd(f"{tag}ready", {"0" * 16: 0})
            assert queue.store.transact(lambda tx: driver.do(tx, scripts.EMPTY, "another")) == 1
            left = {key.decode().removeprefix(tag) for key in client.scan_iter(match=f"{tag}*")}
        assert left <= {"meta", "sessions", "calls"}
