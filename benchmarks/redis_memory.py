"""How many bytes does a Redis hold for a queued task of 100 bytes, ours and the peers'?

Run it: ``python benchmarks/redis_memory.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import redis

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.places import ON_REDIS, keep
from benchmarks.redis_contenders import PEERS, Raw
from benchmarks.redis_server import described, server
from benchmarks.server_contenders import Contender, Tubes, TubesAllOptions
from benchmarks.showing import new_table, output

KINDS: tuple[type[Contender], ...] = (Raw, Tubes, TubesAllOptions, *PEERS)

CHUNK = 1_000
"""Tasks that are made and put at a time."""


def bytes_a_task(kind: type[Contender], tasks: int) -> float:
    """Bytes by which a server of its own, which keeps no file, grows for each task that is queued."""
    with server(None, fsync=None) as url, redis.Redis.from_url(url) as client:
        kind.prepare(url)
        contender = kind(url)
        before = used(client)
        for start in range(0, tasks, CHUNK):
            contender.put_batches([contender.item(start + number) for number in range(CHUNK)])
        grown = used(client) - before
        contender.close()
    return grown / tasks


def used(client: redis.Redis) -> int:
    """Bytes that the server has allocated."""
    return int(client.info("memory")["used_memory"])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; there is no bar."""
    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="a multiple of 1,000; default: 100000")
    parser.add_argument("--contender", choices=names, action="append", help="these only; default: all")
    parser.add_argument("--quick", action="store_true", help="2,000 tasks, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/memory-redis.md")
    options = parser.parse_args(argv)
    tasks = 2 * CHUNK if options.quick else max(options.tasks // CHUNK, 1) * CHUNK
    figures = {
        kind.name: bytes_a_task(kind, tasks)
        for kind in KINDS
        if kind.name in (options.contender or [kind.name])
    }
    out = output(100, record=options.docs)
    with server(None, fsync=None) as url:
        title = f"{tasks:,} queued tasks of 100 bytes, {described(url)}"
    table = new_table(title, ("", "bytes a task"))
    for name, figure in figures.items():
        table.add_row(name, f"{figure:.0f}")
    out.print(table)
    if options.json:
        options.json.write_text(json.dumps({"tasks": tasks, "bytes": figures}, indent=1) + "\n")
    if options.docs:
        keep("memory-redis", "Memory on Redis: the latest table", out, "redis_memory.py", ON_REDIS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
