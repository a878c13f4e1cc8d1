"""Locks that threads share are entered in guarded work only.

Python 3.14 leaves a lock locked for ever if a signal's handler raises as soon as a ``with`` has it
(python/cpython#148874): of 25,655 signals in a loop that did nothing else, 16,471 left it so.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest

import tubes
from tubes import interrupts
from tubes.testing.suite import take


class Watched:
    """A lock that notes who enters it while a signal's handler may raise."""

    def __init__(self, lock: Any, noted: list[str]) -> None:
        self._lock, self._noted = lock, noted
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not interrupts._guard.is_begun:
            self._noted.append(str(extract_stack(limit=3)[:2]))
        entered: bool = self._lock.__enter__()
        return entered

    def __exit__(self, *raised: object) -> None:
        self._lock.__exit__(*raised)


CLASSES = {
    "sqlite_shared.SharedFile._all_lock": threading.Lock,
    "sqlite_hold.Hold._lock": threading.Lock,
    "sqlite_lock_file.LockFile._counting": threading.RLock,
    "postgresql_shared.Shared._lock": threading.Lock,
}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places at which one of these locks was entered like that."""
    noted: list[str] = []
    for path, make in CLASSES.items():
        module, holder, name = path.split(".")
        found = getattr(importlib.import_module(f"tubes.drivers.sql.{module}"), holder)
        monkeypatch.setattr(found, name, Watched(make(), noted))
    for found, make in (
        (tubes.waiting.Waiters, threading.Lock),
        (tubes.open_tubes.OpenTubes, threading.RLock),
        (tubes.store.Unit, threading.RLock),
    ):
        monkeypatch.setattr(found, "__init__", watching(found.__init__, make, noted))
    return noted


def watching(init: Callable[..., None], make: Callable[[], Any], noted: list[str]) -> Callable[..., None]:
    """The same ``__init__``, but with a watched lock."""

    def watched(self: Any, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        self._lock = Watched(make(), noted)

    return watched


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def url(request: pytest.FixtureRequest, db: Path) -> str:
    """One of each kind of store that has such locks."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("own_migrated_db")
        return found
    return "sqlite://" if request.param == "memory" else f"sqlite:///{db}"


def test_no_signal_can_leave_a_lock_locked(url: str, noted: list[str]) -> None:
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube = queue.create_tube("jobs", "limfifottl", capacity=1)
        tube.put("x")
        with suppress(tubes.TubeFull):
            tube.put("y", timeout=0.01)
        tube.ack(take(tube))
        with queue.transaction() as unit:
            tube.put("z", unit=unit)
            assert tube.peek(2, unit=unit).data == "z"
            tube.delete(2, unit=unit)
            assert not unit.connection.closed
        assert tube.take(timeout=0.01) is None
        tube.truncate()
        tube.statistics()
        tube.drop()
        queue.sweep()
        if url != "sqlite://":  # of which each has its own
            other.identify(queue.identify())
            other.create_tube("others", "fifo")
            queue.tube["others"].drop()
            other.sweep()  # which forgets the dropped tube
    assert not noted
