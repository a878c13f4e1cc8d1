"""The Redis store: one server, or a Cluster. Each script is a transaction; there are none over several calls."""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tubes.clock import Clock, ServerClock, SystemClock, real_monotonic
from tubes.doctor import Check
from tubes.driver import STEP_LIMIT, Driver, Features, TubeRecord, TubeType
from tubes.errors import (
    Conflict,
    NoSuchSession,
    NoSuchTube,
    NotSupported,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TubeError,
    store_works,
)
from tubes.interrupts import guarded
from tubes.logs import Log
from tubes.stats import Deltas
from tubes.store import Unit
from tubes.waiting import Key, Lease

from ..examining import FeaturesOf
from ..polling import check_poll
from ..renewal import Renewable
from ..retries import MOST_TRIES, pause_after
from ..watch import BEATS, Beats, Watch
from . import scripts
from .catalogue import NUMBER, Entry, new_number, read_entry, written_entry
from .driver import RedisDriver, check_pri, due_ms
from .errors import translated
from .examiner import redis_checks
from .hub import HOSTED, Hub, Server
from .nodes import Address, Cursor
from .scripts import Argument, Keys, Script
from .sessions import Sessions, pairs
from .tx import RedisTx
from .urls import described, parsed
from .wire import NoSession, NoTube, Refused, Wire

T = TypeVar("T")

MOMENT = 0.05
"""Seconds for which a process's stores, which look at the sessions again and again, share one answer."""

PLAIN = Features()
"""Of a tube whose type does not matter."""

NO_TRANSACTIONS = (
    "a Redis store has no transactions over several calls: each call is one of its own, and "
    "take(ack=task) acks and takes in one"
)

log = Log("tubes.redis")


class NotAdmitted(Exception):
    """The session may not take from a tube yet, or no longer may."""

    def __init__(self, driver: RedisDriver) -> None:
        self.driver = driver


class Again(Exception):
    """Somebody else was faster: look again."""


class Spared(threading.local):
    """How many calls to other processes this thread's last script spared, since as many wait here.

    ``wake``, which follows it, calls those here, and other processes in place of those that have left since.
    """

    count = 0


class RedisStore(Renewable):
    """``redis://user:password@host:6379/0?dead_after=15``, ``rediss://…`` or ``unix:///path/redis.sock?db=0``.

    ``dead_after``: seconds without a sign of life after which a process is taken for dead, also by processes
    whose own is shorter. Everything else in the query is for redis-py. Any node of a Cluster stands for all.
    """

    default_durability = "normal"
    reconnects = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: str,
        session_ttr_ms: int,
        namespace: str,
        migrate: bool | None,
        busy_timeout: float,
    ) -> None:
        check_poll()
        super().__init__()
        self._url, self._dead_after = parsed(url)
        self._what = described(self._url)
        self.clock = ServerClock() if type(clock) is SystemClock else clock
        self._is_durable = durability == "full"
        self._patience = max(busy_timeout, 0.1)
        self._namespace = namespace
        self._keys = Keys.of_queue(namespace)
        self.session_ttr_ms = self._own_ttr_ms = session_ttr_ms
        self._open()

    def __repr__(self) -> str:
        return self._what

    def _open(self) -> None:
        self._orders: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
        self._resuming = threading.RLock()  # a signal's handler may call while a session is begun
        self.lost_sessions: set[str] = set()
        self._beats: Beats[str] = Beats(self._dead_after)
        self._after: dict[int, int] = {}
        self._spared = Spared()
        self.set_aside: set[str] = set()
        self._hub = Hub.enter(Server(self._url, self._namespace, self._patience))
        self.waiters, self.counts = self._hub.waiters, self._hub.counts
        try:
            self._learn_time()  # first, since it fails soonest where the catalogue's node is away
            is_unsaid = self._is_durable and not all(self._hub.nodes.each(self._tells_how_it_syncs))
            self._warn()
            self._begin_session(self._new_session())
            if is_unsaid:
                self._check_synced()
            guarded(self._hub.listener.add_beat, self._beat, self._beats.every)
        except BaseException as error:
            guarded(self._hub.listener.remove_beat, self._beat)
            self._hub.leave()
            if isinstance(error, Refused):
                raise translated(error, self._what, self._keys) from error
            raise

    def _tells_how_it_syncs(self, wire: Wire) -> bool:
        """Whether a server says how it writes to its disk; NotSupported if it does not write there.

        If it does not say, a first write shows it: before one, WAITAOF has nothing to wait for.
        """
        try:
            wire.command("WAITAOF", 1, 0, 1)
        except Refused as error:
            raise self._not_durable(str(error)) from error
        try:
            _, sync = wire.command("CONFIG", "GET", "appendfsync")
        except (Refused, ValueError):  # most users are not allowed to ask
            return False
        if sync == b"no":
            raise self._not_durable("its appendfsync is no")
        return True

    def _check_synced(self) -> None:
        """A first write must reach the disk of the catalogue's node."""
        try:
            self._evaluate(self._keys, scripts.BEAT, (self._connection,), is_durable=True)
        except OutcomeUnknown as error:
            with suppress(StoreError):
                self._leave()
            raise self._not_durable(f"{error}: its appendfsync may be no") from error

    def _not_durable(self, why: str) -> NotSupported:
        return NotSupported(
            f"{self._what} cannot do durability='full', which needs WAITAOF (Redis 7.2 or Valkey), appendonly yes, "
            f"and appendfsync everysec or always: {why}",
            option="durability",
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
        """Run a tube's script on the tube's node."""
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
                if on_commit is None:
                    return work(RedisTx(self))
                tx = RedisTx(self, in_order=True)
                try:
                    result = work(tx)
                    on_commit(result)
                    return result
                finally:
                    tx.end()
            except NotAdmitted as error:
                if tries >= MOST_TRIES:
                    raise Conflict(f"{self._what}: this session keeps being ended") from error
                self._admit(error.driver)
                if self._left:
                    raise StoreUnavailable("this queue is closed") from error
            except Again as error:
                if tries >= MOST_TRIES:
                    raise Conflict(f"{self._what}: conflicted with others {tries} times") from error
                pause_after(tries)
            except Refused as error:
                raise translated(error, self._what, self._keys) from error

    def hold(self, of: RedisDriver | RedisStore) -> threading.RLock:
        """Take the lock on a tube's commits, or on all, and return it: callbacks come in that order."""
        lock = self._orders.setdefault(of, threading.RLock())
        longest = self._hub.nodes.longest
        if not lock.acquire(timeout=longest):
            raise StoreUnavailable(f"{self._what}: waited {longest:g} s for an earlier call to finish")
        return lock

    def transaction(self, on_commit: Callable[[], None]) -> AbstractContextManager[Any]:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        raise NotSupported(NO_TRANSACTIONS, option="connection")

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

    def connection(self, unit: Unit) -> Any:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

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

    def realise(self, type: TubeType, tube: TubeRecord) -> Driver:
        after = self.after_of(tube.id)
        driver = RedisDriver(type, tube, self._namespace, partial(self._waiting, tube.id), after)
        if self._hub.nodes.is_cluster:
            driver.check_reachable = lambda: self._hub.nodes.check_reachable(driver.keys)
            driver.waits_for = lambda: self._hub.nodes.node_of(driver.keys)
        self._hub.listener.add_driver(driver)
        return driver

    # The catalogue

    def after_of(self, tube: int) -> int:
        """The id after which a tube's ids begin."""
        return self._after.get(tube, 0)

    def tubes(self, tx: Any) -> Sequence[TubeRecord]:
        entries = sorted(self._entries(), key=lambda entry: entry.order)
        self._after = {entry.tube.id: entry.after for entry in entries}
        return [entry.tube for entry in entries]

    def tube_named(self, tx: Any, name: str) -> TubeRecord | None:
        entry = next(self._entries(name), None)
        if entry is None:
            return None
        self._after[entry.tube.id] = entry.after
        return entry.tube

    def _entries(self, *name: str) -> Iterator[Entry]:
        flat = self.ask(scripts.TUBES, *name)
        return map(read_entry, flat[::2], flat[1::2])

    def add_tube(
        self, tx: Any, name: str, type: str, options: Mapping[str, Any], temporary: bool
    ) -> TubeRecord:
        check_pri(options.get("pri", 0))
        tube = TubeRecord(new_number(), name, type, dict(options), temporary)
        if not self.add_if_free(tube):
            raise Again
        return tube

    def add_if_free(self, tube: TubeRecord) -> bool:
        """Add it to the catalogue, unless its name is taken there.

        If the tube's node goes away after that, the entry stays: others may have opened the tube by it.
        """
        self._run_on(tube.id, scripts.UNWAIT, "-", "t", 0)  # changes nothing; fails if nobody can write there
        given = tube.name, tube.id, written_entry(tube)
        after: bytes = self._evaluate(self._keys, scripts.ADD_TUBE, given, is_durable=self._is_durable)
        if after:
            self._after[tube.id] = int(after)
            self._run_on(tube.id, scripts.OPEN, after)
        return bool(after)

    def remove_tube(self, tx: Any, tube: TubeRecord) -> None:
        _, last = self._run_on(tube.id, scripts.DROP)
        self.ask(scripts.REMOVE_TUBE, tube.name, tube.id, last)

    def lock_tube(self, tx: Any, tube: TubeRecord) -> None:
        """Nothing to do: there are no transactions here into which another step could come."""

    def has_tube(self, tx: Any, tube: TubeRecord) -> bool:
        if tube.id in tx.looked:
            return True
        try:
            self._run_on(tube.id, scripts.LOOK)
        except NoTube:
            self._finish_drop(tube)
            return False
        return True

    def are_started(self, tx: Any, tubes: Sequence[TubeRecord]) -> Mapping[int, bool]:
        """Whether these tubes are there, by their ids; ``_read_each`` leaves some out."""
        return {
            tube: bool(found) for tube, found in self._read_each(tubes, "meta", "HEXISTS", "next").items()
        }

    def next_dues(self, tx: Any, tubes: Sequence[TubeRecord]) -> Mapping[int, int | None]:
        """When something is next due in these tubes, by their ids; ``_read_each`` leaves some out."""
        firsts = self._read_each(tubes, "due", "ZRANGE", 0, 0, "WITHSCORES")
        return {tube: due_ms(first[1]) if first else None for tube, first in firsts.items()}

    def _read_each(
        self, tubes: Sequence[TubeRecord], key: str, command: str, *given: Argument
    ) -> dict[int, Any]:
        """Return a command's answer for one key of each tube, by their ids: one round trip to each node.

        A tube is left out if its node is away, if it has just moved, or if its key is of the wrong type.
        """
        of_node: dict[Address | None, list[tuple[int, Keys]]] = {}
        for tube in tubes:
            keys = Keys.of_tube(self._namespace, tube.id, key)
            of_node.setdefault(self._hub.nodes.node_of(keys), []).append((tube.id, keys))
        answers: dict[int, Any] = {}

        for node, asked in of_node.items():
            commands = [(command, *keys, *given) for _, keys in asked]
            try:
                self._hub.nodes.check_reachable(asked[0][1])
                told = self._hub.nodes.call(asked[0][1], partial(_answers, commands), is_repeatable=True)
            except StoreUnavailable:
                if not self._hub.nodes.is_cluster:
                    raise
            else:
                for (id, _), answer in zip(asked, told, strict=True):
                    if isinstance(answer, Exception):
                        self._hub.nodes.heed(answer, node)  # it may say where the tube is now
                    else:
                        answers[id] = answer
        return answers

    def _finish_drop(self, tube: TubeRecord) -> None:
        """Take a tube out of the catalogue if a process dropped it, and then died, or got no answer."""
        if self.look_at(tube.id, "meta", "HEXISTS", "dropped"):
            self.remove_tube(None, tube)

    def _run_on(self, tube: int, script: Script, *given: Argument) -> Any:
        """Run a tube's script that may be run twice, and does not depend on the tube's type."""
        keys = Keys.of_tube(self._namespace, tube)
        return self._evaluate(keys, script, ("", self.clock.now_ms(), 0, *given))

    def look_at(self, tube: int, key: str, command: str, *given: Argument) -> Any:
        """Return a command's answer for one key of a tube."""
        keys = Keys.of_tube(self._namespace, tube, key)
        return self._hub.nodes.ask(keys, command, *keys, *given)

    # Sessions

    def _new_session(self) -> str:
        self.session_ttr_ms = self._own_ttr_ms  # one that was joined has another
        return uuid.uuid4().hex

    def _begin_session(self, session: str) -> None:
        """Add a session and its connection, which beats from now on."""
        label = f"{socket.gethostname()}/{os.getpid()}"
        connection = uuid.uuid4().hex
        self.ask(scripts.BEGIN_SESSION, connection, session, self.session_ttr_ms, label)
        self._connection, self.session = connection, session
        absent = self.ask(scripts.CALL_ROLL, connection, int(self._beats.every * 1000), BEATS)
        self._beats.absent = dict(pairs(absent))

    def _is_alive(self) -> bool:
        return bool(self.ask(scripts.IS_ALIVE, self._connection, self.session))

    def _admit(self, driver: RedisDriver) -> None:
        """Let this session take from a tube, if it is alive; if not, the next try is a new session's."""
        try:
            self._admit_if_alive(driver)
        except NoTube as error:
            raise NoSuchTube(driver.name) from error
        except Refused as error:
            raise translated(error, self._what, self._keys) from error

    def _admit_if_alive(self, driver: RedisDriver) -> None:
        if not self._is_alive():
            self._resume()
        session = self.session
        given = (driver.flags, self.clock.now_ms(), 0, session)
        self._evaluate(driver.keys, scripts.ADMIT, given)
        if self._is_alive() and session == self.session:
            return
        sessions = self.sessions()
        if session in sessions.ends and not sessions.is_over(session, self.clock.now_ms()):
            return  # another thread has only left it, or goes on in it on another connection
        # It ended meanwhile, and this tube may have been rescued before: another thread may hold tasks here
        # that nobody would look for.
        while self._evaluate(driver.keys, scripts.RELEASE_OWNER, (*given, STEP_LIMIT)):
            pass

    def join(self, session: str) -> None:
        def step(tx: Any) -> None:
            if session == self.session:
                return
            self._end_sessions(self.clock.now_ms())
            self._resume()
            with self._resuming:  # prove_life asks whether this connection is of this session
                ttr_ms = self.ask(scripts.JOIN, self._connection, session, self.clock.now_ms())
                if ttr_ms is None:
                    raise NoSuchSession(uuid.UUID(session))
                self.session, self.session_ttr_ms = session, int(ttr_ms)

        self.transact(step)

    def set_session_ttr(self, ttr_ms: int) -> None:
        def step(tx: Any) -> None:
            with self._resuming:
                self.ask(scripts.SET_SESSION_TTR, self.session, ttr_ms)
                self.session_ttr_ms = self._own_ttr_ms = ttr_ms

        self.transact(step)

    def prove_life(self) -> None:
        if not (self._is_closed or self._is_stale):
            self.read(lambda tx: self._resume())

    def _resume(self) -> None:
        """If this process was taken for dead, so that others have what it held, go on in a new session."""
        with self._resuming:
            session = self.session
            is_over = not (self._left or self._is_closed or self._is_alive())
            if is_over and session == self.session:  # else a signal's handler has done so meanwhile
                self.lost_sessions.add(session)
                self._begin_session(self._new_session())

    def _beat(self) -> None:
        """Called by the listener every few seconds.

        A connection that died silently must not hold up the next beat for as long as a server is waited for.
        """
        if self._left or self._is_closed or self._is_stale:
            return
        within = self._beats.every
        try:
            if not self._evaluate(self._keys, scripts.BEAT, (self._connection,), within=within):
                self._resume()
            self._dead(self._sessions_lately(within=within))
            self._learn_time(within=within)
        except BaseException:
            self._beats.forget()
            raise

    def _learn_time(self, *, within: float | None = None) -> None:
        clock = self.clock
        if isinstance(clock, ServerClock):
            self._hub.nodes.call(
                self._keys, lambda wire: clock.ask(wire.time_ms), is_repeatable=True, within=within
            )

    def _dead(self, sessions: Sessions) -> list[tuple[str, str]]:
        """Connections whose beat has not changed for too long while this process looked; with that beat."""
        beats = {id: each.beat for id, each in sessions.connections.items()}
        silent = self._beats.see(beats, sessions.every)
        return [(id, beat) for id, beat in silent if id != self._connection]

    def sessions(self, *, within: float | None = None) -> Sessions:
        """All sessions and connections, as they are now."""
        return Sessions.of(*self._evaluate(self._keys, scripts.SESSIONS, (), within=within))

    def _sessions_lately(self, *, within: float | None = None) -> Sessions:
        """The sessions as of a moment ago, if a store of this process on that server asked then.

        A queue has a store for each tube of the type ``redis``, each of which is a connection in the answer.
        """
        now, seen = real_monotonic(), self._hub.seen
        if seen is None or now - seen[0] > MOMENT:
            self._hub.seen = seen = now, self.sessions(within=within)
        return seen[1]

    def deaths_suspected(self, *, thoroughly: bool = False, allow_recent: bool = False) -> bool:
        if self._is_closed or self._is_stale:
            return False

        def look() -> bool:
            self._hub.nodes.check_reachable(self._keys)  # a take from another node must not wait for that one
            return self.read(lambda tx: self._sees_deaths(tx, thoroughly, allow_recent))

        return self._beats.suspects(look, thoroughly=thoroughly, away=StoreError)

    def _sees_deaths(self, tx: Any, thoroughly: bool, allow_recent: bool) -> bool:
        now, sessions = self.clock.now_ms(), self._sessions_lately() if allow_recent else self.sessions()
        if self._dead(sessions) or sessions.lonely() or (thoroughly and self._orphans(tx)):
            return True
        return any(sessions.is_over(session, now) for session in sessions.ends.keys() - self.set_aside)

    def ended_sessions(self, now: int, *, thoroughly: bool) -> Sequence[str]:
        def step(tx: Any) -> list[str]:
            ended = self._end_sessions(now)
            return [*ended, *self._orphans(tx)] if thoroughly else ended

        return self.transact(step)

    def _end_sessions(self, now: int) -> list[str]:
        dead = self._dead(self.sessions())
        return [
            session.decode(errors="replace")
            for session in self.ask(scripts.END_SESSIONS, now, *(x for each in dead for x in each))
        ]

    def holders(self, tx: Any, tubes: Sequence[TubeRecord]) -> dict[int, set[str]]:
        """The sessions that may hold tasks, since they may take, by tubes' ids; see ``_read_each``."""
        return {tube: texts(ids) for tube, ids in self._read_each(tubes, "sessions", "SMEMBERS").items()}

    def _orphans(self, tx: Any) -> list[str]:
        """Unknown sessions that may take somewhere. A session is known before any tube admits it."""
        admitted = set[str]().union(*self.holders(tx, self.tubes(tx)).values())
        known = self.sessions().ends if admitted else {}
        return [session for session in admitted if session not in known and session not in self.set_aside]

    def forget_sessions(self, tx: Any, sessions: Sequence[str]) -> None:
        self.ask(scripts.FORGET_SESSIONS, *sessions)

    # Waking and counting

    def _waiting(self, tube: int) -> int:
        """How many can be called here: this thread's next script is told so; see ``Spared``."""
        self._spared.count = count = self.waiters.uncalled(tube)
        return count

    def call(self, key: Key, count: int, leases: Iterable[Lease] = ()) -> None:
        if not (self.waiters.line or self._spared.count):  # the usual case, and every put comes here
            return
        spared = 0
        if key > 0:  # not for room: there the script has called others, whoever waits here
            spared, self._spared.count = min(count, self._spared.count), 0
        called = self.waiters.call(key, count, leases)
        self._call_others(key, spared - called)  # for those that have left since

    def call_instead(self, key: Key, count: int) -> None:
        self._call_others(key, count - self.waiters.call(key, count))

    def _call_others(self, key: Key, count: int) -> None:
        if count > 0:
            with suppress(TubeError, Refused):  # they look by themselves
                self._run_on(abs(key), scripts.UNWAIT, "-", "t" if key > 0 else "r", count)

    def add_calls(self, deltas: list[Deltas]) -> None:
        failed: StoreError | None = None
        for each in [*deltas]:
            try:
                self._add_calls(*each)
            except OutcomeUnknown:
                deltas.remove(each)  # sent again, it might be counted twice
                raise
            except StoreError as error:  # of that tube alone?
                if not (self._hub.nodes.is_cluster or store_works(error)):
                    raise
                failed = error
            else:
                deltas.remove(each)
        if failed is not None:
            raise failed

    def _add_calls(self, tube: int, calls: Mapping[str, int]) -> None:
        keys = Keys.of_tube(self._namespace, tube)
        given = ("", 0, 0, *(word for event, count in calls.items() for word in (str(event), count)))

        def add(tx: Any) -> None:
            self._evaluate(keys, scripts.ADD_CALLS, given, is_repeatable=False)

        self._hub.nodes.check_reachable(keys)
        self.read(add)  # which translates what is refused

    def calls(self, tx: Any, tube: int) -> Mapping[str, int]:
        counts = pairs(self.look_at(tube, "calls", "HGETALL"))
        return {event: int(count) for event, count in counts if _COUNT.fullmatch(count)}

    # Examining

    def checks(self, features: FeaturesOf, *, deep: bool) -> Iterable[Check]:
        """What ``tubes.doctor`` looks at."""
        if self._namespace == HOSTED:
            raise NotSupported(
                "what tubes of the type redis keep in Redis is examined along with their queues' own stores: "
                "give the URL of those"
            )
        return redis_checks(self, features, self._watch(), deep=deep, is_hosted=False)

    def _watch(self) -> Watch[str]:
        return Watch(self._beats, lambda tx: self._dead(self.sessions()), self._connection)

    def examined(self, tube: TubeRecord, features: Features = PLAIN) -> RedisDriver:
        """The driver of a tube for the doctor's scripts, most of which do not depend on its type."""
        return RedisDriver(TubeType(features), tube, self._namespace, lambda: 0, self.after_of(tube.id))

    def tube_numbered(self, tx: Any, number: int) -> TubeRecord | None:
        """The tube of that number, if it is still in the catalogue."""
        return next((tube for tube in self.tubes(tx) if tube.id == number), None)

    def unknown_sessions(self, tx: Any) -> Sequence[str]:
        """Those that are missing and have connections."""
        sessions = self.sessions()
        return sorted(sessions.connected() - sessions.ends.keys())

    def add_session(self, tx: Any, session: str) -> bool:
        """Add one of these; tell whether it was still missing."""
        return bool(self.ask(scripts.ADD_SESSION, session, 0))

    def lonely_sessions(self, tx: Any) -> Sequence[str]:
        """Those that have lost their last connection and have not ended."""
        return self.sessions().lonely()

    def remove_dropped(self, tube: TubeRecord, gave: Argument) -> None:
        """Take a tube of which nothing is left but the last id that it gave out of the catalogue."""
        self.ask(scripts.REMOVE_TUBE, tube.name, tube.id, gave)

    def numbers(self, after: Cursor | None, limit: int) -> tuple[set[int], Cursor | None]:
        """The numbers of the tubes to which about the next ``limit`` keys belong, and where to go on."""
        place = re.compile(rf"{{{self._namespace}:({NUMBER})}}:")
        keys, after = self._hub.nodes.scan(f"{{{self._namespace}:*", after, limit)
        found = [place.match(key.decode(errors="replace")) for key in keys]
        return {int(each[1]) for each in found if each}, after

    # Life

    def _leave(self) -> None:
        self.read(lambda tx: self.ask(scripts.LEAVE, self._connection, self.clock.now_ms()))

    def _close(self) -> None:
        guarded(self._hub.listener.remove_beat, self._beat)
        self._hub.leave()

    def forked(self) -> None:
        super().forked()
        Hub.forget_all()  # the program's own hook may use the queue before the hub's hook is called


_COUNT = re.compile("0|[1-9][0-9]{0,17}")
"""A count that a server can add to, unless others have overwritten it; see rules.lua."""

_warned: set[str] = set()


def _answers(commands: Sequence[tuple[Argument, ...]], wire: Wire) -> list[Any]:
    """The answers to all of these, refusals too, in one round trip."""
    wire.send(*commands)
    return [wire.receive() for _ in commands]


def texts(ids: Iterable[bytes]) -> set[str]:
    """Ids as a server answers them, in the form that everything else has them."""
    return {id.decode(errors="replace") for id in ids}


def _memory_and_persistence(wire: Wire) -> dict[str, str]:
    wire.command("PING")  # refused while it loads, when INFO would answer without a word of the AOF
    return wire.info("memory") | wire.info("persistence")
