"""Counts: what a process counted and has not stored yet, and Tarantool's keys."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from faults.harness import ended, eventually

from tubes.stats import Counts, statistics
from tubes.task import Event, State


def pending(counts: Counts, tube: int) -> tuple[Mapping[str, int], int]:
    """Those of one tube, and how many flushes have begun."""
    unstored, flushes = counts.pending()
    return unstored.get(tube, {}), flushes


def test_the_first_count_after_a_flush_says_so() -> None:
    """That is when a flush must be scheduled."""
    counts = Counts()
    assert counts.add(1, Event.PUT, 1) is True
    assert counts.add(1, Event.PUT, 1) is False
    assert counts.add(2, Event.TAKE, 1) is False
    counts.drain()
    assert counts.add(1, Event.PUT, 1) is True


def test_drained_counts_are_handed_over_once() -> None:
    counts = Counts()
    counts.add(1, Event.PUT, 2)
    counts.add(1, Event.ACK, 1)
    counts.add(2, Event.PUT, 5)
    assert counts.is_dirty
    assert {(tube, event, n) for tube, calls in counts.drain() for event, n in calls.items()} == {
        (1, "put", 2),
        (1, "ack", 1),
        (2, "put", 5),
    }
    assert not counts.is_dirty
    assert list(counts.drain()) == []


def test_restored_counts_are_added_to_those_that_came_since() -> None:
    counts = Counts()
    counts.add(1, Event.PUT, 2)
    unstored = counts.drain()
    counts.add(1, Event.PUT, 3)
    counts.flushed(unstored, unstored)
    assert [dict(calls) for _, calls in counts.drain()] == [{"put": 5}]


def test_restored_counts_wait_for_the_next_flush() -> None:
    counts = Counts()
    counts.add(1, Event.PUT, 2)
    unstored = counts.drain()
    counts.flushed(unstored, unstored)
    assert counts.is_dirty
    counts.flushed(counts.drain(), [])
    assert not counts.is_dirty


def test_threads_lose_no_counts() -> None:
    counts, drained = Counts(), Counts()

    def count() -> None:
        for _ in range(2000):
            counts.add(1, Event.PUT, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained.flushed([], counts.drain())
    drained.flushed([], counts.drain())
    assert [dict(calls) for _, calls in drained.drain()] == [{"put": 8000}]


def test_a_flush_that_takes_long_has_stored_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is itself waiting; what it has drained still counts as pending."""
    monkeypatch.setattr("tubes.stats.FLUSH_TAKES", 0.01)
    counts = Counts()
    counts.add(1, Event.PUT, 2)
    drained = counts.drain()
    counts.add(1, Event.PUT, 1)
    assert pending(counts, 1) == ({"put": 3}, 1)
    counts.flushed(drained, [])
    assert pending(counts, 1) == ({"put": 1}, 1)


def test_a_flush_that_failed_is_not_under_way_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubes.stats.FLUSH_TAKES", 0.01)
    counts = Counts()
    counts.add(1, Event.PUT, 2)

    def fails(deltas: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        counts.flush(fails)
    assert pending(counts, 1) == ({"put": 2}, 1)


def test_of_a_flush_that_fails_nothing_is_pending_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may ask at any moment, when the flush has taken so long that it does not wait for it."""
    monkeypatch.setattr("tubes.stats.FLUSH_TAKES", 0.01)
    counts, seen = Counts(), list[object]()
    counts.add(1, Event.PUT, 2)
    flushed = counts.flushed

    def ask_first(*given: Any) -> None:
        seen.append(pending(counts, 1))
        flushed(*given)

    def fails(deltas: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(counts, "flushed", ask_first)
    with pytest.raises(OSError, match="full"):
        counts.flush(fails)
    assert [*seen, pending(counts, 1)] == [({"put": 2}, 1)] * 2


def test_what_is_on_its_way_is_counted_for_its_own_tube_until_its_own_flush_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads may be flushing, with equal counts."""
    monkeypatch.setattr("tubes.stats.FLUSH_TAKES", 0.01)
    counts, drained = Counts(), []
    for _ in range(2):
        counts.add(1, Event.PUT, 2)
        drained.append(counts.drain())
        counts.add(2, Event.PUT, 5)
        drained.append(counts.drain())
    assert pending(counts, 1) == ({"put": 4}, 4)
    counts.flushed(drained[0], [])
    assert pending(counts, 1) == ({"put": 2}, 4)
    for deltas in drained:
        counts.flushed(deltas, [])
    assert pending(counts, 1) == pending(counts, 2) == ({}, 4)


def test_statistics_have_tarantools_keys_and_zeros_for_what_never_happened() -> None:
    states = {State.READY: 3, State.TAKEN: 2, State.BURIED: 1}
    found = statistics(states, {"put": 9, "ack": 1, "delete": 1, "ttl": 1})
    assert found["tasks"] == {"ready": 3, "taken": 2, "buried": 1, "delayed": 0, "total": 6, "done": 3}
    assert found["calls"] == {event.value: 0 for event in Event} | {"put": 9, "ack": 1, "delete": 1, "ttl": 1}


def test_who_asks_waits_for_a_flush_that_another_thread_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, what the flush has drained is neither pending nor stored."""
    monkeypatch.setattr("tubes.stats.FLUSH_TAKES", 60.0)
    counts = Counts()
    counts.add(1, Event.PUT, 1)
    drained = counts.drain()
    answered: list[bool] = []

    def ask() -> None:
        assert pending(counts, 1) == ({}, 1)
        answered.append(stored.is_set())

    stored = threading.Event()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    waiting: Any = counts._lock
    eventually(lambda: waiting._waiters)
    stored.set()
    counts.flushed(drained, [])
    ended(thread)
    assert answered == [True]
