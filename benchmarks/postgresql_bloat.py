"""Does the table of tasks stay small while a million of them pass through, with autovacuum's defaults?

Run it: ``python benchmarks/postgresql_bloat.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.progress import Progress

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

import tubes
from benchmarks.places import ON_POSTGRESQL, conclude, keep
from benchmarks.postgresql_server import conninfo, described, new_database, server
from benchmarks.scale import DATA, TYPES, put_options, tube_options
from benchmarks.showing import new_progress, new_table, output

TASKS = 1_000_000
SAMPLES = 20

BAR = 1.3
"""For each column in ``FLAT``: how many times the first half's maximum the second half's may be."""

FLAT = {
    "dead": "dead tuples",
    "heap": "MiB of the heap",
    "indexes": "MiB of its indexes",
    "cost": "µs a task",
}
"""The columns that must not grow, which have a bar."""

STATE = """
    SELECT coalesce(sum(n_dead_tup) FILTER (WHERE ours), 0), coalesce(sum(pg_table_size(relid)) FILTER (WHERE ours), 0),
        coalesce(sum(pg_indexes_size(relid)) FILTER (WHERE ours), 0),
        coalesce(sum(pg_total_relation_size(relid)) FILTER (WHERE NOT ours), 0),
        coalesce(sum(vacuum_count) FILTER (WHERE ours), 0), coalesce(sum(autovacuum_count) FILTER (WHERE ours), 0)
    FROM (SELECT *, relname = 'tubes_task' AS ours FROM pg_stat_user_tables) t
"""

MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """What the server says after ``through`` tasks."""

    through: int
    seconds: float
    cost: float
    dead: int
    heap: float
    indexes: float
    others: float
    vacuums: int
    autovacuums: int


def pass_through(url: str, type: str, count: int, by: int, backlog: int, progress: Progress) -> list[Sample]:
    """Let ``count`` tasks through one tube on one connection, and look at its table now and then."""
    samples: list[Sample] = []
    with (
        tubes.connect(url, migrate=True) as queue,
        psycopg.connect(conninfo(url), autocommit=True) as db,
    ):
        tube = queue.create_tube("bloat", type, **tube_options(type))
        put(tube, 0, backlog, by)
        bar = progress.add_task(f"{type}, {by} a commit", total=count)
        began = last = time.monotonic()
        part = max(count // SAMPLES // by, 1) * by
        for done in range(by, count + 1, by):
            put(tube, backlog + done, by, by)
            if by == 1:
                task = tube.take(0)
                assert task is not None, "a task that was put could not be taken"
                tube.ack(task)
            else:
                tasks = tube.take_many(by, 0)
                assert len(tasks) == by, "tasks that were put could not be taken"
                tube.ack_many(tasks)
            if done % part == 0:
                now = time.monotonic()
                samples.append(look(db, done, now - began, (now - last) / part * 1e6))
                show_one(progress.console, samples[-1])
                progress.update(bar, completed=done)
                last = time.monotonic()
    return samples


def put(tube: tubes.Tube, first: int, count: int, by: int) -> None:
    """Put ``count`` tasks, ``by`` in each commit."""
    for index in range(first, first + count, by):
        options = put_options(tube.type, index // by)
        if by == 1:
            tube.put(DATA, **options)
        else:
            tube.put_many([DATA] * by, **options)


def look(db: psycopg.Connection[Any], through: int, seconds: float, cost: float) -> Sample:
    """Ask the server for a sample."""
    row = db.execute(STATE).fetchone()
    assert row is not None
    dead, heap, indexes, others, vacuums, autovacuums = (int(value) for value in row)
    sizes = heap / MIB, indexes / MIB, others / MIB
    return Sample(through, seconds, cost, dead, *sizes, vacuums, autovacuums)


def show_one(console: Console, sample: Sample) -> None:
    """Print a sample on the way, to show the progress."""
    console.print(
        f"{sample.through:,} through, {sample.dead:,} dead, {sample.heap + sample.indexes:.1f} MiB",
        highlight=False,
    )


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """For each column that has a bar: the second half's maximum as a multiple of the first half's."""
    half = len(samples) // 2
    grown = {}
    for name in FLAT:
        before = max(float(getattr(sample, name)) for sample in samples[:half])
        after = max(float(getattr(sample, name)) for sample in samples[half:])
        grown[name] = after / before if before else float(after > 0)
    return grown


def report(out: Console, type: str, samples: Sequence[Sample], title: str) -> list[str]:
    """Print the table; return what was missed."""
    headings = (
        "through", "seconds", "µs a task", "dead tuples", "heap MiB", "indexes MiB", "other tables MiB", "vacuums",
        "autovacuums",
    )  # fmt: skip
    table = new_table(title, headings, texts=0)
    for sample in samples:
        table.add_row(
            f"{sample.through:,}",
            f"{sample.seconds:.0f}",
            f"{sample.cost:.0f}",
            f"{sample.dead:,}",
            f"{sample.heap:.1f}",
            f"{sample.indexes:.1f}",
            f"{sample.others:.1f}",
            str(sample.vacuums),
            str(sample.autovacuums),
        )
    out.print(table)
    grown = growth(samples)
    words = ", ".join(f"{FLAT[name]} {times:.2f}" for name, times in grown.items())
    out.print(f"maximum of the second half / of the first: {words}", highlight=False)
    return [f"{type}: {FLAT[name]}: {times:.2f}, not ≤ {BAR}" for name, times in grown.items() if times > BAR]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether it stayed flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server where databases may be created; default: one is started")
    parser.add_argument("--type", choices=TYPES, default="fifo", help="default: fifo")
    parser.add_argument("--scale", type=float, default=1.0, help=f"multiplies the {TASKS:,} tasks")
    parser.add_argument("--by", type=int, default=1, help="tasks a commit; default: 1")
    parser.add_argument(
        "--backlog", type=int, default=1_000, help="tasks that wait all the time; default: 1000"
    )
    parser.add_argument("--quick", action="store_true", help="a few tasks, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when it grew")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/bloat-postgresql.md")
    options = parser.parse_args(argv)
    if options.quick:
        options.scale, options.backlog = 0.001, 100
    count = max(round(TASKS * options.scale / options.by), SAMPLES) * options.by
    out = output(record=options.docs)
    with (
        server(options.url) as url,
        new_database(url) as database,
        new_progress() as progress,
    ):
        title = f"{options.type}, {options.by} a commit, {options.backlog:,} waiting; {described(url)}"
        samples = pass_through(database, options.type, count, options.by, options.backlog, progress)
    missed = report(out, options.type, samples, title)
    conclude(out, missed, "flat")
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in samples], indent=1) + "\n")
    if options.docs:
        keep(
            "bloat-postgresql",
            "Bloat on PostgreSQL: the latest table",
            out,
            "postgresql_bloat.py",
            ON_POSTGRESQL,
        )
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
