"""What a task is: an immutable value, and one table of legal moves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tubes.task import STORED, TRANSITIONS, Event, State, Task, done, instant, make_task

TAKEN = make_task(
    7,
    "jobs",
    State.TAKEN,
    {"a": 1},
    pri=2,
    utube="x",
    created_ms=1000,
    updated_ms=2500,
    due_ms=9000,
    ttl_ms=8000,
    ttr_ms=1500,
    attempts=3,
    owner="00000000000000000000000000000001",
)


def test_states_have_tarantools_codes() -> None:
    assert {state.name: state.value for state in State} == {
        "READY": "r",
        "TAKEN": "t",
        "DELAYED": "~",
        "BURIED": "!",
        "DONE": "-",
    }


def test_a_task_shows_seconds_and_aware_instants() -> None:
    assert (TAKEN.ttl, TAKEN.ttr) == (8.0, 1.5)
    assert TAKEN.created_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert TAKEN.updated_at == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert TAKEN.due_at == datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (-(2**63), datetime.min),
        (-62_135_596_800_001, datetime.min),
        (-62_135_596_800_000, datetime.min),
        (-62_135_596_799_000, datetime(1, 1, 1, 0, 0, 1)),
        (253_402_300_799_000, datetime(9999, 12, 31, 23, 59, 59)),
        (253_402_300_800_000, datetime.max),
        (2**63 - 1, datetime.max),
    ],
)
def test_a_time_that_no_datetime_shows_is_the_first_or_the_last_one(ms: int, shown: datetime) -> None:
    assert instant(ms) == shown.replace(tzinfo=UTC)


def test_a_time_is_shown_to_the_millisecond_also_in_a_thousand_years() -> None:
    """The number of its seconds is no float any more that would be exact to a microsecond."""
    assert instant(91_492_928_001_345) == datetime(4869, 4, 17, 22, 13, 21, 345_000, tzinfo=UTC)


def test_a_taken_task_has_an_owner_and_its_attempt_as_token() -> None:
    assert TAKEN.owner == UUID(int=1)
    assert TAKEN.token == TAKEN.attempts == 3


def test_no_other_task_has_either() -> None:
    ready = make_task(
        7,
        "jobs",
        State.READY,
        None,
        pri=0,
        utube=None,
        created_ms=0,
        updated_ms=0,
        attempts=3,
        owner="1" * 32,
    )
    assert (ready.owner, ready.token) == (None, None)


def test_a_done_task_keeps_what_it_carried_and_is_in_nobodys_hands() -> None:
    finished = done(TAKEN, 4000)
    assert finished.state is State.DONE
    assert (finished.id, finished.data, finished.pri, finished.utube, finished.attempts) == (
        7,
        {"a": 1},
        2,
        "x",
        3,
    )
    assert (finished.owner, finished.token, finished.due_at) == (None, None, None)
    assert finished.updated_at == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)


def test_a_task_cannot_be_changed() -> None:
    assert type(TAKEN) is Task
    with pytest.raises(FrozenInstanceError):
        TAKEN.state = State.DONE  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        TAKEN.note = "x"  # type: ignore[attr-defined]


def test_equal_tasks_are_equal_and_filled_in_completely() -> None:
    again = Task(**{field.name: getattr(TAKEN, field.name) for field in fields(Task)})
    assert again == TAKEN


def test_a_task_can_be_in_a_set_whatever_it_carries() -> None:
    resized, cropped = (
        make_task(7, "jobs", State.READY, {how: ["a.png"]}, 0, None, created_ms=0, updated_ms=0)
        for how in ("resize", "crop")
    )
    assert {resized, cropped, resized} == {cropped, resized}
    assert {resized: "pending"}.get(cropped) is None


def test_a_task_shows_itself_in_one_short_line() -> None:
    assert repr(TAKEN) == "<Task jobs:7 taken {'a': 1}>"
    long = make_task(1, "jobs", State.READY, "x" * 10_000, pri=0, utube=None, created_ms=0, updated_ms=0)
    assert len(repr(long)) < 100


def test_every_stored_state_can_be_reached_and_left() -> None:
    assert {move.target for move in TRANSITIONS} == set(State)
    for state in STORED:
        assert any(move.source is state and move.target is State.DONE for move in TRANSITIONS)


def test_nothing_leads_out_of_done_and_every_event_moves_something() -> None:
    assert all(move.source is not State.DONE for move in TRANSITIONS)
    assert {move.event for move in TRANSITIONS} == set(Event)
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
