"""The type ``redis``: a tube with all features that keeps its tasks in Redis, in a queue of any store.

    tubes.Tube ────── RedisTube ────── RedisDriver: what each step is
                       │     │
    the queue's own store    HostedStore: runs the steps, listens
    has the tube's entry,    │
    the sessions, and the    Redis: the keys and scripts of a tube in a Redis store
    waiters

``RedisTube`` is the driver that the framework sees. Each of its steps is one of ``RedisDriver``'s, run
through the ``HostedStore``; so it is a script, and cannot be part of a transaction of the queue's store.
Consumers wait in the queue's store, and the HostedStore's listener wakes them there. The queue's store knows
who lives; Redis knows only which of its sessions may take in the tube, and so may hold tasks there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from tubes.clock import SystemClock
from tubes.doctor import Check
from tubes.driver import Change, Features, NewTask, Ref, TubeRecord, TubeType
from tubes.errors import BadOption, NoSuchTube, OutcomeUnknown, StoreError, StoreUnavailable
from tubes.interrupts import guarded
from tubes.store import Store
from tubes.task import State, Task

from ..examining import FeaturesOf
from .catalogue import new_number
from .driver import RedisDriver, check_pri
from .examiner import checks_of_tubes
from .hub import HOSTED, Hub
from .listener import Source
from .nodes import Nodes
from .runner import Runner
from .sessions import texts
from .urls import Address, check_url, described, parsed, without_passwords

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 5.0
"""Seconds to wait for the server."""

PASSWORD = "TUBES_REDIS_PASSWORD"
"""Environment variable: the password for tubes that this process opened without being given their URL."""

ALL = TubeType(Features(timed=True, priority=True, grouped=True, bounded=True))

_given: dict[str, str] = {}
"""URLs with their passwords, by the URLs as stored. Passwords are kept in this process only."""


class RedisTube:
    """The driver. Tube option ``url``: as for a Redis store; its password is not stored.

    A process that opens the tube by its name takes the password from the environment, TUBES_REDIS_PASSWORD,
    or from ``create_tube(..., url=..., if_not_exists=True)``. The type has all that ``utubettl`` and
    ``limfifottl`` have: tasks without a ``utube`` share one unnamed sub-queue, and ``capacity`` 0, the
    default, is no limit.
    """

    features = ALL.features
    tube_options = ("url",)
    transactional = False
    is_hosted = True

    def __init__(self, store: Store, tube: TubeRecord) -> None:
        self._host = store
        self._tube = tube
        self._url: str = tube.options["url"]
        self._tube_in_redis = replace(tube, id=tube.options["number"])
        """The same tube with its number in Redis; ``_tube`` has that of the queue's store."""
        self._redis = RedisDriver(
            ALL, self._tube_in_redis, HOSTED, lambda: store.waiters.uncalled(tube.id), after=0
        )
        self._opening = threading.RLock()  # a signal's handler may call while one waits for the server
        self._opened: HostedStore | None = None
        self._failed: StoreUnavailable | None = None
        self._is_over = False

    @staticmethod
    def check_tube_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is stored: the URL without password, and the tube's number."""
        url = given.get("url")
        if not isinstance(url, str) or url.partition("://")[0] not in ("redis", "rediss", "unix"):
            raise BadOption(
                "a tube of type redis needs url='redis://host:6379/0' (or rediss://, unix://)", option="url"
            )
        check_url(url)
        if "dead_after" in dict(parse_qsl(urlsplit(url).query)):
            raise BadOption(
                "dead_after belongs in the URL of the queue, whose store knows who lives", option="url"
            )
        shown, is_secret = without_passwords(url)
        _check_server(url if is_secret else _with_password(shown))
        if is_secret:  # only now: the server might have refused it
            _given[shown] = url
        return {"url": shown, "number": new_number()}

    # Life

    def create_space(self, tx: Any, tube: TubeRecord) -> None:
        """Make it. Its ids go on after those of tubes that were dropped."""
        check_pri(tube.options.get("pri", 0))
        self._redis.after = self._store.last_given()
        self._do(self._redis.make)

    def start(self, tx: Any) -> None:
        with suppress(StoreError):  # a queue opens all the same, and the tube's verbs say what is wrong
            self.check_reachable()
            self._do(self._redis.make, anew=True)

    def stop(self) -> None:
        with self._opening:
            self._is_over = True
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def forked(self) -> None:
        """Called in a forked child: a thread of the parent may have held the lock."""
        self._opening = threading.RLock()
        if self._opened is not None:
            self._opened.forked()

    def check_reachable(self) -> None:
        """Raise StoreUnavailable if a call to its server, on any tube, has just got no answer."""
        if Hub.away:
            Hub.away.check(described(self._url), None if self._opened is None else self._opened.node)

    def waits_for(self) -> str:
        """The server: calls to it may hang while those to others go on."""
        return self._url

    def longest_wait(self) -> float:
        """Seconds to wait for an answer; in a tube with callbacks, also for the call before this one."""
        return PATIENCE + 1

    def own_store(self) -> HostedStore:
        """What ``tubes doctor`` examines. StoreUnavailable if the server is away."""
        return self._store

    def drop(self, tx: Any) -> None:
        self._do(self._redis.drop)
        self._do(self._store.remove_tube, self._tube_in_redis)

    # Steps

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        put = self._do_anew(self._redis.put, items, now=self._now(now))
        if not put:
            self._store.listen()
        return put

    def take(self, tx: Any, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        return self.ack_and_take(tx, (), limit, owner=owner, now=now)

    def ack_and_take(
        self, tx: Any, refs: Sequence[Ref], limit: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Ack, and take in the same step; do neither if the ack is refused."""
        now = self._now(now)
        try:
            return self._do_anew(self._redis.ack_and_take, refs, limit, owner=owner, now=now)
        except OutcomeUnknown as error:
            error.at_ms = now
            raise

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        return self._do(self._redis.ack, refs, owner=owner, now=self._now(now))

    def touch(
        self, tx: Any, refs: Sequence[Ref], delta_ms: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        return self._do(self._redis.touch, refs, delta_ms, owner=owner, now=self._now(now))

    def release(
        self, tx: Any, refs: Sequence[Ref], *, delay_ms: int, owner: str | None, now: int
    ) -> Sequence[Change]:
        return self._do(self._redis.release, refs, delay_ms=delay_ms, owner=owner, now=self._now(now))

    def bury(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        return self._do(self._redis.bury, refs, owner=owner, now=self._now(now))

    def delete(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        return self._do(self._redis.delete, refs, owner=owner, now=self._now(now))

    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        return self._do(self._redis.kick, limit, now=self._now(now))

    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        return self._do(self._redis.expire, limit, now=self._now(now))

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        return self._do(self._redis.release_owner, owner, limit, now=self._now(now))

    def truncate(self, tx: Any, limit: int) -> int:
        return self._do(self._redis.truncate, limit)

    # Looking

    def peek(self, tx: Any, ids: Sequence[int]) -> Sequence[Any]:
        return self._look(self._redis.peek, ids)

    def tasks_by_state(self, tx: Any, state: State, *, after: int, limit: int) -> Sequence[Any]:
        return self._look(self._redis.tasks_by_state, state, after=after, limit=limit)

    def can_take(self, tx: Any) -> bool:
        self._store.listen()
        return self._look(self._redis.can_take)

    def count(self, tx: Any) -> Mapping[State, int]:
        return self._look(self._redis.count)

    def next_due(self, tx: Any) -> int | None:
        """By the queue's own clock, since the caller goes by that one."""
        due = self._look(self._redis.next_due)
        return None if due is None else due - self._store.clock.now_ms() + self._host.clock.now_ms()

    def holders(self, tx: Any) -> set[str]:
        """The sessions that may take in the tube."""
        store, number = self._store, self._redis.number
        return store.read(lambda tx: texts(store.look_at(number, "sessions", "SMEMBERS")))

    def normalize_task(self, raw: Any) -> Task:
        return self._redis.normalize_task(raw)

    # Within

    @property
    def _store(self) -> HostedStore:
        opened, failed = self._opened, self._failed
        if opened is not None:
            return opened
        with self._opening:
            while self._opened is None:
                if self._is_over:  # nobody would close a new one, which would beat for ever
                    self._host.refresh()
                    raise NoSuchTube(self._tube.name)
                if self._failed is not failed:  # the first thread has waited for the server on behalf of all
                    raise StoreUnavailable(str(self._failed)) from self._failed
                try:
                    opened = self._open()
                except StoreUnavailable as error:
                    self._failed = error
                    raise
                if self._opened is None and not self._is_over:
                    self._opened = opened
                else:  # a signal's handler has called, or has closed the queue
                    opened.close()
            return self._opened

    def _open(self) -> HostedStore:
        url = _with_password(self._url)
        try:
            return HostedStore(self._host, self._tube, self._redis, url)
        except StoreUnavailable as error:
            if url != self._url or "auth" not in str(error).lower():
                raise
            raise StoreUnavailable(f"{error} (its password can be set in {PASSWORD})") from error

    def _now(self, now: int) -> int:
        """The clock of record is the server's, unless a test has another."""
        return self._store.clock.now_ms() if isinstance(self._host.clock, SystemClock) else now

    def _do(self, step: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a step of the driver's in Redis."""
        return self._store.transact(lambda tx: step(tx, *args, **kwargs))

    def _do_anew(self, step: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a step; if the server has lost everything, make the tube again first, unless it was dropped."""
        try:
            return self._do(step, *args, **kwargs)
        except NoSuchTube:
            if not self._host.read(lambda tx: self._host.has_tube(tx, self._tube)):
                raise  # Redis itself may have forgotten that it was dropped
            self._do(self._redis.make, anew=True)
            return self._do(step, *args, **kwargs)

    def _look(self, step: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a step of the driver's that only reads."""
        return self._store.read(lambda tx: step(tx, *args, **kwargs))


class HostedStore(Runner):
    """Runs the steps of a tube that is in another store's queue, and knows of that store's sessions."""

    def __init__(self, host: Store, tube: TubeRecord, driver: RedisDriver, url: str) -> None:
        self._host = host
        self._tube = tube
        self._driver = driver
        # This server's clock is another than the host's, even if both are servers
        clock = SystemClock() if isinstance(host.clock, SystemClock) else host.clock
        super().__init__(parsed(url)[0], clock=clock, namespace=HOSTED, patience=PATIENCE)

    def _open(self) -> None:
        waiters = self._host.waiters  # new ones after a fork
        self._source = Source(waiters, {self._tube.id: self._driver.number}.get)
        super()._open()

    @property
    def host(self) -> Any:
        return self._host

    def _begin(self) -> None:
        self._warn()
        self._hub.listener.add_driver(self._driver)
        guarded(self._hub.listener.add_source, self._source)

    def _close(self) -> None:
        guarded(self._hub.listener.remove_source, self._source)
        super()._close()

    def _leave(self) -> None:
        """The session is the host's."""

    @property
    def node(self) -> Address | None:
        """Which node of a Cluster has the tube; ``None``: it is no Cluster."""
        return self._hub.nodes.node_of(self._driver.keys)

    def last_given(self) -> int:
        """Return the last id that a dropped tube gave here."""
        key = self._keys.named("last")
        stored = self.read(lambda tx: self._hub.nodes.ask(self._keys, "HGET", key, "task")) or b""
        return int(stored) if _LAST.fullmatch(stored) else 0

    def listen(self) -> None:
        """Somebody begins to wait in the host's queue, for tasks or for room, or is still waiting."""
        self._hub.listener.on_wait()

    # Examining

    def checks(self, features: FeaturesOf, *, deep: bool) -> Iterable[Check]:
        """What ``tubes.doctor`` looks at: this tube. The catalogue and the sessions are the host's."""
        return checks_of_tubes(self, lambda tube: ALL.features, deep=deep)

    def tubes(self, tx: Any) -> Sequence[TubeRecord]:
        """This one alone, as it is in Redis, unless it was dropped."""
        is_there = self._host.read(lambda own: self._host.has_tube(own, self._tube))
        return [replace(self._tube, id=self._driver.number)] if is_there else []

    def after_of(self, tube: int) -> int:
        """Nobody knows which ids a tube has given that has lost its next one: see ``open.lua``."""
        return self.clock.now_ms()

    def remove_dropped(self, tube: TubeRecord, gave: Any) -> None:
        super().remove_dropped(tube, gave)

        def remove(tx: Any) -> None:
            tx.begin()
            self._host.remove_tube(tx, self._tube)

        self._host.transact(remove)


_LAST = re.compile(rb"[0-9]{1,15}")
"""As queue.lua reads it."""


def _check_server(url: str) -> None:
    """Raise StoreUnavailable if the server does not answer, or refuses the password."""
    nodes = Nodes(parsed(url)[0], PATIENCE)
    nodes.open()
    nodes.close()


def _with_password(url: str) -> str:
    if url in _given:
        return _given[url]
    password = os.environ.get(PASSWORD)
    if password is None:
        return url
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")  # many versions of redis-py decode the query twice
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))
