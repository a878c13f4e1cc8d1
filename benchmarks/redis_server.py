"""The Redis that the benchmarks measure on: one of their own, or the one that ``--url`` names."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redis

sys.path.insert(
    0, str(Path(__file__).parent.parent / "tests")
)  # not a package: the tests import from it like this too

from redis_servers import Fsync, RedisServer, numbered

__all__ = ["Fsync", "described", "new_database", "server"]

_free = set(range(1, 16))
"""Databases that are not in use now; a server comes with sixteen, and the first may be somebody's."""


@contextmanager
def server(url: str | None, fsync: Fsync | None = "everysec") -> Iterator[str]:
    """Give the URL of a server whose databases from 1 to 15 are ours; start one if none is named.

    With ``fsync=None`` it keeps no file, and the warning about that is silenced.
    """
    if url is not None:
        yield url
        return
    if fsync is None:
        logging.getLogger("tubes.redis").setLevel(logging.ERROR)
    with closing(RedisServer(fsync=fsync)) as own:
        yield own.url


@contextmanager
def new_database(url: str) -> Iterator[str]:
    """Empty a database there and give its URL; empty it again at the end."""
    number = _free.pop()
    try:
        with redis.Redis.from_url(numbered(url, number)) as client:
            client.flushdb()
            yield numbered(url, number)
            client.flushdb()
    finally:
        _free.add(number)


def described(url: str) -> str:
    """Its version, and the settings without which a comparison says little."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        info = client.info("server")
        names = ("appendonly", "appendfsync")
        settings = [f"{name}={client.config_get(name)[name]}" for name in names]
    valkey = info.get("valkey_version")
    version = f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
    return ", ".join([version, *settings])
