"""Where a tube's tasks are: in the queue's own store, or in another that only the tube's driver knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tubes.driver import Driver, TubeRecord, TubeType
from tubes.errors import StoreError, StoreUnavailable, store_works
from tubes.interrupts import guarded
from tubes.registry import find_driver
from tubes.store import Store

T = TypeVar("T")


def place_of(store: Store, tube: TubeRecord, driver: Driver) -> Place:
    """The place of a tube's tasks, as its driver says."""
    if getattr(driver, "is_hosted", False):
        return HostedPlace(store, tube, driver)
    return (OrderedPlace if hasattr(store, "longest_wait") else Place)(store, tube, driver)


class Place:
    """In the queue's own store."""

    def __init__(self, store: Store, tube: TubeRecord, driver: Driver) -> None:
        self._store = store
        self._tube = tube
        self._driver = driver
        self.is_realised: bool = isinstance(find_driver(tube.type), TubeType)
        """Whether the driver is the store's own. Only such a one opens a transaction itself, when needed."""
        self._check: Callable[[], None] | None = getattr(driver, "check_reachable", None)
        self.is_apart: bool = self._check is not None
        """Whether it may be unreachable by itself, which must not affect other tubes."""
        self._server: Callable[[], Hashable] = getattr(driver, "waits_for", lambda: None)
        self.is_transactional: bool = getattr(driver, "transactional", True)
        """Whether a call may be part of a transaction over several calls."""
        self.reconnects: bool = store.reconnects
        """Whether it may come back by itself when it is unreachable, so that waiting calls go on waiting."""

    def fails_alone(self, error: StoreError) -> bool:
        """Whether an error must not affect other tubes: the place is unreachable, or its data is damaged."""
        return self.is_apart or store_works(error)

    @property
    def server(self) -> Hashable:
        """The server that calls here wait for, if it may hang by itself; ``None``: the queue's store's."""
        return self._server()

    def check_reachable(self) -> None:
        """Raise StoreUnavailable if another call has just waited for this place in vain."""
        if self._check is not None:
            self._check()

    def start(self) -> None:
        """Start the driver."""
        guarded(self._store.transact, self._driver.start)

    def transact(self, step: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run a driver's step and commit it; see ``Store.transact``. Call it within guarded work."""
        return self._store.transact(step if self.is_realised else _begun(step), on_commit)

    def read(self, look: Callable[[Any], T]) -> T:
        """Read the committed tasks."""
        return self._store.read(look)

    def has_tube(self, tx: Any) -> bool:
        """Whether the tube is still in the queue's catalogue. Called within ``read``."""
        return self._store.has_tube(tx, self._tube)

    def strangers(self) -> set[str]:
        """Unknown sessions that may hold tasks here, but for those that the queue's store finds itself."""
        return set()

    def as_part(self, work: Callable[[Any], T]) -> Callable[[Any], T]:
        """The driver's work in a form that fits into a transaction, or a read, of the queue's store."""
        return work

    def forked(self) -> None:
        """Called in a forked child: a thread of the parent's may have held a lock."""


class OrderedPlace(Place):
    """Where commits have no order of their own: calls on a tube with callbacks wait for the one before."""

    def __init__(self, store: Store, tube: TubeRecord, driver: Driver) -> None:
        super().__init__(store, tube, driver)
        self._in_order = threading.RLock()
        self._longest: Callable[[], float] = getattr(store, "longest_wait", lambda: threading.TIMEOUT_MAX)

    def transact(self, step: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        if on_commit is None:
            return self._do(step)
        self._store.refresh()  # what is closed is not waited for
        longest, in_order = self._longest(), self._in_order  # which a fork in the middle replaces
        if not in_order.acquire(timeout=longest):
            raise StoreUnavailable(
                f"tube {self._tube.name!r}: waited {longest:g} s for an earlier call to finish"
            )
        try:
            done = self._do(step)
            on_commit(done)
            return done
        finally:
            in_order.release()

    def _do(self, step: Callable[[Any], T]) -> T:
        return super().transact(step)

    def forked(self) -> None:
        self._in_order = threading.RLock()


class HostedPlace(OrderedPlace):
    """In a store of the driver's own, so that its steps need no ``tx``.

    The steps run outside the transactions of the queue's store: those may be run again after a step is done,
    and nobody should wait for a lock that is held while the other server hangs. Only a new tube is made
    within such a transaction, so that its entry in the catalogue and its space exist together or not at all.
    """

    def __init__(self, store: Store, tube: TubeRecord, driver: Driver) -> None:
        super().__init__(store, tube, driver)
        self.is_apart = self.reconnects = True
        self.is_transactional = False
        self._server = getattr(driver, "waits_for", lambda: tube.id)
        self._longest = getattr(driver, "longest_wait", lambda: threading.TIMEOUT_MAX)

    def start(self) -> None:
        guarded(self._driver.start, None)

    def _do(self, step: Callable[[Any], T]) -> T:
        self._store.refresh()
        return step(None)

    def read(self, look: Callable[[Any], T]) -> T:
        self._store.refresh()
        return guarded(look, None)

    def has_tube(self, tx: Any) -> bool:
        return self._store.read(lambda own: self._store.has_tube(own, self._tube))  # tx is None here

    def strangers(self) -> set[str]:
        holders = self.read(getattr(self._driver, "holders", lambda tx: ()))
        held = {session for session in holders if session is not None}  # that would mean everybody's tasks
        known = self._store.read(self._store.known_sessions) if held else ()
        return held.difference(known)  # read last: one may just have begun

    def as_part(self, work: Callable[[Any], T]) -> Callable[[Any], T]:
        """Do the work now; what becomes part of the transaction only returns its result."""
        done = self.read(work)
        return lambda tx: done

    def forked(self) -> None:
        super().forked()
        getattr(self._driver, "forked", lambda: None)()


def _begun(step: Callable[[Any], T]) -> Callable[[Any], T]:
    """The step, in a transaction that is opened before the step does anything."""

    def begun(tx: Any) -> T:
        tx.begin()
        return step(tx)

    return begun
