"""One thread for each SQLite file and namespace, from the first wait on: it hears what others have committed.

It sleeps at the bell that they ring to call it. As a fallback, the *floor*, it also looks at intervals
whether the file has changed, by ``PRAGMA data_version``, and whether a session has ended.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from tubes.clock import pause
from tubes.errors import StoreError, StoreUnavailable
from tubes.logs import Log
from tubes.waiting import Key, Waiters

from ..looks import Looks
from .sqlite_bell import FLOOR, Bell
from .sqlite_lock_file import LockFile
from .statements import Statements, json_ids

if TYPE_CHECKING:
    from .sqlite import SqliteStore

log = Log("tubes.sqlite")

NAP = 0.001
"""Seconds for which it leaves the interpreter to a consumer that it has woken."""


class Listener:
    """Its thread starts with the first waiter."""

    def __init__(self, path: str, locks: LockFile, sql: Statements, users: Sequence[SqliteStore]) -> None:
        self.waiters = Waiters(self._on_wait, self._on_nobody)
        self.is_over = False
        self._path = path
        self._locks = locks
        self._sql = sql
        self._users = users
        self._thread: threading.Thread | None = None
        self._entering = threading.Lock()
        """Held while a wait begins or the last one ends: what these use is not closed meanwhile."""
        self._bell: Bell | None = None
        self._wanted = threading.Event()
        self._db: sqlite3.Connection | None = None
        self._version = -1
        self._looks = Looks(self.waiters)
        self._asking = threading.RLock()

    def stop(self) -> None:
        """End the thread, and wait for it unless it is the caller."""
        with self._entering:
            self.is_over = True
        self._wanted.set()
        if self._bell is not None:
            self._bell.stir()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # Around a fork

    def park(self) -> None:
        """Close its connection, and keep it from opening another."""
        self._asking.acquire()
        if self._db is not None:
            self._db.close()
            self._db = None

    def unpark(self) -> None:
        """Let it go on."""
        self._asking.release()

    # Waiters

    def _on_wait(self) -> None:
        with self._entering:
            if self.is_over:
                return
            if self._bell is not None:
                self._arm(self._bell)
                self._wanted.set()
                return
            try:
                self._start()
            except (OSError, RuntimeError) as error:  # there is no descriptor or thread left
                raise StoreUnavailable(f"cannot wait for SQLite file {self._path}: {error}") from error

    def _start(self) -> None:
        self._bell = bell = Bell()
        try:
            self._arm(bell)
            thread = threading.Thread(target=self._run, args=(bell,), name="tubes-listener", daemon=True)
            thread.start()
            self._thread = thread
        except BaseException:  # also a greenlet's timeout, although the thread runs, or is about to
            self._bell = None
            bell.close()
            raise

    def _on_nobody(self) -> None:
        with self._entering:
            if not self.is_over:
                self._locks.disarm()

    def _arm(self, bell: Bell) -> None:
        self._locks.arm(bell.number, list(self.waiters.line))

    # The thread

    def _run(self, bell: Bell) -> None:
        try:
            while not self.is_over and self._bell is bell:
                if self.waiters:
                    try:
                        self._turn(bell)
                    except Exception:  # else its waiters would hear nothing more
                        log.exception("the listener failed, and tries again")
                        self.waiters.wake_one_each()
                        pause(FLOOR)
                    continue
                self._wanted.clear()
                if not (self.waiters or self.is_over):
                    self._wanted.wait()
        finally:
            with self._asking:
                if self._db is not None:
                    self._db.close()
                    self._db = None
            bell.close()

    def _turn(self, bell: Bell) -> None:
        """Look, wait once at the bell, and wake a waiter for the key that it rang for."""
        self._arm(bell)
        try:
            is_news = self._has_changed()
        except sqlite3.Error:  # a brief lock, or the file is gone: the takes will tell
            is_news = True
            pause(FLOOR)
        self._looks.wake(self._with_ready, is_news=is_news, rest=FLOOR)
        if not bell.wait():
            if self._is_death_suspected():
                self._looks.wake(self._with_ready, rest=FLOOR)
            return
        key = self._locks.called()
        if key is not None:
            if self.waiters.call(key):
                pause(NAP)
            else:  # its waiter has gone, or the key is another tube's with the same bit
                self._locks.call(key, 1)

    def _with_ready(self, tubes: list[Key]) -> list[Key]:
        """Those of the tubes that have a ready task, if that can be told."""
        look = self._sql.with_ready
        with self._asking, suppress(sqlite3.Error):
            if self._db is not None:
                return [key for (key,) in self._db.execute(look.text, look.bind((json_ids(tubes),)))]
        return []

    def _is_death_suspected(self) -> bool:
        for user in list(self._users):
            with suppress(StoreError):  # its queue is being closed, or cannot look just now
                if user.deaths_suspected(allow_recent=True):
                    return True
        return False

    def _has_changed(self) -> bool:
        """Tell whether anybody has committed since the last look."""
        with self._asking:
            if self._db is None:
                # It only reads, but it is closed last, and a read-only connection would leave the log behind
                self._db = sqlite3.connect(
                    f"file:{quote(os.fsencode(self._path))}?mode=rw",
                    uri=True,
                    isolation_level=None,
                    timeout=1,
                    check_same_thread=False,
                )
                self._version = -1
            last, self._version = self._version, self._db.execute("PRAGMA data_version").fetchone()[0]
            return self._version != last
