"""How fast tubes is on Redis, as a share of raw redis-py and against the peers, all in one run.

Run it: ``python benchmarks/redis_speed.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.comparison import Comparison, Part, Row, Server, Step, by_batches, one_by_one
from benchmarks.comparison_program import main
from benchmarks.crews import Cores, on_cores
from benchmarks.places import ON_REDIS
from benchmarks.redis_contenders import PEERS, Raw
from benchmarks.redis_server import Fsync, described, new_database, server
from benchmarks.server_contenders import TubesAllOptions


class Placed(NamedTuple):
    """A measurement: how often the server writes its file to the disk, and the cores of server and client.

    Left to itself, the system puts the two sometimes on one core and sometimes on two, where a call takes
    three times as long: a contender that is moved in the middle of a turn looks slow.
    """

    fsync: Fsync
    words: str
    server: Cores
    client: Cores


def placed() -> Sequence[Placed]:
    """The measurements for which this machine has the cores."""
    cores = sorted(os.sched_getaffinity(0))
    first, last = frozenset(cores[:1]), frozenset(cores[-1:])
    one = Placed("everysec", "client and server on one core", first, first)
    if first == last:
        return one, one._replace(fsync="always")
    apart = "client and server on a core each"
    return Placed("everysec", apart, first, last), one, Placed("always", apart, first, last)


ROWS = (
    Row("put", "put", of_raw=0.75, of_peers=1.0),
    Row("take", "take, ack", of_raw=0.75, of_peers=1.0),
    Row("chain", "take(ack=task)"),
    Row("put_many", "put_many by 100", of_raw=0.4, of_peers=1.0),
    Row("take_many", "take_many + ack_many by 100", of_raw=0.4, of_peers=1.0),
    Row("put", "put, utubettl with all options", ours=TubesAllOptions.name),
    Row("take", "take, ack, utubettl with all options", ours=TubesAllOptions.name),
)

CHAIN = Part(
    "chain",
    Step(None, "put_all"),
    Step("chain", "chain_all"),
    connections=1,
    tasks=2_000,
    least=100,
    all_options=False,
)


@contextmanager
def servers(url: str | None) -> Iterator[Sequence[Server]]:
    """One for each measurement; or the one that is named, as it is."""
    if url is not None:
        yield [Server(described(url), partial(new_database, url))]
        return
    with ExitStack() as stack:
        opened = []
        for each in placed():
            with on_cores(each.server):
                own = stack.enter_context(server(None, each.fsync))
            opened.append(Server(f"{described(own)}, {each.words}", partial(new_database, own), each.client))
        yield opened


COMPARISON = Comparison(
    store="Redis",
    program="redis_speed.py",
    page="speed-redis",
    distributions=ON_REDIS,
    raw=Raw,
    peers=PEERS,
    rows=ROWS,
    parts=(one_by_one(2_000), CHAIN, by_batches(20_000)),
    servers=servers,
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
