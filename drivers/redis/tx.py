"""A step at a Redis store, as the drivers see it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .scripts import Argument, Script

if TYPE_CHECKING:
    from .driver import RedisDriver
    from .store import RedisStore


class RedisTx:
    """One step. It is no transaction: each script is one by itself.

    ``in_order``: until its end nobody else's step is done in that tube.
    """

    __slots__ = ("_held", "_store", "looked")

    def __init__(self, store: RedisStore, *, in_order: bool = False) -> None:
        self._store = store
        self._held: list[threading.RLock] | None = [] if in_order else None
        self.looked: dict[int, int | None] = {}
        """What ``look`` has found for tubes during this call: when time does something next."""

    def begin(self) -> None:
        """Keep one order for all tubes: a step that begins a transaction may run no script, each of which is one."""
        if self._held is not None:
            self._held.append(self._store.hold(self._store))

    def end(self) -> None:
        """The next one may come."""
        while self._held:
            self._held.pop().release()

    def write(self, driver: RedisDriver, script: Script, given: Sequence[Argument], most: int = 0) -> Any:
        """Run a script of a tube, once.

        ``most``: how many tasks it may answer with. The server is given time for these, and for the arguments.
        """
        if self._held is not None:
            self._held.append(self._store.hold(driver))
        return self._store.run(driver, script, given, most, is_repeatable=False)

    def read(self, driver: RedisDriver, script: Script, given: Sequence[Argument], most: int = 0) -> Any:
        """Run one that only reads, again where its answer is lost."""
        return self._store.run(driver, script, given, most, is_repeatable=True)
