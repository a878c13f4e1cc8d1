"""How fast tubes is on Redis, as a share of raw redis-py and against the peers, all in one run.

Run it: ``python benchmarks/redis_speed.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.comparison import Comparison, Part, Row, Server, Step, by_batches, one_by_one
from benchmarks.comparison_program import main
from benchmarks.places import ON_REDIS
from benchmarks.redis_contenders import PEERS, Raw
from benchmarks.redis_server import Fsync, described, new_database, server
from benchmarks.server_contenders import TubesAllOptions

EACH: tuple[Fsync, ...] = ("everysec", "always")
"""How often the servers write their files to the disk: a measurement for each."""

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
    """Two, which write to the disk every second, and always; or the one that is named, as it is."""
    with ExitStack() as stack:
        opened = [stack.enter_context(server(url, fsync)) for fsync in (EACH if url is None else EACH[:1])]
        yield [Server(described(own), partial(new_database, own)) for own in opened]


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
