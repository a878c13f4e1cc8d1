"""One thread a process and database: it hears of tasks that others put, and shows that this process lives.

What somebody waits for here has a connection of its own that is blocked in BLPOP. Whoever readies a task calls, in the
same script, as many of the processes that have said that they wait as there are tasks; each call goes to one of them.
Under this there is the floor: a BLPOP ends after a while, and then the first in line looks by itself.
"""

from __future__ import annotations

import logging
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from redis.exceptions import RedisError

from tubes.clock import pause, real_monotonic
from tubes.errors import TubeError
from tubes.waiting import Key, Waiters

from ..stirring import Stirred
from .nodes import Nodes
from .scripts import TUBE_KEYS, UNWAIT, WAIT, Keys
from .wire import Lost, Refused, Wire

FLOOR = 0.5
"""Seconds between two looks of who waits and was not called."""

SAID_FOR = 2.0
"""Seconds for which a process that said that it waits is believed."""

REST = 0.002
"""Seconds that a connection rests after a call: who was called takes before the server is asked anything else."""

RECONNECT_EVERY = 0.25
"""Seconds between two tries to connect again."""

TROUBLE = (Lost, Refused, RedisError, TubeError)
"""What a server, or the way to it, may answer. Who waits finds out what is the matter."""

IDLE_AFTER = 5.0
"""Seconds after which a connection is closed that was for somebody who waits no longer."""

log = logging.getLogger("tubes.redis")

Place = tuple[Waiters, Key]
"""Where somebody waits."""


class Source(NamedTuple):
    """Who waits. ``number_of`` gives the number that a tube has here by the one that it has for them; None: no tube."""

    waiters: Waiters
    number_of: Callable[[int], int | None]


class Watch:
    """What is listened for on behalf of those who wait for one key."""

    def __init__(
        self, waiters: Waiters, key: Key, keys: Keys, features: str, capacity: int, kind: str
    ) -> None:
        self.waiters = waiters
        self.key = key
        self.keys = keys
        self.features = features
        self.capacity = capacity
        self.kind = kind
        self.name = uuid.uuid4().hex
        """By which it is called. Two queues of this process may wait for one tube of the type ``redis``."""
        self.wire: Wire | None = None
        self.is_waiting = False
        """Whether a call is waited for, or about to be, so that who begins to wait need not stir."""
        self.is_resting = False
        self.next_at = 0.0
        """When to look again: without a connection, after a rest, or when the answer should have come. 0: at once."""
        self.used_at = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return self.key in self.waiters.line

    @property
    def bell(self) -> str:
        """The list that is waited at."""
        return self.keys[TUBE_KEYS.index("room" if self.kind == "r" else "bell")]


class Listener(Stirred):
    """See the module."""

    tubes: ClassVar[dict[int, tuple[str, int]]] = {}
    """Features and capacity of each tube, by its number, which no other has. In a forked child none is opened anew."""

    def __init__(self, nodes: Nodes, namespace: str, waiters: Waiters) -> None:
        super().__init__()
        self._nodes = nodes
        self._namespace = namespace
        self._sources = [Source(waiters, lambda id: id)]
        self._watches: dict[Place, Watch] = {}
        self._beats: dict[Callable[[], None], tuple[float, float]] = {}
        self._lock = threading.Lock()

    def add_beat(self, beat: Callable[[], None], every: float) -> None:
        """Call ``beat`` every few seconds."""
        with self._lock:
            self._beats[beat] = every, real_monotonic() + every
        self._stir.set()

    def remove_beat(self, beat: Callable[[], None]) -> None:
        """No longer."""
        with self._lock:
            self._beats.pop(beat, None)

    def add_source(self, source: Source) -> None:
        """Listen on behalf of others too."""
        with self._lock:
            self._sources = [*self._sources, source]

    def remove_source(self, source: Source) -> None:
        """No longer."""
        with self._lock:
            self._sources = [each for each in self._sources if each is not source]

    def on_wait(self) -> None:
        """Somebody begins to wait in this process."""
        watches = [self._watches.get((waiters, key)) for waiters, key, _ in self._waited_for()]
        if any(watch is None or not watch.is_waiting for watch in watches):
            self._stir.set()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._turn()
            except Exception:  # whatever it was: who waits relies on this thread
                log.exception("the listener failed, and goes on")
                pause(RECONNECT_EVERY)
        for watch in self._watches.values():
            self._end(watch)

    def _turn(self) -> None:
        self._begin_watches()
        now = real_monotonic()
        until = self._next_beat()
        poll = select.poll()
        poll.register(self._stir, select.POLLIN)
        by_fd: dict[int, Watch] = {}
        for watch in self._watches.values():
            if watch.is_waiting and watch.wire is not None:
                by_fd[watch.wire.fileno()] = watch
                poll.register(watch.wire.fileno(), select.POLLIN)
            if watch.is_waiting or watch.is_resting or watch.is_wanted:
                until = min(until, watch.next_at)
        came = poll.poll(min(max(until - now, 0.0), 60.0) * 1000)
        if self._is_over:
            return
        for fd, _ in came:
            if fd in by_fd:
                self._answered(by_fd[fd])
            else:
                self._stir.clear()
                self._end_rests()
        self._lose_silent()
        self._beat()

    # Waiting

    def _waited_for(self) -> Iterator[tuple[Waiters, Key, int]]:
        """Who waits, for what, and the number of that tube here."""
        for waiters, number_of in self._sources:
            for key in waiters.keys():
                id: Any = key[0] if isinstance(key, tuple) else key
                number = number_of(id)
                if number is not None:
                    yield waiters, key, number

    def _begin_watches(self) -> None:
        for waiters, key, number in self._waited_for():
            watch = self._watches.get((waiters, key))
            if watch is None:
                kind = "r" if isinstance(key, tuple) else "t"
                keys, known = Keys.of_tube(self._namespace, number), self.tubes.get(number, ("", 0))
                watch = self._watches[waiters, key] = Watch(waiters, key, keys, *known, kind)
            if not watch.is_waiting and real_monotonic() >= watch.next_at:
                self._wait(watch)
                self._beat()  # a node that hangs must not keep this process from showing others that it lives
        for watch in self._watches.values():
            if watch.is_resting and real_monotonic() >= watch.next_at:
                self._unwait(watch, 0)

    def _wait(self, watch: Watch) -> None:
        """Say that somebody waits here, and wait for a call."""
        watch.is_waiting, watch.is_resting = True, False
        watch.used_at = real_monotonic()
        try:
            if watch.wire is None:
                watch.wire = self._nodes.connect(watch.keys, self._patience())
            said_for = int(SAID_FOR * 1000)
            given = (watch.features, 0, 0, watch.name, said_for, watch.kind, watch.capacity)
            is_something_there = watch.wire.evaluate(WAIT, watch.keys, given)
            watch.wire.send("BLPOP", watch.bell, str(FLOOR))
            watch.next_at = real_monotonic() + FLOOR + self._nodes.patience
        except TROUBLE as error:
            self._lose(watch, error)
            return
        except BaseException:
            self._end(watch)  # else it would count as one whose call is waited for
            raise
        if is_something_there:
            watch.waiters.wake_first(watch.key)

    def _patience(self) -> float:
        """Seconds that a node that hangs is waited for: about a beat, for this process must show that it lives."""
        with self._lock:
            return min((every for every, _ in self._beats.values()), default=FLOOR)

    def _answered(self, watch: Watch) -> None:
        """The wait is over: somebody called, or nobody did for a while."""
        assert watch.wire is not None
        try:
            answer = watch.wire.receive()
        except Lost as error:
            self._lose(watch, error)
            return
        except BaseException:
            self._end(watch)
            raise
        if isinstance(answer, Exception):
            self._lose(watch, answer)
            return
        spare = 0
        if answer is None:
            watch.waiters.wake_first(watch.key)
        else:
            spare = 1 - watch.waiters.wake(watch.key)
        watch.is_waiting = False  # before the look: who begins to wait from now on stirs
        if answer is not None and not spare and not watch.waiters.uncalled(watch.key):
            watch.is_resting, watch.next_at = True, real_monotonic() + REST
        elif watch.is_wanted and not spare:
            self._wait(watch)
        else:
            self._unwait(watch, spare)

    def _end_rests(self) -> None:
        """Somebody begins to wait: whoever was called has taken, maybe."""
        for watch in self._watches.values():
            if watch.is_resting:
                watch.next_at = 0.0

    def _unwait(self, watch: Watch, spare: int) -> None:
        """Say that nobody waits here, for now: a call that was not needed goes to another process."""
        assert watch.wire is not None
        watch.is_resting = False
        watch.next_at = real_monotonic() + REST if spare else 0.0  # else it might come back at once
        try:
            watch.wire.evaluate(UNWAIT, watch.keys, (watch.features, 0, 0, watch.name, watch.kind, spare))
        except TROUBLE:  # it is not believed for long
            self._end(watch)

    def _lose(self, watch: Watch, error: Exception) -> None:
        """The connection is of no use any more. Whoever waits finds out what is the matter, and waits on."""
        log.debug("waiting at %s: %s", watch.bell, error)
        self._nodes.redirected(error)
        self._end(watch)
        watch.next_at = real_monotonic() + RECONNECT_EVERY
        watch.waiters.wake_first(watch.key)

    def _lose_silent(self) -> None:
        """A connection may die without a word, and its floor with it."""
        now = real_monotonic()
        for watch in self._watches.values():
            if watch.is_waiting and now > watch.next_at:
                self._lose(watch, TimeoutError("no answer"))

    def _end(self, watch: Watch) -> None:
        if watch.wire is not None:
            watch.wire.close()
            watch.wire = None
        watch.is_waiting = watch.is_resting = False

    # Beats

    def _next_beat(self) -> float:
        with self._lock:
            return min((at for _, at in self._beats.values()), default=float("inf"))

    def _beat(self) -> None:
        now = real_monotonic()
        with self._lock:
            due = [beat for beat, (_, at) in self._beats.items() if at <= now]
        for beat in due:
            with self._lock:
                if beat in self._beats:
                    every, _ = self._beats[beat]
                    self._beats[beat] = every, now + every
            with suppress(*TROUBLE):  # the calls say so
                beat()
        if due:
            self._close_unused(now)

    def _close_unused(self, now: float) -> None:
        for place, watch in list(self._watches.items()):
            if not (watch.is_waiting or watch.is_wanted) and now - watch.used_at > IDLE_AFTER:
                self._end(watch)
                del self._watches[place]
