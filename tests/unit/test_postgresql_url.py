"""What a PostgreSQL URL may say of our own, checked before anybody connects."""

from __future__ import annotations

import pytest

import tubes


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://nowhere.invalid/db?dead_after=soon", "dead_after"),
        ("postgresql://nowhere.invalid/db?dead_after=0", "dead_after"),
        ("postgresql://nowhere.invalid/db?pooled=perhaps", "pooled"),
        ("postgresql://nowhere.invalid/db?pooled=yes&pooled=no", "pooled"),
        ("postgresql+asyncpg://nowhere.invalid/db", "url"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(url: str, named: str) -> None:
    with pytest.raises(tubes.BadOption) as refused:
        tubes.connect(url)
    assert refused.value.option == named
