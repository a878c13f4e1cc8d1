"""The board on which the processes of one file call each other, and the bell at which they sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.harness import ended
from tubes.drivers.sql import sqlite_bell
from tubes.drivers.sql.sqlite_bell import BOARD_SIZE, SLOTS, Bell, Board, ring

from tubes.waiting import room


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[Callable[[], Board]]:
    """Makes the views that several processes have of one board."""
    path = tmp_path / "board"
    path.write_bytes(b"\0" * BOARD_SIZE)
    with path.open("r+b") as file:
        made: list[Board] = []

        def make() -> Board:
            made.append(Board(file.fileno()))
            return made[-1]

        yield make
        for board in made:
            board.close()


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


def call(board: Board, tube: int, count: int = 1, dead: int = -1, own: int = -1) -> list[int]:
    bells: list[int] = board.call(tube, count, lambda connection: connection != dead, {own})
    return bells


def test_one_task_calls_one_of_those_that_wait_for_its_tube(boards: Callable[[], Board]) -> None:
    ours, theirs = boards(), boards()
    for connection, tubes in ((1, [7]), (2, [8]), (3, [7, 8])):
        theirs.arm(connection, 100 + connection, tubes)
    assert call(ours, 7) == [101]
    assert [theirs.called(connection) for connection in (1, 2, 3)] == [7, None, None]
    assert theirs.called(1) is None  # told once
    assert call(ours, 7) == [103]
    assert call(ours, 7) == []
    assert call(ours, 8) == [102]


def test_who_waits_for_room_is_called_for_that_alone(boards: Callable[[], Board]) -> None:
    board = boards()
    board.arm(1, 101, [room(7)])
    assert call(board, 7) == []
    assert call(board, room(7)) == [101]
    assert board.called(1) == room(7)


def test_several_tasks_call_as_many(boards: Callable[[], Board]) -> None:
    board = boards()
    for connection in range(5):
        board.arm(connection, connection, [1])
    assert len(call(board, 1, 3)) == 3
    assert len(call(board, 1, 3)) == 2


def test_the_next_call_begins_behind_the_last(boards: Callable[[], Board]) -> None:
    """So the same process does not always do the work."""
    board = boards()
    board.arm(1, 1, [1])
    board.arm(2, 2, [1])
    assert call(board, 1) == [1]
    board.arm(1, 1, [1])
    assert call(board, 1) == [2]


def test_who_does_not_wait_any_more_is_not_called(boards: Callable[[], Board]) -> None:
    board = boards()
    board.arm(1, 1, [1])
    board.disarm(1)
    assert call(board, 1) == []


def test_the_dead_are_passed_over_and_cleared_away(boards: Callable[[], Board]) -> None:
    board = boards()
    board.arm(1, 1, [1])
    board.arm(2, 2, [1])
    assert call(board, 1, dead=1) == [2]
    assert call(board, 1) == []


def test_a_process_does_not_call_itself(boards: Callable[[], Board]) -> None:
    board = boards()
    board.arm(1, 1, [1])
    assert call(board, 1, own=1) == []
    assert call(board, 1) == [1]


def test_tubes_that_share_a_bit_and_connections_that_share_a_slot_are_told_apart_by_who_is_called(
    boards: Callable[[], Board],
) -> None:
    """The call names the tube, so that a process that does not wait for it can call the next."""
    board = boards()
    board.arm(3 + SLOTS, 9, [1])
    assert call(board, 1 + 64) == [9]
    assert board.called(3 + SLOTS) == 65


def test_of_many_tubes_no_more_are_read_than_there_are_bits(boards: Callable[[], Board]) -> None:
    board, tubes = boards(), iter(range(1, 10_000))
    board.arm(1, 101, tubes)
    assert next(tubes) == 65
    assert call(board, 7000) == [101]


def test_a_board_that_cannot_be_written_calls_nobody(tmp_path: Path) -> None:
    """As on a disk that has become read-only: who waits looks by itself."""
    path = tmp_path / "board"
    path.write_bytes(b"\0" * BOARD_SIZE)
    with path.open("rb") as file:
        board = Board(file.fileno())
        board.arm(1, 101, [7])
        board.all_lived(0.0)
        assert call(board, 7) == []
        board.close()


def test_a_board_that_is_closed_writes_nowhere(tmp_path: Path) -> None:
    """Another file may have the number of its descriptor by then."""
    path = tmp_path / "board"
    path.write_bytes(b"\0" * BOARD_SIZE)
    with path.open("r+b") as file:
        board = Board(file.fileno())
        board.close()
        with pytest.raises(ValueError, match="closed"):
            board.arm(1, 101, [7])
    assert path.read_bytes() == b"\0" * BOARD_SIZE


def test_a_bell_rings_for_the_number_it_was_given(bell: Bell) -> None:
    ring(bell.number ^ 1)
    assert bell.wait() is False  # the floor
    ring(bell.number)
    assert bell.wait() is True


def test_ringing_a_bell_that_is_gone_is_harmless(bell: Bell) -> None:
    bell.stir()
    bell.close()
    bell.stir()


def test_a_stir_ends_the_sleep_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_bell, "FLOOR", 60.0)
    bell, woken = Bell(), list[bool]()
    thread = threading.Thread(target=lambda: woken.append(bell.wait()))
    thread.start()
    bell.stir()
    ended(thread)
    assert woken == [True]
    bell.close()
