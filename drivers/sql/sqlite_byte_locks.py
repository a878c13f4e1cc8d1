"""Locks on bytes of a file that belong to an open descriptor, and which process has one. For Linux.

A POSIX lock belongs to the process, and never conflicts with another of that process. A descriptor's does.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

ARE_KNOWN = hasattr(fcntl, "F_OFD_SETLK")
"""Whether the system has such locks."""

_FLOCK = struct.Struct("hhqqi0q")
"""C's ``struct flock``, with its padding. On 32 bits, too, Python is built for files beyond 2 GB: offsets have 64."""


class Lock(NamedTuple):
    """A lock: its first byte, and the process that has it, as far as this one can see it."""

    first: int
    process: int


class LocksUnsupported(Exception):
    """The system, or the file system, has no such locks."""


def set_lock(fd: int, kind: int, first: int, size: int) -> bool:
    """Lock or unlock these bytes for this descriptor; return False if another is known to have them."""
    if ARE_KNOWN:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, first, size, 0))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            pass
    return True


def lock_on(fd: int, first: int, size: int = 1) -> Lock | None:
    """Return a lock on any of these bytes, whoever has it; ``size`` 0: up to the end. May raise LocksUnsupported."""
    if not ARE_KNOWN:
        raise LocksUnsupported
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, size, 0)
    try:
        kind, _, start, _, process = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    except OSError as error:
        raise LocksUnsupported from error
    return None if kind == fcntl.F_UNLCK else Lock(start, process)


def has_locks(fd: int, process: int, first: int) -> bool:
    """Tell whether a process has locks on bytes from ``first`` on; False if the system does not tell."""
    try:
        while lock := lock_on(fd, first, 0):
            if lock.process == process:
                return True
            first = max(lock.first, first) + 1
    except LocksUnsupported:
        pass
    return False
