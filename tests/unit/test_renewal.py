"""In a forked child: a store that was open when the process forked."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import tubes

renewal: Any = importlib.import_module("tubes.drivers.renewal")


class ClosedAsItOpens(renewal.Renewable):  # type: ignore[misc]  # imported by its name, it has no type
    """As if a signal's handler closed the queue in the middle of opening it."""

    closed = 0

    def _open(self) -> None:
        self.close()

    def _leave(self) -> None: ...

    def _close(self) -> None:
        self.closed += 1


def test_what_is_closed_as_it_is_opened_anew_is_not_used() -> None:
    store = ClosedAsItOpens()
    store.forked()
    for _ in range(2):
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            store.refresh()
    assert store.closed == 1
