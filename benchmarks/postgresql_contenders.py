"""The contenders on PostgreSQL besides tubes: raw psycopg, and the peers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.contenders import TEXT, as_data, peer
from benchmarks.postgresql_server import conninfo
from benchmarks.server_contenders import BATCH, PATIENCE, Blocking, Contender, batches, missing


class Raw(Blocking):
    """The least that does the job: one table, a partial index, a kept cursor in autocommit, three statements."""

    name = "raw psycopg"

    SCHEMA = """
        CREATE TABLE task (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'r', data text NOT NULL
        );
        CREATE INDEX ready ON task (id) WHERE state = 'r'
    """
    INSERT = "INSERT INTO task (data) VALUES (%s)"
    TAKE = (
        "UPDATE task SET state = 't' WHERE id ="
        " (SELECT id FROM task WHERE state = 'r' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, data"
    )
    TAKE_MANY = (
        "UPDATE task SET state = 't' WHERE id = ANY(ARRAY("
        f"SELECT id FROM task WHERE state = 'r' ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED)) RETURNING id, data"
    )
    DELETE = "DELETE FROM task WHERE id = %s"
    DELETE_MANY = "DELETE FROM task WHERE id = ANY(%s)"

    @classmethod
    def prepare(cls, url: str) -> None:
        with psycopg.connect(conninfo(url)) as db:
            db.execute(cls.SCHEMA)

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(conninfo(url), autocommit=True)
        self._cursor = self._db.cursor()

    def item(self, number: int) -> Any:
        return (TEXT % number,)

    def put(self, item: Any) -> object:
        return self._cursor.execute(self.INSERT, item)

    def take(self) -> Any:
        return self._cursor.execute(self.TAKE).fetchone()

    def ack(self, taken: Any) -> object:
        return self._cursor.execute(self.DELETE, taken[:1])

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self._cursor.execute(insert_of(len(batch)), [value for (value,) in batch])

    def take_batches(self, count: int) -> None:
        while count > 0:
            rows = self._cursor.execute(self.TAKE_MANY).fetchall()
            self._cursor.execute(self.DELETE_MANY, ([row[0] for row in rows],))
            count = count - len(rows) if rows else missing(self)

    def close(self) -> None:
        self._db.close()


@cache
def insert_of(count: int) -> Any:
    """One INSERT of ``count`` rows."""
    return f"INSERT INTO task (data) VALUES {', '.join(['(%s)'] * count)}"


class Procrastinate(Blocking):
    """procrastinate: its synchronous connector, which is the faster one, with a pool of one connection.

    Its manager fetches and finishes only through the asynchronous one, so its own statements for that are run
    directly here. Finished jobs stay in its table, as its worker leaves them by default.
    """

    name = "procrastinate"
    backlog = 2_000

    @classmethod
    def prepare(cls, url: str) -> None:
        with psycopg.connect(conninfo(url)) as db:
            db.execute(peer("procrastinate.schema").SchemaManager.get_schema())

    def __init__(self, url: str) -> None:
        self._connector = peer("procrastinate").SyncPsycopgConnector(
            conninfo=conninfo(url), min_size=1, max_size=1
        )
        self._connector.open()
        self._manager = peer("procrastinate.manager").JobManager(self._connector)
        self._job = peer("procrastinate.jobs").Job
        self._queries = peer("procrastinate.sql").queries
        self._worker = self._connector.execute_query_one(query=self._queries["register_worker"])["worker_id"]

    def item(self, number: int) -> Any:
        data = as_data(number)
        return self._job(queue="bench", lock=None, queueing_lock=None, task_name="bench", task_kwargs=data)

    def put(self, item: Any) -> object:
        return self._manager.defer_job(item)

    def take(self) -> Any:
        row = self._connector.execute_query_one(
            query=self._queries["fetch_job"], queues=["bench"], worker_id=self._worker
        )
        return None if row["id"] is None else self._job.from_row(row)

    def ack(self, taken: Any) -> object:
        return self._connector.execute_query(
            query=self._queries["finish_job"], job_id=taken.id, status="succeeded", delete_job=False
        )

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self._manager.batch_defer_jobs(list(batch))

    def close(self) -> None:
        self._connector.close()


class PgQueuer(Contender):
    """pgqueuer on asyncpg and uvloop, its fastest way. Each finished job leaves a row in its log."""

    name = "pgqueuer"

    @classmethod
    def prepare(cls, url: str) -> None:
        contender = cls(url)
        contender._run(contender._queries.install())
        contender.close()

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner(loop_factory=peer("uvloop").new_event_loop)
        self._run = self._runner.run
        self._db = self._run(self._connect(conninfo(url)))
        queries = peer("pgqueuer.queries")
        self._queries = queries.Queries.from_asyncpg_connection(self._db)
        self._entrypoints = {"bench": queries.EntrypointExecutionParameter(concurrency_limit=0)}
        self._manager = uuid4()

    async def _connect(self, url: str) -> Any:
        return await peer("asyncpg").connect(url)

    def item(self, number: int) -> Any:
        return (TEXT % number).encode()

    async def _dequeue(self, count: int) -> Any:
        return await self._queries.dequeue(
            batch_size=count,
            entrypoints=self._entrypoints,
            queue_manager_id=self._manager,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=30),
        )

    def put_all(self, items: Sequence[Any]) -> None:
        async def work() -> None:
            for item in items:
                await self._queries.enqueue("bench", item)

        self._run(work())

    def take_all(self, count: int) -> None:
        self._run(self._take(count, 1))

    async def _take(self, count: int, size: int) -> None:
        give_up = time.monotonic() + PATIENCE
        while count > 0:
            jobs = await self._dequeue(size)
            if jobs:
                await self._queries.log_jobs([(job, "successful", None) for job in jobs])
                count -= len(jobs)
                give_up = time.monotonic() + PATIENCE
            elif time.monotonic() > give_up:
                missing(self)

    def put_batches(self, items: Sequence[Any]) -> None:
        async def work() -> None:
            for batch in batches(items):
                names, priorities = ["bench"] * len(batch), [0] * len(batch)
                await self._queries.enqueue(names, list(batch), priorities)

        self._run(work())

    def take_batches(self, count: int) -> None:
        self._run(self._take(count, BATCH))

    def is_empty(self) -> bool:
        return not self._run(self._dequeue(1))

    def close(self) -> None:
        self._run(self._db.close())
        self._runner.close()


class Pgmq(Blocking):
    """pgmq: its SQL functions, called as raw calls its statements, which is faster than its own client."""

    name = "pgmq"

    SEND = "SELECT * FROM pgmq.send('bench', %s::jsonb)"
    READ = "SELECT msg_id, message::text FROM pgmq.read('bench', 600, %s)"
    DELETE = "SELECT pgmq.delete('bench', %s::bigint)"
    SEND_MANY = "SELECT * FROM pgmq.send_batch('bench', %s::jsonb[])"
    DELETE_MANY = "SELECT * FROM pgmq.delete('bench', %s::bigint[])"

    @classmethod
    def prepare(cls, url: str) -> None:
        with psycopg.connect(conninfo(url)) as db:
            db.execute(peer("pgmq.install").get_embedded_install_sql())
            db.execute("SELECT pgmq.create('bench')")

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(conninfo(url), autocommit=True)
        self._cursor = self._db.cursor()

    def put(self, item: Any) -> object:
        return self._cursor.execute(self.SEND, (item,))

    def take(self) -> Any:
        return self._cursor.execute(self.READ, (1,)).fetchone()

    def ack(self, taken: Any) -> object:
        return self._cursor.execute(self.DELETE, taken[:1])

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self._cursor.execute(self.SEND_MANY, (list(batch),))

    def take_batches(self, count: int) -> None:
        while count > 0:
            rows = self._cursor.execute(self.READ, (BATCH,)).fetchall()
            self._cursor.execute(self.DELETE_MANY, ([row[0] for row in rows],))
            count = count - len(rows) if rows else missing(self)

    def close(self) -> None:
        self._db.close()


PEERS: tuple[type[Contender], ...] = (Procrastinate, PgQueuer, Pgmq)
