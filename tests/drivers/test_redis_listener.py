"""What a process hears from Redis, and that nothing makes it deaf."""

from __future__ import annotations

import os
import threading
from math import inf
from typing import Any

import pytest
from faults.harness import Struck, strike
from tubes.drivers.redis import listener as module
from tubes.drivers.redis.listener import Listener
from tubes.drivers.redis.scripts import WAIT

import tubes
from tubes.waiting import Waiters

TUBE = 7


class FailingWire:
    """A wire that fails once in an unforeseen way, which closes it, as it does any wire; then it works."""

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at
        self._is_open = True
        self._reader, writer = os.pipe()
        os.write(writer, b"an answer")
        os.close(writer)

    def evaluate(self, script: Any, keys: Any, given: Any) -> int:
        self._is_open = True  # redis-py reconnects if it must
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
    """Nodes whose first connection is such a wire."""

    patience = 60.0
    primary = None

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at
        self.connected_again = threading.Event()

    def follow(self, patience: float) -> None:
        pass

    def check_reachable(self, keys: Any) -> None:
        pass

    def connect(self, keys: Any, patience: float) -> FailingWire:
        fails_at, self._fails_at = self._fails_at, ""
        if not fails_at:
            self.connected_again.set()
        return FailingWire(fails_at)


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", ["wait", "answer"])
def test_an_unforeseen_failure_at_a_bell_leaves_the_listener_at_work(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would never beat again, and nobody here be called before an answer would have been late."""
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


class RungWire:
    """A wire whose answer comes when it is rung."""

    def __init__(self, order: list[str]) -> None:
        self._order = order
        self._reader, self._writer = os.pipe()

    def ring(self) -> None:
        os.write(self._writer, b"x")

    def evaluate(self, script: Any, keys: Any, given: Any) -> int:
        return 0

    def send(self, *words: Any) -> None:
        pass

    def receive(self) -> list[bytes]:
        self._order.append("heard")
        os.read(self._reader, 1)
        return [b"bell", b"1"]

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        pass


class RungNodes(FailingNodes):
    """Nodes whose only connection is such a wire."""

    def __init__(self, wire: RungWire) -> None:
        super().__init__("")
        self._wire: Any = wire

    def connect(self, keys: Any, patience: float) -> Any:
        return self._wire


def test_a_call_is_heard_between_two_beats_that_fail() -> None:
    """Each may wait for the server: there is one for each tube of type ``redis``, and all go to one node."""
    order: list[str] = []
    wire, is_over = RungWire(order), threading.Event()
    nodes: Any = RungNodes(wire)
    waiters = Waiters()
    waiters.enter(TUBE)
    listener = Listener(nodes, "tubes", waiters)

    def first() -> None:
        if "first" not in order:
            wire.ring()  # a waiting consumer is called meanwhile
        order.append("first")
        raise tubes.StoreUnavailable

    def second() -> None:
        order.append("second")
        is_over.set()
        raise tubes.StoreUnavailable

    listener.add_beat(first, 0)
    listener.add_beat(second, 0)
    listener.start()
    try:
        assert is_over.wait(10)
    finally:
        listener.stop()
    assert order[:3] == ["first", "heard", "second"]


def test_the_connection_of_who_waits_no_longer_is_closed_after_a_while() -> None:
    nodes: Any = FailingNodes("")
    waiters = Waiters()
    listener = Listener(nodes, "tubes", waiters)
    waiter = waiters.enter(TUBE)
    listener._lend_ears()
    wires: list[Any] = [ear.wire for ear in listener._ears.values()]
    listener._close_unused(inf)
    assert [wire._is_open for wire in wires] == [True]
    waiters.leave(TUBE, waiter)
    listener._close_unused(inf)
    assert not wires[0]._is_open and not listener._ears


def test_a_start_that_a_signal_cuts_short_leaves_no_thread() -> None:
    """Otherwise, it would go on, and read from whatever has its pipe's number next: another call's answer."""
    nodes: Any = FailingNodes("")
    at, is_struck = 0, True
    while is_struck:
        at += 1
        listener = Listener(nodes, "tubes", Waiters())
        is_struck = strike(listener.start, at)
        assert listener._thread.is_alive() is not is_struck, at
    listener.stop()
    assert at > 10


def test_a_thread_that_begins_only_after_its_start_was_interrupted_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a greenlet's timeout. It would read from whatever has its pipe's number by then."""

    def interrupted(thread: threading.Thread) -> None:
        raise Struck

    nodes: Any = FailingNodes("")
    listener = Listener(nodes, "tubes", Waiters())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Struck):
            listener.start()
    late = threading.Thread(target=listener._thread.run, daemon=True)
    late.start()
    late.join(5)
    is_running = late.is_alive()
    listener._is_over = True
    assert not is_running
