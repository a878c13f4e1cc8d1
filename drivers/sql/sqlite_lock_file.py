"""A SQLite file's lock file: by it, connections prove that they live, and processes call each other.

It lies beside the database (``tasks.db-tubes``; other namespaces have their own). Each connection holds a
POSIX lock on one byte of it for as long as its process lives: that is its proof of life, gone at once with
the process, even if a forked child lives on. Closing any descriptor of that file would drop all locks of this
process, so it is opened once. Before those bytes lies the board by which processes wake each other, see
``sqlite_bell``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from tubes.clock import real_monotonic
from tubes.waiting import Key

from .sqlite_bell import BOARD_SIZE, Board, ring
from .sqlite_byte_locks import LocksUnsupported, has_locks, lock_on

LIVES = 1 << 20
"""Where the bytes that prove life begin in the lock file: connection n holds byte LIVES + n."""

MOST = 1 << 62
"""No connection has such a number, unless the file is damaged; much larger ones have no byte to lock."""


class LockFile:
    """Proof of life, and the bell; the file gets the permissions of ``like``.

    There is one object for each process, database and namespace. Two may be on one file: for a moment, while
    one is being closed, or for long, if the database alone was deleted and made again, or this library was
    imported twice. As the locks belong to the process, neither may drop those of the other.
    """

    _all: ClassVar[weakref.WeakSet[LockFile]] = weakref.WeakSet()
    _counting: ClassVar[Any] = threading.RLock()
    """Held while one is added or closed, twins are looked for, or others are called."""
    _kept: ClassVar[list[tuple[int, Board]]] = []
    """What could not be closed, since another copy of this library in this process holds proofs on it."""

    def __init__(self, path: str, like: str | None = None) -> None:
        self.path = path
        self._like = like
        self._held: set[int] = set()
        self._mine = 0
        """The connection whose slot of the board is this process's."""
        self._is_closed = False
        self._left_behind: list[tuple[int, Board]] = []
        self._open()
        with self._counting:
            self._all.add(self)

    def _twins(self) -> list[LockFile]:
        """The others of this process that are on the same file."""
        others = [other for other in list(self._all) if other is not self and not other._is_closed]
        if not others:  # the usual case, and this runs for each connection
            return []
        status = os.fstat(self._fd)
        return [other for other in others if os.path.samestat(os.fstat(other._fd), status)]

    def _open(self) -> None:
        """Open the file; if that fails, nothing has changed.

        A symbolic link in its place is not followed, as SQLite follows none to its log, and a file with a
        second name is not used. Otherwise anybody with write access to the folder could have any file of this
        user's created, lengthened and written into.
        """
        with self._counting:
            for kept in self._kept:
                if _is_same(self.path, kept[0]):
                    self._kept.remove(kept)
                    self._fd, self.board = kept
                    return
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        is_new = True
        try:
            fd = os.open(self.path, how | os.O_EXCL, 0o666)
        except FileExistsError:
            fd = os.open(self.path, how, 0o666)
            is_new = False
        try:
            if is_new and self._like is not None:
                _allow_as(self._like, fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(
                    errno.EINVAL, "the lock file is not a regular file, or has a hard link", self.path
                )
            if status.st_size < BOARD_SIZE + 1:
                _make_room(fd, BOARD_SIZE + 1)
            board = Board(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self.board = fd, board

    def renew(self) -> None:
        """Take all locks again, on a new file if the old one is gone."""
        if not _is_same(self.path, self._fd):
            old = self._fd, self.board
            self._open()
            self._left_behind.append(old)  # other threads may be using it just now
        for connection in list(self._held):
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LIVES + connection)

    def hold(self, connection: int) -> None:
        """Prove that this connection lives, from now until the process ends or lets go."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LIVES + connection)
        self._held.add(connection)
        self.board.disarm(self._mine)
        self._mine = connection

    def let_go(self, connection: int) -> None:
        """End the proof."""
        with self._counting:
            self._held.discard(connection)
            if self._is_closed:
                return
            if not any(connection in twin._held for twin in self._twins()):
                _let_go(self._fd, connection)
            if connection == self._mine:  # others call the armed connection only if it lives
                self.board.disarm(connection)
                self._mine = next(iter(self._held), 0)

    def is_alive(self, connection: int) -> bool:
        """Tell whether the process of a connection lives: it has a lock."""
        if connection in self._held:
            return True
        if not 0 < connection < MOST:
            return False
        try:
            return lock_on(self._fd, LIVES + connection) is not None
        except LocksUnsupported:
            return self._is_locked(connection)

    def _is_locked(self, connection: int) -> bool:
        """The same if the system does not tell: try to lock it. A process's own locks do not stop it."""
        with self._counting:
            if any(connection in twin._held for twin in self._twins()):
                return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LIVES + connection)
        except OSError:
            return True
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, LIVES + connection)
        return False

    def are_all_alive(self, connections: Iterable[int]) -> bool:
        """Tell whether these connections, which are all there are, live; if so, note that on the board."""
        at = real_monotonic()
        if not all(map(self.is_alive, connections)):
            return False
        self.board.all_lived(at)
        return True

    def have_all_just_lived(self) -> bool:
        """Tell whether somebody noted that so recently that a process which looks regularly need not look."""
        return self.board.have_all_just_lived()

    def arm(self, bell: int, keys: Iterable[Key]) -> None:
        """Ask to be called for these keys, at this bell."""
        self.board.arm(self._mine, bell, keys)

    def disarm(self) -> None:
        """Nobody waits in this process."""
        self.board.disarm(self._mine)

    def called(self) -> Key | None:
        """Return what this process was called for, once for each call; None if it was not."""
        return self.board.called(self._mine)

    def call(self, key: Key, count: int) -> None:
        """Wake up to ``count`` other processes that wait for ``key``."""
        try:
            with self._counting:  # else another thread may unmap the memory in the middle of it
                bells = self.board.call(key, count, self.is_alive, self._held)
        except (OSError, ValueError):  # another thread has closed it meanwhile: waiters look by themselves
            return
        for bell in bells:
            ring(bell)

    def close(self) -> None:
        """Close the file, or leave that to a twin: closing it would end all of this process's proofs."""
        with self._counting:
            twins = self._twins()
            self._is_closed = True
            opened = [*self._left_behind, (self._fd, self.board)]
            self._fd = -1  # another file may get this number next
            if twins:
                twins[0]._left_behind += opened
                return
            for connection in self._held:
                _let_go(opened[-1][0], connection)
            if has_locks(opened[-1][0], os.getpid(), LIVES):
                self._kept.append(opened.pop())
            for fd, board in opened:
                board.close()
                os.close(fd)

    @classmethod
    def forget_all(cls) -> None:
        """In a forked child: forget the parent's."""
        cls._all = weakref.WeakSet()
        cls._kept = []
        cls._counting = threading.RLock()


class InMemoryLocks:
    """In place of the lock file, for a database in memory: no other process uses it, and its users live."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def hold(self, connection: int) -> None:
        self._held.add(connection)

    def let_go(self, connection: int) -> None:
        self._held.discard(connection)

    def is_alive(self, connection: int) -> bool:
        return connection in self._held

    def call(self, key: Key, count: int) -> None:
        """There are no other processes."""


def _let_go(fd: int, connection: int) -> None:
    """End the proof. A system that is out of locks cannot; it then ends with the file or the process."""
    with suppress(OSError):
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, LIVES + connection)


def _is_same(path: str, fd: int) -> bool:
    """Tell whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def _allow_as(path: str, fd: int) -> None:
    """Let the same users use a file as another, as SQLite does with its own files beside a database."""
    status = os.stat(path)
    with suppress(OSError):  # some file systems have no such rights
        os.fchmod(fd, status.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(fd, status.st_uid, status.st_gid)


def _make_room(fd: int, size: int) -> None:
    """Give a file that size, with blocks: a hole could not be written on a full disk, and nobody would be called."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.pwrite(fd, b"\0", size - 1)
