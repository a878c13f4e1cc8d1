"""Cuts a forked child off from its parent's connections: nothing that it does on them reaches the server.

A child may be in the middle of a call on one, if a signal handler forked there or the program forked in a
transaction. Whatever the child sends or waits for then meets a closed connection; the parent's stays open.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from typing import Protocol


class HasSocket(Protocol):
    """A connection to a server. Once it is closed, ``fileno`` raises."""

    def fileno(self) -> int: ...


_connections: weakref.WeakKeyDictionary[HasSocket, int] = weakref.WeakKeyDictionary()
"""The connections, and the process that made each."""

_ended: list[tuple[int, os.stat_result]] = []
"""The descriptor of a socket whose other end is closed: a child gets it in place of each inherited socket."""

_inherited: list[HasSocket] = []
"""In a child, the parent's connections. They are kept so that nothing closes them: a thread that the child
does not have may have been in the middle of using one."""


def keep_from_children(connection: HasSocket) -> None:
    """Cut a connection off in each child forked from now on. OSError if no descriptor is available."""
    if not _is_ended_open():
        ended, other = socket.socketpair()
        other.close()
        _ended[:] = [(fd := ended.detach(), os.fstat(fd))]  # it stays open until the process ends
    _connections[connection] = os.getpid()


def _is_ended_open() -> bool:
    """Whether there is that socket. A program that became a daemon may have closed all that was open."""
    with suppress(OSError):
        return any(os.path.samestat(os.fstat(fd), made) for fd, made in _ended)
    return False


def cut_off() -> None:
    """Cut this child off from its parent's connections. Call it before the last reference to one may go."""
    for connection, process in list(_connections.items()):
        if process == os.getpid():  # made in this child, by a hook of the program that ran before this one
            continue
        del _connections[connection]
        _inherited.append(connection)
        with suppress(Exception):  # it is closed
            os.dup2(_ended[0][0], connection.fileno(), inheritable=False)


os.register_at_fork(after_in_child=cut_off)
