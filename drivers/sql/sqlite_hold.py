"""Keeps a SQLite file's log in place while a process has it open, even if other code there closes the file.

SQLite shows by a POSIX lock on the database that a process has it open, and the last one to close it removes
the log. But such a lock is dropped as soon as *any* descriptor of the file is closed in that process: by a
copy, a checksum, an upload. The next process that opens and closes it then takes itself for the last, and
removes a log that is still written to. So we lock the same bytes once more, by a lock that belongs to one
descriptor: see docs/decisions/a-second-lock-on-the-database.md. Whoever copies the log locks the byte behind
them: see sqlite_checkpoints.py. Whoever has waited for long to write locks the next one, and so may others.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

from .sqlite_byte_locks import LocksUnsupported, lock_on, set_lock

SHARED_FIRST, SHARED_SIZE = 0x40000002, 510
"""The bytes on which SQLite shows that it has a database open (os_unix.c)."""

CHECKPOINTER = SHARED_FIRST + SHARED_SIZE
"""The byte that is locked by whoever copies the log (checkpoints). SQLite uses none of that page."""

IN_NEED = CHECKPOINTER + 1
"""The byte that is locked, as for reading, by all who have waited for the database's write lock for long."""

DESCRIPTORS = "/proc/self/fd"


class Hold:
    """A lock on a database, which SQLite in other processes sees, and the descriptor that it belongs to."""

    _all: ClassVar[weakref.WeakSet[Hold]] = weakref.WeakSet()
    _kept: ClassVar[set[int]] = set()
    """Descriptors that could not be closed, since that would drop the locks of others in this process."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: str) -> None:
        self._process = os.getpid()
        with self._lock:
            kept = _same_file(self._kept, os.stat(path))
            self._fd: int | None = kept[0] if kept else os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._kept.discard(self._fd)
        self._checkpointer: object = None
        self._in_need = 0
        """How many of this process have waited for long."""
        self._all.add(self)
        self.take()

    def take(self) -> None:
        """Hold the database; harmless if it is held already."""
        self._set(fcntl.F_RDLCK, SHARED_FIRST, SHARED_SIZE)

    def let_go(self) -> None:
        """Stop holding it: SQLite is about to close it, and looks whether anybody else has it open."""
        self._set(fcntl.F_UNLCK, SHARED_FIRST, SHARED_SIZE)

    def written(self) -> int:
        """When the database itself was last written to, in ns: only copying the log does that. 0: unknown."""
        with suppress(OSError):  # the disk has failed, as the commit will tell
            return 0 if self._fd is None else os.fstat(self._fd).st_mtime_ns
        return 0

    def claim(self, who: object) -> bool:
        """Lock the copying of the log for ``who``, since only one may do it; tell whether that worked."""
        with self._lock:
            if self._checkpointer in (None, who) and self._set(fcntl.F_WRLCK, CHECKPOINTER, 1):
                self._checkpointer = who
            return self._checkpointer is who

    def disclaim(self, who: object) -> None:
        """Leave the copying to others."""
        with self._lock:
            if self._checkpointer is who:
                self._set(fcntl.F_UNLCK, CHECKPOINTER, 1)
                self._checkpointer = None

    @contextmanager
    def in_need(self) -> Iterator[None]:
        """Show others meanwhile that somebody here has waited for long to write."""
        self._count_in_need(1)
        try:
            yield
        finally:
            self._count_in_need(-1)

    def _count_in_need(self, change: int) -> None:
        with self._lock:
            self._in_need += change
            self._set(fcntl.F_RDLCK if self._in_need else fcntl.F_UNLCK, IN_NEED, 1)

    def is_anybody_in_need(self) -> bool:
        """Tell whether somebody has waited for long to write, or that nobody can tell."""
        if self._in_need or self._fd is None:
            return True
        try:
            return lock_on(self._fd, IN_NEED) is not None
        except LocksUnsupported:
            return True

    def close(self) -> None:
        """Close the descriptor, unless somebody in this process has the file open, such as a user's connection."""
        if self._fd is None:
            return
        with self._lock:
            fd, self._fd = self._fd, None
            self._kept.add(fd)
            with suppress(OSError):  # no /proc, or a failing disk: nobody can tell who else has it open
                file = os.fstat(fd)
                ours = _same_file(self._kept, file)
                if len(_same_file(_descriptors(), file)) > len(ours):
                    return
                self._kept.difference_update(ours)
                for fd in ours:
                    os.close(fd)

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child: close our copies of the parent's descriptors; the parent keeps its locks."""
        for hold in cls._all:
            if hold._process != os.getpid() and hold._fd is not None:
                os.close(hold._fd)
                hold._fd = None
        cls._kept, cls._lock = set(), threading.Lock()

    def _set(self, kind: int, first: int, size: int) -> bool:
        """Lock or unlock these bytes; tell whether no other has them. Without such locks SQLite's must do."""
        return self._fd is None or set_lock(self._fd, kind, first, size)


def _descriptors() -> Collection[int]:
    """All descriptors that this process has open."""
    return [int(name) for name in os.listdir(DESCRIPTORS)]


def _same_file(descriptors: Collection[int], file: os.stat_result) -> list[int]:
    """Those of them that are open on this file."""
    same = []
    for fd in descriptors:
        with suppress(OSError):  # closed meanwhile
            if os.path.samestat(os.fstat(fd), file):
                same.append(fd)
    return same
