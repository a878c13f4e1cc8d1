"""Who waits for an answer is awake for a moment, and not for longer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tubes.drivers.lookout import IN_VAIN, Lookout

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
    threading.Timer(0.05, there.send, [b"!"]).start()
    assert 0.04 < seconds_of(lookout) < 30
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


def test_who_looked_in_vain_does_not_look_again_for_a_while(pair: Pair) -> None:
    awake = 0.2
    lookout = Lookout(pair[0].fileno(), awake)
    for _ in range(2):
        assert seconds_of(lookout) >= awake
        assert seconds_of(lookout, IN_VAIN) < awake
