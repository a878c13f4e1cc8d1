"""Wakes a thread that sleeps in a poll."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Stir:
    """A pipe to be registered in the poll. Any thread sets it, also while it is being closed."""

    def __init__(self) -> None:
        self._closing = threading.Lock()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """What the poll looks at."""
        return self._read

    def set(self) -> None:
        """End the sleep, or the next one at once."""
        with self._closing, suppress(OSError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Take note of it, before looking for the reason."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)

    def close(self) -> None:
        """To be called when the thread has ended."""
        with self._closing:  # else somebody may write into what has this number next
            os.close(self._write)
            os.close(self._read)
            self._write = -1
