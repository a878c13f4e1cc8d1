"""A step in a Redis store, as the drivers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runner import Runner


class RedisTx:
    """One step. It is no transaction: each script is one by itself."""

    __slots__ = ("looked", "run")

    def __init__(self, store: Runner) -> None:
        self.run = store.run
        self.looked: dict[int, int | None] = {}
        """What ``look`` has found for tubes during this call: when something is next due there."""

    def begin(self) -> None:
        """Nothing to do, see above."""
