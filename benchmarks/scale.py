"""Does a take cost more when the tube is full, and does a process grow with the backlog?

Run it: ``python benchmarks/scale.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from rich.console import Console

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

import tubes
from benchmarks import postgresql_server, redis_server
from benchmarks.crews import Fresh
from benchmarks.places import conclude, keep_of_store, store_of
from benchmarks.postgresql_server import conninfo
from benchmarks.showing import new_progress, new_table, output

TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
BAR = 1.3
"""How many times the cost at the smallest backlog the cost at the largest may be."""

GROUPS = 10
CONSUMERS = 10
FILL = 1_000
"""Tasks that one put_many stores while a tube is filled."""

MIB_BAR = 8.0
"""MiB by which a process may be larger at the largest backlog: SQLite's page cache, which is bounded."""

DATA = {"n": 12345678, "text": "x" * 78}

Step = Callable[[str], None]


def tube_options(type: str) -> dict[str, Any]:
    """What a tube of this type is created with: options that make its takes costlier."""
    options: dict[str, Any] = {}
    if type.endswith("ttl"):
        options |= {"ttl": 86_400, "ttr": 3_600}
    if type == "limfifottl":
        options["capacity"] = 10_000_000
    return options


def open_tube(url: str, type: str) -> tuple[tubes.Queue, tubes.Tube]:
    """Open the tube without syncing its commits: an fsync would hide what is measured."""
    queue = tubes.connect(url, durability="off", busy_timeout=60, migrate=True)
    return queue, queue.create_tube("scale", type, if_not_exists=True, **tube_options(type))


def put_options(type: str, index: int) -> dict[str, Any]:
    """The options of put number ``index``: sub-queues in turn, priorities mixed."""
    options: dict[str, Any] = {}
    if type.startswith("utube"):
        options["utube"] = f"host{index % GROUPS}"
    if type.endswith("ttl"):
        options["pri"] = index % 3
    return options


def fill(tube: tubes.Tube, count: int) -> None:
    """Store ``count`` tasks, with all mixes of options."""
    mixes = GROUPS * 3 if tube.type != "fifo" else 1
    each = min(FILL, max(count // mixes, 1))
    put = 0
    while put < count:
        many = min(each, count - put)
        tube.put_many([DATA] * many, **put_options(tube.type, put // each))
        put += many


# A take at growing backlogs


def takes_at_backlogs(
    type: str, backlogs: Sequence[int], rounds: int, pairs: int, fresh: Fresh, step: Step
) -> dict[int, dict[str, float]]:
    """Measure take+ack with each backlog in a database of its own, in turns; microseconds and MiB by backlog."""
    spent: dict[int, list[float]] = {backlog: [] for backlog in backlogs}
    memory = {}
    with ExitStack() as stack:
        opened = []
        for backlog in backlogs:
            step(f"{type}: putting {backlog:,}")
            url = stack.enter_context(fresh())
            queue, tube = open_tube(url, type)
            stack.callback(queue.close)
            fill(tube, backlog)
            settle(url)
            opened.append((backlog, tube))
            memory[backlog] = memory_of_a_consumer(url, type, pairs)
        step(f"{type}: taking")
        for turn in range(rounds):
            start = turn % len(opened)
            for backlog, tube in opened[start:] + opened[:start]:
                spent[backlog].append(timed_pairs(tube, pairs))
                for index in range(pairs):
                    tube.put(DATA, **put_options(type, index))
    return {
        backlog: {"microseconds": median(spent[backlog]), "best": min(spent[backlog]), "mib": memory[backlog]}
        for backlog in backlogs
    }


def settle(url: str) -> None:
    """Do at once what PostgreSQL would do by itself within a minute of so many puts."""
    if url.startswith("postgresql"):
        with psycopg.connect(conninfo(url), autocommit=True) as db:
            db.execute("VACUUM (ANALYZE)")


def timed_pairs(tube: tubes.Tube, pairs: int) -> float:
    """Take and ack ``pairs`` tasks; return the microseconds for each."""
    take, ack = tube.take, tube.ack
    began = time.perf_counter()
    for _ in range(pairs):
        task = take(0)
        assert task is not None
        ack(task)
    return (time.perf_counter() - began) / pairs * 1e6


CONSUMER = """
import sys
from benchmarks.scale import DATA, open_tube, put_options, timed_pairs
queue, tube = open_tube(sys.argv[1], sys.argv[2])
pairs = int(sys.argv[3])
timed_pairs(tube, pairs)
for index in range(pairs):
    tube.put(DATA, **put_options(tube.type, index))
tube.statistics()
queue.sweep()
queue.close()
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def memory_of_a_consumer(url: str, type: str, pairs: int) -> float:
    """The most memory, in MiB, that a fresh process needs to work on this tube."""
    command = [sys.executable, "-c", CONSUMER, url, type, str(pairs)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    return int(done.stdout.split()[-1]) / 1024


# Busy sub-queues


def busy_sub_queues(type: str, each: int, fresh: Fresh, way: str) -> list[float]:
    """Take, yield and ack until ten sub-queues of ``each`` tasks are empty.

    Return the seconds from the start at which each task was done.
    """
    with fresh() as url:
        queue, tube = open_tube(url, type)
        with queue:
            for group in range(GROUPS):
                for start in range(0, each, FILL):
                    tube.put_many([DATA] * min(FILL, each - start), utube=f"host{group}")
            settle(url)
            began = time.perf_counter()
            stamps = WAYS[way](tube, GROUPS * each)
    assert len(stamps) == GROUPS * each, f"{len(stamps)} of {GROUPS * each} came through"
    return [stamp - began for stamp in sorted(stamps)]


def in_threads(tube: tubes.Tube, total: int) -> list[float]:
    """Ten consumers as threads."""
    stamps: list[float] = []

    def consume() -> None:
        while len(stamps) < total:
            task = tube.take(0.1)
            if task is not None:
                time.sleep(0)
                tube.ack(task)
                stamps.append(time.perf_counter())

    threads = [threading.Thread(target=consume) for _ in range(CONSUMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return stamps


def as_leases(tube: tubes.Tube, total: int) -> list[float]:
    """Ten consumers as ten open leases, the oldest acked before the next take: without the scheduler."""
    stamps: list[float] = []
    held = deque(task for _ in range(CONSUMERS) if (task := tube.take(0)) is not None)
    while held:
        tube.ack(held.popleft())
        stamps.append(time.perf_counter())
        task = tube.take(0)
        if task is not None:
            held.append(task)
    return stamps


WAYS: dict[str, Callable[[tubes.Tube, int], list[float]]] = {"threads": in_threads, "leases": as_leases}


def costs(stamps: Sequence[float], part: int) -> list[float]:
    """Microseconds a task, for each ``part`` tasks in the order in which they were done."""
    ends = [0.0, *stamps[part - 1 :: part]]
    return [(end - start) / part * 1e6 for start, end in pairwise(ends)]


# The command


@contextmanager
def databases(options: argparse.Namespace) -> Iterator[Fresh]:
    """Give a way to make a fresh database on the chosen store."""
    if options.store == "postgresql":
        with postgresql_server.server(options.url) as url:
            yield lambda: postgresql_server.new_database(url)
    elif options.store == "redis":
        with redis_server.server(options.url, fsync=None) as url:
            yield lambda: redis_server.new_database(url)
    else:
        yield new_file


@contextmanager
def new_file() -> Iterator[str]:
    """Give the URL of a SQLite file that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tubes-scale-") as folder:
        yield f"sqlite:///{folder}/tubes.db"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the bars were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgresql", "redis"), default="sqlite")
    parser.add_argument("--url", help="a server whose databases we may use; default: one is started")
    parser.add_argument("--type", action="append", choices=TYPES, help="default: all five")
    parser.add_argument("--most", type=int, default=BACKLOGS[-1], help="largest backlog; default: 1000000")
    parser.add_argument("--pairs", type=int, default=250, help="take+ack a turn; default: 250")
    parser.add_argument("--rounds", type=int, default=12, help="turns; default: 12")
    parser.add_argument("--each", type=int, default=15_000, help="tasks a sub-queue; default: 15000")
    parser.add_argument("--quick", action="store_true", help="small backlogs, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/scale[-store].md")
    options = parser.parse_args(argv)
    if options.quick:
        options.most, options.pairs, options.rounds, options.each = 2_000, 50, 2, 150
    if options.url:
        options.store = store_of(options.url)
    types = options.type or list(TYPES)
    backlogs = [backlog for backlog in BACKLOGS if backlog < options.most] + [options.most]
    grouped = [type for type in types if type.startswith("utube")]
    out = output(record=options.docs)
    results: dict[str, Any] = {"takes": {}, "busy": {}}
    with (
        databases(options) as fresh,
        new_progress() as progress,
    ):
        bar = progress.add_task("", total=len(types) * (len(backlogs) + 1) + len(grouped) * 6)

        def step(text: str) -> None:
            progress.update(bar, description=text)
            progress.advance(bar)

        for type in types:
            results["takes"][type] = takes_at_backlogs(
                type, backlogs, options.rounds, options.pairs, fresh, step
            )
        for type in grouped:
            results["busy"][type] = race_sub_queues(type, options.each, fresh, step)
    out.print(f"on {options.store}")
    missed = show(out, results, backlogs)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    conclude(out, missed)
    if options.docs:
        keep_of_store(options.store, "scale", "Scale{}: the latest tables", out)
    return 1 if missed and options.check else 0


def race_sub_queues(type: str, each: int, fresh: Fresh, step: Step) -> dict[str, dict[str, float]]:
    """Run small ones before and after large ones, whose run is cut into such parts; return both medians."""
    small = max(each // 15, 10)
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        at_small: list[float] = []
        at_each: list[float] = []
        for sizes, kept in ((3 * [small], at_small), ([each], at_each), (3 * [small], at_small)):
            step(f"{type}: busy sub-queues of {sizes[0]:,}, {way}")
            for size in sizes:
                kept += costs(busy_sub_queues(type, size, fresh, way), GROUPS * small)
        found[way] = {"small": small, "each": each, "at_small": median(at_small), "at_each": median(at_each)}
    return found


def show(out: Console, results: dict[str, Any], backlogs: Sequence[int]) -> list[str]:
    """Print the tables; return what was missed."""
    missed = show_takes(out, results["takes"], backlogs)
    return missed + show_busy(out, results["busy"]) if results["busy"] else missed


def show_takes(out: Console, takes: dict[str, Any], backlogs: Sequence[int]) -> list[str]:
    """Print what a take costs at each backlog, and a process's memory at the smallest and the largest."""
    missed = []
    least, most = backlogs[0], backlogs[-1]
    costs = [f"{backlog:,}" for backlog in backlogs]
    headings = ("", *costs, "ratio", "bar", "", f"MiB at {least:,}", f"MiB at {most:,}")
    table = new_table("take + ack, microseconds, by backlog (durability=off)", headings)
    for type, figures in takes.items():
        ratio = figures[most]["microseconds"] / figures[least]["microseconds"]
        growth = figures[most]["mib"] - figures[least]["mib"]
        word = "ok" if ratio <= BAR and growth <= MIB_BAR else "short"
        if ratio > BAR:
            missed.append(f"{type}: {ratio:.2f} times as costly at {most:,} as at {least:,}, not ≤ {BAR}")
        if growth > MIB_BAR:
            missed.append(f"{type}: a process grows by {growth:.1f} MiB at {most:,}, not ≤ {MIB_BAR:g}")
        cells = [f"{figures[backlog]['microseconds']:.0f}" for backlog in backlogs]
        ends = [f"{figures[backlog]['mib']:.1f}" for backlog in (least, most)]
        table.add_row(type, *cells, f"{ratio:.2f}", f"≤ {BAR}", word, *ends)
    out.print(table)
    return missed


def show_busy(out: Console, busy: dict[str, Any]) -> list[str]:
    """Print what a task costs in busy sub-queues, small and large."""
    missed = []
    title = f"{GROUPS} busy sub-queues, {CONSUMERS} consumers, microseconds a task"
    headings = ("", "how", "small", "large", "µs small", "µs large", "ratio", "bar", "")
    table = new_table(title, headings, texts=2)
    for type, ways in busy.items():
        for way, figures in ways.items():
            ratio = figures["at_each"] / figures["at_small"]
            word = "ok" if ratio <= BAR else "short"
            if ratio > BAR:
                missed.append(
                    f"{type}, {way}: {ratio:.2f} times as costly at {figures['each']:,} a sub-queue"
                )
            sizes = f"{figures['small']:,}", f"{figures['each']:,}"
            costs = f"{figures['at_small']:.0f}", f"{figures['at_each']:.0f}"
            table.add_row(type, way, *sizes, *costs, f"{ratio:.2f}", f"≤ {BAR}", word)
    out.print(table)
    return missed


if __name__ == "__main__":
    sys.exit(main())
