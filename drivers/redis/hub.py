"""What all queues of a process on one database share: connections, waiters, counts, and the listener."""

from __future__ import annotations

import os
import threading
from typing import ClassVar, NamedTuple

from tubes.errors import StoreUnavailable
from tubes.interrupts import guarded
from tubes.stats import Counts
from tubes.waiting import Waiters

from .listener import Listener
from .nodes import Away, Nodes

HOSTED = "tubes_hosted"
"""Namespace of all tubes of the type ``redis`` on a server."""


class Server(NamedTuple):
    """Where a queue is. ``patience``: seconds to wait for its server."""

    url: str
    namespace: str
    patience: float


class Hub:
    """Made by the first queue, ended by the last."""

    _all: ClassVar[dict[Server, Hub]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _process: ClassVar[int] = os.getpid()
    away: ClassVar[Away] = Away()
    """The servers of tubes of the type ``redis`` that do not answer: a queue has a store for each tube."""

    def __init__(self, server: Server, nodes: Nodes) -> None:
        self._server = server
        self._users = 0
        self.nodes = nodes
        self.counts = Counts()
        self.waiters = Waiters(lambda: self.listener.on_wait())
        self.listener = Listener(self.nodes, server.namespace, self.waiters)

    @classmethod
    def enter(cls, server: Server) -> Hub:
        """Return the hub of that server, for one more user."""
        entered: list[Hub] = []
        try:
            guarded(cls._enter, server, None, entered)
            if not entered:
                nodes = Nodes(server.url, server.patience, cls.away if server.namespace == HOSTED else None)
                nodes.open()  # outside the lock: only its own users wait for a server that hangs
                try:
                    guarded(cls._enter, server, nodes, entered)
                except (OSError, RuntimeError) as error:  # no more descriptors, or threads, can be had
                    nodes.close()
                    raise StoreUnavailable(f"cannot listen to {nodes.what}: {error}") from error
                if entered[0].nodes is not nodes:
                    nodes.close()
            return entered[0]
        except BaseException:
            for hub in entered:  # a signal's handler has raised: this user does not count
                hub.leave()
            raise

    # Guarded, since a signal's handler may close a queue, which takes the lock

    @classmethod
    def _enter(cls, server: Server, nodes: Nodes | None, entered: list[Hub]) -> None:
        """Enter the hub of that server, if there is one; or make it, if there are nodes to make it of."""
        with cls._lock:
            hub = cls._all.get(server)
            if hub is None and nodes is not None:  # else others have been faster
                hub = cls(server, nodes)
                hub.listener.start()
                cls._all[server] = hub
            if hub is not None:
                hub._users += 1
                entered.append(hub)

    def _left(self) -> int:
        with self._lock:
            self._users -= 1
            if not self._users:
                del self._all[self._server]
            return self._users

    def leave(self) -> None:
        """One user less; the last one ends it."""
        if not guarded(self._left):
            self.listener.stop()
            self.nodes.close()

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child, drop the parent's hubs. Only the first of several calls does it."""
        if cls._process != os.getpid():
            cls._process = os.getpid()
            cls._all = {}
            cls._lock = threading.Lock()


os.register_at_fork(after_in_child=Hub.forget_all)  # also one that a thread has not given to a store yet
