"""Which of tubes, raw psycopg and the peers, each on a new database, is as fast after a minute as at first?

Run it: ``python benchmarks/postgresql_steady.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import Progress, TaskID

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.places import ON_POSTGRESQL, conclude, keep
from benchmarks.postgresql import analyze
from benchmarks.postgresql_contenders import PEERS, Raw
from benchmarks.postgresql_server import conninfo, described, new_database, server
from benchmarks.server_contenders import BATCH, Contender, Tubes
from benchmarks.showing import new_progress, new_table, output

CONTENDERS: dict[str, type[Contender]] = {
    "tubes": Tubes,
    Raw.name: Raw,
    **{each.name: each for each in PEERS},
}

PARTS = 15
"""Parts that the time is divided into, each with a figure of its own."""

BAR = 0.8
"""The share of our first speed that must be left in the last part."""


@dataclass(frozen=True)
class Run:
    """Tasks a second in each part, and by how many bytes the database had grown at the end."""

    contender: str
    speeds: Sequence[float]
    grown: int

    @property
    def left(self) -> float:
        """The last part's speed as a share of the first's."""
        return self.speeds[-1] / self.speeds[0]


def size(url: str) -> int:
    """The database's size in bytes."""
    with psycopg.connect(conninfo(url), autocommit=True) as db:
        row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


def let_flow(
    kind: type[Contender], url: str, by: int, waiting: int, seconds: float, progress: Progress, bar: TaskID
) -> Run:
    """Put, take and ack a hundred, again and again, behind ``waiting`` tasks, or its ``backlog`` if less."""
    kind.prepare(url)
    contender = kind(url)
    put, take = (
        (contender.put_batches, contender.take_batches) if by > 1 else (contender.put_all, contender.take_all)
    )
    contender.put_batches([contender.item(number) for number in range(min(waiting, contender.backlog))])
    analyze(url)
    before = size(url)
    numbers = itertools.count(waiting)
    speeds = []
    for _ in range(PARTS):
        count, began = 0, time.monotonic()
        while time.monotonic() < began + seconds / PARTS:
            put([contender.item(next(numbers)) for _ in range(BATCH)])
            take(BATCH)
            count += BATCH
        speeds.append(count / (time.monotonic() - began))
        progress.advance(bar)
    contender.close()
    return Run(kind.name, speeds, size(url) - before)


def report(out: Console, runs: Sequence[Run], seconds: float, title: str) -> list[str]:
    """Print the table; return what was missed."""
    table = new_table(title, ("tasks a second", *(run.contender for run in runs)), texts=0)
    for part in range(PARTS):
        until = (part + 1) * seconds / PARTS
        table.add_row(
            f"until {until:.0f} s",
            *(f"{run.speeds[part]:,.0f}" for run in runs),
            end_section=part == PARTS - 1,
        )
    table.add_row("last / first", *(f"{run.left:.2f}" for run in runs))
    for ours in (run for run in runs if run.contender == Tubes.name):
        table.add_row("ours / theirs, finally", *(f"{ours.speeds[-1] / run.speeds[-1]:.2f}" for run in runs))
    table.add_row("growth, MiB", *(f"{run.grown / 2**20:.1f}" for run in runs))
    out.print(table)
    return [
        f"{title.split(';')[0]}: {run.contender}: {run.left:.2f} of its speed is left, not ≥ {BAR}"
        for run in runs
        if run.contender == Tubes.name and run.left < BAR
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether we are as fast as we were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server where databases may be created; default: one is started")
    parser.add_argument("--seconds", type=float, default=75.0, help="for each contender; default: 75")
    parser.add_argument(
        "--contender", choices=CONTENDERS, action="append", help="only these; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="run each for a moment, to see that it works")
    parser.add_argument("--check", action="store_true", help="exit with 1 when we became slower")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/steady-postgresql.md")
    options = parser.parse_args(argv)
    if options.quick:
        options.seconds = 0.75
    kinds = [CONTENDERS[name] for name in options.contender or CONTENDERS]
    out = output(record=options.docs)
    runs: dict[str, list[Run]] = {}
    missed: list[str] = []
    with (
        server(options.url) as url,
        new_progress() as progress,
    ):
        for by, waiting in ((BATCH, 20_000), (1, 1_000)):
            title = f"by {by}" if by > 1 else "one by one"
            bar = progress.add_task(title, total=PARTS * len(kinds))
            for kind in kinds:
                with new_database(url) as database:
                    run = let_flow(kind, database, by, waiting, options.seconds, progress, bar)
                runs.setdefault(title, []).append(run)
            whole = f"put, take, ack {title}, {waiting:,} waiting; {described(url)}"
            missed += report(out, runs[title], options.seconds, whole)
    conclude(out, missed, "steady")
    if options.json:
        options.json.write_text(
            json.dumps({title: [asdict(run) for run in of] for title, of in runs.items()}, indent=1) + "\n"
        )
    if options.docs:
        keep(
            "steady-postgresql",
            "Speed over time on PostgreSQL: the latest tables",
            out,
            "postgresql_steady.py",
            ON_POSTGRESQL,
        )
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
