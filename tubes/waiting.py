"""The lines of waiters: what each waits for, in the order of arrival, for how long, and how it is woken."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from tubes.clock import Clock, Signal

Key = int
"""What is waited for: a tube's id for its tasks, ``room(id)`` for room in it."""

Lease = tuple[int, int]
"""A task's id, and the number of the take."""

LEASES_KEPT = 100
"""Recent leases remembered for a line: at most so many takes may come between a put and its ``wake``."""

A_MOMENT = 0.01
"""Seconds for which whoever settles what is due may hold up others that would do the same."""

HELD_UP = 0.1
"""Longest pause, in seconds, before another look at what is due but locked by an open transaction."""


arrivals = itertools.count()
"""Numbers the calls of this process as they come."""

arrival: ContextVar[int | None] = ContextVar("arrival", default=None)
"""The number of the call that runs in this context, if it had to wait for its turn in a thread."""


def room(tube: int) -> Key:
    """What a put into a full tube waits for. Ids of tubes are positive."""
    return -tube


def seconds_until(due_ms: int, tried_ms: int, now_ms: int) -> float:
    """Seconds until the next try at what is due at ``due_ms``, after one at all that was due at ``tried_ms``.

    What has become due since that try is done at once. What was due already must be held up. If others are
    just settling the same, that takes a moment: it is tried again at once. An open transaction may hold it
    for hours: the pause is then as long as it has been due (backoff), up to ``HELD_UP``.
    """
    if due_ms > tried_ms:
        return max(due_ms - now_ms, 0) / 1000
    overdue = (tried_ms - due_ms) / 1000
    return min(overdue, HELD_UP) if overdue > A_MOMENT else 0.0


class Deadline:
    """When a waiter gives up; with a timeout of ``None``, never."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._at = None if timeout is None else clock.monotonic() + timeout

    def left(self) -> float | None:
        """The seconds until then; 0.0: it has passed."""
        if self._at is None:
            return None
        left = self._at - self._clock.monotonic()
        return left if left > 1e-6 else 0.0  # sums of floats are no more exact than that


class Waiter(Signal):
    """The place of one call in a line."""

    __slots__ = ("came", "is_called")

    def __init__(self) -> None:
        super().__init__()
        number = arrival.get()
        self.came = next(arrivals) if number is None else number
        self.is_called = False


class Waiters:
    """The waiting threads of one process on one store: first come, first served.

    A waiter is *called* for one of the tasks, or of the free places, that there are now; if it leaves without
    one, another is called instead. A waiter that is *woken* looks. The first in line does so whenever
    something may have changed; those behind it only when they were called, so that none overtakes, or when
    their time is over. All are woken when a queue closes.

    ``on_wait`` is called whenever a waiter enters a line, before its last look: the store's chance to begin
    listening to other processes. ``on_nobody`` is called, under the lock, when nobody waits any more.
    """

    def __init__(
        self, on_wait: Callable[[], None] | None = None, on_nobody: Callable[[], None] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self.line: dict[Key, deque[Waiter]] = {}
        self._taken: dict[Key, deque[Lease]] = {}
        """Recent takes by consumers that have left a line in which others still wait."""
        self._on_wait = on_wait
        self._on_nobody = on_nobody

    def enter(self, key: Key) -> Waiter:
        """Stand in line for ``key``: behind those who came before, though some may enter only later.

        Look once more after this, then wait for the signal.
        """
        signal = Waiter()
        with self._lock:
            line = self.line.setdefault(key, deque())
            place = len(line)
            while place and line[place - 1].came > signal.came:
                place -= 1
            line.insert(place, signal)
        if self._on_wait is not None:
            try:
                self._on_wait()
            except BaseException:
                self.leave(key, signal)  # else it would be called for tasks that it never takes
                raise
        return signal

    def leave(self, key: Key, signal: Waiter, taken: Iterable[Lease] = ()) -> bool:
        """Leave the line, from any place in it, with the leases taken; return whether it was called since."""
        with self._lock:
            line = self.line.get(key)
            if line is not None:
                line.remove(signal)
                if line:
                    self._taken.setdefault(key, deque(maxlen=LEASES_KEPT)).extend(taken)
                else:
                    del self.line[key]
                    self._taken.pop(key, None)
                    if not self.line and self._on_nobody is not None:
                        self._on_nobody()
            return signal.is_called

    def call(self, key: Key, count: int = 1, leases: Iterable[Lease] = ()) -> int:
        """Call the first ``count`` in line that are not called yet; return for how many there was somebody.

        ``leases`` are the next leases of the tasks that there are. If a consumer has already left the line
        with one, nobody is called for it, and it is counted too: a waiter called in vain might be overtaken
        by the next one called. For the same reason a single task wakes the first in line, whichever waiter
        is called; one that leaves with a task wakes the next.
        """
        if key not in self.line:
            return 0
        with self._lock:
            taken = self._taken.get(key, ())
            called = sum(lease in taken for lease in leases)
            line = self.line.get(key, deque())
            for signal in line:
                if called >= count:
                    break
                if not signal.is_called:
                    signal.is_called = True
                    (line[0] if count == 1 else signal).set()
                    called += 1
        return called

    def looked_in_vain(self, key: Key, signal: Waiter) -> None:
        """The first in line found nothing: drop the calls of sleeping waiters, unless it was called since."""
        with self._lock:
            if not signal.is_called:
                for each in self.line[key]:
                    each.is_called = each.is_called and each.is_set

    def wake_first(self, key: Key) -> None:
        """Have the first in line look: something may have changed."""
        with self._lock:
            line = self.line.get(key)
            if line:
                line[0].set()

    def wake_one(self, key: Key) -> None:
        """Have the first that is not yet woken look: one that is woken and has not looked may be held up."""
        with self._lock:
            for signal in self.line.get(key, ()):
                if not signal.is_set:
                    signal.set()
                    break

    def wake_one_each(self) -> None:
        """Have one waiter in each line look; stores do this now and then."""
        for key in self.keys():
            self.wake_one(key)

    def heed(self, key: Key, signal: Waiter) -> tuple[bool, bool]:
        """Before a look, clear the signal; return whether it is first in line, and whether it was called."""
        signal.clear()  # without the lock: gevent lets other greenlets run here, and may interrupt this one
        with self._lock:
            called, signal.is_called = signal.is_called, False
            return self.line[key][0] is signal, called

    def wake_all(self) -> None:
        """Wake everybody: the queue closes, or a clock was changed."""
        with self._lock:
            for line in self.line.values():
                for signal in line:
                    signal.set()

    def keys(self) -> list[Key]:
        """The keys that are being waited for."""
        with self._lock:
            return list(self.line)

    def count(self, key: Key) -> int:
        """How many wait for ``key``."""
        with self._lock:
            return len(self.line.get(key, ()))

    def uncalled(self, key: Key) -> int:
        """How many wait for ``key`` and have not been called yet."""
        if key not in self.line:
            return 0
        with self._lock:
            return sum(not signal.is_called for signal in self.line.get(key, ()))

    def __bool__(self) -> bool:
        return bool(self.line)
