"""Where a tube's tasks are: in the queue's own store, or in another that only the tube's driver knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tubes.driver import Driver, TubeRecord, TubeType
from tubes.errors import StoreError, StoreUnavailable
from tubes.interrupts import guarded
from tubes.registry import find_driver
from tubes.store import Store

T = TypeVar("T")


def place_of(store: Store, tube: TubeRecord, driver: Driver) -> Place:
    """The place of a tube's tasks, as its driver says."""
    return (Elsewhere if getattr(driver, "is_hosted", False) else Place)(store, tube, driver)


class Place:
    """In the queue's own store."""

    def __init__(self, store: Store, tube: TubeRecord, driver: Driver) -> None:
        self._store = store
        self._tube = tube
        self._driver = driver
        self.is_realised = isinstance(find_driver(tube.type), TubeType)
        """Whether the driver is the store's own. Such a one alone opens a transaction where it needs one."""
        self._check: Callable[[], None] | None = getattr(driver, "check_reachable", None)
        self.is_apart = self._check is not None
        """Whether it may be away by itself, which is not for other tubes to bear."""
        self._server: Callable[[], Hashable] = getattr(driver, "waits_for", lambda: None)
        self.is_transactional: bool = getattr(driver, "transactional", True)
        """Whether a call may be a part of a transaction over several."""
        self.reconnects = store.reconnects
        """Whether it may come back by itself when it cannot be reached, so that who waits goes on waiting."""

    def fails_alone(self, error: StoreError) -> bool:
        """Whether that is not for other tubes to bear: this place is away, or something is wrong with the tasks."""
        return self.is_apart or type(error) is StoreError

    @property
    def server(self) -> Hashable:
        """Which server calls here wait for, where it may hang by itself; ``None``: that of the queue's store."""
        return self._server()

    def check_reachable(self) -> None:
        """Raise StoreUnavailable if somebody has just waited for it in vain."""
        if self._check is not None:
            self._check()

    def start(self) -> None:
        """Start the driver."""
        guarded(self._store.transact, self._driver.start)

    def transact(self, step: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run a driver's step and commit it; see ``Store.transact``. To be called within guarded work."""
        return self._store.transact(step if self.is_realised else _begun(step), on_commit)

    def read(self, look: Callable[[Any], T]) -> T:
        """Look at the tasks that are committed."""
        return self._store.read(look)

    def has_tube(self, tx: Any) -> bool:
        """Whether the tube is still in the queue's catalogue, as asked in such a look."""
        return self._store.has_tube(tx, self._tube)

    def as_part(self, work: Callable[[Any], T]) -> Callable[[Any], T]:
        """The form in which the driver's work may be a part of a transaction, or of a look, of the queue's store."""
        return work

    def forked(self) -> None:
        """Called in a forked child: a thread of the parent's may have held a lock."""


class Elsewhere(Place):
    """In a store of the driver's own, so that its steps need no ``tx``.

    They run outside the transactions of the queue's store: these may be run again, when a step is done already, and
    nobody is to wait for a lock that is held while that other server hangs. Only a new tube is made within one, so that
    there is either an entry and what it stands for, or neither.
    """

    def __init__(self, store: Store, tube: TubeRecord, driver: Driver) -> None:
        super().__init__(store, tube, driver)
        self.is_apart = self.reconnects = True
        self.is_transactional = False
        self._server = getattr(driver, "waits_for", lambda: tube.id)
        self._in_order = threading.RLock()
        self._longest: Callable[[], float] = getattr(driver, "longest_wait", lambda: threading.TIMEOUT_MAX)

    def start(self) -> None:
        guarded(self._driver.start, None)

    def transact(self, step: Callable[[Any], T], on_commit: Callable[[T], None] | None = None) -> T:
        self._store.refresh()
        if on_commit is None:
            return step(None)
        longest = self._longest()
        if not self._in_order.acquire(timeout=longest):
            raise StoreUnavailable(
                f"tube {self._tube.name!r}: a call before this one has been under way for {longest:g} s"
            )
        try:
            done = step(None)
            on_commit(done)
            return done
        finally:
            self._in_order.release()

    def read(self, look: Callable[[Any], T]) -> T:
        self._store.refresh()
        return guarded(look, None)

    def has_tube(self, tx: Any) -> bool:
        return self._store.read(lambda own: self._store.has_tube(own, self._tube))  # tx is None here

    def as_part(self, work: Callable[[Any], T]) -> Callable[[Any], T]:
        """It is done now; the part is what came of it."""
        done = self.read(work)
        return lambda tx: done

    def forked(self) -> None:
        self._in_order = threading.RLock()
        getattr(self._driver, "forked", lambda: None)()


def _begun(step: Callable[[Any], T]) -> Callable[[Any], T]:
    """The step, in a transaction that is open before whatever it does first."""

    def begun(tx: Any) -> T:
        tx.begin()
        return step(tx)

    return begun
