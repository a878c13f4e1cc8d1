"""A process that does everything at random to a store's tubes until its standard input ends: URL TUBE..."""

from __future__ import annotations

import random
import select
import sys
from contextlib import suppress
from typing import Any

import tubes


def work(tube: tubes.Tube, dice: random.Random) -> None:
    """Put a task, take one and do something with it, and now and then kick some."""
    options: dict[str, Any] = {}
    if tube.features.grouped:
        options["utube"] = dice.choice("abc")
    if tube.features.priority:
        options["pri"] = dice.randrange(3)
    if tube.features.timed:
        options |= dice.choice([{}, {"ttl": 0.05}, {"delay": 0.02}, {"ttr": 0.02}, {"ttl": 60, "ttr": 60}])
    with suppress(tubes.TubeFull):
        tube.put(dice.random(), **options)
    task = tube.take(timeout=0)
    if task is not None:
        verb = dice.choice(["ack", "ack", "ack", "release", "bury", "delete"])
        with suppress(tubes.NotTaken, tubes.TaskNotFound):
            getattr(tube, verb)(task)
    if dice.random() < 0.2:
        tube.kick(2)


def main(url: str, *names: str) -> None:
    dice = random.Random()
    while not select.select([sys.stdin], [], [], 0)[0]:
        with tubes.connect(url, durability="off") as queue:  # come and go
            for _ in range(20):
                for name in names:
                    work(queue.tube[name], dice)


if __name__ == "__main__":
    main(*sys.argv[1:])
