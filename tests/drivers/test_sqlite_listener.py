"""The thread that hears, on a SQLite file, what others have committed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults.harness import Struck, eventually
from tubes.drivers import looks
from tubes.drivers.looks import FEW, SOME

import tubes
from tubes.tube import Tube
from tubes.waiting import Waiter

MANY = 3 * SOME


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def waiting(path: Path) -> Iterator[Callable[[int], dict[Tube, Waiter]]]:
    """Has somebody wait in each of so many tubes: a signal that is set is one that would look."""
    queue = tubes.connect(f"sqlite:///{path}", durability="off", sweep=False)
    entered: dict[Tube, Waiter] = {}

    def wait(count: int) -> dict[Tube, Waiter]:
        made = [queue.create_tube(f"tube{number}", "fifo") for number in range(count)]
        entered.update((tube, queue.store.waiters.enter(tube.record.id)) for tube in made)
        return entered

    yield wait
    for tube, signal in entered.items():
        queue.store.waiters.leave(tube.record.id, signal)
    queue.close()


def put(path: Path, tube: Tube, *, is_delayed: bool = False) -> None:
    """Put a task as a program would that rings no bell."""
    state, front = ("'~'", "NULL") if is_delayed else ("'r'", "1")
    columns = "tube, state, front, pri, place, created_ms, updated_ms, attempts, data"
    with sqlite3.connect(path, timeout=60) as db:
        db.execute(
            f"INSERT INTO tubes_task ({columns}) VALUES (?, {state}, {front}, 0, 0, 0, 0, 0, '1')",
            (tube.record.id,),
        )
    db.close()


def test_among_many_lines_they_look_at_once_where_a_task_is_ready(
    path: Path, waiting: Callable[[int], dict[Tube, Waiter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "SOME", 0)  # nobody looks by turns
    signals = waiting(MANY)
    *others, last = signals
    put(path, last)
    eventually(lambda: signals[last].is_set)
    assert sum(signals[tube].is_set for tube in others) <= FEW


def test_in_all_the_other_lines_they_look_by_and_by(
    path: Path, waiting: Callable[[int], dict[Tube, Waiter]]
) -> None:
    signals = waiting(MANY)
    put(path, [*signals][-1], is_delayed=True)
    eventually(lambda: all(signal.is_set for signal in signals.values()))


def test_in_a_few_lines_they_all_look(path: Path, waiting: Callable[[int], dict[Tube, Waiter]]) -> None:
    signals = waiting(FEW)
    for signal in signals.values():
        signal.clear()
    put(path, [*signals][-1], is_delayed=True)
    eventually(lambda: all(signal.is_set for signal in signals.values()))


def test_a_thread_that_begins_only_after_its_start_was_interrupted_ends_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a greenlet's timeout. Its bell is closed, so it would look without a pause, and others never run."""
    late: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "tubes-listener":
            return start(thread)
        late.append(threading.Thread(target=thread.run, daemon=True))
        raise Struck

    with tubes.connect(f"sqlite:///{path}", sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(Struck):
                jobs.take(timeout=None)
        late[0].start()
        late[0].join(5)
        assert not late[0].is_alive()
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(jobs.take, 30)
            eventually(lambda: bool(queue.store.waiters))
            jobs.put("x")
            assert taken.result(30) is not None
