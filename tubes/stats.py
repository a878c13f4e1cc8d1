"""Counts calls. Each process counts for itself and stores what it counted at most a second later."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tubes.task import Event, State

T = TypeVar("T")

FLUSH_AFTER = 1.0
"""Seconds after which counts are stored; a SIGKILL can lose the counts of that time."""

FLUSH_TAKES = 1.0
"""Seconds that statistics wait for another thread's flush, which may itself be waiting for this thread."""


class Deltas(NamedTuple):
    """Calls of one tube that are not stored yet: by event name, how many."""

    tube: int
    calls: Mapping[str, int]


class Counts:
    """The calls that this process made on one store and has not stored yet.

    A call only leaves a note, which takes no lock; the notes are summed up when somebody asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self.flushes: int = 0
        """How many flushes have begun."""
        self._under_way: list[list[Deltas]] = []
        self._notes: deque[tuple[int, Event, int]] = deque()
        self._sums: dict[int, Counter[str]] = {}
        self.is_dirty: bool = False

    def add(self, tube: int, event: Event, count: int) -> bool:
        """Count; return whether these are the first since the last flush."""
        self._notes.append((tube, event, count))
        if self.is_dirty:
            return False
        self.is_dirty = True
        return True

    def with_pending(self, read: Callable[[], T]) -> tuple[Mapping[int, Mapping[str, int]], T]:
        """The counts that are not stored yet, by tube, and what ``read`` finds of those that are."""
        flushes = -1
        while self.flushes != flushes:  # else a flush may have stored what is counted as unstored too
            unstored, flushes = self.pending()
            found = read()
        return unstored, found

    def pending(self) -> tuple[Mapping[int, Mapping[str, int]], int]:
        """The counts that are not stored yet, by tube, and how many flushes have begun until now.

        While a flush is under way, nobody can tell whether what it drained is stored already, so this waits
        for it. One that takes longer than FLUSH_TAKES is itself waiting, and has stored nothing.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._under_way, FLUSH_TAKES)
            self._sum_up()
            unstored = {tube: Counter(calls) for tube, calls in self._sums.items()}
            for deltas in self._under_way:
                for tube, calls in [*deltas]:
                    unstored.setdefault(tube, Counter()).update(calls)
            return unstored, self.flushes

    def flush(self, store: Callable[[list[Deltas]], None]) -> None:
        """Have all counts stored. If ``store`` raises, the counts that it leaves wait for the next time."""
        deltas = unstored = self.drain()
        try:
            store(deltas)
            unstored = []
        finally:
            self.flushed(deltas, unstored)

    def drain(self) -> list[Deltas]:
        """Hand over all counts, to be stored. The caller then calls ``flushed``."""
        with self._lock:
            self.flushes += 1
            self.is_dirty = False  # before the notes are read: a note that comes meanwhile sets it again
            self._sum_up()
            deltas = [Deltas(tube, calls) for tube, calls in self._sums.items()]
            self._sums = {}
            self._under_way.append(deltas)
        return deltas

    def flushed(self, deltas: list[Deltas], unstored: Sequence[Deltas]) -> None:
        """What ``drain`` handed over is stored, except for ``unstored``, which is taken back."""
        with self._lock:
            for tube, calls in unstored:
                self._sums.setdefault(tube, Counter()).update(calls)
            self.is_dirty = self.is_dirty or bool(unstored)
            self._under_way = [other for other in self._under_way if other is not deltas]
            self._lock.notify_all()

    def _sum_up(self) -> None:
        notes = self._notes
        for (tube, event, count), times in Counter([notes.popleft() for _ in range(len(notes))]).items():
            self._sums.setdefault(tube, Counter())[event] += count * times


def statistics(states: Mapping[State, int], calls: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tarantool's keys (queue README, ``queue.statistics``): tasks by state, calls by event."""
    counts = {event.value: calls.get(event.value, 0) for event in Event}
    tasks = {
        "ready": states.get(State.READY, 0),
        "taken": states.get(State.TAKEN, 0),
        "buried": states.get(State.BURIED, 0),
        "delayed": states.get(State.DELAYED, 0),
    }
    tasks["total"] = sum(tasks.values())
    tasks["done"] = sum(counts[event] for event in (Event.ACK, Event.DELETE, Event.TTL))
    return {"tasks": tasks, "calls": counts}
