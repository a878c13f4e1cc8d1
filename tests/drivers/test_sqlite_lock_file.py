"""The locks on a lock file by which connections prove that they live."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faults.harness import eventually, left_open, run
from tubes.drivers.sql import sqlite_bell, sqlite_byte_locks, sqlite_lock_file
from tubes.drivers.sql.sqlite_lock_file import LockFile

import tubes
from tubes.clock import real_monotonic

ALIVE = """
import sys
from tubes.drivers.sql.sqlite_lock_file import LockFile
locks = LockFile(sys.argv[1])
print(*(int(id) for id in sys.argv[2:] if locks.is_alive(int(id))))
"""
"""Prints which of some connections live, as another process sees it."""


IMPORTS_TWICE = """
import os, subprocess, sys, tubes

TAKE = "import sys, tubes; print(tubes.connect(sys.argv[1], sweep=False).tube.jobs.take(timeout=0))"
url = "sqlite:///" + sys.argv[1]
queue = tubes.connect(url, sweep=False)
tube = queue.create_tube("jobs", "fifo")
tube.put("x")
task = tube.take(timeout=0)
for name in [name for name in sys.modules if name.partition(".")[0] == "tubes"]:
    del sys.modules[name]
import tubes as again
assert again is not tubes
opened = set()
for _ in range(3):
    with again.connect(url, sweep=False) as other:
        print(other.tube.jobs.take(timeout=0))
        opened.add(len(os.listdir("/proc/self/fd")))
print(len(opened), subprocess.check_output([sys.executable, "-c", TAKE, url], text=True).strip())
print(tube.ack(task).data)
"""


def test_a_second_copy_of_the_library_in_a_process_ends_no_proof_of_the_first(tmp_path: Path) -> None:
    """A program imports it again: whatever the second opens and closes, what the first holds stays held."""
    told = run(IMPORTS_TWICE, tmp_path / "jobs.db").split("\n")
    assert told == ["None", "None", "None", "1 None", "x"]


@pytest.mark.parametrize("theirs", [2, 1], ids=["another", "of the same number"])
def test_closing_a_lock_file_ends_no_proof_that_another_gives_on_it(tmp_path: Path, theirs: int) -> None:
    """A queue is closed while another thread connects to the same file, or to a new database in its place."""
    first, second = LockFile(str(tmp_path / "locks")), LockFile(str(tmp_path / "locks"))
    first.hold(1)
    second.hold(theirs)
    first.let_go(1)
    first.close()
    assert run(ALIVE, tmp_path / "locks", 1, 2) == str(theirs)
    second.close()
    assert run(ALIVE, tmp_path / "locks", 1, 2) == ""


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_who_asks_whether_another_of_its_process_lives_ends_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A database was deleted and made again, but its lock file was left; queues on both databases ask."""
    monkeypatch.setattr(sqlite_byte_locks, "ARE_KNOWN", is_told)
    first, second = LockFile(str(tmp_path / "locks")), LockFile(str(tmp_path / "locks"))
    first.hold(1)
    assert second.is_alive(1)
    assert run(ALIVE, tmp_path / "locks", 1) == "1"
    first.let_go(1)
    assert not second.is_alive(1)
    first.close()
    second.close()


def test_who_is_called_is_a_connection_that_lives(tmp_path: Path) -> None:
    """The later of a process's two queues has been closed."""
    locks, other = LockFile(str(tmp_path / "locks")), LockFile(str(tmp_path / "locks"))
    locks.hold(1)
    locks.hold(2)
    locks.let_go(2)
    locks.arm(77, [5])
    assert other.board.call(5, 1, {1}.__contains__, set()) == [77]
    locks.close()
    other.close()


def test_no_connection_has_a_number_that_damage_has_made(tmp_path: Path) -> None:
    """Whoever puts a task calls nobody, even if the board says that such a connection waits."""
    (tmp_path / "locks").write_bytes(b"\1" * 1024 + b"\xff" * 25_000)
    locks = LockFile(str(tmp_path / "locks"))
    locks.call(5, 1)
    assert not locks.is_alive(-(1 << 63))
    assert locks.board.call(5, 1, lambda _: True, set()) == []
    locks.close()


def test_a_lock_file_that_cannot_be_made_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """As when the disk is full: a process that tries again and again must not run out of descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            LockFile(str(tmp_path / "locks"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left_open(tmp_path) == []


def test_a_lock_file_out_of_reach_for_a_while_is_closed_once(tmp_path: Path) -> None:
    """Its folder is moved away and back: closing a descriptor twice could close somebody else's."""
    folder = tmp_path / "here"
    folder.mkdir()
    locks = LockFile(str(folder / "locks"))
    locks.hold(1)
    folder.rename(tmp_path / "away")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            locks.renew()
    (tmp_path / "away").rename(folder)
    locks.renew()
    assert run(ALIVE, folder / "locks", 1) == "1"
    locks.close()
    assert left_open(tmp_path) == []


def test_who_puts_while_another_thread_closes_the_queue_calls_nobody(tmp_path: Path) -> None:
    file = LockFile(str(tmp_path / "tubes"))
    file.close()
    file.call(1, 1)


def test_who_lets_go_while_another_thread_closes_the_file_leaves_no_proof(tmp_path: Path) -> None:
    file = LockFile(str(tmp_path / "tubes"))
    file.hold(1)
    with ThreadPoolExecutor() as pool:
        with LockFile._counting:
            letting_go = pool.submit(file.let_go, 1)
            eventually(letting_go.running)
            file.close()
        letting_go.result()
    assert run(ALIVE, tmp_path / "tubes", 1) == "" and not left_open(tmp_path)


def test_who_closes_the_queue_waits_for_another_thread_that_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, without a GIL, the memory would be taken away while it is read, which kills the process."""
    file, ended = LockFile(str(tmp_path / "tubes")), list[str]()

    def close() -> None:
        file.close()
        ended.append("close")

    closing = threading.Thread(target=close)

    def late(connection: int) -> bool:
        closing.start()
        closing.join(0.05)
        return False

    file.board.arm(1, 77, [5])
    monkeypatch.setattr(file, "is_alive", late)
    file.call(5, 1)
    ended.append("call")
    closing.join()
    assert ended == ["call", "close"]


def test_who_calls_while_another_thread_closes_the_queue_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking whether a connection lives lets other threads run; no file that they open is asked instead."""
    file, is_alive = LockFile(str(tmp_path / "tubes")), LockFile.is_alive
    opened: list[LockFile] = []

    def late(connection: int) -> bool:
        file.close()
        opened.append(LockFile(str(tmp_path / "next")))
        opened[0].hold(connection)
        return bool(is_alive(file, connection))

    file.board.arm(1, 77, [5])
    monkeypatch.setattr(file, "is_alive", late)
    file.call(5, 1)
    assert run(ALIVE, tmp_path / "next", 1) == "1"
    opened[0].close()


def test_of_those_who_wait_one_at_a_time_looks_whether_the_others_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When each looked at all the others, the cost of a waiting process grew with their number."""
    queues = [tubes.connect(f"sqlite:///{tmp_path}/queue.db", sweep=False) for _ in range(3)]
    store: Any = queues[0].store
    stores = list(store._shared.users)
    looks: list[int] = []
    dead: set[int] = set()

    def is_alive(self: LockFile, connection: int) -> bool:
        looks.append(connection)
        return connection not in dead

    def looked() -> tuple[list[bool], int]:
        looks.clear()
        return [each.deaths_suspected(allow_recent=True) for each in stores], len(looks)

    monkeypatch.setattr(LockFile, "is_alive", is_alive)
    now = real_monotonic()
    for module in sqlite_bell, sqlite_lock_file:
        monkeypatch.setattr(module, "real_monotonic", lambda: now, raising=False)
    assert looked() == ([False] * 3, 3)
    assert looked() == ([False] * 3, 0)
    dead.add(store._connection)
    assert store.deaths_suspected()  # a process whose take finds nothing looks by itself
    now += sqlite_bell.FLOOR
    answers, count = looked()
    assert answers == [True] * 3 and count >= 3  # what is found must be seen to, so all see it
    dead.clear()
    now = 1.0  # the host was started again
    assert looked() == ([False] * 3, 3)
    for queue in queues:
        queue.close()


def test_of_those_who_take_and_sweep_one_at_a_time_looks_whether_the_others_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy consumer looks twenty times a second. One that finds nothing looks by itself."""
    queues = [tubes.connect(f"sqlite:///{tmp_path}/queue.db", sweep=False) for _ in range(5)]
    queues[0].create_tube("jobs", "fifo").put_many(range(5))
    looks: list[int] = []

    def is_alive(self: LockFile, connection: int) -> bool:
        looks.append(connection)
        return True

    def looked(work: Callable[[tubes.Queue], object]) -> int:
        looks.clear()
        for queue in queues:
            queue.rescuer._look_at = 0.0
            work(queue)
        return len(looks)

    monkeypatch.setattr(LockFile, "is_alive", is_alive)
    now = real_monotonic()
    for module in sqlite_bell, sqlite_lock_file:
        monkeypatch.setattr(module, "real_monotonic", lambda: now)
    assert looked(lambda queue: queue.tube.jobs.take(timeout=0)) == 5
    now += sqlite_bell.FLOOR
    assert looked(lambda queue: queue._sweep(thoroughly=False)) == 5
    assert looked(lambda queue: queue.tube.jobs.take(timeout=0)) == 25
    assert looked(lambda queue: queue._sweep(thoroughly=True)) == 25
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_who_is_alone_on_a_lock_file_asks_once_of_each_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    monkeypatch.setattr(sqlite_byte_locks, "ARE_KNOWN", is_told)
    locks = LockFile(str(tmp_path / "locks"))
    calls: list[str] = []

    def count(module: Any, name: str) -> None:
        call = getattr(module, name)

        def counted(*given: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                calls.append(name)
            return call(*given)

        monkeypatch.setattr(module, name, counted)

    count(os, "fstat")
    count(fcntl, "fcntl")
    count(fcntl, "lockf")
    assert not any([locks.is_alive(connection) for connection in range(1, 11)])
    assert calls == (["fcntl"] * 10 if is_told else ["lockf"] * 20)  # or each is locked and unlocked
    locks.close()


@pytest.mark.slow
def test_threads_open_and_close_lock_files_at_the_same_time(tmp_path: Path) -> None:
    """The files are of several databases, and each thread lets go while others come and go."""

    def come_and_go(number: int) -> None:
        for _ in range(300):
            file = LockFile(str(tmp_path / f"{number}"))
            file.hold(1)
            file.let_go(1)
            file.close()

    others = [LockFile(str(tmp_path / f"other{number}")) for number in range(100)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(come_and_go, range(4)))
    finally:
        sys.setswitchinterval(interval)
        for file in others:
            file.close()
