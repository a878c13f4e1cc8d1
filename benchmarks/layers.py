"""Where the microseconds of a put and of take+ack go, layer by layer, from raw ``sqlite3`` to the whole call.

Run it: ``python benchmarks/layers.py``. Each figure is the lower quartile of many segments of a few calls, taken
in turns on a memory disk: short enough that a busy machine leaves some of them alone.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from rich.console import Console

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

import tubes
from benchmarks.contenders import Raw, RawSmallPages
from benchmarks.places import keep
from benchmarks.showing import new_table, output
from tubes.driver import Change, NewTask, Ref
from tubes.payload import encode
from tubes.stats import Counts
from tubes.task import Event

CALLS = 20
"""Calls in each segment."""

NOW = 1_700_000_000_000
DATA = {"n": "00000001", "text": "x" * 78}

Call = Callable[[], object]


def put_layers(queue: tubes.Queue, tube: tubes.Tube, bare: sqlite3.Connection) -> dict[str, Call]:
    """Puts, each through one layer more than the one before."""
    driver, store = cast("Any", tube.driver), cast("Any", queue.store)
    statement = driver._sql.put_plain
    payload, carried = encode(DATA)
    row = (tube.record.id, NOW, NOW, payload)
    items = (NewTask(payload, carried),)
    clock = queue.clock

    def step(tx: Any) -> Sequence[Change]:
        return cast("Sequence[Change]", driver.put(tx, items, now=clock.now_ms()))

    return {
        "the INSERT alone": lambda: bare.execute(statement.text, statement.bind(row)).lastrowid,
        "+ writer: turn, commit": lambda: store.transact(lambda tx: tx.only_insert(statement, row)),
        "+ driver: row, change": lambda: store.transact(step),
        "+ publish: count, wake": lambda: tube._run(step),
        "the whole put: payload, Task": lambda: tube.put(DATA),
    }


def take_layers(queue: tubes.Queue, tube: tubes.Tube, bare: sqlite3.Connection) -> dict[str, Call]:
    """Takes and acks, each through one layer more than the one before."""
    driver, store = cast("Any", tube.driver), cast("Any", queue.store)
    take, ack = driver._take_one, driver._ack
    owner, clock, id = store.session, queue.clock, tube.record.id
    attempts = len(bare.execute(take.text, take.bind((owner, NOW, id))).fetchall()[0]) - 2

    def alone() -> None:
        row = bare.execute(take.text, take.bind((owner, NOW, id))).fetchall()[0]
        bare.execute(ack.text, ack.bind((row[0], id, owner, row[attempts])))

    def with_writer() -> None:
        row = store.transact(lambda tx: tx.only_rows(take, owner, NOW, id))[0]
        store.transact(lambda tx: tx.only_run(ack, row[0], id, owner, row[attempts]))

    def through(run: Callable[[Callable[[Any], Sequence[Change]]], Sequence[Change]]) -> None:
        changes = run(lambda tx: driver.take(tx, 1, owner=owner, now=clock.now_ms()))
        task = driver.normalize_task(changes[0].raw)
        ref = Ref(task.id, task.token, task)
        run(lambda tx: driver.ack(tx, (ref,), owner=owner, now=clock.now_ms()))

    def whole() -> None:
        task = tube.take(0)
        assert task is not None
        tube.ack(task)

    return {
        "the UPDATE and the DELETE alone": alone,
        "+ writer: turns, commits": with_writer,
        "+ driver: changes, decoding, Task": lambda: through(store.transact),
        "+ publish: count, wake": lambda: through(tube._run),
        "the whole take and ack": whole,
    }


class Uncounted(Counts):
    """Statistics that count nothing, to see what counting costs."""

    def add(self, tube: int, event: Event, count: int) -> bool:
        """Count nothing."""
        return False


def counting(queue: tubes.Queue, tube: tubes.Tube) -> dict[str, Call]:
    """A put, a take and an ack, with statistics and without."""
    store = cast("Any", queue.store)
    counts, none = store.counts, Uncounted()

    def whole() -> None:
        tube.put(DATA)
        task = tube.take(0)
        assert task is not None
        tube.ack(task)

    def without() -> None:
        store.counts = none
        whole()
        store.counts = counts

    def beside() -> None:
        store.counts = counts
        whole()
        store.counts = counts

    return {"without statistics": without, "with statistics": beside}


def measure(calls: dict[str, Call], segments: int) -> dict[str, float]:
    """The lower quartile of the segments, in microseconds a call."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(segments):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            call = calls[name]
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            spent[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return {name: sorted(figures)[len(figures) // 4] for name, figures in spent.items()}


class Measured(NamedTuple):
    """Microseconds a call, by what was called."""

    puts: dict[str, float]
    takes: dict[str, float]
    counted: dict[str, float]


def measure_all(segments: int) -> Measured:
    """Measure everything, in files on a memory disk if there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        places = [Path(name) / kind for kind in ("raw", "small")]
        for place in places:
            place.mkdir()
        raw, small = Raw(places[0], "normal"), RawSmallPages(places[1], "normal")
        item = raw.item(1)
        with tubes.connect(f"sqlite:///{name}/tubes.db", durability="normal") as queue:
            tube = queue.create_tube("layers", "fifo")
            bare = sqlite3.connect(f"{name}/tubes.db", isolation_level=None, timeout=30)
            for setting in ("synchronous=normal", "cache_size=-8000", "foreign_keys=ON"):
                bare.execute(f"PRAGMA {setting}")
            for _ in range(20 + 2 * segments * CALLS // 100):
                tube.put_many([DATA] * 100)
            raws: dict[str, Call] = {
                "raw sqlite3": lambda: raw.put(item),
                "raw, 1 KiB pages": lambda: small.put(item),
            }
            puts = measure(raws | put_layers(queue, tube, bare), segments)
            raws = {
                "raw sqlite3": lambda: raw.ack(raw.take()),
                "raw, 1 KiB pages": lambda: small.ack(small.take()),
            }
            takes = measure(raws | take_layers(queue, tube, bare), segments - 1)
            counted = measure(counting(queue, tube), segments)
            bare.close()
        raw.close()
        small.close()
    return Measured(puts, takes, counted)


def show(out: Console, measured: Measured) -> None:
    """Print the tables, and what statistics cost."""
    for title, figures in (("put", measured.puts), ("take + ack", measured.takes)):
        table = new_table(
            f"{title}, fifo, durability=normal, on a memory disk", ("", "µs", "added", "of raw")
        )
        before = None
        for name, figure in figures.items():
            more = (
                ""
                if before is None or name.startswith(("raw", "the U", "the I"))
                else f"{figure - before:+.1f}"
            )
            table.add_row(name, f"{figure:.1f}", more, f"{figures['raw sqlite3'] / figure:.2f}")
            before = figure
        out.print(table)
    without, beside = measured.counted.values()
    out.print(
        f"statistics: put, take and ack {beside:.1f} µs with them, {without:.1f} without:"
        f" {(beside / without - 1) * 100:+.1f} % (bar: at most 3 %)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=300, help="default: 300")
    parser.add_argument("--quick", action="store_true", help="a few segments, to see that it runs")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/layers.md")
    options = parser.parse_args(argv)
    out = output(100, record=options.docs)
    show(out, measure_all(5 if options.quick else options.segments))
    if options.docs:
        keep("layers", "Layers: the latest tables", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
