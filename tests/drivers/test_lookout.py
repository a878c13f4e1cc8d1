"""A thread that waits for an answer stays awake for a moment, and no longer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tubes.drivers.lookout import LEAST, Lookout

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def seconds_of(lookout: Lookout, looks: int = 1) -> float:
    begun = time.monotonic()
    for _ in range(looks):
        lookout.look()
    return time.monotonic() - begun


def test_it_looks_until_the_answer_is_there(pair: Pair) -> None:
    here, there = pair
    lookout = Lookout(here.fileno(), 60)
    asked: list[bool] = []

    def answer() -> None:
        asked.append(True)
        there.send(b"!")

    threading.Timer(0.05, answer).start()
    assert seconds_of(lookout) < 30 and asked
    assert here.recv(1, socket.MSG_DONTWAIT) == b"!"


def test_an_answer_that_is_there_is_seen_at_once(pair: Pair) -> None:
    here, there = pair
    lookout = Lookout(here.fileno(), 60)
    there.send(b"!")
    assert seconds_of(lookout, 100) < 30


def test_the_end_of_the_connection_is_an_answer(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert seconds_of(Lookout(here.fileno(), 60)) < 30


def test_who_looks_in_vain_looks_ever_more_seldom(pair: Pair) -> None:
    awake = 0.2
    lookout = Lookout(pair[0].fileno(), awake)
    for left_out in (LEAST, 2 * LEAST, 4 * LEAST):
        assert seconds_of(lookout) >= awake
        assert seconds_of(lookout, left_out) < awake


@pytest.mark.slow
def test_who_does_not_look_in_vain_any_more_looks_more_often_again(pair: Pair) -> None:
    here, there = pair
    lookout = Lookout(here.fileno(), 0.2)
    for left_out in (LEAST, 2 * LEAST, 4 * LEAST):
        seconds_of(lookout, 1 + left_out)
    there.send(b"!")
    seconds_of(lookout, 3)
    here.recv(1)
    assert seconds_of(lookout) >= 0.2
    assert seconds_of(lookout, LEAST) < 0.2 <= seconds_of(lookout, LEAST + 1)
