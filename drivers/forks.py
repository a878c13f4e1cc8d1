"""What a forked child has of its parent's connections to a server: nothing that it does on them comes there.

A child may be in the middle of a call on one: a signal's handler has forked there, or the program has, in a
transaction. Whatever is sent or waited for there meets the end of the connection, and the parent's goes on.
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
"""And the process that made each."""

_ended: list[int] = []
"""The descriptor of what a child gets in the place of each socket: its other end is closed."""

_inherited: list[HasSocket] = []
"""The parent's, in a child: closed by nobody, since a thread that is not there may have been in the middle of it."""


def keep_from_children(connection: HasSocket) -> None:
    """Cut a connection off in each child that is forked from now on. OSError where no descriptor can be had."""
    if not _ended:
        ended, other = socket.socketpair()
        other.close()
        _ended.append(ended.detach())  # it stays open until the process ends
    _connections[connection] = os.getpid()


def cut_off() -> None:
    """Cut this child off the connections of its parent. Call it before the last of them may be forgotten."""
    for connection, process in list(_connections.items()):
        if process == os.getpid():  # made by a hook of the program's that was called before this one
            continue
        del _connections[connection]
        _inherited.append(connection)
        with suppress(Exception):  # it is closed
            os.dup2(_ended[0], connection.fileno(), inheritable=False)


os.register_at_fork(after_in_child=cut_off)
