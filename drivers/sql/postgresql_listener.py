"""One thread and connection for all queues of a process with one URL: it hears of tasks that others put, and beats.

A process with waiters says so on the channel of all, at once and every few seconds, and for which tubes. A
process that has heard this recently sends a NOTIFY after each commit that makes a task ready. It does so from
this thread, so that no commit waits for the lock that a NOTIFY in a transaction takes.

For a single task one process is called, on a channel of its own, so that the others sleep on; if nobody waits
there any more, that process calls all. For several tasks all are called. Room in a tube is announced in the
same way, but only to processes that have said that they wait for it, since each ack makes some.

Below all this is the floor: the first in each line looks by itself now and then; more often behind a pooler,
which passes no notifications on.
"""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tubes.clock import pause, real_monotonic
from tubes.errors import TubeError
from tubes.logs import Log
from tubes.waiting import Key, Waiters

from ..looks import Looks
from ..polling import PollingThread
from ..retries import Lost
from .postgresql_wire import Refused, Wire
from .statements import Statement, json_ids

ANNOUNCE_EVERY = 5.0
"""Seconds between two announcements by a process that it waits."""

FLOOR = 0.5
"""Seconds between two looks of a process that waits and is not called."""

POOLED_FLOOR = 0.1
"""The same behind a pooler, which passes no notifications on, so that no call ever comes."""

KNOWN_FOR = 2 * ANNOUNCE_EVERY + FLOOR
"""Seconds for which an announcement counts."""

SOON = 0.02
"""Seconds from a process's announcement to its next look: until others hear it, they call nobody."""

CONNECT_AFTER = 0.2
"""Seconds until a store without waiters opens a second connection; one used for a moment never does."""

RECONNECT_EVERY = 0.25
"""Seconds between two attempts to reconnect."""

Beat = Callable[[Wire], None]
"""Shows on a connection that a queue lives."""

WAITING = "waiting"
PASSED_ON = "passed on"

MOST_KEYS = 400
"""The most keys that an announcement names: a notification must not exceed 8,000 bytes."""

log = Log("tubes.postgresql")


class Listener(PollingThread):
    """The thread and its connection, as described above."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        namespace: str,
        waiters: Waiters,
        beat_every: float,
        with_ready: Sequence[Statement] = (),
    ) -> None:
        super().__init__()
        self.waiters = waiters
        self._looks = Looks(waiters)
        self._with_ready = with_ready
        """The statements that tell which of some tubes have ready tasks, each in a table of tasks."""
        self.beats: set[Beat] = set()
        """Each queue's, called every few seconds."""
        self._announced: frozenset[Key] = frozenset()
        """What was waited for at the last announcement, and in the seconds before."""
        self._announced_at = float("-inf")
        self._connect = connect
        self._is_pooled = False
        self._namespace = self._channel = namespace
        self._beat_every = beat_every
        self._failure = ""
        self._is_mute = False
        """Whether the server has refused the last notification."""
        self._calls: Counter[int] = Counter()
        self._waiting: dict[int, _Announcement] = {}
        self._lock = threading.Lock()
        self._is_looking = False
        """Whether the thread wakes in time for the floor; if nobody waits, it sleeps until the next beat."""
        self._look_at = real_monotonic() + SOON
        self._beat_at = real_monotonic() + beat_every
        self._connect_at = real_monotonic() + min(CONNECT_AFTER, beat_every)

    def on_wait(self) -> None:
        """Somebody begins to wait in this process."""
        if self._is_pooled or not self._is_looking or self._is_to_announce(real_monotonic()):
            self._wake_pipe.set()

    def notify(self, key: Key, count: int) -> None:
        """Tell other processes that there are so many tasks, or so much room, if anybody waits."""
        if self._waiting and (key > 0 or any(key in said.keys for said in list(self._waiting.values()))):
            with self._lock:
                self._calls[key] += count
            self._wake_pipe.set()

    @property
    def is_late(self) -> bool:
        """Whether its beat is late: it may have no connection, if the server has room for no more."""
        return real_monotonic() - self._beat_at > self._beat_every

    def _run(self) -> None:
        wire: Wire | None = None
        self._rest()
        while not self._is_over:
            try:
                if wire is None:
                    wire = self._connect()
                    self._is_pooled = wire.pooled
                    self._channel = self._channel_of_all(wire)
                    if not wire.pooled:
                        wire.simple(
                            f'LISTEN "{self._channel}"; LISTEN "{self._channel_of(wire.backend_pid)}"'
                        )
                    self._announced_at = float("-inf")  # calls to another connection are not heard
                    self._look_at = real_monotonic() + SOON
                self._turn(wire)
            except Exception as error:  # callers are told what is wrong; this tries again
                if isinstance(error, Refused):
                    self._report(str(error))
                elif not isinstance(error, (Lost, TubeError)):  # this thread proves the process alive
                    log.exception("the listener failed, and tries again")
                if wire is not None:  # what was refused may have left a transaction open
                    wire.close()
                    wire = None
                pause(RECONNECT_EVERY)
        if wire is not None:
            wire.close()

    def _report(self, failure: str) -> None:
        """Log it once: a standby refuses for as long as it is one."""
        if failure != self._failure:
            self._failure = failure
            log.warning("the listener was refused: %s", failure)

    def _rest(self) -> None:
        """Wait until there is a reason to connect."""
        poll = select.poll()
        poll.register(self._wake_pipe, select.POLLIN)
        while not (self._is_over or self.waiters):
            left = self._connect_at - real_monotonic()
            if left <= 0:
                return
            poll.poll(left * 1000)
            self._wake_pipe.clear()

    def _turn(self, wire: Wire) -> None:
        poll = select.poll()
        poll.register(wire.fileno(), select.POLLIN)
        poll.register(self._wake_pipe, select.POLLIN)
        self._is_looking = False  # before the look: from now on whoever begins to wait stirs
        self._is_looking = bool(self.waiters)
        until = min(self._beat_at, self._look_at if self._is_looking else float("inf"))
        self._hear(wire)  # what came with the answer to a statement does not end a poll
        poll.poll(max(until - real_monotonic(), 0.0) * 1000)
        if self._is_over:
            return
        self._hear(wire)  # first, since somebody waits for it
        self._wake_pipe.clear()
        self._send_calls(wire)
        now = real_monotonic()
        if now >= self._beat_at:
            next_at = now + self._beat_every
            try:
                self._beat(wire)
            except Lost:  # until it has beaten on another connection, it is late
                next_at = self._beat_at
                raise
            finally:
                self._beat_at = next_at
        if not self.waiters:
            return
        if not self._is_pooled and self._is_to_announce(now):
            lately = self._announced if now - self._announced_at <= ANNOUNCE_EVERY else ()
            self._announced = frozenset([*lately, *self.waiters.keys()])
            self._announced_at = now
            self._look_at = now + SOON
            self._send(wire, f"{WAITING} {','.join(map(str, sorted(self._announced)[:MOST_KEYS]))}")
        elif now >= self._look_at:
            self._looks.wake(partial(self._ready_of, wire))
            self._look_at = now + (POOLED_FLOOR if self._is_pooled else FLOOR)

    def _beat(self, wire: Wire) -> None:
        """Beat for each queue, even if the beat of another is refused."""
        refusal: Exception | None = None
        for beat in [*self.beats]:
            try:
                beat(wire)
            except (Refused, TubeError) as error:
                refusal = error
        if refusal is not None:
            raise refusal
        self._failure = ""

    def _ready_of(self, wire: Wire, tubes: list[Key]) -> Iterator[Key]:
        """Those of the tubes that have a ready task."""
        for look in self._with_ready:
            yield from (key for (key,) in wire.execute(look.text, look.bind((json_ids(tubes),))).rows)

    def _is_to_announce(self, now: float) -> bool:
        """Whether the last announcement is too old, or lacks room that is waited for."""
        return now - self._announced_at > ANNOUNCE_EVERY or any(
            key < 0 and key not in self._announced for key in self.waiters.keys()
        )

    def _send_calls(self, wire: Wire) -> None:
        with self._lock:
            calls, self._calls = self._calls, Counter()
        since = real_monotonic() - KNOWN_FOR
        self._waiting = {process: said for process, said in self._waiting.items() if said.heard_at >= since}
        for key, count in calls.items():
            known = self._next_waiting(key, count) if key < 0 or count == 1 else []
            for process in known:
                self._send(wire, str(key), process)
            if key > 0 and not known:
                self._send(wire, str(key))

    def _next_waiting(self, key: Key, count: int) -> list[int]:
        """Up to ``count`` processes that are known to wait for ``key``, those called longest ago first."""
        known = [process for process, said in self._waiting.items() if key in said.keys][:count]
        for process in known:
            self._waiting[process] = self._waiting.pop(process)  # to the end of the line
        return known

    def _send(self, wire: Wire, payload: str, process: int | None = None) -> None:
        """Notify. A server whose queue of notifications is full refuses; then waiters have only the floor."""
        channel = self._channel if process is None else self._channel_of(process)
        try:
            wire.execute("SELECT pg_notify($1, $2)", (channel, payload))
        except Refused as error:
            if not self._is_mute:
                log.warning("waiters cannot be called: %s", error)
            self._is_mute = True
        else:
            self._is_mute = False

    def _channel_of_all(self, wire: Wire) -> str:
        """Named after the table, too: channels span schemas, and other queues' tubes have the same ids."""
        table = f"SELECT CAST(to_regclass('\"{self._namespace}_task\"') AS oid)"
        return f"{self._namespace}_tasks_{wire.execute(table, ()).rows[0][0]}"

    def _channel_of(self, process: int) -> str:
        return f"{self._channel}_{process}"

    def _hear(self, wire: Wire) -> None:
        while came := wire.notifications():  # again, since sending may bring more
            for channel, payload, sender in came:
                if sender != wire.backend_pid:
                    self._heed(wire, channel, payload, sender)

    def _heed(self, wire: Wire, channel: str, payload: str, sender: int) -> None:
        word, _, more = payload.partition(" ")
        if word == WAITING:
            known = frozenset(int(key) for key in more.split(",") if _is_key(key))
            self._waiting[sender] = _Announcement(real_monotonic(), known)
        elif _is_key(word):
            key = int(word)
            is_called = self.waiters.call(key) > 0
            if channel == self._channel:
                said = self._waiting.get(sender)
                if said is not None:  # it passed a call on, or put: it does not wait for that
                    self._waiting[sender] = said._replace(keys=said.keys - {key})
            elif not is_called and not more:
                if key > 0:
                    self._send(wire, word)
                else:
                    for process in self._next_waiting(key, len(self._waiting)):
                        self._send(wire, f"{word} {PASSED_ON}", process)


def _is_key(word: str) -> bool:
    """Whether a word is a key: anybody may send anything on the channel."""
    return word.removeprefix("-").isdecimal() and len(word) < 20


class _Announcement(NamedTuple):
    """When a process said that it waits, and for what."""

    heard_at: float
    keys: frozenset[Key]
