"""What a process hears from Redis, and that nothing makes it deaf."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from faults.harness import strike
from tubes.drivers.redis import listener as module
from tubes.drivers.redis.listener import Listener
from tubes.drivers.redis.scripts import WAIT

from tubes.waiting import Waiters

TUBE = 7


class FailingWire:
    """Fails once in a way that nobody foresaw, and is closed by that, as a wire is; then it works."""

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at
        self._is_open = True
        self._reader, writer = os.pipe()
        os.write(writer, b"an answer")
        os.close(writer)

    def evaluate(self, script: Any, keys: Any, given: Any) -> int:
        self._is_open = True  # redis-py connects anew where it must
        if script is WAIT:
            self._fail("wait")
        return 0

    def send(self, *words: Any) -> None:
        pass

    def receive(self) -> None:
        self._fail("answer")

    def fileno(self) -> int:
        if not self._is_open:
            raise AttributeError("'NoneType' object has no attribute 'fileno'")
        return self._reader

    def close(self) -> None:
        self._is_open = False

    def _fail(self, where: str) -> None:
        if self._fails_at == where:
            self._fails_at = ""
            self.close()
            raise MemoryError


class FailingNodes:
    """Its first connection is such a wire."""

    patience = 1.0

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at
        self.connected_again = threading.Event()

    def check_reachable(self, keys: Any) -> None:
        pass

    def connect(self, keys: Any, patience: float) -> FailingWire:
        fails_at, self._fails_at = self._fails_at, ""
        if not fails_at:
            self.connected_again.set()
        return FailingWire(fails_at)


@pytest.mark.parametrize("fails_at", ["wait", "answer"])
def test_an_unforeseen_failure_at_a_bell_leaves_the_listener_at_work(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would never beat again, and the process would be taken for dead."""
    monkeypatch.setattr(module, "RECONNECT_EVERY", 0.01)
    nodes: Any = FailingNodes(fails_at)
    waiters, has_beaten = Waiters(), threading.Event()
    listener = Listener(nodes, "tubes", waiters)
    waiters.enter(TUBE)

    def beat() -> None:
        if nodes.connected_again.is_set():
            has_beaten.set()

    listener.add_beat(beat, 0.01)
    listener.start()
    try:
        assert nodes.connected_again.wait(10)
        assert has_beaten.wait(10)
    finally:
        listener.stop()


def test_a_start_that_a_signal_cuts_short_leaves_no_thread() -> None:
    """Else it would go on, and read what has the number of its pipe next: the answer to another call."""
    nodes: Any = FailingNodes("")
    at, is_struck = 0, True
    while is_struck:
        at += 1
        listener = Listener(nodes, "tubes", Waiters())
        is_struck = strike(listener.start, at)
        assert listener._thread.is_alive() is not is_struck, at
    listener.stop()
    assert at > 10
