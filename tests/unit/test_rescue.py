"""A rescue of what was held by many sessions that ended at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tubes
from tubes.rescuer import RESCUED_AT_ONCE

MANY = 4 * RESCUED_AT_ONCE + 5


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[tubes.Queue]:
    with tubes.connect(f"sqlite:///{tmp_path}/queue.db", sweep=False) as queue:
        queue.create_tube("jobs", "fifo").put_many(range(MANY))
        yield queue


def hold(queue: tubes.Queue, count: int, ends_ms: int | None) -> None:
    """Have so many sessions hold a task each, and end at ``ends_ms``; ``None``: nobody knows them."""
    assert len(queue.tube.jobs.take_many(count, timeout=0)) == count
    with queue.transaction() as unit:
        execute = unit.connection.exec_driver_sql
        execute("UPDATE tubes_task SET owner = printf('%032d', id) WHERE state = 't'")
        if ends_ms is not None:
            given = "SELECT owner, 0, ? FROM tubes_task WHERE state = 't'"
            execute(f"INSERT INTO tubes_session (id, ttr_ms, ends_ms) {given}", (ends_ms,))


def test_all_are_seen_to_in_one_rescue_twice_as_many_each_time(
    queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next look, other rescuers have seen to other sessions. The looks are few, since each reads them all."""
    hold(queue, MANY, ends_ms=1)
    store: Any = queue.store
    forget, steps = store.forget_sessions, list[int]()

    def counted(sessions: Sequence[str]) -> None:
        steps.append(len(sessions))
        forget(sessions)

    monkeypatch.setattr(store, "forget_sessions", counted)
    assert queue.sweep() == MANY
    assert steps == [RESCUED_AT_ONCE, 2 * RESCUED_AT_ONCE, RESCUED_AT_ONCE + 5]
    assert {*store.read(store.known_sessions)} == {store.session}


def test_two_draw_others_by_lot(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(queue, MANY, ends_ms=1)
    drawn: list[Sequence[str]] = []

    def rescued(ended: Sequence[str], taker: tubes.Tube | None) -> int:
        drawn.append(ended)
        return len(ended)

    monkeypatch.setattr(queue.rescuer, "_rescue_from", rescued)
    queue.rescuer.rescue()
    queue.rescuer.rescue()
    first, second = drawn[0], drawn[3]
    assert len(drawn) == 6 and {*first} != {*second}
    assert len({session for step in drawn[:3] for session in step}) == MANY


def test_who_is_unknown_is_looked_for_by_as_many_statements_however_many_hold_tasks(
    queue: tubes.Queue,
) -> None:
    store: Any = queue.store
    looks: list[list[str]] = []
    for count in 1, MANY - 1:
        hold(queue, count, ends_ms=None)
        looks.append([])
        store._reader.set_trace_callback(looks[-1].append)
        assert len(store.read(store._orphans)) == (1 if count == 1 else MANY)
        store._reader.set_trace_callback(None)
    assert looks[0] == looks[1] != []
    assert queue.sweep() == MANY
