"""The servers of a store, one or a Cluster's nodes: which of them has a key, and the connections to each."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.retry import Retry

from tubes.clock import real_monotonic
from tubes.errors import BadOption, OutcomeUnknown, StoreUnavailable, suggestion

from ..retries import MOST_LOSSES, Lost, pause_after
from .scripts import Argument, Keys
from .urls import KNOWN, Address, Sentinels, described, no_url, sentinels_of
from .wire import NOT_NOW, Refused, Wire, only_reads

T = TypeVar("T")
Cursor = tuple[Address | None, bytes]
"""How far a scan has come: the node, and the cursor there."""

MOST_IDLE = 16
"""Idle connections to a node that are kept at most."""

KEEPALIVE = {
    getattr(socket, option): value
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
}
"""Seconds after which an idle connection shows that it is in use, else a router may forget it; and so on."""

UNFIT = (TypeError, ValueError, OverflowError, AttributeError, LookupError, ImportError)
"""What redis-py raises for a URL's option that does not exist, or cannot have its value: an object, say."""

ANSWERED = (*NOT_NOW, Lost, Refused)
"""Errors after which no answer is on its way."""

LEAST = 0.1
"""Seconds that a node is given to answer at least, however many more are to be asked."""

AWAY_FOR = 5.0
"""Seconds for which a server that did not answer is asked only what a caller waits for."""


class Away(dict[tuple[str, Address | None], float]):
    """Until when servers, or nodes of Clusters, count as away; one that answers is taken out."""

    def note(self, what: str, address: Address | None) -> None:
        self[what, address] = real_monotonic() + AWAY_FOR

    def check(self, what: str, address: Address | None) -> None:
        """Raise StoreUnavailable if it did not answer a moment ago.

        Asked before work that no caller waits for: else each tube there would cost a wait.
        """
        if real_monotonic() < self.get((what, address), 0.0):
            raise StoreUnavailable(f"{what} cannot be used: it did not answer a moment ago")


class Nodes:
    """``patience``: seconds to wait for a server, or for a Cluster that moves slots.

    ``away``: where to note a server that does not answer. If not given, only a Cluster's nodes are noted.
    """

    def __init__(self, url: str, patience: float, away: Away | None = None) -> None:
        self.what = described(url)
        self._away = Away() if away is None else away
        self._notes_silence = away is not None
        self.patience = patience
        self.longest = patience + 1
        """Seconds to wait for an answer, except to a large batch."""
        url, self._sentinels = sentinels_of(url)
        self.primary: Address | None = None
        """The one that Sentinels named last, if there are any."""
        self._class, self._settings = _connecting(url)
        self._home: Address | None = None
        self._idle: dict[Address | None, list[Wire]] = {}
        self._slots: dict[int, Address] = {}
        self._replicas: set[Address] = set()
        self._is_closed = False
        self.is_cluster = False

    def open(self) -> None:
        """Find out what the URL names, or raise StoreUnavailable."""

        def look(wire: Wire) -> None:
            self.is_cluster = wire.info("cluster").get("cluster_enabled") == "1"
            if self.is_cluster:
                self._notes_silence = True
                if "path" in self._settings or self._sentinels:
                    raise BadOption(
                        "a node of a Cluster needs redis://host:port or rediss://, not a socket's path or Sentinels",
                        option="url",
                    )
                self._home = self._settings.get("host", "localhost"), int(self._settings.get("port", 6379))
                self._learn_slots(wire)

        try:
            self.call(None, look, is_repeatable=True)
        except BaseException as error:
            self.close()
            if isinstance(error, Refused):
                raise StoreUnavailable(f"{self.what} refused: {error}") from error
            raise

    def each(self, use: Callable[[Wire], T]) -> list[T]:
        """Use a connection to every server, for repeatable work; skip a Cluster's nodes that are away."""
        answers = []
        for address in self._all():
            try:
                self._away.check(self.what, address)
                answers.append(self.call(None, use, is_repeatable=True, at=address))
            except StoreUnavailable:
                if not self.is_cluster:
                    raise
        return answers

    def check_reachable(self, keys: Keys) -> None:
        """See ``Away.check``, for the node that has these keys."""
        if self._away:
            self._away.check(self.what, self.node_of(keys))

    def node_of(self, keys: Keys | None) -> Address | None:
        """Which node of a Cluster has these keys, as far as is known; ``None``: it is no Cluster."""
        if not self.is_cluster or keys is None:
            return self._home
        return self._slots.get(key_slot(keys.tag.encode())) or self._home

    def scan(self, pattern: str, after: Cursor | None, count: int) -> tuple[list[bytes], Cursor | None]:
        """Look at about ``count`` keys; return those that match, and where to go on, ``None`` at the end."""
        nodes = self._all()
        address, cursor = after or (nodes[0], b"0")
        cursor, keys = self.ask(None, "SCAN", cursor, "MATCH", pattern, "COUNT", count, at=address)
        if cursor != b"0":
            return keys, (address, cursor)
        further = [node for node in nodes if address is not None and node is not None and node > address]
        return keys, (further[0], b"0") if further else None

    def _all(self) -> list[Address | None]:
        """The one server, or the Cluster's nodes that have slots."""
        return [*sorted(set(self._slots.values()))] if self.is_cluster else [None]

    def call(
        self,
        keys: Keys | None,
        use: Callable[[Wire], T],
        *,
        is_repeatable: bool,
        at: Address | None = None,
        within: float | None = None,
    ) -> T:
        """Use a connection to the node that has these keys, or to the one ``at`` that address.

        ``within``: seconds after which a missing answer counts as lost, if that is sooner than usual.
        OutcomeUnknown when the connection is lost in the middle, unless ``use`` may be repeated, and then is.
        StoreUnavailable when there is no connection; Refused when the server says no.
        """
        tries = losses = 0
        patience = self.longest if within is None else min(within, self.longest)
        until = real_monotonic() + min(patience, self.patience)
        while True:
            tries += 1
            address = at or self.node_of(keys)
            idle = self._idle.setdefault(address, [])
            try:
                wire = self._borrow(idle, address, patience)
                try:
                    wire.patience = patience
                    answer = use(wire)
                except ANSWERED:
                    raise
                except BaseException:
                    wire.close()  # an answer may be on its way, which the next call would take for its own
                    raise
                finally:
                    self._give_back(idle, address, wire)
                if self._away:
                    self._away.pop((self.what, address), None)
                return answer
            except NOT_NOW as error:
                failure: Exception = error
                self.heed(error, address)
                if isinstance(error, exceptions.ClusterDownError):  # or that node has left the Cluster
                    self._look_round(address, patience)
            except Lost as error:
                failure = error
                losses += 1
                self._forget_idle(address)
                self.note_away(address, until)
                if error.was_sent and not is_repeatable:
                    raise OutcomeUnknown(f"{self.what}: the connection died: {error}") from error
                if self.is_cluster:
                    self._look_round(address, patience)
                elif losses >= MOST_LOSSES and self._sentinels is None:  # which may name another
                    raise StoreUnavailable(f"{self.what} cannot be used: {error}") from error
            if real_monotonic() > until:
                self.note_away(address, until)
                node = f"node {_shown(address)}: " if address else ""  # the URL may name another
                raise StoreUnavailable(f"{self.what} cannot be used: {node}{failure}") from failure
            if tries > 1:
                pause_after(tries)

    def ask(self, keys: Keys | None, *command: Argument, at: Address | None = None) -> Any:
        """Return the answer to a command that only reads; where it is sent: see ``call``."""
        return self.call(keys, lambda wire: wire.command(*command), is_repeatable=True, at=at)

    def connect(self, keys: Keys, patience: float) -> Wire:
        """Open one more connection to that node, which the caller keeps; Lost if that fails.

        It waits no longer than ``patience`` seconds for an answer.
        """
        return self._connect(self.node_of(keys), min(patience, self.patience))

    def follow(self, patience: float) -> None:
        """Ask Sentinels, if there are any, whether there is another primary, within so many seconds.

        The former one may go on answering for ten seconds, and forgets it all when it is made a replica.
        """
        if self._sentinels is not None:
            with suppress(Lost):
                self._primary(self._sentinels, min(patience, self.patience))

    def note_away(self, address: Address | None, until: float) -> None:
        """Note that a node is away, if ``until`` has passed without its answer."""
        if self._notes_silence and real_monotonic() > until:
            self._away.note(self.what, address)

    def heed(self, error: Exception, address: Address | None) -> None:
        """Note which node has a slot, if the error says so, or that this one is no longer a master."""
        if isinstance(error, exceptions.MovedError):
            self._slots[int(error.slot_id)] = (error.host or self._home_host(), int(error.port))
        if only_reads(error):
            self._forget_idle(address)

    def close(self) -> None:
        """End all connections; those in use are ended when they are given back."""
        self._is_closed = True
        for address in list(self._idle):
            self._forget_idle(address)

    def _borrow(self, idle: list[Wire], address: Address | None, patience: float) -> Wire:
        while idle:
            try:
                wire = idle.pop()
            except IndexError:
                break
            if wire.is_idle:
                return wire
            wire.close()
        try:
            return self._connect(address, patience)
        except Refused as error:
            raise StoreUnavailable(f"{self.what} cannot be used: {error}") from error

    def _connect(self, address: Address | None, patience: float) -> Wire:
        """Open a connection that waits so many seconds for an answer."""
        if self._sentinels is None:
            return self._open(self._settings, address, patience)
        primary = self._primary(self._sentinels, min(patience, self.patience))
        wire = self._open(self._settings, primary, patience)
        try:
            if wire.info("replication").get("role") == "master":
                return wire
        except Lost as error:
            raise Lost(str(error), was_sent=False) from error
        except BaseException:
            wire.close()
            raise
        wire.close()
        raise Lost(f"{_shown(primary)} is a replica", was_sent=False)  # a Sentinel may not know that yet

    def _open(self, settings: dict[str, Any], address: Address | None, patience: float) -> Wire:
        settings = settings | {
            "socket_timeout": patience,
            "socket_connect_timeout": min(patience, self.patience),
        }
        if address is not None:
            settings |= {"host": address[0], "port": address[1]}
        try:
            return Wire(self._class(**settings), patience)
        except NOT_NOW:
            raise
        except OSError as error:  # redis-py reads its version from a file each time, and may open none
            raise Lost(str(error), was_sent=False) from error
        except (exceptions.RedisError, *UNFIT) as error:
            said = str(error)
            if unknown := re.search(r"unexpected keyword argument '(\w+)'", said):
                said = f"there is no option {unknown[1]!r}{suggestion(unknown[1], (), KNOWN)}"
            elif isinstance(error, UNFIT):  # before 8, redis-py takes some unchecked
                said = f"an option has an invalid value ({said})"
            raise BadOption(f"bad store URL: {said}", option="url") from error

    def _primary(self, sentinels: Sentinels, patience: float) -> Address:
        """Ask Sentinels where the primary is; Lost if none of them tells within so many seconds."""
        settings, said = self._settings | {"db": 0, **sentinels.login}, []
        patience = max(patience / len(sentinels.addresses), LEAST)
        for address in sentinels.addresses:
            try:
                wire = self._open(settings, address, patience)
                try:
                    told = wire.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)
                finally:
                    wire.close()
            except (Lost, Refused, exceptions.RedisError) as error:
                said.append(f"{_shown(address)} says: {error}")
                continue
            if told:
                former, self.primary = self.primary, (told[0].decode(), int(told[1]))
                if former not in (None, self.primary):
                    self._forget_idle(None)
                # This one is asked first from now on
                others = [other for other in sentinels.addresses if other != address]
                self._sentinels = sentinels._replace(addresses=(address, *others))
                return self.primary
            said.append(f"{_shown(address)} knows no {sentinels.name!r}")
        raise Lost(f"no Sentinel names the primary: {', '.join(said)}", was_sent=False)

    def _give_back(self, idle: list[Wire], address: Address | None, wire: Wire) -> None:
        """Keep a connection, unless others of the list that it was borrowed from were found to be useless."""
        if wire.is_lost or len(idle) >= MOST_IDLE or idle is not self._idle.get(address):
            wire.close()
        else:
            idle.append(wire)
        if self._is_closed:
            self._forget_idle(address)

    def _forget_idle(self, address: Address | None) -> None:
        """Close the connections there: one was lost, or the node is a replica now; these may be no better.

        Those in use are closed when they are given back.
        """
        idle = self._idle.pop(address, [])
        with suppress(IndexError):
            while True:
                idle.pop().close()

    # A Cluster

    def _home_host(self) -> str:
        return self._home[0] if self._home is not None else ""

    def _learn_slots(self, wire: Wire) -> bool:
        """Note who has which slots, unless that node knows none: it has left the Cluster, or starts empty."""
        slots: dict[int, Address] = {}
        replicas: set[Address] = set()
        for first, last, *nodes in wire.command("CLUSTER", "SLOTS"):
            master, *others = [
                ((host or b"").decode() or self._home_host(), int(port)) for host, port, *_ in nodes
            ]
            slots.update(dict.fromkeys(range(first, last + 1), master))
            replicas.update(others)
        if slots:
            self._slots, self._replicas = slots, replicas
        return bool(slots)

    def _look_round(self, lost: Address | None, patience: float) -> None:
        """Ask other nodes who has that one's slots: masters, then replicas, which may have taken over.

        If none of them answers, this takes about as long as one connection may take that is not made.
        """
        masters = {*self._slots.values(), self._home} - {lost}
        others = [*masters, *self._replicas - masters]
        each = max(min(patience, self.patience) / max(len(others), 1), LEAST)
        for address in others:
            try:
                wire = self._connect(address, each)
                try:
                    if self._learn_slots(wire):
                        return
                finally:
                    wire.close()
            except (Lost, Refused, exceptions.RedisError):
                continue


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _connecting(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    """What a connection is made of, by a URL: redis-py's class and settings. BadOption for an unfit URL."""
    try:
        # with its default, 3, redis-py adds settings that 2 does not know if hiredis is not installed
        pool = ConnectionPool.from_url(url, protocol=2)
    except UNFIT as error:  # all its messages but one may show a part of the password
        if unfit := re.match(r"Invalid value for \W(\w+)\W in connection URL", str(error)):
            raise _unfit(unfit[1]) from None
        raise no_url() from None
    except exceptions.RedisError as error:
        raise BadOption(f"bad store URL: {error}", option="url") from error
    kind: Any = pool.connection_class
    if not isinstance(kind, type):
        raise _unfit("connection_class")
    settings: dict[str, Any] = pool.connection_kwargs | {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
    }
    if not settings.keys() & {"lib_name", "lib_version"}:
        settings |= _client_info()
    if issubclass(kind, Connection):  # by TCP; redis-py does so itself since 8
        settings = {"socket_keepalive": True, "socket_keepalive_options": KEEPALIVE} | settings
    if issubclass(kind, SSLConnection):
        # redis-py 6.0 would check the host's name even if no certificate is required, which Python refuses
        settings.setdefault("ssl_check_hostname", settings.get("ssl_cert_reqs") != "none")
        # else OpenSSL asks for the password on the terminal, and waits
        settings.setdefault("ssl_password", "")
    return kind, settings


def _unfit(option: str) -> BadOption:
    return BadOption(f"bad store URL: {option!r} has an invalid value", option="url")


@cache
def _client_info() -> dict[str, Any]:
    """What a server is told of redis-py. Made once: looking up its version for each connection takes 2 ms."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # before 7.2
        return {}
    try:
        return {"driver_info": DriverInfo()}
    except OSError as error:  # as when no more files can be opened
        raise StoreUnavailable(f"redis-py cannot be used: {error}") from error
