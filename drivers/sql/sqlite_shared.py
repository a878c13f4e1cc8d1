"""What all queues of one process on one SQLite file share: its lock file, the waiters, and their listener."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tubes.clock import pause, real_monotonic
from tubes.errors import StoreBusy, StoreUnavailable
from tubes.stats import Counts

from .sqlite_hold import Hold
from .sqlite_listener import Listener
from .sqlite_lock_file import LockFile
from .sqlite_writer import stays_inside
from .statements import Statements

if TYPE_CHECKING:
    from .sqlite import SqliteStore

T = TypeVar("T")

FORK_WAITS = 5.0
"""Seconds that a fork waits at most for threads that are opening files."""

NAP = 0.001
"""Seconds between two checks whether they are done."""


File = tuple[int, int]
"""Identifies a file, whatever its path: its device and its inode number there."""


class SharedFile:
    """One for each file and namespace in a process; every queue on these holds it. See the module."""

    _all: ClassVar[dict[tuple[File, str], SharedFile]] = {}
    _all_lock: ClassVar[threading.Lock] = threading.Lock()
    _unusable: ClassVar[set[File]] = set()
    """The files that were in use when this process was forked."""
    _process: ClassVar[int] = os.getpid()
    _opening: ClassVar[dict[int, str]] = {}
    """The files to which threads are opening connections that no queue knows of yet, by thread."""

    def __init__(self, path: str, file: File, namespace: str, sql: Statements) -> None:
        self.path = path
        self.file = file
        self._key = file, namespace
        self.locks = LockFile(f"{path}-tubes" if namespace == "tubes" else f"{path}-tubes-{namespace}", path)
        try:
            self.hold = Hold(path)
        except BaseException:
            self.locks.close()
            raise
        self.counts = Counts()
        self.users: list[SqliteStore] = []
        """The queues' stores. One that is opened again is in it twice until that is done."""
        self.listener = Listener(path, self.locks, sql, self.users)
        self.waiters = self.listener.waiters
        self.joined: weakref.WeakSet[Any] = weakref.WeakSet()
        """The users' own transactions that these queues have joined."""
        self._closing: set[object] = set()
        """Those users that are closing their connections."""

    @classmethod
    def open(cls, path: str, namespace: str, sql: Statements, user: SqliteStore) -> SharedFile:
        """Return the one for this file, which must exist, and for the tables of this namespace, to its user."""
        with cls._all_lock:
            key = _file_of(os.stat(path)), namespace
            shared = cls._all.get(key)
            if shared is None or not shared.is_in_place():  # its folder was renamed: its path is dead
                shared = cls._all[key] = SharedFile(path, *key, sql)
            shared.users.append(user)
            shared.hold.take()
            return shared

    @classmethod
    def is_any_open(cls) -> bool:
        """Tell whether there is a queue on any file."""
        return bool(cls._all)

    @classmethod
    def is_open(cls, path: str) -> bool:
        """Tell whether there is a queue on this file."""
        file = file_at(path)
        return any(known == file for known, _ in list(cls._all))

    def check_not_locked_here(self) -> None:
        """Raise StoreBusy if this thread has the file's write lock: a call that waits for it would wait for itself."""
        if stays_inside(self._is_locked_here):
            raise StoreBusy(
                "this thread has locked the file, and the call would wait for it: in a transaction of your own, "
                "pass connection= to the call; in a transaction of another queue on the same file, make the call "
                "before or after, or use one queue for both"
            )

    def _is_locked_here(self) -> bool:
        thread = get_ident()
        for shared in list(self._all.values()):
            if shared.file == self.file:  # in whatever namespace
                if any(user.writer.is_held_by(thread) for user in list(shared.users)):
                    return True
                if any(tx.is_open and tx.thread == thread for tx in _all_of(shared.joined)):
                    return True
        return False

    def is_in_place(self) -> bool:
        """Tell whether the database is still the file that its path leads to, as far as can be seen.

        A path that cannot be followed now may later lead to the same file again.
        """
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return _file_of(status) == self.file

    def prove_life(self) -> None:
        """Take the locks of this process again."""
        with self._all_lock:
            if not self.listener.is_over:
                self.locks.renew()

    def about_to_close(self, user: SqliteStore) -> None:
        """A queue is about to close its connections. If all are, let go, so that SQLite removes the log."""
        with self._all_lock:
            self._closing.add(user)
            if len(self._closing) == len(self.users):
                self.hold.let_go()

    def release(self, user: SqliteStore) -> None:
        """One queue leaves; the last to leave closes it."""
        with self._all_lock:
            self._closing.discard(user)
            self.users.remove(user)
            if self.users:
                return
            if self._all.get(self._key) is self:
                del self._all[self._key]
        self.listener.stop()
        with self._all_lock:  # so that nobody opens the file between the look for others and the close
            self.locks.close()
            self.hold.close()

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child: the parent's stay open, and are not ours. Calls after the first do nothing."""
        if cls._process != os.getpid():
            cls._process = os.getpid()
            cls._all = {}
            cls._all_lock = threading.Lock()
            LockFile.forget_all()
            Hold.forget_all()

    # Around a fork

    @classmethod
    @contextmanager
    def opening(cls, path: str | None) -> Iterator[None]:
        """Around the opening of this file. A fork waits for it; if in vain, its child cannot use the file."""
        thread = get_ident()
        if path is not None:
            cls._opening[thread] = path
        try:
            yield
        finally:
            cls._opening.pop(thread, None)

    @classmethod
    def before_fork(cls) -> None:
        """Wait until no other thread is opening a file, for ``FORK_WAITS`` at most."""
        until = real_monotonic() + FORK_WAITS
        while {*cls._opening} - {get_ident()} and real_monotonic() < until:
            pause(NAP)

    @classmethod
    def forked(cls) -> None:
        """In a forked child."""
        cls.forget_all()
        for path in cls._opening.values():
            cls.mark_unusable(path)
        cls._opening = {}

    @classmethod
    def mark_unusable(cls, path: str) -> None:
        """In a forked child: the parent had this file in use, so it cannot be used here."""
        file = file_at(path)
        if file is not None:
            cls._unusable.add(file)

    @classmethod
    def check_usable(cls, path: str) -> None:
        """Raise StoreUnavailable for a file that was in use when this process was forked."""
        if cls._unusable and file_at(path) in cls._unusable:
            raise StoreUnavailable(
                f"SQLite file {path} cannot be used in this process: it was forked while a transaction "
                "was open on the file; fork before it, or start a new program"
            )


# Registered by itself, since a queue that is still being opened is not yet told of forks
os.register_at_fork(before=SharedFile.before_fork, after_in_child=SharedFile.forked)


def _all_of(them: weakref.WeakSet[T]) -> list[T]:
    while True:
        with suppress(RuntimeError):  # another thread has added one, which breaks off the iteration
            return list(them)


def file_at(path: str) -> File | None:
    """What a path leads to now."""
    try:
        return _file_of(os.stat(path))
    except OSError:
        return None


def _file_of(status: os.stat_result) -> File:
    return status.st_dev, status.st_ino
