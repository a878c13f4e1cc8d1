"""What all queues of one process on one SQLite file share: its lock file, those who wait, and who listens for them."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, ClassVar

from tubes.clock import pause
from tubes.errors import StoreError, StoreUnavailable
from tubes.stats import Counts
from tubes.waiting import Waiters

from .sqlite_bell import FLOOR, Bell
from .sqlite_lives import LockFile

NAP = 0.001
"""Seconds that the listener leaves the interpreter to the consumer that it has woken."""


class SharedFile:
    """One a process and file; every queue on the file holds it. See the module."""

    _all: ClassVar[dict[tuple[int, int, str], SharedFile]] = {}
    _all_lock: ClassVar[threading.Lock] = threading.Lock()
    _torn: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, path: str, key: tuple[int, int, str]) -> None:
        self.path = path
        self.key = key
        namespace = key[2]
        self.locks = LockFile(f"{path}-tubes" if namespace == "tubes" else f"{path}-tubes-{namespace}", path)
        self.counts = Counts()
        self.waiters = Waiters(self._on_wait, self._on_nobody)
        self.joined: weakref.WeakSet[Any] = weakref.WeakSet()
        """Transactions of users in which this process has written."""
        self._users = 0
        self._listener: threading.Thread | None = None
        self._bell: Bell | None = None
        self._wanted = threading.Event()
        self._is_over = False
        self._db: sqlite3.Connection | None = None
        self._version = -1
        self._asking = threading.RLock()
        self._checks: list[Callable[[], bool]] = []

    @classmethod
    def open(cls, path: str, namespace: str) -> SharedFile:
        """Return the one of this file, which must exist, and of the tables of this namespace."""
        with cls._all_lock:
            status = os.stat(path)
            key = (status.st_dev, status.st_ino, namespace)
            shared = cls._all.get(key)
            if shared is None:
                shared = cls._all[key] = SharedFile(path, key)
            shared._users += 1
            return shared

    @classmethod
    def is_any_open(cls) -> bool:
        """Tell whether there is a queue on any file."""
        return bool(cls._all)

    @classmethod
    def is_open(cls, path: str) -> bool:
        """Tell whether there is a queue on this file."""
        file = _file_at(path)
        return any(key[:2] == file for key in list(cls._all))

    def add_check(self, check: Callable[[], bool]) -> None:
        """While consumers wait, ``check`` is asked at every floor whether a session may have ended."""
        self._checks.append(check)

    def remove_check(self, check: Callable[[], bool]) -> None:
        with suppress(ValueError):
            self._checks.remove(check)

    def holds_lock(self) -> bool:
        """Tell whether this thread has the file's write lock in a transaction of the user's."""
        thread = get_ident()
        return any(tx.is_open and tx.thread == thread for tx in list(self.joined))

    def is_in_place(self) -> bool:
        """Tell whether the database is still the file that its path leads to."""
        return _file_at(self.path) == self.key[:2]

    def prove_life(self) -> None:
        """Take the locks of this process again."""
        with self._all_lock:
            if not self._is_over:
                self.locks.renew()

    def release(self) -> None:
        """One queue less; the last one closes it."""
        with self._all_lock:
            self._users -= 1
            if self._users:
                return
            self._all.pop(self.key, None)
        self._is_over = True
        self._wanted.set()
        if self._bell is not None:
            self._bell.stir()
        if self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join()
        with self._all_lock:  # so that nobody opens the file between a look for others and its end
            self.locks.close()

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child: the parent's objects stay open, but are not ours."""
        cls._all = {}
        cls._all_lock = threading.Lock()
        LockFile.forget_all()

    # Around a fork

    def park(self) -> None:
        """Close the listener's connection, and keep it from opening another."""
        self._asking.acquire()
        if self._db is not None:
            self._db.close()
            self._db = None

    def unpark(self) -> None:
        """Let the listener go on."""
        self._asking.release()

    @classmethod
    def tear(cls, path: str) -> None:
        """In a forked child: the parent had this file in use, so it cannot be used here."""
        file = _file_at(path)
        if file is not None:
            cls._torn.add(file)

    @classmethod
    def check_whole(cls, path: str) -> None:
        """Raise StoreUnavailable for a file that was in use when this process was forked."""
        if cls._torn and _file_at(path) in cls._torn:
            raise StoreUnavailable(
                f"SQLite file {path} cannot be used in this process: it was forked while a transaction "
                "was open on the file; fork before it, or start a new program"
            )

    # Listening to other processes

    def _on_wait(self) -> None:
        if self._is_over:
            return
        if self._bell is not None:
            self._arm(self._bell)
        self._wanted.set()
        if self._listener is None:
            with self._all_lock:
                if self._listener is None:
                    try:
                        self._bell, self._listener = self._started()
                    except (OSError, RuntimeError) as error:  # no descriptor, or no thread, can be had
                        raise StoreUnavailable(
                            f"nobody can wait for SQLite file {self.path}: {error}"
                        ) from error

    def _started(self) -> tuple[Bell, threading.Thread]:
        bell = Bell()
        try:
            self._arm(bell)
            listener = threading.Thread(target=self._listen, args=(bell,), name="tubes-listener", daemon=True)
            listener.start()
        except BaseException:
            bell.close()
            raise
        return bell, listener

    def _on_nobody(self) -> None:
        if not self._is_over:
            self.locks.disarm()

    def _arm(self, bell: Bell) -> None:
        self.locks.arm(bell.number, (key for key in list(self.waiters.line) if isinstance(key, int)))

    def _listen(self, bell: Bell) -> None:
        try:
            while not self._is_over:
                if not self.waiters:
                    self._wanted.clear()
                    if not self.waiters:
                        self._wanted.wait()
                    continue
                self._arm(bell)
                try:
                    is_news = self._has_changed()
                except sqlite3.Error:  # a passing lock, or a file that is gone: the takes will tell
                    is_news = True
                    pause(FLOOR)
                if is_news:
                    self._wake_the_first()
                if not bell.wait():
                    if self._is_death_suspected():
                        self._wake_the_first()
                    continue
                tube = self.locks.called()
                if tube is not None:
                    if self.waiters.wake(tube):
                        pause(NAP)
                    else:  # it came too late, or it is another tube of the same bit
                        self.locks.call(tube, 1)
        finally:
            with self._asking:
                if self._db is not None:
                    self._db.close()
                    self._db = None
            bell.close()

    def _is_death_suspected(self) -> bool:
        for check in list(self._checks):
            with suppress(StoreError):  # its queue is being closed, or cannot look just now
                if check():
                    return True
        return False

    def _has_changed(self) -> bool:
        """Tell whether anybody has committed since the last look."""
        with self._asking:
            if self._db is None:
                self._db = sqlite3.connect(
                    f"file:{_quoted(self.path)}?mode=ro",
                    uri=True,
                    isolation_level=None,
                    timeout=1,
                    check_same_thread=False,
                )
                self._version = -1
            last, self._version = self._version, self._db.execute("PRAGMA data_version").fetchone()[0]
            return self._version != last

    def _wake_the_first(self) -> None:
        for key in self.waiters.keys():
            self.waiters.wake_first(key)


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _file_at(path: str) -> tuple[int, int] | None:
    """What a path leads to now, by device and number."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
