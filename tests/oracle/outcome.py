"""What one step of a scenario did, in the one form in which recording, model and queue are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

Step = Mapping[str, Any]
"""One step as the case files have it."""

CALLS = ("ack", "bury", "delay", "delete", "kick", "put", "release", "take", "touch", "ttl", "ttr")
TASKS = ("ready", "taken", "buried", "delayed", "total", "done")

ROUNDED_MS = 50
"""Recorded times are rounded to 0.1 s, so this is the most by which they are wrong."""

NAP_MS = 10
"""Tarantool needs this long to find that a tube is full."""


class Seen(NamedTuple):
    """A task as a result or an event shows it. ``key`` counts the puts of its tube, from 0."""

    key: int
    state: str
    data: Any


class Failed(NamedTuple):
    """An error instead of a result, by its kind."""

    kind: str


class Untold:
    """A result that nobody recorded."""

    def __repr__(self) -> str:
        return "(not recorded)"


UNTOLD = Untold()


class Told(NamedTuple):
    """One call of the callback; ``at`` is milliseconds since the step began, ``None`` if nobody says."""

    tube: str
    name: str
    task: Seen
    at: int | None

    def __str__(self) -> str:
        return f"{self.tube}:{self.name} {self.task.key} {self.task.state} {self.task.data!r} at {self.at}"


class Stats(NamedTuple):
    """Statistics of one tube."""

    tasks: dict[str, int]
    calls: dict[str, int]

    @classmethod
    def zero(cls) -> Stats:
        return cls(dict.fromkeys(TASKS, 0), dict.fromkeys(CALLS, 0))

    def copy(self) -> Stats:
        return Stats(dict(self.tasks), dict(self.calls))


@dataclass
class Outcome:
    """All that a step showed."""

    result: Any = None
    events: list[Told] = field(default_factory=list)
    woke: list[tuple[str, Any]] = field(default_factory=list)
    took: int | None = 0
    stats: dict[str, Stats] = field(default_factory=dict)
    is_sorted: bool = False
    late_ms: int = 0
    """How late the step may have begun, which may make its times too short."""
    are_threads: bool = False
    """Waiters go on at the same time, not one after the other: nobody can say which reports first."""

    def fits(self, expected: int, actual: int) -> bool:
        """Tell whether a time is the one that is expected here."""
        return -ROUNDED_MS <= actual - expected <= ROUNDED_MS + self.late_ms

    def in_order(self, *, waited: bool, are_threads: bool) -> list[Told]:
        """The events; those of a sleep by task, since timers that end together fire in any order.

        If somebody ``waited``, by tube: what happens elsewhere at the moment when they go on may come before
        or after. If events are apart in time, their times show their order, if anybody says them.
        """
        if are_threads and (waited or self.is_sorted):
            return sorted(self.events, key=lambda told: (told.tube, told.task.key, told.name))
        if self.is_sorted:
            return sorted(self.events, key=lambda told: (told.tube, told.task.key))
        return sorted(self.events, key=lambda told: told.tube) if waited else self.events


def differences(expected: Outcome, actual: Outcome) -> list[str]:
    """Say how ``actual`` differs from what was expected; nothing if they agree."""
    in_order = partial(
        Outcome.in_order, waited=bool(actual.took or actual.woke), are_threads=actual.are_threads
    )
    return [
        *_result(expected, actual),
        *_events(in_order(expected), in_order(actual), expected.fits),
        *_woke(expected, actual),
        *_stats(expected.stats, actual.stats),
    ]


def same(left: Any, right: Any) -> bool:
    """Equal, and of one kind: in JSON, 1 is a number and not true. What is untold fits everything."""
    if left is UNTOLD:
        return True
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _result(expected: Outcome, actual: Outcome) -> Iterator[str]:
    if not same(expected.result, actual.result):
        yield f"result: expected {expected.result!r}, got {actual.result!r}"
    if expected.took is not None and not expected.fits(expected.took, actual.took or 0):
        yield f"took: expected {expected.took} ms, got {actual.took}"


def _events(
    expected: Sequence[Told], actual: Sequence[Told], fits: Callable[[int, int], bool]
) -> Iterator[str]:
    agree = len(expected) == len(actual) and all(
        same(left[:3], right[:3]) and (left.at is None or right.at is None or fits(left.at, right.at))
        for left, right in zip(expected, actual, strict=False)
    )
    if not agree:
        yield f"events: expected {[*map(str, expected)]}, got {[*map(str, actual)]}"


def _woke(expected: Outcome, actual: Outcome) -> Iterator[str]:
    if not same(tuple(expected.woke), tuple(actual.woke)):
        yield f"ended in the background: expected {expected.woke}, got {actual.woke}"


def _stats(expected: Mapping[str, Stats], actual: Mapping[str, Stats]) -> Iterator[str]:
    if set(expected) != set(actual):
        yield f"tubes: expected {sorted(expected)}, got {sorted(actual)}"
    for tube in set(expected) & set(actual):
        for which in ("tasks", "calls"):
            left, right = getattr(expected[tube], which), getattr(actual[tube], which)
            for key in sorted({*left, *right}):
                if left.get(key, 0) != right.get(key, 0):
                    yield f"statistics of {tube}, {which}.{key}: expected {left.get(key)}, got {right.get(key)}"
