"""The worker processes that the fault tests start, stop and kill: ``python worker.py ROLE SETTINGS``.

A worker appends what it is about to do and what it did to a log that all workers share. A line is one
``write`` to a file opened for appending, so it is whole, it stands where it came in time, and it outlives a
SIGKILL of its writer. ``harness.py`` reads it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import tubes


class Log:
    """Appends lines to the shared log."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        """Append one line."""
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def produce(tube: tubes.Tube, log: Log, settings: dict[str, Any]) -> None:
    """Put numbered tasks: ``put? n`` before, ``put! n id`` after."""
    dice = random.Random()
    for count in itertools.count():
        n = f"{os.getpid()}.{settings['start']}.{count}"
        options: dict[str, Any] = {}
        if tube.features.grouped:
            options["utube"] = str(dice.randrange(5))
        if tube.features.priority:
            options["pri"] = dice.randrange(3)
        if tube.features.timed and dice.random() < 0.1:
            options["delay"] = 0.05
        log.write("put?", n)
        try:
            task = tube.put(n, **options)
        except (tubes.TubeFull, tubes.StoreBusy):
            log.write("put-", n)
            time.sleep(0.01)
            continue
        except tubes.StoreError:  # stored or not: nobody knows
            time.sleep(0.01)
            continue
        log.write("put!", n, task.id)
        time.sleep(dice.random() * 0.01)


def consume(tube: tubes.Tube, log: Log, settings: dict[str, Any]) -> None:
    """Take and ack: ``take id token n``, then ``ack? id token``, then ``ack!`` or ``lost``; some are released."""
    dice = random.Random()
    task = None
    while True:
        try:
            if task is None:
                task = tube.take(timeout=0.2)
            if task is None:
                continue
            log.write("take", task.id, task.token, task.data)
            if dice.random() < 0.5:
                time.sleep(dice.random() * 0.02)
            task = finish(tube, log, task, dice.random())
        except tubes.StoreError:
            log.write("busy")
            time.sleep(0.01)


def finish(tube: tubes.Tube, log: Log, task: tubes.Task, choice: float) -> tubes.Task | None:
    """Ack a task, release it, or ack it and take the next in one commit; return the next.

    A server that is away is asked until it answers: nobody else gets what a living session holds.
    """
    following: tubes.Task | None = None
    if choice >= 0.1:
        log.write("ack?", task.id, task.token)
    while True:
        try:
            if choice < 0.1:
                tube.release(task)
                return None
            if choice < 0.3:
                following = tube.take(timeout=0, ack=task)
            else:
                tube.ack(task)
        except tubes.NotTaken:  # or an earlier try had done it
            log.write("lost", task.id, task.token)
        except tubes.StoreError:
            log.write("busy")
            time.sleep(0.01)
            continue
        else:
            log.write("ack!", task.id, task.token)
        return following


def hold(tube: tubes.Tube, log: Log, settings: dict[str, Any]) -> None:
    """Take one task, say so, and do nothing more; with ``fork``, leave a child that lives on."""
    task = tube.take(timeout=10)
    assert task is not None
    if settings.get("fork") and os.fork() == 0:
        log.write("child", os.getpid())
        time.sleep(60)
        os._exit(0)
    log.write("take", task.id, task.token, task.data, task.owner)
    time.sleep(60)


def transaction(tube: tubes.Tube, log: Log, settings: dict[str, Any]) -> None:
    """Open a transaction with a task in it, and stay inside."""
    with settings["queue"].transaction() as unit:
        tube.put("inside", unit=unit)
        log.write("inside")
        time.sleep(60)


def connect_only(tube: tubes.Tube, log: Log, settings: dict[str, Any]) -> None:
    """Put one task into a tube that several processes create at once."""
    log.write("put!", tube.put("hello").id, tube.record.id)


ROLES: dict[str, Callable[[tubes.Tube, Log, dict[str, Any]], None]] = {
    "produce": produce,
    "consume": consume,
    "hold": hold,
    "transaction": transaction,
    "connect": connect_only,
}


def main() -> None:
    """Open the queue and play a role in it."""
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    queue, tube = opened(settings)
    settings["queue"] = queue
    ROLES[role](tube, Log(settings["log"]), settings)
    queue.close()


def opened(settings: dict[str, Any]) -> tuple[tubes.Queue, tubes.Tube]:
    """Open the queue and the tube, once the store can be reached and no stopped process holds its lock."""
    while True:
        try:
            queue = tubes.connect(settings["url"], **settings["connect"])
            return queue, queue.create_tube("jobs", settings["type"], if_not_exists=True, **settings["tube"])
        except (tubes.StoreUnavailable, tubes.StoreBusy, tubes.OutcomeUnknown):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
