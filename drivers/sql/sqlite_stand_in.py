"""A connection to nothing, for what an application's listeners on all engines do to new ones, or at BEGIN.

In the middle of a transaction SQLite refuses some of that, such as a BEGIN. The rest, such as another
``synchronous``, must not reach a store's own connection. But the functions and collations that listeners
define are passed on to it, for the statements that follow there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any


class StandIn(sqlite3.Connection):
    """Stands in for ``other``, and passes functions and collations on to it."""

    other: sqlite3.Connection

    def create_function(self, *given: Any, **named: Any) -> None:
        self.other.create_function(*given, **named)

    def create_aggregate(self, *given: Any, **named: Any) -> None:
        self.other.create_aggregate(*given, **named)

    def create_window_function(self, *given: Any, **named: Any) -> None:
        self.other.create_window_function(*given, **named)

    def create_collation(self, *given: Any, **named: Any) -> None:
        self.other.create_collation(*given, **named)


@contextmanager
def standing_in(other: sqlite3.Connection) -> Iterator[StandIn]:
    """A stand-in for that connection, for a moment."""
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=StandIn)) as stand_in:
        stand_in.other = other
        yield stand_in
