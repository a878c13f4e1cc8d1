"""How soon does a take that waits in another process get a task, and what does waiting cost?

Run it: ``python benchmarks/wakeup.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psycopg
import redis
from rich.progress import Progress

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

import tubes
from benchmarks import postgresql_server, redis_server
from benchmarks.places import conclude, keep_of_store, store_of
from benchmarks.postgresql_server import conninfo
from benchmarks.showing import new_progress, new_table, output
from tubes.queue import Durability

MILLISECONDS_BARS = {"sqlite": 2.0, "postgresql": 2.0, "redis": 1.0}
CORE_BAR = 5.0
"""Percent of one core that all waiting processes together may use; for SQLite only, where they poll."""

POLL = 0.001
"""Seconds between two looks of the bare SQLite waiter."""


class Putter(Protocol):
    """Puts from the process that measures."""

    def put(self, data: Any) -> object: ...

    def close(self) -> None: ...


class TubesPutter:
    """Ours, on a URL."""

    def __init__(self, place: str, durability: Durability) -> None:
        self._queue = tubes.connect(place, durability=durability, migrate=True)
        self.put = self._queue.create_tube("wakeup", "fifo", if_not_exists=True).put

    def close(self) -> None:
        self._queue.close()


class SqlitePutter:
    """sqlite3 alone, on a path."""

    def __init__(self, place: str, durability: str) -> None:
        self._db = sqlite3.connect(place, isolation_level=None, timeout=30)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={durability}")
        self._db.execute("CREATE TABLE IF NOT EXISTS task (id INTEGER PRIMARY KEY, data)")

    def put(self, data: Any) -> object:
        return self._db.execute("INSERT INTO task (data) VALUES (?)", (data,))

    def close(self) -> None:
        self._db.close()


class PostgresPutter:
    """psycopg alone, on a URL: each put also notifies, in the same statement."""

    PUT = "WITH put AS (INSERT INTO task (data) VALUES (%s)) SELECT pg_notify('task', '')"

    def __init__(self, place: str, durability: str) -> None:
        self._db = connected(place, durability)
        self._db.execute("CREATE TABLE task (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data text)")

    def put(self, data: Any) -> object:
        return self._db.execute(self.PUT, (str(data),))

    def close(self) -> None:
        self._db.close()


class RedisPutter:
    """redis-py alone, on a URL: a list, whose first waiter the server wakes."""

    def __init__(self, place: str, durability: str) -> None:
        self._db = redis.Redis.from_url(place)

    def put(self, data: Any) -> object:
        return self._db.lpush("task", str(data))

    def close(self) -> None:
        self._db.close()


def wait_with_tubes(place: str, durability: Durability, results: Any) -> None:
    """Take for ever; report when each task was in hand."""
    with tubes.connect(place, durability=durability) as queue:
        tube = queue.tube["wakeup"]
        results.put(None)
        while True:
            task = tube.take()
            now = time.monotonic_ns()
            assert task is not None
            tube.ack(task)
            if task.data == "stop":
                return
            results.put((now - task.data, now))


def wait_on_sqlite(place: str, durability: str, results: Any) -> None:
    """The same on sqlite3 alone: ask ``PRAGMA data_version`` every millisecond."""
    db = sqlite3.connect(place, isolation_level=None, timeout=30)
    db.execute(f"PRAGMA synchronous={durability}")
    results.put(None)
    version = -1
    while True:
        now = db.execute("PRAGMA data_version").fetchone()[0]
        if now == version:
            time.sleep(POLL)
            continue
        version = now
        rows = db.execute("DELETE FROM task WHERE id = (SELECT min(id) FROM task) RETURNING data").fetchall()
        received = time.monotonic_ns()
        if rows and rows[0][0] == "stop":
            return
        if rows:
            results.put((received - rows[0][0], received))


def wait_on_postgresql(place: str, durability: str, results: Any) -> None:
    """The same on psycopg alone: LISTEN, and a DELETE when told."""
    db = connected(place, durability)
    db.execute("LISTEN task")
    results.put(None)
    while True:
        row = db.execute("DELETE FROM task WHERE id = (SELECT min(id) FROM task) RETURNING data").fetchone()
        received = time.monotonic_ns()
        if row is None:
            for _ in db.notifies(stop_after=1):
                pass
        elif row[0] == "stop":
            return
        else:
            results.put((received - int(row[0]), received))


def wait_on_redis(place: str, durability: str, results: Any) -> None:
    """The same on redis-py alone: BRPOP."""
    db = redis.Redis.from_url(place, socket_timeout=None, decode_responses=True)
    results.put(None)
    while True:
        told = db.brpop(["task"])
        received = time.monotonic_ns()
        assert told is not None  # since it waits for ever
        data = told[1]
        if data == "stop":
            return
        results.put((received - int(data), received))


def connected(place: str, durability: str) -> psycopg.Connection[Any]:
    """A connection that commits each statement, as durably as ours."""
    db = psycopg.connect(conninfo(place), autocommit=True)
    db.execute(f"SET synchronous_commit = {'on' if durability == 'full' else 'off'}")
    return db


def cpu_seconds(pid: int) -> float:
    """CPU time of another process with all its threads: Linux derives such a clock's number from the pid."""
    return time.clock_gettime((~pid << 3) | 2)


class Way(NamedTuple):
    """One way to put here and to wait elsewhere."""

    putter: Callable[[str, Durability], Putter]
    wait: Callable[[str, Durability, Any], None]


OURS = Way(TubesPutter, wait_with_tubes)
BARE = {
    "sqlite": Way(SqlitePutter, wait_on_sqlite),
    "postgresql": Way(PostgresPutter, wait_on_postgresql),
    "redis": Way(RedisPutter, wait_on_redis),
}


class Side:
    """Some waiting processes, and a way to put."""

    def __init__(self, name: str, way: Way, place: str, durability: Durability, waiters: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.results = context.Queue()
        self._putter = way.putter(place, durability)
        self.put = self._putter.put
        self.processes = [
            context.Process(target=way.wait, args=(place, durability, self.results), daemon=True)
            for _ in range(waiters)
        ]
        for process in self.processes:
            process.start()
        for _ in self.processes:
            self.results.get(timeout=60)
        self.from_call: list[float] = []
        self.from_return: list[float] = []

    def measure_one(self) -> None:
        """Put one task and note when a waiter had it, in milliseconds."""
        self.put(time.monotonic_ns())
        returned = time.monotonic_ns()
        waited, received = self.results.get(timeout=60)
        self.from_call.append(waited / 1e6)
        self.from_return.append((received - returned) / 1e6)

    def cpu(self) -> float:
        """CPU seconds of all waiting processes so far."""
        return sum(cpu_seconds(process.pid) for process in self.processes if process.pid is not None)

    def close(self) -> None:
        """Let the waiters finish."""
        for _ in self.processes:
            self.put("stop")
        for process in self.processes:
            process.join(30)
            process.kill()
        self._putter.close()


@contextmanager
def places(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """What our side connects to, and what the bare side does."""
    if options.store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="tubes-wakeup-") as folder:
            yield f"sqlite:///{folder}/tubes.db", f"{folder}/bare.db"
        return
    servers = postgresql_server if options.store == "postgresql" else redis_server
    with (
        servers.server(options.url) as url,
        servers.new_database(url) as ours,
        servers.new_database(url) as bare,
    ):
        yield ours, bare


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the bars were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=list(BARE), default="sqlite")
    parser.add_argument("--url", help="a server whose databases we may use; default: one is started")
    parser.add_argument("--waiters", type=int, default=10, help="waiting processes; default: 10")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds before each put; default: 10")
    parser.add_argument("--puts", type=int, default=20, help="default: 20")
    parser.add_argument(
        "--durability",
        choices=("full", "normal", "off"),
        help="default: full; normal on Redis, as with connect",
    )
    parser.add_argument("--no-bare", action="store_true", help="leave out the bare waiter")
    parser.add_argument("--quick", action="store_true", help="short waits, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/wakeup[-store].md")
    options = parser.parse_args(argv)
    if options.quick:
        options.waiters, options.idle, options.puts = 3, 0.3, 3
    if options.url:
        options.store = store_of(options.url)
    options.durability = options.durability or ("normal" if options.store == "redis" else "full")
    with (
        places(options) as (ours, bare),
        new_progress() as progress,
    ):
        sides = [Side("tubes", OURS, ours, options.durability, options.waiters)]
        if not options.no_bare:
            sides.append(Side("bare", BARE[options.store], bare, options.durability, 1))
        figures = measure(sides, options.puts, options.idle, progress)
        for side in sides:
            side.close()
    return report(figures, options)


def measure(sides: Sequence[Side], puts: int, rest: float, progress: Progress) -> list[dict[str, Any]]:
    """Put ``puts`` times on each side, each after a rest: else the second would find the machine awake."""
    bar = progress.add_task("idling", total=puts * len(sides))
    time.sleep(min(rest, 1.0))
    began, cpu = time.monotonic(), [side.cpu() for side in sides]
    idle_cpu, idle_seconds = [0.0 for _ in sides], 0.0
    for side in [*sides] * puts:
        before, at = [side.cpu() for side in sides], time.monotonic()
        time.sleep(rest)
        idle_seconds += time.monotonic() - at
        idle_cpu = [idle + one.cpu() - was for idle, one, was in zip(idle_cpu, sides, before, strict=True)]
        side.measure_one()
        progress.advance(bar)
    seconds = time.monotonic() - began
    return [
        {
            "name": side.name,
            "waiters": len(side.processes),
            "from_call_ms": side.from_call,
            "from_return_ms": side.from_return,
            "idle_percent": 100 * idle / idle_seconds,
            "whole_percent": 100 * (side.cpu() - start) / seconds,
        }
        for side, start, idle in zip(sides, cpu, idle_cpu, strict=True)
    ]


def report(figures: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Print the table and the verdict."""
    out = output(record=options.docs)
    what = f"{options.puts} puts, each after {options.idle:g} s of idling, durability={options.durability}"
    headings = (
        "", "waiting processes", "ms from the call of put: median", "worst", "from its return: median",
        "% of a core while idle", "% with the puts",
    )  # fmt: skip
    table = new_table(f"{options.store}: {what}", headings)
    for row in figures:
        table.add_row(
            row["name"],
            str(row["waiters"]),
            f"{median(row['from_call_ms']):.2f}",
            f"{max(row['from_call_ms']):.2f}",
            f"{median(row['from_return_ms']):.2f}",
            f"{row['idle_percent']:.2f}",
            f"{row['whole_percent']:.2f}",
        )
    out.print(table)
    ours = figures[0]
    missed = []
    bar = MILLISECONDS_BARS[options.store]
    if median(ours["from_call_ms"]) >= bar:
        missed.append(f"median of {median(ours['from_call_ms']):.2f} ms, not < {bar:g}")
    if options.store == "sqlite" and ours["whole_percent"] >= CORE_BAR:
        missed.append(f"{ours['whole_percent']:.2f} % of a core for all that wait, not < {CORE_BAR:g}")
    conclude(out, missed)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.docs:
        keep_of_store(options.store, "wakeup", "Wake-up{}: the latest table", out)
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
