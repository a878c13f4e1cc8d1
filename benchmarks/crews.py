"""Processes that work side by side for one contender, each on a connection of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.server_contenders import Contender

STARTUP, TURN = 60.0, 300.0
"""Seconds to wait for an answer of a process, at its start and in a turn, before it is given up."""


Fresh = Callable[[], AbstractContextManager[str]]
"""Gives the URL of an empty database, which is removed at the end."""

Cores = frozenset[int] | None
"""The processor's cores on which something runs; None: whichever the system chooses, and changes."""


class Order(NamedTuple):
    """What one process is to do: the loop's name, and the numbers of the tasks."""

    verb: str
    numbers: range


class Crew:
    """Processes of one contender on one database. They stay, so that connections are warm as users' are."""

    def __init__(self, kind: type[Contender], url: str, size: int, cores: Cores) -> None:
        self.kind = kind
        self.url = url
        context = get_context("forkserver")
        context.set_forkserver_preload([kind.__module__])
        self._pipes: list[Any] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(kind, url, cores, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            self._hear(pipe, STARTUP)

    def run(self, verb: str, first: int, count: int) -> float:
        """Do one loop on ``count`` tasks, shared by all; return the seconds from the first start to the last end."""
        size = len(self._pipes)
        for index, pipe in enumerate(self._pipes):
            pipe.send(Order(verb, range(first + index, first + count, size)))
        for pipe in self._pipes:
            self._hear(pipe, TURN)
        for pipe in self._pipes:
            pipe.send(None)
        times = [self._hear(pipe, TURN) for pipe in self._pipes]
        return float(max(end for _, end in times) - min(start for start, _ in times))

    def check_empty(self) -> None:
        """Fail if a task is left: as many were taken as were put, so another was taken twice."""
        self._pipes[0].send(Order("is_empty", range(0)))
        self._hear(self._pipes[0], TURN)
        self._pipes[0].send(None)
        if not self._hear(self._pipes[0], TURN):
            raise AssertionError(f"{self.kind.name}: a task is left, so another was taken twice")

    def _hear(self, pipe: Any, seconds: float) -> Any:
        try:
            if pipe.poll(seconds):
                return pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{self.kind.name}: a process failed") from None
        raise TimeoutError(f"{self.kind.name}: a process did not answer for {seconds:g} s")

    def close(self) -> None:
        """Let the processes end."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()


@contextmanager
def on_cores(cores: Cores) -> Iterator[None]:
    """Meanwhile, this process and those that it starts run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def serve(kind: type[Contender], url: str, cores: Cores, pipe: Connection) -> None:
    """Run one process of a crew on its cores."""
    with on_cores(cores):
        obey_all(kind, url, pipe)


def obey_all(kind: type[Contender], url: str, pipe: Connection) -> None:
    """Carry out one order after the other, each in two steps, so that all processes begin at once."""
    contender = kind(url)
    try:
        pipe.send(None)
        while True:
            order = pipe.recv()
            count = len(order.numbers)
            puts = order.verb.startswith("put")
            items = [contender.item(number) for number in order.numbers] if puts else []
            pipe.send(None)
            pipe.recv()
            pipe.send(obey(contender, order.verb, items, count))
    except (EOFError, ConnectionError):
        pass  # the other end has gone
    finally:
        contender.close()


def obey(contender: Contender, verb: str, items: Sequence[Any], count: int) -> Any:
    """Carry out an order; return when it began and ended, on the clock that all processes share."""
    if verb == "is_empty":
        return contender.is_empty()
    work = getattr(contender, verb)
    argument = items if verb.startswith("put") else count
    began = time.monotonic()
    work(argument)
    return began, time.monotonic()


@contextmanager
def crews(kinds: Sequence[type[Contender]], fresh: Fresh, size: int, cores: Cores) -> Iterator[list[Crew]]:
    """Open a crew of each kind, each on a fresh database."""
    with ExitStack() as stack:
        opened = []
        for kind in kinds:
            database = stack.enter_context(fresh())
            kind.prepare(database)
            crew = Crew(kind, database, size, cores)
            stack.callback(crew.close)
            opened.append(crew)
        yield opened
