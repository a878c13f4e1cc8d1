"""A queue in memory, on a clock that the tests advance, for what does not depend on a driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tubes
from tubes.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> Iterator[tubes.Queue]:
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        yield queue
