"""What all queues of a process with one URL share: waiters, counts, the listener, and pools of connections."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from tubes.errors import StoreUnavailable
from tubes.stats import Counts
from tubes.waiting import Waiters

from ..watch import BEATS
from .postgresql_listener import Beat, Listener
from .postgresql_pool import Pool
from .postgresql_temporary import empty_temporary
from .postgresql_wire import Wire
from .statements import Statement


class Server(NamedTuple):
    """Where a queue is. ``what``: the database, as messages name it. ``pooled``: as for ``Wire``."""

    conninfo: str
    what: str
    namespace: str
    dead_after: float
    pooled: bool | None


class Shared:
    """One for each server. The last queue that leaves closes all.

    Enter the lock in guarded work only: a signal's handler may open or close a queue.
    """

    _all: ClassVar[weakref.WeakValueDictionary[Server, Shared]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _pid: ClassVar[int] = os.getpid()

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pooled = server.pooled
        self.counts = Counts()
        self.waiters = Waiters(self._on_wait)
        self._pools: dict[tuple[str, float], Pool] = {}
        self._listener: Listener | None = None
        """There is one as long as a queue is open."""

    @classmethod
    def of(cls, server: Server) -> Shared:
        """The one for a server; in a forked child never the parent's."""
        if cls._pid != os.getpid():  # another thread of the parent may have held the lock
            cls._lock, cls._all, cls._pid = threading.Lock(), weakref.WeakValueDictionary(), os.getpid()
        with cls._lock:
            shared = cls._all.get(server)
            if shared is None:
                shared = cls._all[server] = Shared(server)
            return shared

    def pool(self, durability: str, busy_timeout: float) -> Pool:
        """The connections that are set up like that."""
        open = partial(self._open, durability, busy_timeout)
        with self._lock:
            pool = Pool(open, busy_timeout, self._server.what)
            return self._pools.setdefault((durability, busy_timeout), pool)

    def enter(self, busy_timeout: float, beat: Beat, with_ready: Sequence[Statement]) -> Listener:
        """A queue is open: return the listener, which calls ``beat`` from now on."""
        server = self._server
        with self._lock:
            if self._listener is None:
                every = server.dead_after / BEATS
                # else a silent network would last as long as it takes to be taken for dead
                connect = partial(self._connect, "off", busy_timeout, silent_for=every)
                try:
                    listener = Listener(connect, server.namespace, self.waiters, every, with_ready)
                    listener.start()
                except (OSError, RuntimeError) as error:  # out of file descriptors, or of threads
                    raise StoreUnavailable(f"cannot listen to {server.what}: {error}") from error
                self._listener = listener
            self._listener.beats.add(beat)
            return self._listener

    def leave(self, beat: Beat) -> list[Callable[[], None]]:
        """A queue is closed, or could not be opened: return what ends what nobody uses any more."""
        with self._lock:
            ends: list[Callable[[], None]] = []
            if self._listener is not None:
                self._listener.beats.discard(beat)
                if self._listener.beats:
                    return ends
                ends.append(self._listener.stop)
            ends += [pool.close for pool in self._pools.values()]
            self._listener, self._pools = None, {}
            return ends

    def _on_wait(self) -> None:
        if self._listener is not None:
            self._listener.on_wait()

    def _open(self, durability: str, busy_timeout: float) -> Wire:
        """Open a connection for use."""
        wire = self._connect(durability, busy_timeout)
        try:
            if self._listener is not None:  # the tables are there, and the server may have been restarted
                empty_temporary(wire, self._server.namespace)
        except BaseException:
            wire.close()
            raise
        return wire

    def _connect(self, durability: str, busy_timeout: float, *, silent_for: float | None = None) -> Wire:
        """``silent_for``: seconds that libpq waits for a silent server, by default ``dead_after``."""
        conninfo, what, _, dead_after, _ = self._server
        silent, third = silent_for or dead_after, max(int(dead_after / BEATS), 1)
        patience = (
            f"tcp_user_timeout={milliseconds(silent)} keepalives_idle={third} keepalives_interval={third}"
        )
        if "PGCONNECT_TIMEOUT" not in os.environ:
            patience += " connect_timeout=10"
        wire = Wire(
            f"{patience} {conninfo}",  # the user's own come last, and win
            what,
            durability,
            pooled=self._pooled,
            lock_timeout=milliseconds(busy_timeout),
        )
        self._pooled = wire.pooled
        return wire


def milliseconds(seconds: float) -> str:
    """A wait as the server is told it; never 0, which means for ever."""
    return str(max(int(seconds * 1000), 1))
