"""Runs scripts on a server, or a Cluster: what a Redis store and a tube of the type ``redis`` have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeVar

from tubes.clock import Clock, ServerClock, SystemClock
from tubes.driver import STEP_LIMIT, Features, TubeRecord, TubeType
from tubes.errors import Conflict, NoSuchTube, StoreUnavailable
from tubes.interrupts import guarded
from tubes.logs import Log

from ..renewal import Renewable
from ..retries import MOST_TRIES, pause_after
from . import scripts
from .driver import RedisDriver
from .errors import translated
from .hub import Hub, Server
from .scripts import Argument, Keys, Script
from .tx import RedisTx
from .urls import described
from .wire import NoSession, NoTube, Refused, Wire

T = TypeVar("T")

PLAIN = Features()
"""Of a tube whose type does not matter."""

CLOCK_EVERY = 5.0
"""Seconds between two looks at the server's clock."""

log = Log("tubes.redis")


class NotAdmitted(Exception):
    """The session may not take from a tube yet, or no longer may."""

    def __init__(self, driver: RedisDriver) -> None:
        self.driver = driver


class Again(Exception):
    """Somebody else was faster: look again."""


class Runner(Renewable):
    """``patience``: seconds to wait for the server. ``is_durable``: whether each change waits for its disk."""

    def __init__(
        self, url: str, *, clock: Clock, namespace: str, patience: float, is_durable: bool = False
    ) -> None:
        super().__init__()
        self._url = url
        self._what = described(url)
        self.clock = ServerClock() if type(clock) is SystemClock else clock
        self._namespace = namespace
        self._keys = Keys.of_queue(namespace)
        self._patience = patience
        self._is_durable = is_durable
        self._open()

    def __repr__(self) -> str:
        return self._what

    @property
    def host(self) -> Any:
        """The store whose sessions take here."""
        return self

    # Life

    def _open(self) -> None:
        self._hub = Hub.enter(Server(self._url, self._namespace, self._patience))
        self.waiters, self.counts = self._hub.waiters, self._hub.counts
        try:
            self._learn_time()  # first, since it fails soonest where the catalogue's node is away
            self._begin()
            guarded(self._hub.listener.add_beat, self._beat, self._beat_every)
        except BaseException as error:
            self._close()
            if isinstance(error, Refused):
                raise translated(error, self._what, self._keys) from error
            raise

    def _close(self) -> None:
        guarded(self._hub.listener.remove_beat, self._beat)
        self._hub.leave()

    def forked(self) -> None:
        super().forked()
        Hub.forget_all()  # the program's own hook may use the queue before the hub's hook is called

    @abstractmethod
    def _begin(self) -> None:
        """Do what else it takes before a step can run."""

    @property
    def _beat_every(self) -> float:
        """Seconds between two calls of ``_beat``."""
        return CLOCK_EVERY

    def _beat(self) -> None:
        """Called by the listener every few seconds."""
        if not (self._is_closed or self._is_stale):
            self._learn_time(within=self._beat_every)

    def _learn_time(self, *, within: float | None = None) -> None:
        clock = self.clock
        if isinstance(clock, ServerClock):
            self._hub.nodes.call(
                self._keys, lambda wire: clock.ask(wire.time_ms), is_repeatable=True, within=within
            )

    def _warn(self) -> None:
        """Warn once of what this server, or one of the Cluster, may lose."""
        if self._url in _warned:
            return
        told = self._hub.nodes.each(_memory_and_persistence)
        for policy in sorted({info.get("maxmemory_policy", "") for info in told}):
            if policy.startswith("allkeys"):
                log.warning(
                    "%s may drop tasks when its memory is full: its maxmemory-policy is %s; set noeviction",
                    self._what, policy,
                )  # fmt: skip
        if any(info.get("aof_enabled") != "1" for info in told):
            log.warning(
                "%s loses tasks when it is stopped or crashes: its AOF is off; set appendonly yes", self._what
            )
        _warned.add(self._url)

    # Steps

    def run(
        self,
        driver: RedisDriver,
        script: Script,
        given: Sequence[Argument],
        most: int = 0,
        *,
        is_repeatable: bool,
    ) -> Any:
        """Run a tube's script on the tube's node.

        ``most``: how many tasks it may answer with. The server is given time for these, and the arguments.
        ``is_repeatable``: whether it is run again if its answer is lost, since it only reads.
        """
        if driver.is_unmade and script is not scripts.OPEN:
            driver.make(RedisTx(self))
        keys = driver.keys_of(script)

        def use(wire: Wire) -> Any:
            if driver.is_temporary and script is not scripts.OPEN:  # which makes the hash that holds the run
                driver.empty_after_restart(wire)
            elif self._is_durable and not is_repeatable:
                return wire.evaluate_durably(script, keys, given, self._patience, most)
            return wire.evaluate(script, keys, given, most)

        try:
            # opening a tube again changes nothing, so it may be repeated; yet a new tube must be on the disk
            return self._hub.nodes.call(keys, use, is_repeatable=is_repeatable or script is scripts.OPEN)
        except NoSession as error:
            raise NotAdmitted(driver) from error

    def transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        self.refresh()
        return guarded(self._transact, work, on_commit)

    def _transact(self, work: Callable[[Any], T], on_commit: Callable[[T], None] | None) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                result = work(RedisTx(self))
                if on_commit is not None:
                    on_commit(result)
                return result
            except NotAdmitted as error:
                if tries >= MOST_TRIES:
                    raise Conflict(f"{self._what}: this session keeps being ended") from error
                self._admit(error.driver)
            except Again as error:
                if tries >= MOST_TRIES:
                    raise Conflict(f"{self._what}: conflicted with others {tries} times") from error
                pause_after(tries)
            except Refused as error:
                raise translated(error, self._what, self._keys) from error

    def read(self, work: Callable[[Any], T]) -> T:
        self.refresh()

        def look() -> T:
            try:
                return work(RedisTx(self))
            except Refused as error:
                raise translated(error, self._what, self._keys) from error

        return guarded(look)

    def ask(self, script: Script, *given: Argument) -> Any:
        """Run a script of the queue that may be run twice."""
        return self._evaluate(self._keys, script, given)

    def _evaluate(
        self,
        keys: Keys,
        script: Script,
        given: Sequence[Argument],
        *,
        is_repeatable: bool = True,
        is_durable: bool = False,
        within: float | None = None,
    ) -> Any:
        """Run a script on the node of its keys."""

        def use(wire: Wire) -> Any:
            if is_durable:
                return wire.evaluate_durably(script, keys, given, self._patience)
            return wire.evaluate(script, keys, given)

        return self._hub.nodes.call(keys, use, is_repeatable=is_repeatable, within=within)

    def _admit(self, driver: RedisDriver) -> None:
        """Let this session take from a tube, or a new one, if it is over."""
        try:
            self._admit_if_alive(driver)
        except NoTube as error:
            raise NoSuchTube(driver.name) from error
        except Refused as error:
            raise translated(error, self._what, self._keys) from error

    def _admit_if_alive(self, driver: RedisDriver) -> None:
        host = self.host
        for _ in range(2):  # it may end just then, but that will not happen twice
            host.prove_life()
            session: str = host.session
            if self._over_at(session) == inf:
                break
        else:
            raise StoreUnavailable("this queue is closed")
        given = (driver.flags, self.clock.now_ms(), 0, session)
        self._evaluate(driver.keys, scripts.ADMIT, given)
        if self._over_at(session) > host.clock.now_ms():
            return
        # It ended meanwhile, and this tube may have been rescued before: another thread may hold tasks here
        # that nobody would look for.
        while self._evaluate(driver.keys, scripts.RELEASE_OWNER, (*given, STEP_LIMIT)):
            pass

    def _over_at(self, session: str) -> float:
        """When a session is over; see ``Store.over_at``."""
        over_at: float = self.host.read(lambda tx: self.host.over_at(tx, session))
        return over_at

    def _run_on(self, tube: int, script: Script, *given: Argument) -> Any:
        """Run a tube's script that may be run twice, and does not depend on the tube's type."""
        keys = Keys.of_tube(self._namespace, tube)
        return self._evaluate(keys, script, ("", self.clock.now_ms(), 0, *given))

    def look_at(self, tube: int, key: str, command: str, *given: Argument) -> Any:
        """Return a command's answer for one key of a tube."""
        keys = Keys.of_tube(self._namespace, tube, key)
        return self._hub.nodes.ask(keys, command, *keys, *given)

    def remove_tube(self, tx: Any, tube: TubeRecord) -> None:
        _, last = self._run_on(tube.id, scripts.DROP)
        self.ask(scripts.REMOVE_TUBE, tube.name, tube.id, last)

    # Examining

    @abstractmethod
    def tubes(self, tx: Any) -> Sequence[TubeRecord]:
        """The tubes to examine."""

    @abstractmethod
    def after_of(self, tube: int) -> int:
        """The id after which a tube's ids begin."""

    def examined(self, tube: TubeRecord, features: Features = PLAIN) -> RedisDriver:
        """The driver of a tube for the doctor's scripts, most of which do not depend on its type."""
        return RedisDriver(TubeType(features), tube, self._namespace, lambda: 0, self.after_of(tube.id))

    def tube_numbered(self, tx: Any, number: int) -> TubeRecord | None:
        """The tube of that number, if it is still in the catalogue."""
        return next((tube for tube in self.tubes(tx) if tube.id == number), None)

    def remove_dropped(self, tube: TubeRecord, gave: Argument) -> None:
        """Take a tube of which nothing is left but the last id that it gave out of the catalogue."""
        self.ask(scripts.REMOVE_TUBE, tube.name, tube.id, gave)


_warned: set[str] = set()


def _memory_and_persistence(wire: Wire) -> dict[str, str]:
    wire.command("PING")  # refused while it loads, when INFO would answer without a word of the AOF
    return wire.info("memory") | wire.info("persistence")
