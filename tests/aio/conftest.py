"""Stores for the tests of the asyncio API, which keeps its promises on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tubes

SERVERS = {"postgresql": "postgres_queue_url", "redis": "redis_url"}
"""The fixtures with their URLs."""


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store without tubes."""
    yield from _store(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same, but only stores whose transactions may span several calls."""
    yield from _store(request, tmp_path)


def _store(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'aio.db'}"
        return
    shared: str = request.getfixturevalue(SERVERS[request.param])
    yield shared
    with tubes.connect(shared, sweep=False) as queue:
        for name in queue.tubes():
            queue.tube[name].truncate()
            queue.tube[name].drop()
