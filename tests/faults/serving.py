"""What the tests of both servers share: a load, a worker that is told what to do, a client with another clock."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from faults.harness import Connect, ended, eventually, heard, tell

import tubes


class Load:
    """Threads that put numbers, and threads that take and ack them, whatever the store says, until the block ends."""

    def __init__(self, queues: list[tubes.Queue], producers: int = 2, consumers: int = 3) -> None:
        self.stored: set[int] = set()
        self.acked: Counter[int] = Counter()
        self.unsure: set[int] = set()
        self.errors: Counter[str] = Counter()
        self._queues = queues
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=work, args=(queues[number % len(queues)].tube.jobs, number), daemon=True)
            for work, count in ((self._produce, producers), (self._consume, consumers))
            for number in range(count)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all threads, and close the queues, so that nothing is held any more."""
        self._over.set()
        ended(*self._threads)
        for queue in self._queues:
            queue.close()

    def _produce(self, tube: tubes.Tube, first: int) -> None:
        number = first
        while not self._over.is_set():
            number += 100
            try:
                tube.put(number)
                self.stored.add(number)
            except tubes.StoreError as error:
                self.errors[type(error).__name__] += 1
                time.sleep(0.01)

    def _consume(self, tube: tubes.Tube, _: int) -> None:
        while not self._over.is_set():
            try:
                task = tube.take(timeout=0.1)
            except tubes.StoreError as error:
                self.errors[type(error).__name__] += 1
                time.sleep(0.01)
                continue
            if task is not None:
                self._ack(tube, task)

    def _ack(self, tube: tubes.Tube, task: tubes.Task) -> None:
        """Ack until the outcome is known: a task that its session holds and nobody acks is in the way of others."""
        while True:
            try:
                tube.ack(task)
                with self._lock:
                    self.acked[task.data] += 1
                return
            except tubes.NotTaken:  # by a try whose outcome was unknown; or this process was taken for dead
                break
            except tubes.StoreError as error:
                self.errors[type(error).__name__] += 1
                if self._over.is_set():
                    break
                time.sleep(0.01)
        self.unsure.add(task.data)

    def settle(self, connect: Connect) -> None:
        """Check that everything that was stored is acked once, or may be, or is still there."""
        with connect(sweep=False) as queue:
            tube = queue.tube.jobs

            def drained() -> bool:
                queue.sweep()
                while (task := tube.take(timeout=0)) is not None:
                    tube.ack(task)
                    self.acked[task.data] += 1
                return tube.statistics()["tasks"]["total"] == 0

            eventually(drained)
        assert not [number for number, times in self.acked.items() if times > 1]
        assert self.stored <= self.acked.keys() | self.unsure


def put_when_it_can(tube: tubes.Tube, data: object) -> None:
    """Put once, as soon as the server is back."""

    def put() -> bool:
        try:
            tube.put(data)
        except tubes.StoreError:
            return False
        return True

    eventually(put)


WORKER = """
import sys, tubes
queue = tubes.connect(sys.argv[1])
tube = queue.tube.jobs
for line in sys.stdin:
    try:
        if line.strip() == "take":
            task = tube.take(timeout=0)
            print(task and task.data, flush=True)
        elif line.strip() == "ack":
            print(tube.ack(task).state, flush=True)
        elif line.strip() == "put":
            print(tube.put("x").id, flush=True)
    except tubes.TubeError as error:
        print(type(error).__name__, flush=True)
"""


SKEWED = """
import sys, time
real = time.time_ns
time.time_ns = lambda: real() + int(float(sys.argv[2]) * 3600e9)
import tubes
queue = tubes.connect(sys.argv[1], sweep=False)
tube = queue.tube.jobs
for line in sys.stdin:
    verb = line.split()
    if verb[0] == "put":
        print(tube.put("skewed", ttl=float(verb[1]), delay=float(verb[2])).id, flush=True)
    else:
        task = tube.take(timeout=0)
        print(task and task.data, flush=True)
"""


def check_clocks(tube: tubes.Tube, client: Any) -> None:
    """Check that a skewed client and this process agree on a delay and a ttr, which may be over if all is slow."""
    began = time.monotonic()
    tell(client, "put 600 0.6")
    heard(client)
    assert tube.take(timeout=0) is None or time.monotonic() - began > 0.6  # delayed
    task = tube.take(timeout=30)
    began = time.monotonic()
    assert task is not None  # after its delay, and not over
    assert abs((task.created_at.timestamp()) - time.time()) < 60
    tell(client, "take")
    assert (
        heard(client) == "None" or time.monotonic() - began > 0.4
    )  # its ttr is not over for the other either

    def taken_by_the_other() -> bool:
        tell(client, "take")
        return heard(client) == "skewed"

    eventually(taken_by_the_other)
