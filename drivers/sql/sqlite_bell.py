"""How a commit reaches consumers that wait in other processes: a board in shared memory, and a bell.

A process whose threads wait for tasks, or for room, *arms* its slot of the board, which says what they wait
for, and sleeps at its bell, a local datagram socket. A process that commits tasks picks as many armed slots
as there are tasks and rings for those processes alone. One that is called and no longer wants the task calls
the next. It is the same with room.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from tubes.clock import pause, real_monotonic
from tubes.waiting import Key

SLOTS = 1024
"""A connection's slot is its number modulo this. Of two that share one, at worst one is woken in vain, or
only by its floor."""

_WORDS = struct.Struct("<QQQ")
_WORD = 2**64
_INSTANT = struct.Struct("<d")
_ALL_ALIVE_AT = SLOTS * (1 + _WORDS.size)
BOARD_SIZE = _ALL_ALIVE_AT + _INSTANT.size
"""Bytes: one per slot, whether it is armed; then three words per slot: for what, connection, and bell;
then when all connections were last seen alive."""

FLOOR = 0.15
"""Seconds after which a waiting process that nobody has called looks by itself."""

SHORT_FLOOR = 0.002
"""The same if the system has no such sockets."""

_NOBODY, _ARMED, _CALLED = 0, 1, 2


class Board:
    """The processes that sleep and want to be called, in memory that all processes on a file share.

    They read it there, but write to the file. A write to memory waits while a file system is frozen, for a
    snapshot, and would stop all threads of Python meanwhile; and where it cannot be done, as on a disk that
    is gone or on a full btrfs, it kills the process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, BOARD_SIZE, prot=mmap.PROT_READ)
        self._writing = threading.RLock()  # a descriptor that is closed meanwhile may be another file's next
        self._start = 0

    def arm(self, connection: int, bell: int, keys: Iterable[Key]) -> None:
        """Ask to be called for these keys, at this bell."""
        bits = 0
        for key in keys:
            bits |= 1 << key % 64
            if bits == _WORD - 1:  # all are set, and thousands of keys may follow
                break
        slot = connection % SLOTS
        self._write_words(slot, bits, connection, bell)
        self._mark(slot, _ARMED)

    def disarm(self, connection: int) -> None:
        """Nobody waits here any more."""
        self._mark(connection % SLOTS, _NOBODY)

    def called(self, connection: int) -> Key | None:
        """Return what this connection was called for, once for each call; None if it was not."""
        slot = connection % SLOTS
        if self._memory[slot] != _CALLED:
            return None
        word = self._read(slot)[0]
        self._mark(slot, _NOBODY)
        return word if word < _WORD // 2 else word - _WORD

    def call(self, key: Key, count: int, is_alive: Callable[[int], bool], own: set[int]) -> list[int]:
        """Call up to ``count`` connections that wait for ``key``; return their bells, for the caller to ring.

        The search begins behind the slot called last, so that the same ones do not always do the work.
        """
        if self._memory.find(b"\1", 0, SLOTS) < 0:
            return []
        found: list[int] = []
        for slot in self._armed():
            bits, connection, bell = self._read(slot)
            if connection in own or not bits >> key % 64 & 1:
                continue
            if not is_alive(connection):
                self._mark(slot, _NOBODY)
                continue
            self._write_words(slot, key % _WORD, connection, bell)
            self._mark(slot, _CALLED)
            self._start = slot + 1
            found.append(bell)
            if len(found) == count:
                break
        return found

    def all_lived(self, at: float) -> None:
        """Note that all connections were seen alive at this instant of the host's monotonic clock."""
        self._write(_ALL_ALIVE_AT, _INSTANT.pack(at))

    def have_all_just_lived(self) -> bool:
        """Whether anybody noted that within half a floor; a note from before a reboot does not count."""
        (at,) = _INSTANT.unpack_from(self._memory, _ALL_ALIVE_AT)
        return bool(0 <= real_monotonic() - at < FLOOR / 2)

    def close(self) -> None:
        """Neither read nor write any more; the descriptor may be closed then."""
        with self._writing:
            self._fd = -1
            self._memory.close()

    def _armed(self) -> list[int]:
        slots = []
        for first, last in ((self._start, SLOTS), (0, self._start)):
            slot = self._memory.find(b"\1", first, last)
            while slot >= 0:
                slots.append(slot)
                slot = self._memory.find(b"\1", slot + 1, last)
        return slots

    def _read(self, slot: int) -> tuple[int, int, int]:
        word, connection, bell = _WORDS.unpack_from(self._memory, SLOTS + slot * _WORDS.size)
        return word, connection, bell

    def _write_words(self, slot: int, word: int, connection: int, bell: int) -> None:
        self._write(SLOTS + slot * _WORDS.size, _WORDS.pack(word, connection, bell))

    def _mark(self, slot: int, how: int) -> None:
        self._write(slot, bytes((how,)))

    def _write(self, at: int, what: bytes) -> None:
        """Write this unless it is there. If the disk refuses it, waiters look by themselves."""
        if self._memory[at : at + len(what)] != what:
            with self._writing, suppress(OSError):
                os.pwrite(self._fd, what, at)


class Bell:
    """Sleeps until it is rung by its number, or by ``stir``."""

    def __init__(self) -> None:
        self.number = secrets.randbits(64)
        self._socket = _bound(_address(self.number))

    def wait(self) -> bool:
        """Sleep until rung, for the floor at most; tell whether it was rung."""
        if self._socket is None:
            pause(SHORT_FLOOR)
            return False
        try:
            return bool(self._socket.recv(1))
        except OSError:  # TimeoutError is one
            return False

    def stir(self) -> None:
        """Make a wait in another thread return, now or the next time."""
        ring(self.number)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def ring(bell: int) -> None:
    """Wake whoever sleeps at a bell, if anybody does. If this fails, the sleeper still has its floor."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(b"\1", _address(bell))


def _address(bell: int) -> str:
    """An address in Linux's abstract namespace: no file, gone with its process, and nobody can guess it."""
    return f"\0tubes-{bell:016x}"


def _bound(address: str) -> socket.socket | None:
    if not sys.platform.startswith("linux"):
        return None
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bell.bind(address)
    except OSError:
        bell.close()
        return None
    bell.settimeout(FLOOR)
    return bell
