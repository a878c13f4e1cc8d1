"""What a task is: its states, the events that move it, and the value that users hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID


class State(StrEnum):
    """Where a task is in its life, with Tarantool's codes (queue README, "Task states")."""

    READY = "r"
    TAKEN = "t"
    DELAYED = "~"
    BURIED = "!"
    DONE = "-"

    __hash__ = str.__hash__  # Enum's own is Python code, and states and events are hashed all the time


class Event(StrEnum):
    """What happened to a task. Each change of a task is exactly one event."""

    PUT = "put"
    TAKE = "take"
    ACK = "ack"
    DELETE = "delete"
    RELEASE = "release"
    TOUCH = "touch"
    BURY = "bury"
    KICK = "kick"
    DELAY = "delay"
    TTL = "ttl"
    TTR = "ttr"

    __hash__ = str.__hash__


class Transition(NamedTuple):
    """One legal move: ``None`` as the source means that the task did not exist before."""

    source: State | None
    event: Event
    target: State


READY, TAKEN, DELAYED, BURIED, DONE = State
PUT, TAKE, ACK, *_ = Event
"""The same as globals: on Python 3.11 looking up a member of an enum takes longer than a call."""

STATES = {state.value: state for state in State}
"""States by code; a lookup costs a quarter of ``State(code)``."""

STORED = (State.READY, State.TAKEN, State.DELAYED, State.BURIED)
"""The states that a stored task can have; a done task is no longer stored."""

TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.PUT, State.READY),
    Transition(None, Event.PUT, State.DELAYED),
    Transition(State.READY, Event.TAKE, State.TAKEN),
    Transition(State.TAKEN, Event.ACK, State.DONE),
    *(Transition(state, Event.DELETE, State.DONE) for state in STORED),
    Transition(State.TAKEN, Event.RELEASE, State.READY),
    Transition(State.TAKEN, Event.RELEASE, State.DELAYED),
    Transition(State.TAKEN, Event.TOUCH, State.TAKEN),
    Transition(State.READY, Event.BURY, State.BURIED),
    Transition(State.TAKEN, Event.BURY, State.BURIED),
    Transition(State.DELAYED, Event.BURY, State.BURIED),
    Transition(State.BURIED, Event.KICK, State.READY),
    Transition(State.DELAYED, Event.DELAY, State.READY),
    *(Transition(state, Event.TTL, State.DONE) for state in STORED),
    Transition(State.TAKEN, Event.TTR, State.READY),
)
"""Every move that a task can make. Documentation, tests and the conformance kit read this table."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task as it was when a call returned it. It does not change; ``peek`` returns it as it is now.

    ``ttl`` and ``ttr`` are seconds, ``None`` for "never". ``due_at`` is when time will next change the
    task: at the end of its delay, its ttr or its ttl. ``attempts`` counts its takes. ``owner`` and
    ``token`` are set while it is taken: the session that holds it, and the number of this lease, which
    ``ack(task)`` and its kin present.
    """

    id: int
    tube: str
    state: State
    data: Any = field(hash=False)  # often a dict, which has no hash: the task could not be in a set
    pri: int
    utube: str | None
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    ttl: float | None
    ttr: float | None
    attempts: int
    owner: UUID | None
    token: int | None

    def __repr__(self) -> str:
        data = repr(self.data)
        shown = data if len(data) <= 60 else f"{data[:57]}..."
        return f"<Task {self.tube}:{self.id} {self.state.name.lower()} {shown}>"


class _Draft:
    """A task while its fields are being set; then it becomes a Task, which has the same slots.

    A frozen dataclass sets its fields one by one through ``object.__setattr__``: 2.6 µs for these fourteen.
    Setting those of a draft takes 0.4 µs.
    """

    __slots__ = tuple(field.name for field in fields(Task))


_blank: Callable[[], Any] = partial(object.__new__, _Draft)  # Any: the type checker cannot see the slots

FIRST_MS = -62_135_596_800_000
"""The first millisecond of the year 1, the earliest that a datetime can show."""

LAST_MS = 253_402_300_800_000
"""The first millisecond of the year 10000, the earliest that is too late for a datetime."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)
def instant(ms: int) -> datetime:
    """Turn stored milliseconds into an aware UTC datetime; cached, as neighbouring tasks share most values.

    A time after the year 9999 is shown as the last instant that a datetime can show; one before the year 1,
    which only damage can cause, as the first.
    """
    if FIRST_MS <= ms < LAST_MS:
        return _EPOCH + timedelta(0, 0, 0, ms)  # fromtimestamp ends in 2038 if the C library's times do
    return (datetime.max if ms >= LAST_MS else datetime.min).replace(tzinfo=UTC)


@lru_cache(maxsize=4096)
def milliseconds(at: datetime) -> int:
    """The stored form of an instant."""
    return round(at.timestamp() * 1000)


@lru_cache(maxsize=1024)
def session_id(text: str) -> UUID:
    """Turn a stored session id into the UUID that users see."""
    return UUID(text)


def make_task(
    id: int,
    tube: str,
    state: State,
    data: Any,
    pri: int,
    utube: str | None,
    created_ms: int,
    updated_ms: int,
    due_ms: int | None = None,
    ttl_ms: int | None = None,
    ttr_ms: int | None = None,
    attempts: int = 0,
    owner: str | None = None,
) -> Task:
    """Build a Task from what a store holds (milliseconds, text). Drivers call this in normalize_task."""
    task = _blank()
    task.id = id
    task.tube = tube
    task.state = state
    task.data = data
    task.pri = pri
    task.utube = utube
    task.created_at = instant(created_ms)
    task.updated_at = instant(updated_ms)
    task.due_at = None if due_ms is None else instant(due_ms)
    task.ttl = None if ttl_ms is None else ttl_ms / 1000
    task.ttr = None if ttr_ms is None else ttr_ms / 1000
    task.attempts = attempts
    if state is TAKEN:
        task.owner = session_id(owner) if owner else None
        task.token = attempts
    else:
        task.owner = task.token = None
    task.__class__ = Task  # same slots: see _Draft
    return task  # type: ignore[no-any-return]  # it is one now


def done(known: Task, now_ms: int) -> Task:
    """The task as it was when it ended: done, and held by nobody."""
    task = _blank()
    task.id = known.id
    task.tube = known.tube
    task.state = DONE
    task.data = known.data
    task.pri = known.pri
    task.utube = known.utube
    task.created_at = known.created_at
    task.updated_at = instant(now_ms)
    task.due_at = None
    task.ttl = known.ttl
    task.ttr = known.ttr
    task.attempts = known.attempts
    task.owner = None
    task.token = None
    task.__class__ = Task  # same slots: see _Draft
    return task  # type: ignore[no-any-return]  # it is one now


def with_times(task: Task, ttl_ms: int | None, ttr_ms: int | None) -> Task:
    """The task with its present ttl and ttr: those that the caller knows may be from before a touch."""
    ttl = None if ttl_ms is None else ttl_ms / 1000
    ttr = None if ttr_ms is None else ttr_ms / 1000
    return task if (ttl, ttr) == (task.ttl, task.ttr) else replace(task, ttl=ttl, ttr=ttr)
