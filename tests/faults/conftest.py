"""Fixtures of the fault tests: files and processes that are gone when a test is over."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.harness import Connect, Crew, begin, finish

import tubes


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Workers on a file of their own; all are killed when the test is over."""
    made = Crew(tmp_path)
    yield made
    made.disband()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Where a queue's file goes."""
    return tmp_path / "queue.db"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that a process without privileges can reach."""
    folder = Path(tempfile.mkdtemp(prefix="tubes-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def url(db: Path) -> str:
    """What ``connect`` opens: a file, or a server in modules that override this."""
    return f"sqlite:///{db}"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """``connect(**settings)`` opens a queue there, and closes it when the test is over."""
    opened: list[tubes.Queue] = []
    usual = {"durability": "off"} if url.startswith("sqlite:") else {}

    def opening(**settings: Any) -> tubes.Queue:
        queue = tubes.connect(url, **usual | settings)
        opened.append(queue)
        return queue

    yield opening
    for queue in opened:
        queue.close()


@pytest.fixture
def process() -> Iterator[Callable[..., Any]]:
    """``process(code, *arguments)`` starts Python code in another process, killed when the test is over."""
    started = []

    def starting(code: str, *arguments: object) -> Any:
        worker = begin(code, *arguments)
        started.append(worker)
        return worker

    yield starting
    for worker in started:
        finish(worker)


@pytest.fixture
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits on Redis never looks by himself during a test, and must be called."""
    listener = importlib.import_module("tubes.drivers.redis.listener")
    monkeypatch.setattr(listener, "FLOOR", 60)
    monkeypatch.setattr(listener, "SAID_FOR", 60)
