"""A step in a Redis store, as the drivers see it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .scripts import Argument, Script

if TYPE_CHECKING:
    from .driver import RedisDriver
    from .runner import Runner


class RedisTx:
    """One step. It is no transaction: each script is one by itself.

    ``in_order``: until it ends, no other such step is done in that tube.
    """

    __slots__ = ("_held", "_store", "looked")

    def __init__(self, store: Runner, *, in_order: bool = False) -> None:
        self._store = store
        self._held: list[threading.RLock] | None = [] if in_order else None
        self.looked: dict[int, int | None] = {}
        """What ``look`` has found for tubes during this call: when something is next due there."""

    def begin(self) -> None:
        """Keep one order for all tubes.

        A step of a driver that is not the store's own begins so, since it may run no script, and only a
        script keeps the order of its tube.
        """
        if self._held is not None:
            self._held.append(self._store.hold(self._store))

    def end(self) -> None:
        """Let the next step go on."""
        while self._held:
            self._held.pop().release()

    def write(self, driver: RedisDriver, script: Script, given: Sequence[Argument], most: int = 0) -> Any:
        """Run a script of a tube, once.

        ``most``: how many tasks it may answer with. The server is given time for these, and the arguments.
        """
        if self._held is not None:
            self._held.append(self._store.hold(driver))
        return self._store.run(driver, script, given, most, is_repeatable=False)

    def read(self, driver: RedisDriver, script: Script, given: Sequence[Argument], most: int = 0) -> Any:
        """Run one that only reads, again if its answer is lost."""
        return self._store.run(driver, script, given, most, is_repeatable=True)
