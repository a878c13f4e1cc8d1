"""The PostgreSQL that the benchmarks measure on: one of their own, or the one that ``--url`` names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

sys.path.insert(
    0, str(Path(__file__).parent.parent / "tests")
)  # not a package: the tests import from it like this too

from servers import PostgresServer, conninfo, new_database

__all__ = ["conninfo", "described", "new_database", "server"]


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Give the URL of a server on which databases may be created; start one, with its defaults, if none is named."""
    if url is not None:
        yield url
        return
    with closing(PostgresServer()) as own:
        yield own.url


def described(url: str) -> str:
    """Its version, and the settings without which a comparison says little."""
    with psycopg.connect(conninfo(url), autocommit=True) as db:
        shown = {}
        for name in ("server_version", "fsync", "synchronous_commit", "autovacuum"):
            row = db.execute(f"SHOW {name}").fetchone()
            assert row is not None
            shown[name] = row[0]
    version = shown.pop("server_version").split()[0]
    return ", ".join([f"PostgreSQL {version}", *(f"{name}={value}" for name, value in shown.items())])
