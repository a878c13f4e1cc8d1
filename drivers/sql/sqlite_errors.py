"""Turns sqlite3's errors into ours, in one place."""

from __future__ import annotations

import re
import sqlite3

from tubes.errors import (
    NoSuchTube,
    OutcomeUnknown,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TubeError,
)

BUSY_SNAPSHOT, IOERR_FSYNC, IOERR_SHMSIZE, IOERR_SHMMAP = 517, 1034, 4874, 5386
"""SQLite's extended codes, which pysqlite3 does not name: an application may have put that in sqlite3's place."""

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged, or its disk cannot be read",  # SQLite says this for EIO, too
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened (is it a file, in a folder that exists and is writable, "
    "on a disk with room and inodes left, its name shorter than 248 bytes and its path than 505? "
    "has this process file descriptors left?)",
    IOERR_SHMMAP: "its file system cannot share memory (mergerfs can, with cache.files=partial)",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written, or has no room or quota left",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_AUTH: "access is denied",
    sqlite3.SQLITE_PROTOCOL: "its locks do not work here (is it on a network disk?)",
}

_HAS_TUBE = "_task_has_tube"
"""The end of the name of the constraint that refuses a put into a dropped tube."""

ENDED = (
    "SQLite has rolled back this transaction, or a statement in it, such as COMMIT or ROLLBACK, has ended it"
)
"""Why a transaction is over too early. SQLite does not tell which of these it was."""

_AFTER_WRITING = (IOERR_FSYNC, IOERR_SHMSIZE, IOERR_SHMMAP)
"""Errors of a commit that is complete in the log: syncing the log failed, or its index in memory cannot grow.

SQLite then forgets the commit. But if all processes that had the file open are killed, the next one reads the
log again and finds a complete commit there, unless another has overwritten it.
"""

_NOT_UTF8 = re.compile("Could not decode to UTF-8 column '(.*?)'")
"""What sqlite3 says if a file is damaged, or if somebody has stored bytes as text."""

_OTHER_TABLES = re.compile("no such (table|column)|has no column named")
"""What SQLite says of a statement for tables of another version."""


def base_code(error: sqlite3.Error) -> int:
    """The primary result code of an error, without SQLite's extensions; 0 if it is not SQLite's."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether somebody else holds the lock."""
    return base_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translated(error: sqlite3.Error | UnicodeDecodeError, what: str) -> TubeError:
    """Return our error for one of sqlite3's, which the caller sets as its ``__cause__``."""
    if isinstance(error, UnicodeDecodeError):  # SQLite quotes what is damaged, and Python cannot decode that
        said = error.object.decode(errors="replace")
        return StoreUnavailable(f"{what} cannot be used: it is damaged ({said})")
    code, base = getattr(error, "sqlite_errorcode", 0), base_code(error)
    if code == BUSY_SNAPSHOT:
        return StoreBusy(
            f"{what} was changed by others since this transaction read it, so it cannot write: "
            "roll it back and try again, or begin it with BEGIN IMMEDIATE"
        )
    if is_busy(error):
        return StoreBusy(f"{what} is locked by another connection")
    if base == sqlite3.SQLITE_CONSTRAINT and str(error).endswith(_HAS_TUBE):
        return NoSuchTube("(dropped)")
    if base == sqlite3.SQLITE_TOOBIG:
        return StoreError(f"the payload is larger than {what} can store: {error}")
    if found := _NOT_UTF8.match(str(error)):  # it goes on to show the whole value
        return StoreError(
            f"{what} has a value in column {found[1]} that is not text, see `tubes doctor --deep`"
        )
    if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
        return StoreUnavailable("this queue is closed")
    if _OTHER_TABLES.search(str(error)):
        return SchemaMismatch(
            f"{what} no longer has the tables of this version of tubes: if a newer one has upgraded them, upgrade "
            f"tubes here too ({error})"
        )
    if reason := _REASONS.get(code, _REASONS.get(base)):
        return StoreUnavailable(f"{what} cannot be used: {reason} ({error})")
    return StoreError(f"{what}: {error}")


def commit_error(error: sqlite3.Error, what: str) -> TubeError:
    """The same for an error that may come from a commit, whose outcome may then be unknown."""
    if getattr(error, "sqlite_errorcode", 0) not in _AFTER_WRITING:
        return translated(error, what)
    return OutcomeUnknown(
        f"{what} cannot be used: the disk failed in a commit ({error}); its changes are not visible now, but "
        "may reappear if every process that has the file open is killed before the next commit"
    )
