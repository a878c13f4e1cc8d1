"""A thread that waits for an answer spins for a moment, and no longer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tubes.drivers.sql.postgresql_spinning import LEAST_SKIPS, Spinner

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def seconds_of(spinner: Spinner, spins: int = 1) -> float:
    begun = time.monotonic()
    for _ in range(spins):
        spinner.spin()
    return time.monotonic() - begun


class Looks:
    """Looks at a spinner's socket, and counts the looks."""

    def __init__(self, spinner: Spinner) -> None:
        self._spinner, self._poll, self._count = spinner, spinner._poll, 0
        spinner._poll = self

    def poll(self, timeout: int) -> object:
        self._count += 1
        return self._poll.poll(timeout)

    def during(self, spins: int) -> int:
        """How many there are while it spins so often."""
        before = self._count
        for _ in range(spins):
            self._spinner.spin()
        return self._count - before


def test_it_spins_until_the_answer_is_there(pair: Pair) -> None:
    here, there = pair
    spinner = Spinner(here.fileno(), 60)
    asked: list[bool] = []

    def answer() -> None:
        asked.append(True)
        there.send(b"!")

    threading.Timer(0.05, answer).start()
    assert seconds_of(spinner) < 30 and asked
    assert here.recv(1, socket.MSG_DONTWAIT) == b"!"


def test_an_answer_that_is_there_is_seen_at_once(pair: Pair) -> None:
    here, there = pair
    spinner = Spinner(here.fileno(), 60)
    there.send(b"!")
    assert seconds_of(spinner, 100) < 30


def test_the_end_of_the_connection_is_an_answer(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert seconds_of(Spinner(here.fileno(), 60)) < 30


def test_it_spins_ever_more_seldom_while_that_is_in_vain(pair: Pair) -> None:
    spin_for = 0.05
    spinner = Spinner(pair[0].fileno(), spin_for)
    looks = Looks(spinner)
    for skips in (LEAST_SKIPS, 2 * LEAST_SKIPS, 4 * LEAST_SKIPS):
        assert seconds_of(spinner) >= spin_for
        assert looks.during(skips) == 0


@pytest.mark.slow
def test_it_spins_more_often_again_once_that_helps(pair: Pair) -> None:
    here, there = pair
    spinner = Spinner(here.fileno(), 0.05)
    looks = Looks(spinner)
    for skips in (LEAST_SKIPS, 2 * LEAST_SKIPS, 4 * LEAST_SKIPS):
        seconds_of(spinner, 1 + skips)
    there.send(b"!")
    seconds_of(spinner, 3)
    here.recv(1)
    assert seconds_of(spinner) >= 0.05
    assert looks.during(LEAST_SKIPS) == 0 < looks.during(1)
