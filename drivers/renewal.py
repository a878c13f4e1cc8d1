"""How a store that was open when its process forked begins anew in the child."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Renewal:
    """One thread does it, and calls the store meanwhile; the others wait for that. Made anew in each child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_under_way = False

    def run(self, is_needed: Callable[[], bool], renew: Callable[[], None]) -> None:
        """Renew, unless another thread has done so by then."""
        with self._lock:
            if is_needed() and not self._is_under_way:
                self._is_under_way = True
                try:
                    renew()
                finally:
                    self._is_under_way = False
