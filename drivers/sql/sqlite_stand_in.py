"""A connection to nothing, for what an application's listeners on all engines do to new ones, or at BEGIN.

In the middle of a transaction SQLite refuses some of that, such as a BEGIN. The rest, such as another
``synchronous``, must not reach a store's own connection. But the functions and collations that listeners
define are passed on to it, for the statements that follow there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

PASSED_ON = ("create_function", "create_aggregate", "create_window_function", "create_collation")


class StandIn(sqlite3.Connection):
    """Unlike sqlite3's own, it has attributes of its own."""


@contextmanager
def standing_in(other: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A stand-in for that connection, for a moment."""
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=StandIn)) as stand_in:
        vars(stand_in).update({name: getattr(other, name) for name in PASSED_ON})
        yield stand_in
