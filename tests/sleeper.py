"""Calls that never look by themselves while they wait: they get only what they are called for.

``python sleeper.py URL TUBE`` is a consumer: it prints "asleep" once it sleeps, then its task's data.
``python sleeper.py URL TUBE DATA`` waits for room, and puts the data.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import tubes
from tubes.testing import FakeClock

NEVER = 1e6
"""Seconds: longer than any test takes, and not too long for any call that waits."""

LOOKS = {
    "tubes.drivers.sql.sqlite_bell": ("FLOOR",),
    "tubes.drivers.sql.postgresql_listener": ("FLOOR", "SOON"),
    "tubes.drivers.redis.listener": ("FLOOR", "SAID_FOR"),
}
"""The constants for when a waiter looks by itself; in Redis, also how long it is believed to wait."""


def deafen(set_to: Callable[[Any, str, float], None] = setattr) -> None:
    """Let no waiter look by itself in queues opened after this."""
    _load_stores()  # what they import from those modules stays as it is
    for module, names in LOOKS.items():
        for name in names:
            set_to(importlib.import_module(module), name, NEVER)


@cache
def _load_stores() -> None:
    for store in entry_points(group="tubes.stores"):  # finding them takes some ms, and thousands of tests ask
        store.load()


def is_asleep(queue: tubes.Queue) -> bool:
    """Whether somebody waits in such a queue, which has a FakeClock, and has taken its last look.

    On SQLite a waiter that begins to listen looks too, and lets the first in line do so.
    """
    bell = importlib.import_module("tubes.drivers.sql.sqlite_bell").Bell.wait.__code__
    listens = any(frame.f_code is bell for frame in sys._current_frames().values())
    clock: Any = queue.clock
    return (listens or not hasattr(queue.store, "_locks")) and clock.waiting == 1


def number_known(queue: tubes.Queue, key: int) -> int | None:
    """How many processes a PostgreSQL queue's listener has heard wait for that; None without such a list."""
    listener: Any = getattr(queue.store, "_listener", None)
    return listener and sum(key in said.keys for said in list(listener._waiting.values()))


def main(url: str, name: str, *put: str) -> int:
    deafen()
    module: Any = importlib.import_module("tubes.drivers.sql.postgresql_listener")
    module.ANNOUNCE_EVERY = 0.05
    queue = tubes.connect(url, clock=FakeClock(), sweep=False)

    tube = queue.tube[name]
    got: list[Any] = []

    def work() -> None:
        got.append(tube.put(*put, timeout=None) if put else tube.take())
        print(got[0].data, flush=True)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while worker.is_alive() and not is_asleep(queue):
        time.sleep(0.001)  # real time: the other thread goes to sleep
    print("asleep", flush=True)
    listener = getattr(queue.store, "_listener", None)
    while worker.is_alive():
        if listener:
            listener._wake_pipe.set()  # late listeners hear it too
        worker.join(0.05)
    return 0 if got else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
