"""Who copies the write-ahead log into a SQLite database: one connection at a time, and after a commit of its own.

SQLite does that by itself after a commit that makes the log long, and so may several processes right after one
another. Up to version 3.51.2 that can spoil the database: see docs/decisions/one-copies-the-log.md.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .sqlite_hold import Hold

COMMITS_BETWEEN = 128
"""Commits after which SQLite may not copy the log, between two after which it may. Asking for each would cost a put
8 µs of its 17; so the log is longer by a few hundred pages than it would be."""


class LogCopying:
    """Lets one writer copy the log after some of its commits, unless another does just then."""

    def __init__(self) -> None:
        self._hold: Hold | None = None
        self._pages = 0
        self._left: float = math.inf

    def use(self, hold: Hold, pages: int) -> None:
        """Copy the log of the database that is held so, from this number of pages on."""
        self._hold, self._pages = hold, pages
        self._left = 0

    def is_due(self) -> bool:
        """Asked before each commit: whether it is one after which the log may be copied."""
        self._left -= 1
        return self._left < 0

    @contextmanager
    def after_commit(self, db: sqlite3.Connection) -> Iterator[None]:
        """Let SQLite copy the log after the commit in this block, unless another may."""
        self._left = COMMITS_BETWEEN
        with self.alone() as is_alone:
            if not is_alone:
                yield
                return
            try:
                with suppress(sqlite3.Error):  # it was closed: who commits finds that, too
                    db.execute(f"PRAGMA wal_autocheckpoint={self._pages}")
                yield
            finally:
                with suppress(sqlite3.Error):
                    db.execute("PRAGMA wal_autocheckpoint=0")

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep all others from copying the log meanwhile; yield whether that could be had."""
        is_alone = self._hold is not None and self._hold.claim(self)
        try:
            yield is_alone
        finally:
            if self._hold is not None:
                self._hold.disclaim(self)
