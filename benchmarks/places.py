"""Where figures are kept, and what machine and versions they belong to."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

DOCS = Path(__file__).parent.parent / "docs" / "explanation"

EMBEDDED = ("litequeue", "persist-queue", "huey", "diskcache")
ON_POSTGRESQL = ("psycopg", "procrastinate", "pgqueuer", "asyncpg", "pgmq")
ON_REDIS = ("redis", "hiredis", "redis-work-queue", "qless-py", "huey", "saq", "rq")

SERVERS = {"postgresql": ("PostgreSQL", ON_POSTGRESQL), "redis": ("Redis", ON_REDIS)}
"""The stores that are servers: their names in a title, and the distributions whose versions matter."""


def machine(others: Sequence[str] = EMBEDDED) -> str:
    """The machine and versions that this ran on; ``others`` are the distributions whose versions matter."""
    installed = []
    for name in others:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, tubes {version('tubes-queue')}, {', '.join(installed)}"
    )


def keep(name: str, title: str, out: Console, command: str = "", others: Sequence[str] = EMBEDDED) -> None:
    """Write what a recording console printed to a page of the documentation."""
    text = "\n".join(line.rstrip() for line in out.export_text().splitlines())
    program = command or f"{name}.py"
    (DOCS / f"{name}.md").write_text(
        f"# {title}\n\nWritten by `python benchmarks/{program} --docs`; [performance.md](performance.md) says what "
        f"it means.\n\n{time.strftime('%Y-%m-%d')}. {machine(others)}.\n\n```text\n{text}\n```\n"
    )


def keep_of_store(store: str, name: str, title: str, out: Console) -> None:
    """The same for a program that measures on several stores; ``title`` has a placeholder for the store."""
    if store in SERVERS:
        on, others = SERVERS[store]
        keep(f"{name}-{store}", title.format(f" on {on}"), out, f"{name}.py --store {store}", others)
    else:
        keep(name, title.format(""), out)


def store_of(url: str) -> str:
    """The store that a server's URL belongs to."""
    return "postgresql" if url.startswith("postgres") else "redis"


def conclude(out: Console, missed: Sequence[str], well: str = "every bar is reached") -> None:
    """Say what was missed, or that nothing was."""
    for line in missed:
        out.print(f"short: {line}", style="red", highlight=False)
    if not missed:
        out.print(well)
