"""The contenders on Redis besides tubes: raw redis-py, and the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from benchmarks.contenders import TEXT, as_data, peer
from benchmarks.server_contenders import BATCH, Blocking, Contender, batches, missing

LEASE = 600
"""Seconds for which a peer leases a task."""


class Raw(Blocking):
    """The least that does the job: a counter, a hash, a sorted set and a set, and one EVALSHA a step."""

    name = "raw redis-py"

    PUT = """
        local id = redis.call('INCR', KEYS[1])
        redis.call('HSET', KEYS[2], id, ARGV[1])
        redis.call('ZADD', KEYS[3], id, id)
        return id
    """
    TAKE = """
        local id = redis.call('ZPOPMIN', KEYS[1])[1]
        if not id then return false end
        redis.call('SADD', KEYS[2], id)
        return {id, redis.call('HGET', KEYS[3], id)}
    """
    ACK = """
        if redis.call('SREM', KEYS[1], ARGV[1]) == 0 then return 0 end
        return redis.call('HDEL', KEYS[2], ARGV[1])
    """

    def __init__(self, url: str) -> None:
        self._db = redis.Redis.from_url(url)
        self._evalsha = self._db.evalsha
        self._put, self._take, self._ack = map(self._db.script_load, (self.PUT, self.TAKE, self.ACK))

    def put(self, item: Any) -> object:
        return self._evalsha(self._put, 3, "last", "data", "ready", item)

    def take(self) -> Any:
        return self._evalsha(self._take, 3, "ready", "taken", "data")

    def ack(self, taken: Any) -> object:
        return self._evalsha(self._ack, 2, "taken", "data", taken[0])

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            pipe = self._db.pipeline(transaction=False)
            for item in batch:
                pipe.evalsha(self._put, 3, "last", "data", "ready", item)
            pipe.execute()

    def take_batches(self, count: int) -> None:
        while count > 0:
            pipe = self._db.pipeline(transaction=False)
            for _ in range(BATCH):
                pipe.evalsha(self._take, 3, "ready", "taken", "data")
            taken = [task for task in pipe.execute() if task is not None]
            pipe = self._db.pipeline(transaction=False)
            for task in taken:
                pipe.evalsha(self._ack, 2, "taken", "data", task[0])
            pipe.execute()
            count = count - len(taken) if taken else missing(self)

    def close(self) -> None:
        self._db.close()


class RedisWorkQueue(Blocking):
    """redis-work-queue: a lease is three steps, and a completion two."""

    name = "redis-work-queue"

    def __init__(self, url: str) -> None:
        module = peer("redis_work_queue")
        self._item = module.Item
        self._db = redis.Redis.from_url(url)
        self._queue = module.WorkQueue(module.KeyPrefix("bench"))

    def put(self, item: Any) -> object:
        return self._queue.add_item(self._db, self._item(item))

    def take(self) -> Any:
        return self._queue.lease(self._db, LEASE, block=False)

    def ack(self, taken: Any) -> object:
        return self._queue.complete(self._db, taken)

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            pipe = self._db.pipeline()
            for item in batch:
                self._queue.add_item_to_pipeline(pipe, self._item(item))
            pipe.execute()

    def close(self) -> None:
        self._db.close()


class Qless(Blocking):
    """qless-py: one script for everything. Completed jobs stay in its history.

    The script adds a function to Lua's own ``table``, which servers have forbidden since 6.2.7; here it is a
    local function instead.
    """

    name = "qless-py"

    def __init__(self, url: str) -> None:
        self._client = peer("qless").Client(url)
        script: str = self._client._lua.script.decode()
        mended = script.replace("function table.extend", "local function extend").replace(
            "table.extend", "extend"
        )
        self._client._lua = self._client.redis.register_script(mended)
        self._queue = self._client.queues["bench"]

    def item(self, number: int) -> Any:
        return as_data(number)

    def put(self, item: Any) -> object:
        return self._queue.put("bench.Job", item)

    def take(self) -> Any:
        return self._queue.pop()

    def ack(self, taken: Any) -> object:
        return taken.complete()

    def take_batches(self, count: int) -> None:
        while count > 0:
            jobs = self._queue.pop(BATCH)
            for job in jobs:
                job.complete()
            count = count - len(jobs) if jobs else missing(self)

    def close(self) -> None:
        self._client.redis.close()


class Huey(Blocking):
    """huey's RedisStorage: a pop; a consumer that dies loses its task."""

    name = "huey (pops)"

    def __init__(self, url: str) -> None:
        self._storage = peer("huey.storage").RedisStorage("bench", blocking=False, url=url)

    def item(self, number: int) -> Any:
        return (TEXT % number).encode()

    def put(self, item: Any) -> object:
        return self._storage.enqueue(item)

    def take(self) -> Any:
        return self._storage.dequeue()

    def ack(self, taken: Any) -> object:
        return None

    def close(self) -> None:
        self._storage.close()


class Saq(Contender):
    """saq on uvloop. Its worker would also note that a job has begun. Finished jobs stay for ten minutes."""

    name = "saq"

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner(loop_factory=peer("uvloop").new_event_loop)
        self._run = self._runner.run
        self._queue = self._run(self._connect(url))
        self._complete = peer("saq").Status.COMPLETE

    async def _connect(self, url: str) -> Any:
        return peer("saq.queue.redis").RedisQueue(redis.asyncio.from_url(url), name="bench")

    def put_all(self, items: Sequence[Any]) -> None:
        async def work() -> None:
            for item in items:
                await self._queue.enqueue("bench", data=item)

        self._run(work())

    def take_all(self, count: int) -> None:
        async def work() -> None:
            for _ in range(count):
                job = await self._queue.dequeue(timeout=1)
                await job.finish(self._complete)

        self._run(work())

    def put_batches(self, items: Sequence[Any]) -> None:
        self.put_all(items)

    def take_batches(self, count: int) -> None:
        self.take_all(count)

    def is_empty(self) -> bool:
        return bool(self._run(self._queue.count("queued")) == 0)

    def close(self) -> None:
        self._run(self._queue.disconnect())
        self._runner.close()


class Rq(Blocking):
    """RQ's enqueue and dequeue, without what its worker then does to run a job and to keep its result."""

    name = "rq (dequeues)"

    def __init__(self, url: str) -> None:
        self._db = redis.Redis.from_url(url)
        self._class = peer("rq").Queue
        self._queue = self._class("bench", connection=self._db)

    def put(self, item: Any) -> object:
        return self._queue.enqueue("bench.work", item)

    def take(self) -> Any:
        return self._class.dequeue_any([self._queue], None, connection=self._db)

    def ack(self, taken: Any) -> object:
        return None

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self._queue.enqueue_many([self._class.prepare_data("bench.work", (item,)) for item in batch])

    def close(self) -> None:
        self._db.close()


PEERS: tuple[type[Contender], ...] = (RedisWorkQueue, Qless, Huey, Saq, Rq)
