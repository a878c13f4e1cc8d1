"""How fast tubes is on PostgreSQL, as a share of raw psycopg and against the peers, all in one run on one server.

Run it: ``python benchmarks/postgresql.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.comparison import Comparison, Part, Row, Server, Step, by_batches, one_by_one
from benchmarks.comparison_program import main
from benchmarks.places import ON_POSTGRESQL
from benchmarks.postgresql_contenders import PEERS, Raw
from benchmarks.postgresql_server import conninfo, described, new_database, server
from benchmarks.rounds import CHUNKS
from benchmarks.server_contenders import TubesAllOptions

FOUR = 4
"""Connections that work side by side, each in a process of its own."""

ROWS = (
    Row("put", "put, one connection", of_raw=0.8, of_peers=1.0),
    Row("take", "take, ack, one connection", of_raw=0.7, of_peers=1.5),
    Row("put_many", "put_many by 100, one connection", of_raw=0.5, of_peers=1.0),
    Row("take_many", "take_many + ack_many by 100, one connection", of_raw=0.5, of_peers=1.0),
    Row("put_four", "put, four connections", of_raw=0.8, of_peers=1.0),
    Row("take_four", "take, ack, four connections", of_raw=0.7, of_peers=1.5),
    Row("put", "put, utubettl with all options, one connection", ours=TubesAllOptions.name),
    Row("take", "take, ack, utubettl with all options, one connection", ours=TubesAllOptions.name),
    Row("put_four", "put, utubettl with all options, four connections", ours=TubesAllOptions.name),
    Row("take_four", "take, ack, utubettl with all options, four connections", ours=TubesAllOptions.name),
)

PARTS = (
    one_by_one(2_000),
    by_batches(20_000),
    Part(
        "four",
        Step("put_four", "put_all"),
        Step("take_four", "take_all"),
        connections=FOUR,
        tasks=4_000,
        least=FOUR * CHUNKS,
        all_options=True,
    ),
)


@contextmanager
def servers(url: str | None) -> Iterator[Sequence[Server]]:
    """The one server, as it is set up."""
    with server(url) as opened:
        yield [Server(described(opened), partial(new_database, opened))]


def analyze(url: str) -> None:
    """Do at once what autovacuum would do within a minute of so many puts.

    Statements that were prepared on an empty table are then planned again; without that, raw's take by a
    hundred is three times as slow.
    """
    with psycopg.connect(conninfo(url), autocommit=True) as db:
        db.execute("ANALYZE")


COMPARISON = Comparison(
    store="PostgreSQL",
    program="postgresql.py",
    page="speed-postgresql",
    distributions=ON_POSTGRESQL,
    raw=Raw,
    peers=PEERS,
    rows=ROWS,
    parts=PARTS,
    servers=servers,
    warm=10,
    settle=analyze,
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
