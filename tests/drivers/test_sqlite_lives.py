"""The locks on a lock file by which connections prove that they live."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.harness import run
from tubes.drivers.sql.sqlite_shared import LockFile

ALIVE = """
import sys
from tubes.drivers.sql.sqlite_shared import LockFile
locks = LockFile(sys.argv[1])
print(*(int(id) for id in sys.argv[2:] if locks.is_alive(int(id))))
"""
"""Which connections live, as another process sees it."""


@pytest.mark.parametrize("theirs", [2, 1], ids=["another", "of the same number"])
def test_closing_a_lock_file_ends_no_proof_that_another_gives_on_it(tmp_path: Path, theirs: int) -> None:
    """A queue is closed while another thread connects to the same file, or to a database made anew."""
    first, second = LockFile(str(tmp_path / "locks")), LockFile(str(tmp_path / "locks"))
    first.hold(1)
    second.hold(theirs)
    first.let_go(1)
    first.close()
    assert run(ALIVE, tmp_path / "locks", 1, 2) == str(theirs)
    second.close()
    assert run(ALIVE, tmp_path / "locks", 1, 2) == ""


def test_who_is_called_is_a_connection_that_lives(tmp_path: Path) -> None:
    """Of a process's two queues the later one is closed."""
    locks, other = LockFile(str(tmp_path / "locks")), LockFile(str(tmp_path / "locks"))
    locks.hold(1)
    locks.hold(2)
    locks.let_go(2)
    locks.arm(77, [5])
    assert other.board.call(5, 1, {1}.__contains__, set()) == [77]
    locks.close()
    other.close()
