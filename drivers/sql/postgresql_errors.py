"""Turns PostgreSQL's errors into ours, in one place."""

from __future__ import annotations

from tubes.errors import (
    BadOption,
    Conflict,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TubeError,
)

from .postgresql_wire import FAILED_BEFORE, LOST_CODES, READ_ONLY, TOO_LARGE, Refused
from .statements import SESSION_ENDED, SNAPSHOT_TOO_OLD

RETRIED = ("40001", "40P01")
"""Serialization failure, deadlock: the transaction was rolled back, and may succeed now."""

UNIQUE = "23505"
"""Such a row is there already."""

LOCK_NOT_AVAILABLE = "55P03"
"""A lock could not be had within ``lock_timeout``."""

_UNAVAILABLE = {
    "53000": "it has run out of resources",
    "53100": "the disk is full",
    "53200": "the server is out of memory",
    "53300": "it has too many connections",
    "58030": "its disk cannot be read or written",
    READ_ONLY: "it is read-only",
    "0A000": "it does not support this; it may be a standby",
    "28000": "access is denied",
    "28P01": "access is denied",
    "42501": "access is denied",
    "3D000": "there is no such database",
}

_NO_MORE_LOCKS = ("max_locks_per_transaction", "out of shared memory")
"""Signs of a full lock table: in hints, in every language, and in messages, for drivers without hints."""

_NO_MORE_NUMBERS = ("VACUUM", "wraparound")
"""Signs that a server has run out of transaction ids, since old rows were not vacuumed."""


def translated(error: Refused, what: str) -> TubeError:
    """Return the error of our tree for a statement that the server refused."""
    if error.code in RETRIED:
        return Conflict(f"{what}: a conflict with others: roll the transaction back and try again ({error})")
    if error.code == SESSION_ENDED:
        return Conflict(f"{what}: this session has ended: roll the transaction back and try again")
    if error.code == SNAPSHOT_TOO_OLD:
        return BadOption(
            "a transaction that changes a sub-queue must be READ COMMITTED, not REPEATABLE READ or SERIALIZABLE",
            option="connection",
        )
    if error.code == FAILED_BEFORE:
        return StoreError(f"{what}: this transaction has already failed, and can only be rolled back")
    if error.code == LOCK_NOT_AVAILABLE:
        return StoreBusy(f"{what}: could not get a lock in time ({error})")
    if error.code == "57014":  # its statement_timeout, or pg_cancel_backend
        return StoreBusy(f"{what}: the server ended the statement ({error})")
    if error.code in LOST_CODES:
        return StoreUnavailable(f"{what}: the connection was lost: {error}")
    if error.code == "53200" and any(sign in str(error) for sign in _NO_MORE_LOCKS):
        return StoreUnavailable(
            f"{what} cannot lock more: all transactions together may change some max_locks_per_transaction times "
            "max_connections sub-queues, 6,400 by default. Work in smaller batches, or set its "
            f"max_locks_per_transaction higher ({error})"
        )
    if error.code in _UNAVAILABLE:
        return StoreUnavailable(f"{what} cannot be used: {_UNAVAILABLE[error.code]} ({error})")
    if error.code in ("42P01", "42703", "42883", "3F000"):
        return SchemaMismatch(
            f"{what} does not have the tables of this version: run `tubes migrate` ({error})"
        )
    if error.code == "22P05":
        return StoreError(
            f"{what}: its encoding cannot represent all characters of the payload or of the utube: {error}"
        )
    if error.code == TOO_LARGE and any(sign in str(error) for sign in _NO_MORE_NUMBERS):
        return StoreUnavailable(f"{what} cannot be used: it must be vacuumed first ({error})")
    if error.code in (TOO_LARGE, "22001", "54001"):
        return StoreError(f"the payload is larger than {what} can store: {error}")
    if error.code == UNIQUE:  # a sequence is behind, after a restore; or the table is the user's
        return StoreError(f"{what}: {error} (`tubes doctor --fix` repairs that in the queue's tables)")
    return StoreError(f"{what}: {error}")
