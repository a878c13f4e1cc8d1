"""Which of our errors stand for which of SQLite's, where no disk of a test's has them."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec, module_from_spec

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


def test_a_module_in_the_place_of_sqlite3_need_not_name_or_tell_extended_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As pysqlite3 does not, which brings a newer SQLite than the system's."""
    for name, code in [*vars(sqlite3).items()]:
        if name.startswith("SQLITE_") and code > 0xFF:
            monkeypatch.delattr(sqlite3, name)
    spec = find_spec("tubes.drivers.sql.sqlite_errors")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    error = sqlite3.IntegrityError("CHECK constraint failed: tubes_task_has_tube")
    error.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT
    assert isinstance(module.translated(error, "it"), tubes.NoSuchTube)
