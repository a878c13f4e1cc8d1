"""A SQLite that is too old is tested by its number alone: the Python that runs this has a newer one."""

from __future__ import annotations

import pytest
from tubes.drivers.sql.sqlite import check_version

import tubes


@pytest.mark.parametrize("found", [(3, 7, 15), (3, 34, 1), (3, 34, 999), (2, 99, 0)])
def test_a_sqlite_that_is_too_old_is_refused_by_its_number(found: tuple[int, ...]) -> None:
    version = ".".join(map(str, found))
    with pytest.raises(tubes.StoreUnavailable, match=rf"SQLite is {version}, but tubes needs 3\.35\.0"):
        check_version(found)


@pytest.mark.parametrize("found", [(3, 35, 0), (3, 100, 0), (4, 0, 0)])
def test_one_that_is_new_enough_is_taken(found: tuple[int, ...]) -> None:
    check_version(found)
