"""Which parameters of a test are left to the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """All values; those that are not among ``kept`` are left to the slow tests."""
    kept = list(kept)
    return [value if value in kept else pytest.param(value, marks=pytest.mark.slow) for value in values]
