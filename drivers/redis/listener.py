"""One thread a process and database: it hears of tasks that others put, and shows that this process lives.

Each key that somebody waits for here has a connection of its own, blocked in BLPOP. A script that readies
tasks calls as many of the waiting processes as there are tasks; each call goes to one of them. Under this
lies the floor: a BLPOP ends after a while, and then the first in line looks by itself.
"""

from __future__ import annotations

import select
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple
from weakref import WeakValueDictionary

from redis.exceptions import NoPermissionError, RedisError

from tubes.clock import pause, real_monotonic
from tubes.errors import TubeError
from tubes.logs import Log
from tubes.waiting import Key, Waiters

from ..polling import PollingThread
from ..retries import Lost
from .driver import RedisDriver
from .nodes import Nodes
from .scripts import UNWAIT, WAIT, Keys
from .urls import Address
from .wire import Refused, Wire

FLOOR = 0.5
"""Seconds between two looks of a waiter that nobody calls."""

SAID_FOR = 2.0
"""Seconds for which a process is believed to wait after it has said so."""

REST = 0.002
"""Seconds that a connection rests after a call: the called waiter's take should reach the server first."""

RECONNECT_EVERY = 0.25
"""Seconds between two tries to connect again."""

TROUBLE = (Lost, Refused, RedisError, TubeError)
"""What a server, or the way to it, may answer. The waiters find out what is wrong when they look."""

IDLE_AFTER = 5.0
"""Seconds without a waiter after which a connection is closed."""

log = Log("tubes.redis")

Waited = tuple[Waiters, Key]
"""Where somebody waits."""


class Source(NamedTuple):
    """A queue's waiters. ``number_of`` turns their number of a tube into the one here; None: no such tube."""

    waiters: Waiters
    number_of: Callable[[int], int | None]


@dataclass(eq=False)
class Ear:
    """Listens on behalf of those who wait for one key."""

    waiters: Waiters
    key: Key
    keys: Keys
    flags: str
    capacity: int
    kind: str
    """``t``: for tasks; ``r``: for room."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Its name among the waiting. Two queues of this process may wait for one tube of the type ``redis``."""
    wire: Wire | None = None
    primary: Address | None = None
    """Where the connection leads, if Sentinels tell that."""
    is_waiting: bool = False
    """Whether it waits for a call, or is about to: then a new waiter need not stir the thread."""
    is_resting: bool = False
    next_at: float = 0.0
    """When to connect again, to end a rest, or to give up an answer that is late. 0: at once."""
    used_at: float = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return self.key in self.waiters.line

    @property
    def bell(self) -> str:
        """The list at which it waits."""
        return self.keys.named("room" if self.kind == "r" else "bell")


class Listener(PollingThread):
    """The thread and its connections, as the module tells."""

    drivers: ClassVar[WeakValueDictionary[int, RedisDriver]] = WeakValueDictionary()
    """Those of open tubes, by identity: two queues may open the same. A forked child needs its parent's."""

    def __init__(self, nodes: Nodes, namespace: str, waiters: Waiters) -> None:
        super().__init__()
        self._nodes = nodes
        self._namespace = namespace
        self._sources = [Source(waiters, lambda id: id)]
        self._ears: dict[Waited, Ear] = {}
        self._beats: dict[Callable[[], None], tuple[float, float]] = {}
        self._is_forbidden = False
        self._lock = threading.Lock()

    def add_beat(self, beat: Callable[[], None], every: float) -> None:
        """Call ``beat`` every few seconds."""
        with self._lock:
            self._beats[beat] = every, real_monotonic() + every
        self._wake_pipe.set()

    def remove_beat(self, beat: Callable[[], None]) -> None:
        """Call ``beat`` no longer."""
        with self._lock:
            self._beats.pop(beat, None)

    def add_driver(self, driver: RedisDriver) -> None:
        """Know a tube for as long as it is open."""
        self.drivers[id(driver)] = driver

    def add_source(self, source: Source) -> None:
        """Listen on behalf of others too."""
        with self._lock:
            self._sources = [*self._sources, source]

    def remove_source(self, source: Source) -> None:
        """Listen no longer on their behalf."""
        with self._lock:
            self._sources = [each for each in self._sources if each is not source]

    def on_wait(self) -> None:
        """Somebody begins to wait in this process."""
        ears = [self._ears.get((waiters, key)) for waiters, key, _ in self._waited_for()]
        if any(ear is None or not ear.is_waiting for ear in ears):
            self._wake_pipe.set()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._turn()
            except Exception:  # whatever it was: the waiters rely on this thread
                log.exception("the listener failed, and tries again")
                for ear in self._ears.values():  # one of them may be in the middle of an answer
                    self._end(ear)
                pause(RECONNECT_EVERY)
        for ear in self._ears.values():
            self._end(ear)

    def _turn(self) -> None:
        self._lend_ears()
        now = real_monotonic()
        until = self._next_beat()
        poll = select.poll()
        poll.register(self._wake_pipe, select.POLLIN)
        by_fd: dict[int, Ear] = {}
        for ear in self._ears.values():
            if ear.is_waiting and ear.wire is not None:
                by_fd[ear.wire.fileno()] = ear
                poll.register(ear.wire.fileno(), select.POLLIN)
            if ear.is_waiting or ear.is_resting or ear.is_wanted:
                until = min(until, ear.next_at)
        came = poll.poll(min(max(until - now, 0.0), 60.0) * 1000)
        if self._is_over:
            return
        for fd, _ in came:
            if fd in by_fd:
                self._answered(by_fd[fd])
            else:
                self._wake_pipe.clear()
                self._end_rests()
        self._lose_silent()
        self._beat()

    # Waiting

    def _waited_for(self) -> Iterator[tuple[Waiters, Key, int]]:
        """The waiters, the key that is waited for, and the number of its tube here."""
        for waiters, number_of in self._sources:
            for key in waiters.keys():
                number = number_of(abs(key))
                if number is not None:
                    yield waiters, key, number

    def _lend_ears(self) -> None:
        for waiters, key, number in self._waited_for():
            ear = self._ears.get((waiters, key))
            if ear is None:
                kind = "t" if key > 0 else "r"
                keys = Keys.of_tube(self._namespace, number)
                ear = self._ears[waiters, key] = Ear(waiters, key, keys, *self._known(number), kind)
            if not ear.is_waiting and real_monotonic() >= ear.next_at:
                self._wait(ear)
                self._beat()  # a node that hangs must not keep this process from showing others that it lives
        for ear in self._ears.values():
            if ear.is_resting and real_monotonic() >= ear.next_at:
                self._unwait(ear, 0)

    def _known(self, number: int) -> tuple[str, int]:
        """Flags and capacity of the tube with that number, which is unique."""
        for driver in filter(None, [ref() for ref in self.drivers.valuerefs()]):
            if driver.number == number:
                return driver.flags, driver.capacity
        return "", 0

    def _wait(self, ear: Ear) -> None:
        """Say that somebody waits here, and wait for a call."""
        ear.is_waiting, ear.is_resting = True, False
        ear.used_at = real_monotonic()
        patience = self._patience()
        try:
            # Else a node that hangs would hold up other nodes' tubes once for each tube of its own
            self._nodes.check_reachable(ear.keys)
            if ear.wire is None:
                ear.wire, ear.primary = self._nodes.connect(ear.keys, patience), self._nodes.primary
            said_for = int(SAID_FOR * 1000)
            given = (ear.flags, 0, 0, ear.name, said_for, ear.kind, ear.capacity)
            is_something_there = ear.wire.evaluate(WAIT, ear.keys, given)
            ear.wire.send(("BLPOP", ear.bell, str(FLOOR)))
            ear.next_at = real_monotonic() + FLOOR + self._nodes.patience
        except TROUBLE as error:
            until = ear.used_at + min(patience, self._nodes.patience)
            self._nodes.note_away(self._nodes.node_of(ear.keys), until)
            self._lose(ear, error)
            return
        if is_something_there:
            ear.waiters.wake_first(ear.key)

    def _patience(self) -> float:
        """Seconds to wait for a node that hangs: about a beat, since this process must show that it lives."""
        with self._lock:
            return min((every for every, _ in self._beats.values()), default=FLOOR)

    def _answered(self, ear: Ear) -> None:
        """BLPOP has ended: somebody called, or nobody did for a while."""
        assert ear.wire is not None
        try:
            answer = ear.wire.receive()
        except Lost as error:
            self._lose(ear, error)
            return
        if isinstance(answer, Exception):
            is_forbidden = isinstance(answer, NoPermissionError) or "unknown command" in str(answer)
            if is_forbidden and not self._is_forbidden:
                self._is_forbidden = True  # the waiters' own looks do not show that
                log.warning("waiters cannot be called, and look now and then instead: %s", answer)
            self._lose(ear, answer)
            return
        spare = 0
        if answer is None:
            ear.waiters.wake_one(ear.key)
        else:
            spare = 1 - ear.waiters.call(ear.key)
        ear.is_waiting = False  # before the look: a new waiter stirs from now on
        if answer is not None and not spare and not ear.waiters.uncalled(ear.key):
            ear.is_resting, ear.next_at = True, real_monotonic() + REST
        elif ear.is_wanted and not spare:
            self._wait(ear)
        else:
            self._unwait(ear, spare)

    def _end_rests(self) -> None:
        """Somebody begins to wait: the called waiter has taken by now, maybe."""
        for ear in self._ears.values():
            if ear.is_resting:
                ear.next_at = 0.0

    def _unwait(self, ear: Ear, spare: int) -> None:
        """Say that nobody waits here for now; a call that was not needed goes to another process."""
        assert ear.wire is not None
        ear.is_resting = False
        ear.next_at = real_monotonic() + REST if spare else 0.0  # else it might come back at once
        try:
            ear.wire.evaluate(UNWAIT, ear.keys, (ear.flags, 0, 0, ear.name, ear.kind, spare))
        except TROUBLE:  # its wait is not believed for long
            self._end(ear)

    def _lose(self, ear: Ear, error: Exception) -> None:
        """The connection is useless now. The first waiter looks, finds out what is wrong, and waits on."""
        log.debug("waiting at %s: %s", ear.bell, error)
        node = self._nodes.node_of(ear.keys)
        self._nodes.heed(error, node)  # else the look that follows may go to a replica, in vain
        self._end(ear)
        ear.next_at = real_monotonic() + RECONNECT_EVERY
        ear.waiters.wake_first(ear.key)

    def _lose_silent(self) -> None:
        """Give up connections whose answer is late: one may die silently, and its floor with it.

        Also those to a primary that has been replaced: it calls nobody any more.
        """
        now = real_monotonic()
        for ear in self._ears.values():
            if ear.is_waiting and now > ear.next_at:
                self._lose(ear, TimeoutError("no answer"))
            elif ear.is_waiting and ear.primary != self._nodes.primary:
                self._lose(ear, ConnectionError("the primary was replaced"))

    def _end(self, ear: Ear) -> None:
        if ear.wire is not None:
            ear.wire.close()
            ear.wire = None
        ear.is_waiting, ear.is_resting, ear.next_at = False, False, 0.0

    # Beats

    def _next_beat(self) -> float:
        with self._lock:
            return min((at for _, at in self._beats.values()), default=float("inf"))

    def _beat(self) -> None:
        """Do the beats that are due, earliest first. One that fails may take long: then the others wait."""
        now = real_monotonic()
        with self._lock:
            due = {beat: at for beat, (_, at) in self._beats.items() if at <= now}
        if due:
            self._nodes.follow(self._patience())
        for beat in sorted(due, key=due.__getitem__):
            with self._lock:
                if beat in self._beats:
                    every, _ = self._beats[beat]
                    self._beats[beat] = every, now + every
            try:
                beat()
            except TROUBLE:  # the queue's calls report it
                break
        if due:
            self._close_unused(now)

    def _close_unused(self, now: float) -> None:
        for waited, ear in list(self._ears.items()):
            if not ear.is_wanted and now - ear.used_at > IDLE_AFTER:
                self._end(ear)
                del self._ears[waited]
