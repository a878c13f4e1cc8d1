"""Which of our errors stand for which of SQLite's, where no disk of a test's has them."""

from __future__ import annotations

import sqlite3

import pytest
from tubes.drivers.sql.sqlite_errors import translated

import tubes


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (sqlite3.SQLITE_IOERR_SHMMAP, "cannot share memory"),  # as on some file systems of FUSE
        (sqlite3.SQLITE_IOERR_WRITE, "quota"),
        (sqlite3.SQLITE_IOERR, "the disk cannot be read or written"),
    ],
)
def test_an_io_error_is_told_by_what_failed(code: int, said: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    found = translated(error, "it")
    assert isinstance(found, tubes.StoreUnavailable) and said in str(found)
