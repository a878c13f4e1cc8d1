"""Locks on bytes of a file that belong to an open descriptor, and who has a byte locked. Linux's, of 64 bits.

A POSIX lock belongs to the process, which doesn't meet its own. A descriptor meets those of its process, too.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

ARE_KNOWN = hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("l") == 8
"""Whether there are such locks, packed as here."""

_FLOCK = struct.Struct("hhllil")


class Lock(NamedTuple):
    """A lock: its first byte, and the process that has it, as far as this one can see it."""

    first: int
    process: int


class NotTold(Exception):
    """The system, or the file system, has no such locks."""


def set_lock(fd: int, kind: int, first: int, size: int) -> bool:
    """Lock these bytes for this descriptor, or let go of them; tell whether no other has them, as far as is told."""
    if ARE_KNOWN:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, first, size, 0, 0))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass
    return True


def lock_on(fd: int, first: int, size: int = 1) -> Lock | None:
    """Return a lock that is on any of these bytes, of whatever process; ``size`` 0: up to the end. May be NotTold."""
    if not ARE_KNOWN:
        raise NotTold
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, size, 0, 0)
    try:
        kind, _, start, _, process, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    except OSError as error:
        raise NotTold from error
    return None if kind == fcntl.F_UNLCK else Lock(start, process)


def has_locks(fd: int, process: int, first: int) -> bool:
    """Tell whether a process has locks on bytes from this one on; not if that is not told."""
    try:
        while lock := lock_on(fd, first, 0):
            if lock.process == process:
                return True
            first = max(lock.first, first) + 1
    except NotTold:
        pass
    return False
