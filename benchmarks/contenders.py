"""The contenders on a file: raw ``sqlite3``, tubes, and the embedded peers, each behind the same few verbs.

A contender opens one queue in a folder of its own at one durability. ``item`` prepares what it puts, outside
the measured time; ``take`` returns ``None`` when nothing is ready. If it has no better way of doing a thing
(a batch, an ack with the next take), it does it one by one, as its users must.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import tubes
from tubes.queue import Durability

BUSY_SECONDS = 30
"""How long each contender waits for a lock: when eight writers race, some starve for a while."""

TEXT = '{"n":"%08d","text":"' + "x" * 78 + '"}'
"""The payload: 100 bytes of JSON that carry a number, so that duplicate and missing tasks are noticed."""


def as_data(number: int) -> dict[str, str]:
    """The same, for contenders that encode it themselves."""
    return {"n": f"{number:08d}", "text": "x" * 78}


def peer(module: str) -> Any:
    """Import another project's queue."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: the peers come with  pip install -e '.[bench]'") from error


class Contender(ABC):
    """One queue under test."""

    name: ClassVar[str]
    acks: ClassVar[bool] = True
    """Whether a task survives the death of the consumer that took it."""

    per_thread: ClassVar[bool] = True
    """Whether each thread opens its own; otherwise all share one object."""

    patience: ClassVar[float] = 0.0
    """Seconds that ``take`` itself waits in a race; with 0 the consumers poll."""

    backlog: ClassVar[int] = 10**9
    """The largest backlog to give it: some slow down as it grows, and are measured where they are fast."""

    def __init__(self, folder: Path, durability: str) -> None:
        self.folder = folder
        self.durability = durability
        self.wait = 0.0
        self.prepared: list[Any] = []

    def item(self, number: int) -> Any:
        """What to put for a number."""
        return TEXT % number

    @abstractmethod
    def put(self, item: Any) -> object: ...

    @abstractmethod
    def take(self) -> Any: ...

    @abstractmethod
    def ack(self, taken: Any) -> object: ...

    @abstractmethod
    def number(self, taken: Any) -> int:
        """The number that a taken task carries."""

    def ack_and_take(self, taken: Any) -> Any:
        """Finish one and take the next."""
        self.ack(taken)
        return self.take()

    def put_many(self, items: Sequence[Any]) -> object:
        """Put a batch."""
        for item in items:
            self.put(item)
        return None

    def take_and_ack_many(self, count: int) -> None:
        """Take a batch, then finish it."""
        for _ in range(count):
            self.ack(self.take())

    @abstractmethod
    def close(self) -> None: ...


def in_text(text: str) -> int:
    """The number in a payload that was not decoded."""
    return int(text[6:14])


class Raw(Contender):
    """The least that does the job: one table, a partial index, three statements, no checks."""

    name = "raw sqlite3"
    page_size: ClassVar[int | None] = None

    INSERT = "INSERT INTO task (data) VALUES (?)"
    TAKE = (
        "UPDATE task SET state = 't' WHERE id = (SELECT id FROM task WHERE state = 'r' ORDER BY id LIMIT 1)"
        " RETURNING id, data"
    )
    TAKE_MANY = (
        "UPDATE task SET state = 't' WHERE id IN (SELECT id FROM task WHERE state = 'r' ORDER BY id LIMIT ?)"
        " RETURNING id, data"
    )
    DELETE = "DELETE FROM task WHERE id = ?"

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        self._db = db = sqlite3.connect(
            folder / "raw.db", isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
        )
        if self.page_size is not None:
            db.execute(f"PRAGMA page_size={self.page_size}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={durability}")
        db.execute(
            "CREATE TABLE IF NOT EXISTS task"
            " (id INTEGER PRIMARY KEY, state TEXT NOT NULL DEFAULT 'r', data TEXT NOT NULL)"
        )
        db.execute("CREATE INDEX IF NOT EXISTS ready ON task (id) WHERE state = 'r'")
        self._execute: Callable[..., sqlite3.Cursor] = db.execute

    def item(self, number: int) -> Any:
        return (TEXT % number,)

    def put(self, item: Any) -> object:
        return self._execute(self.INSERT, item)

    def take(self) -> Any:
        rows = self._execute(self.TAKE).fetchall()
        return rows[0] if rows else None

    def ack(self, taken: Any) -> object:
        return self._execute(self.DELETE, taken[:1])

    def number(self, taken: Any) -> int:
        return in_text(taken[1])

    def put_many(self, items: Sequence[Any]) -> object:
        self._execute("BEGIN IMMEDIATE")
        self._db.executemany(self.INSERT, items)
        return self._execute("COMMIT")

    def take_and_ack_many(self, count: int) -> None:
        rows = self._execute(self.TAKE_MANY, (count,)).fetchall()
        self._execute("BEGIN IMMEDIATE")
        self._db.executemany(self.DELETE, [row[:1] for row in rows])
        self._execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class RawSmallPages(Raw):
    """The same with the page size that tubes chooses, to show what that choice alone is worth."""

    name = "raw, 1 KiB pages"
    page_size = 1024


class Tubes(Contender):
    """Ours: the public API, with its defaults."""

    name = "tubes"
    per_thread = False
    patience = 0.2
    type: ClassVar[str] = "fifo"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, durability: Durability) -> None:
        super().__init__(folder, durability)
        self.queue = tubes.connect(
            f"sqlite:///{folder / 'tubes.db'}", durability=durability, busy_timeout=BUSY_SECONDS
        )
        self.tube = self.queue.create_tube("bench", self.type, if_not_exists=True, **self.options)
        self._put, self._take, self._ack = self.tube.put, self.tube.take, self.tube.ack

    def item(self, number: int) -> Any:
        return as_data(number)

    def put(self, item: Any) -> object:
        return self._put(item)

    def take(self) -> Any:
        return self._take(self.wait)

    def ack(self, taken: Any) -> object:
        return self._ack(taken)

    def number(self, taken: Any) -> int:
        return int(taken.data["n"])

    def ack_and_take(self, taken: Any) -> Any:
        return self._take(0, ack=taken)

    def put_many(self, items: Sequence[Any]) -> object:
        return self.tube.put_many(items)

    def take_and_ack_many(self, count: int) -> None:
        self.tube.ack_many(self.tube.take_many(count, 0))

    def close(self) -> None:
        self.queue.close()


class TubesAllOptions(Tubes):
    """Ours with everything switched on: ten sub-queues, three priorities, ttl, ttr and delay."""

    name = "tubes utubettl"
    type = "utubettl"
    options: ClassVar[dict[str, Any]] = {"ttl": 86_400, "ttr": 600, "pri": 1}

    def put(self, item: Any) -> object:
        number = int(item["n"])
        return self._put(item, utube=f"host{number % 10}", pri=number % 3, ttl=3600, ttr=60, delay=0)


class LiteQueue(Contender):
    """litequeue: one connection a thread; a take sorts all that is ready."""

    name = "litequeue"
    backlog = 1_000

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        self._queue = peer("litequeue").LiteQueue(folder / "lite.db", timeout=BUSY_SECONDS)
        self._queue.conn.execute(f"PRAGMA synchronous={durability}")

    def put(self, item: Any) -> object:
        return self._queue.put(item)

    def take(self) -> Any:
        return self._queue.pop()

    def ack(self, taken: Any) -> object:
        return self._queue.done(taken.message_id)

    def number(self, taken: Any) -> int:
        return in_text(taken.data)

    def put_many(self, items: Sequence[Any]) -> object:
        with self._queue.transaction(mode="IMMEDIATE"):
            for item in items:
                self._queue.put(item)
        return None

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Contender):
    """persist-queue's SQLiteAckQueue: one object for all threads; acked rows stay until they are cleared."""

    name = "persist-queue"
    per_thread = False
    backlog = 1_000

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        module = peer("persistqueue")
        self._empty = module.Empty
        self._queue = module.SQLiteAckQueue(
            str(folder / "persist"), multithreading=True, timeout=BUSY_SECONDS
        )
        for db in (self._queue._putter, self._queue._getter):
            db.execute(f"PRAGMA synchronous={durability}")

    def put(self, item: Any) -> object:
        return self._queue.put(item)

    def take(self) -> Any:
        try:
            return self._queue.get(block=False, raw=True)
        except self._empty:
            return None

    def ack(self, taken: Any) -> object:
        return self._queue.ack(id=taken["pqid"])

    def number(self, taken: Any) -> int:
        return in_text(taken["data"])

    def close(self) -> None:
        self._queue.close()


class Huey(Contender):
    """huey's SqliteStorage: a pop; a consumer that dies loses its task."""

    name = "huey (pops)"
    acks = False
    per_thread = False

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        storage = peer("huey.storage").SqliteStorage
        self._storage = storage(filename=str(folder / "huey.db"), timeout=BUSY_SECONDS)
        self._storage.conn.execute(f"PRAGMA synchronous={durability}")

    def item(self, number: int) -> Any:
        return (TEXT % number).encode()

    def put(self, item: Any) -> object:
        return self._storage.enqueue(item)

    def take(self) -> Any:
        return self._storage.dequeue()

    def ack(self, taken: Any) -> object:
        return None

    def number(self, taken: Any) -> int:
        return in_text(bytes(taken).decode())

    def close(self) -> None:
        self._storage.close()


class DiskCache(Contender):
    """diskcache's push and pull: also a pop."""

    name = "diskcache (pops)"
    acks = False
    per_thread = False

    LEVELS: ClassVar[dict[str, int]] = {"off": 0, "normal": 1, "full": 2}

    def __init__(self, folder: Path, durability: str) -> None:
        super().__init__(folder, durability)
        self._cache = peer("diskcache").Cache(
            str(folder / "diskcache"),
            timeout=BUSY_SECONDS,
            eviction_policy="none",
            sqlite_synchronous=self.LEVELS[durability],
        )

    def put(self, item: Any) -> object:
        return self._cache.push(item)

    def take(self) -> Any:
        key, text = self._cache.pull()
        return None if key is None else text

    def ack(self, taken: Any) -> object:
        return None

    def number(self, taken: Any) -> int:
        return in_text(taken)

    def put_many(self, items: Sequence[Any]) -> object:
        with self._cache.transact():
            for item in items:
                self._cache.push(item)
        return None

    def close(self) -> None:
        self._cache.close()


PEERS: tuple[type[Contender], ...] = (LiteQueue, PersistQueue, Huey, DiskCache)
