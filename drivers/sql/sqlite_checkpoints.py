"""Lets one connection at a time copy a SQLite database's log into it (a checkpoint), after its own commit.

SQLite by itself does that after any commit that leaves the log long, so several processes may do it right
after one another. Up to version 3.51.2 that can corrupt the database: see
docs/decisions/one-copies-the-log.md.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .sqlite_hold import Hold

COMMITS_BETWEEN = 128
"""Commits after which SQLite may not copy the log, between two after which it may. To ask at each would cost
8 µs, when a put takes 17; so the log gets a few hundred pages longer than it would."""

REST_WITHIN = 0.05
"""Seconds that the step which copies the rest of the log waits at most for writers, and for readers."""


class Checkpoints:
    """Lets one writer copy the log after some of its commits, unless another is doing so.

    SQLite restarts the log only when all of it has been copied. If others write all the time, they have
    always added something by then. Hence two steps: first the log is copied while others go on; after the
    next commit, what they have added is copied while they wait.
    """

    def __init__(self) -> None:
        self._hold: Hold
        self._pages: int
        self._left: float = math.inf
        """Commits until the next after which the log may be copied. Without a file, that never comes."""
        self._may_copy = False
        """Whether this writer is inside ``after_commit`` and may copy, which no other may then."""
        self._seen: int | None = None
        """The ``data_version`` at the first step, which others' commits change. None: no second is due."""

    def use(self, hold: Hold, pages: int) -> None:
        """Copy the log of the database that ``hold`` holds, once it has this number of pages."""
        self._hold, self._pages = hold, pages
        self._left = 0

    def is_due(self) -> bool:
        """Called once before each commit: whether the log may be copied after it."""
        self._left -= 1
        return self._left < 0

    @contextmanager
    def after_commit(self, db: sqlite3.Connection) -> Iterator[None]:
        """Let SQLite copy the log after the commit in this block, unless another is copying it."""
        self._left = COMMITS_BETWEEN
        seen, self._seen = self._seen, None
        with self.alone() as self._may_copy:
            if not self._may_copy:
                yield
            elif seen is None:
                yield from self._copying(db)
            else:
                yield from self._copying_rest(db, seen)

    def _copying(self, db: sqlite3.Connection) -> Iterator[None]:
        """The first step: copy the log after the commit if it is long."""
        seen, written = _commits_of_others(db), self._hold.written()
        try:
            with suppress(sqlite3.Error):  # it was closed: the commit finds that, too
                db.execute(f"PRAGMA wal_autocheckpoint={self._pages}")
            yield
        finally:
            with suppress(sqlite3.Error):
                db.execute("PRAGMA wal_autocheckpoint=0")
        if self._may_copy and self._hold.written() != written:
            self._seen, self._left = seen, 0

    def _copying_rest(self, db: sqlite3.Connection, seen: int) -> Iterator[None]:
        """The second step: copy what others have added, if they have."""
        is_more = _commits_of_others(db) != seen
        yield
        if is_more and self._may_copy:
            with suppress(sqlite3.Error):
                checkpoint_all(db, "FULL", REST_WITHIN)

    def let_go(self, db: sqlite3.Connection) -> None:
        """Leave it to others while waiting for the file's lock: they commit now. The next commit is due again."""
        if self._may_copy:
            db.execute("PRAGMA wal_autocheckpoint=0")
            self._disclaim()
            self._left = 0

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep all others from copying the log meanwhile; yield whether that succeeded."""
        try:
            yield self._hold.claim(self)
        finally:
            self._disclaim()

    def _disclaim(self) -> None:
        self._may_copy = False
        self._hold.disclaim(self)


def checkpoint_all(db: sqlite3.Connection, how: str, patience: float) -> bool:
    """Copy the log to its end while nobody can write; tell if readers let it in ``patience`` seconds."""
    try:
        db.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")
        is_busy: int = db.execute(f"PRAGMA wal_checkpoint({how})").fetchone()[0]
    finally:
        db.execute("PRAGMA busy_timeout=0")
    return not is_busy


def _commits_of_others(db: sqlite3.Connection) -> int | None:
    """A number that changes whenever another connection commits."""
    with suppress(sqlite3.Error):  # closed, as above
        seen: int = db.execute("PRAGMA data_version").fetchone()[0]
        return seen
    return None
