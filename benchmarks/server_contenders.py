"""The contenders on a server of any kind, tubes among them, each behind the same few loops.

A contender has one connection to its kind's own database, in which others of its kind may work at the same
time. A whole loop is timed, so that an asynchronous client stays in one coroutine from its first task to its
last. A contender without batches works one by one, as its users must.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import tubes
from benchmarks.contenders import TEXT, as_data

BATCH = 100

PATIENCE = 20.0
"""Seconds to wait for a task that must be there: others may have locked it for a moment."""


def batches(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """The items in batches of a hundred."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


class Contender(ABC):
    """One connection to one queue."""

    name: ClassVar[str]

    backlog: ClassVar[int] = 10**9
    """The largest backlog to give it: some slow down as it grows, and are measured where they are fast."""

    @classmethod  # noqa: B027 - some need nothing
    def prepare(cls, url: str) -> None:
        """Make what must be there in an empty database, if anything."""

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Connect."""

    def item(self, number: int) -> Any:
        """What to put for a number; made before the clock runs."""
        return TEXT % number

    @abstractmethod
    def put_all(self, items: Sequence[Any]) -> None:
        """Put one by one, each in a commit of its own."""

    @abstractmethod
    def take_all(self, count: int) -> None:
        """Take and ack ``count`` tasks one by one; that many are there."""

    def chain_all(self, count: int) -> None:
        """Ack each task with the next take, in two steps if it cannot be done in one."""
        self.take_all(count)

    @abstractmethod
    def put_batches(self, items: Sequence[Any]) -> None:
        """Put by a hundred."""

    @abstractmethod
    def take_batches(self, count: int) -> None:
        """Take and ack ``count`` tasks by a hundred; that many are there."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether a take finds nothing."""

    @abstractmethod
    def close(self) -> None: ...


class Blocking(Contender):
    """A contender that does one thing after the other in this thread."""

    @abstractmethod
    def put(self, item: Any) -> object: ...

    @abstractmethod
    def take(self) -> Any:
        """Take a task; ``None`` when there is none, or others have locked all."""

    @abstractmethod
    def ack(self, taken: Any) -> object: ...

    def put_all(self, items: Sequence[Any]) -> None:
        put = self.put
        for item in items:
            put(item)

    def take_all(self, count: int) -> None:
        take, ack = self.take, self.ack
        for _ in range(count):
            taken = take()
            ack(self.insist() if taken is None else taken)

    def insist(self) -> Any:
        """Take a task that must be there."""
        give_up = time.monotonic() + PATIENCE
        while (taken := self.take()) is None:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self.name}: a task that was put could not be taken")
        return taken

    def put_batches(self, items: Sequence[Any]) -> None:
        self.put_all(items)

    def take_batches(self, count: int) -> None:
        self.take_all(count)

    def is_empty(self) -> bool:
        return self.take() is None


def missing(contender: Contender) -> int:
    """Fail: a batch was empty too early. Nobody else took its tasks: batches are taken on one connection."""
    raise LookupError(f"{contender.name}: tasks that were put could not be taken")


class Tubes(Blocking):
    """Ours: the public API, with its defaults."""

    name = "tubes"
    type: ClassVar[str] = "fifo"
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def prepare(cls, url: str) -> None:
        with tubes.connect(url, migrate=True) as queue:
            queue.create_tube("bench", cls.type, **cls.options)

    def __init__(self, url: str) -> None:
        self.queue = tubes.connect(url)
        self.tube = self.queue.tube["bench"]
        self._put, self._take, self._ack = self.tube.put, self.tube.take, self.tube.ack

    def item(self, number: int) -> Any:
        return as_data(number)

    def put(self, item: Any) -> object:
        return self._put(item)

    def take(self) -> Any:
        return self._take(0)

    def ack(self, taken: Any) -> object:
        return self._ack(taken)

    def chain_all(self, count: int) -> None:
        take, taken = self._take, self.take()
        for _ in range(count - 1):
            taken = take(0, ack=taken)
        self.ack(taken)

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self.tube.put_many(batch)

    def take_batches(self, count: int) -> None:
        while count > 0:
            taken = self.tube.take_many(BATCH, 0)
            self.tube.ack_many(taken)
            count = count - len(taken) if taken else missing(self)

    def close(self) -> None:
        self.queue.close()


class TubesAllOptions(Tubes):
    """Ours with everything switched on: ten sub-queues, three priorities, ttl, ttr and delay."""

    name = "tubes utubettl"
    type = "utubettl"
    options: ClassVar[dict[str, Any]] = {"ttl": 86_400, "ttr": 600, "pri": 1}

    def put(self, item: Any) -> object:
        return self._put(item, **self.options_of(item))

    def put_batches(self, items: Sequence[Any]) -> None:
        for batch in batches(items):
            self.tube.put_many(batch, **self.options_of(batch[0]))

    def options_of(self, item: Any) -> dict[str, Any]:
        """The options to put an item with."""
        number = int(item["n"])
        return {"utube": f"host{number % 10}", "pri": number % 3, "ttl": 3600, "ttr": 60, "delay": 0}
