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
from math import inf
from typing import Any, TypeVar

from tubes.clock import Clock
from tubes.doctor import Check
from tubes.driver import Driver, TubeRecord, TubeType
from tubes.errors import (
    NoSuchSession,
    NotSupported,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TubeError,
    store_works,
)
from tubes.stats import Deltas
from tubes.store import Known, Unit
from tubes.task import State
from tubes.waiting import Key, Lease

from ..examining import FeaturesOf, IsAlive
from ..polling import check_poll
from ..watch import BEATS, Beats, Watch
from . import scripts
from .catalogue import NUMBER, Entry, new_number, read_entry, written_entry
from .driver import RedisDriver, by_state, check_pri, due_ms
from .examiner import redis_checks
from .hub import HOSTED
from .nodes import Cursor
from .runner import Again, Runner
from .scripts import Argument, Keys
from .sessions import SESSION, Sessions, pairs, texts
from .urls import Address, parsed
from .wire import NoTube, Refused, Wire

T = TypeVar("T")

NO_TRANSACTIONS = (
    "a Redis store has no transactions over several calls: each call is one of its own, and "
    "take(ack=task) acks and takes in one"
)


class Spared(threading.local):
    """How many calls to other processes this thread's last script spared, since as many wait here.

    ``wake``, which follows it, calls those here, and other processes in place of those that have left since.
    """

    count = 0


class RedisStore(Runner):
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
        url, self._dead_after = parsed(url)
        self.session_ttr_ms = self._own_ttr_ms = session_ttr_ms
        super().__init__(
            url,
            clock=clock,
            namespace=namespace,
            patience=max(busy_timeout, 0.1),
            is_durable=durability == "full",
        )

    def _open(self) -> None:
        self._resuming = threading.RLock()  # a signal's handler may call while a session is begun
        self.lost_sessions: set[str] = set()
        self._beats: Beats[str] = Beats(self._dead_after)
        self._after: dict[int, int] = {}
        self._spared = Spared()
        self.set_aside: set[str] = set()
        super()._open()

    def _begin(self) -> None:
        is_unsaid = self._is_durable and not all(self._hub.nodes.each(self._tells_how_it_syncs))
        self._warn()
        self._begin_session()
        if is_unsaid:
            self._check_synced()

    @property
    def _beat_every(self) -> float:
        return self._beats.every

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

    def longest_wait(self) -> float:
        """Seconds to wait for an answer; in a tube with callbacks, also for the calls before this one."""
        return self._hub.nodes.longest

    def transaction(self, on_commit: Callable[[], None]) -> AbstractContextManager[Any]:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        raise NotSupported(NO_TRANSACTIONS, option="connection")

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

    def connection(self, unit: Unit) -> Any:
        raise NotSupported(NO_TRANSACTIONS, option="unit")

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
            tube: bool(found) for tube, found in self._read_each(tubes, ["HEXISTS"], "meta", "next").items()
        }

    def next_dues(self, tx: Any, tubes: Sequence[TubeRecord]) -> Mapping[int, int | None]:
        """When something is next due in these tubes, by their ids; ``_read_each`` leaves some out."""
        firsts = self._read_each(tubes, ["ZRANGE"], "due", 0, 0, "WITHSCORES")
        return {tube: due_ms(first[1]) if first else None for tube, first in firsts.items()}

    def tallies(
        self, tx: Any, tubes: Sequence[TubeRecord]
    ) -> dict[int, tuple[Mapping[State, int], Mapping[str, int]]]:
        """How many tasks are in each state in these tubes, and how many calls there were, by their ids.

        ``_read_each`` leaves some out; all are, after a start of the server, until the script is known there.
        """
        lasting = [tube for tube in tubes if not tube.temporary]  # see RedisDriver.empty_after_restart
        script: list[Argument] = ["EVALSHA", scripts.COUNT.sha, len(Keys.of_tube(self._namespace, 0))]
        counts = self._read_each(lasting, script, None, "", 0, 0)
        calls = self._read_each(lasting, ["HGETALL"], "calls")
        return {id: (by_state(counts[id]), _counts(pairs(calls[id]))) for id in counts.keys() & calls.keys()}

    def _read_each(
        self, tubes: Sequence[TubeRecord], command: Sequence[Argument], key: str | None, *given: Argument
    ) -> dict[int, Any]:
        """Return a command's answer for one key, or all, of each tube, by their ids: one round trip to each node.

        A tube is left out if its node is away, if it has just moved, or if its key is of the wrong type.
        """
        of_node: dict[Address | None, list[tuple[int, Keys]]] = {}
        for tube in tubes:
            keys = Keys.of_tube(self._namespace, tube.id, *filter(None, [key]))
            of_node.setdefault(self._hub.nodes.node_of(keys), []).append((tube.id, keys))
        answers: dict[int, Any] = {}

        for node, asked in of_node.items():
            commands = [(*command, *keys, *given) for _, keys in asked]
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

    # Sessions

    def _begin_session(self) -> None:
        """Begin a session, and add its connection, which beats from now on."""
        label = f"{socket.gethostname()}/{os.getpid()}"
        connection, session = uuid.uuid4().hex, uuid.uuid4().hex
        self.ask(scripts.BEGIN_SESSION, connection, session, self._own_ttr_ms, label)
        self._connection, self.session, self.session_ttr_ms = connection, session, self._own_ttr_ms
        absent = self.ask(scripts.CALL_ROLL, connection, int(self._beats.every * 1000), BEATS)
        self._beats.absent = dict(pairs(absent))

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
            if self._left or self._is_closed or self.ask(scripts.IS_ALIVE, self._connection, session):
                return
            if session == self.session:  # else a signal's handler has done so meanwhile
                self.lost_sessions.add(session)
                self._learn_time()  # its virtual machine may have been frozen, and the clock with it
                self._begin_session()

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
            self._dead(self.sessions(within=within))
            super()._beat()
        except BaseException:
            self._beats.forget()
            raise

    def _dead(self, sessions: Sessions) -> list[tuple[str, str]]:
        """Connections whose beat has not changed for too long while this process looked; with that beat."""
        beats = {id: each.beat for id, each in sessions.connections.items()}
        silent = self._beats.see(beats, sessions.every)
        return [(id, beat) for id, beat in silent if id != self._connection]

    def sessions(self, *, within: float | None = None) -> Sessions:
        """All sessions and connections, as they are now."""
        return Sessions.of(*self._evaluate(self._keys, scripts.SESSIONS, (), within=within))

    def deaths_suspected(self, *, thoroughly: bool = False, allow_recent: bool = False) -> bool:
        if self._is_closed or self._is_stale:
            return False

        def look() -> bool:
            self._hub.nodes.check_reachable(self._keys)  # a take from another node must not wait for that one
            return self.read(lambda tx: self._sees_deaths(tx, thoroughly))

        return self._beats.suspects(look, thoroughly=thoroughly, away=StoreError)

    def _sees_deaths(self, tx: Any, thoroughly: bool) -> bool:
        now, sessions = self.clock.now_ms(), self.sessions()
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
        return {tube: texts(ids) for tube, ids in self._read_each(tubes, ["SMEMBERS"], "sessions").items()}

    def _orphans(self, tx: Any) -> list[str]:
        """Unknown sessions that may take somewhere. A session is known before any tube admits it."""
        admitted = set[str]().union(*self.holders(tx, self.tubes(tx)).values())
        known = self.sessions().ends if admitted else {}
        return [session for session in admitted if session not in known and session not in self.set_aside]

    def forget_sessions(self, sessions: Sequence[str]) -> None:
        self.transact(lambda tx: self.ask(scripts.FORGET_SESSIONS, *sessions))

    def known_sessions(self, tx: Any) -> Mapping[str, Known]:
        return self.sessions().known()

    def over_at(self, tx: Any, session: str) -> float:
        stored = self._hub.nodes.ask(self._keys, "HGET", self._keys.named("sessions"), session) or b""
        entry = SESSION.fullmatch(stored.decode(errors="replace"))
        if entry is None:
            return 0
        return inf if entry[1] == "-" else int(entry[1])

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
        return _counts(pairs(self.look_at(tube, "calls", "HGETALL")))

    # Examining

    def checks(self, features: FeaturesOf, *, deep: bool) -> Iterable[Check]:
        """What ``tubes.doctor`` looks at."""
        if self._namespace == HOSTED:
            raise NotSupported(
                "what tubes of the type redis keep in Redis is examined along with their queues' own stores: "
                "give the URL of those"
            )
        return redis_checks(self, features, deep=deep)

    def who_lives(self, deep: bool) -> tuple[IsAlive, Callable[[], float]]:
        """Only a deep look finds beats that stand still: that takes time."""
        watch = Watch(self._beats, lambda tx: self._dead(self.sessions()), self._connection)
        return watch.is_alive if deep else lambda tx, connection: True, watch.until

    def unknown_sessions(self, tx: Any) -> Sequence[str]:
        """Those that are missing and have connections."""
        sessions = self.sessions()
        return sorted(sessions.connected() - sessions.ends.keys())

    def add_session(self, tx: Any, session: str) -> bool:
        """Add one of these; tell whether it was still missing."""
        return bool(self.ask(scripts.ADD_SESSION, session, 0))

    def numbers(self, after: Cursor | None, limit: int) -> tuple[set[int], Cursor | None]:
        """The numbers of the tubes to which about the next ``limit`` keys belong, and where to go on."""
        place = re.compile(rf"{{{self._namespace}:({NUMBER})}}:")
        keys, after = self._hub.nodes.scan(f"{{{self._namespace}:*", after, limit)
        found = [place.match(key.decode(errors="replace")) for key in keys]
        return {int(each[1]) for each in found if each}, after

    # Life

    def _leave(self) -> None:
        self.read(lambda tx: self.ask(scripts.LEAVE, self._connection, self.clock.now_ms()))


_COUNT = re.compile("0|[1-9][0-9]{0,17}")
"""A count that a server can add to, unless others have overwritten it; see rules.lua."""


def _counts(stored: Iterable[tuple[str, str]]) -> Mapping[str, int]:
    return {event: int(count) for event, count in stored if _COUNT.fullmatch(count)}


def _answers(commands: Sequence[tuple[Argument, ...]], wire: Wire) -> list[Any]:
    """The answers to all of these, refusals too, in one round trip."""
    wire.send(*commands)
    return [wire.receive() for _ in commands]
