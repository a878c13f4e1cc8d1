"""Stores for the tests of the asyncio door: what it promises, it promises on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tubes

STORES = ("sqlite", "postgresql")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store without tubes."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'aio.db'}"
        return
    shared: str = request.getfixturevalue("postgres_queue_url")
    yield shared
    with tubes.connect(shared, sweep=False) as queue:
        for name in queue.tubes():
            queue.tube[name].truncate()
            queue.tube[name].drop()
