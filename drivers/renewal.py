"""How a store is closed, and how one that was open when its process forked is opened again in the child."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from tubes.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tubes.interrupts import check_thread
from tubes.stats import Counts
from tubes.waiting import Waiters


class Renewable(ABC):
    """The part of ``tubes.store.Store`` that is about its life cycle."""

    waiters: Waiters
    counts: Counts

    def __init__(self) -> None:
        self._is_closed = False
        self._is_stale = False
        """Whether what is open is the parent process's, or could not be opened again after a fork."""
        self._left = False
        self._renewing = threading.RLock()
        self._is_renewing = False
        self._failed: StoreUnavailable | None = None
        """Why the last attempt to open it again failed."""
        self._is_unwanted = False
        """Whether a signal handler closed it in the very thread that was opening it again."""

    @abstractmethod
    def _open(self) -> None:
        """Open all that is needed, and begin a session."""

    @abstractmethod
    def _leave(self) -> None:
        """End this connection's part in its session."""

    @abstractmethod
    def _close(self) -> None:
        """Close all that is open."""

    def refresh(self) -> None:
        check_thread()
        if self._is_closed:
            raise StoreUnavailable("this queue is closed")
        if self._is_stale:
            self._renew_in_turn()

    def _renew_in_turn(self) -> None:
        """Let one thread, whose own calls get through, open the store again; others wait for the outcome."""
        failed = self._failed
        with self._renewing:
            if self._is_stale and not self._is_renewing:
                if self._failed is not failed:  # the first thread has waited for the server on behalf of all
                    raise StoreUnavailable(str(self._failed)) from self._failed
                self._is_renewing = True
                try:
                    self._renew()
                except StoreUnavailable as error:
                    self._failed = error
                    raise
                finally:
                    self._is_renewing = False
                if self._is_unwanted:
                    self._close()
        if self._is_closed:
            raise StoreUnavailable("this queue is closed")

    def _renew(self) -> None:
        self._left = False
        self._open()
        self._is_stale = False  # only now: another thread must not use what is the parent's

    def leave(self) -> bool:
        if self._is_closed or self._left or self._is_stale:
            return False
        self._left = True
        try:
            self._leave()
        except StoreError as error:  # others rescue what it could not give back
            return isinstance(error, OutcomeUnknown)
        return True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with self._renewing:  # another thread may be opening it again, and would leave that open
            self._is_unwanted = self._is_renewing
            is_open = not (self._is_stale or self._is_renewing)
        if is_open:
            self._close()

    def tidy(self) -> None:  # noqa: B027  # the SQL stores do something
        """There is nothing to tidy."""

    def before_fork(self) -> None:  # noqa: B027  # only SQLite's does something
        """Nothing needs to stop: a child never touches its parent's connections."""

    def after_fork(self) -> None:  # noqa: B027  # as before_fork
        """Nothing was stopped."""

    def forked(self) -> None:
        self._is_stale = True
        self._renewing, self._is_renewing = threading.RLock(), False  # the parent's lock may be held
        self.waiters, self.counts = Waiters(), Counts()
