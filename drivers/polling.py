"""A thread that sleeps in a poll, what wakes it, and whether there are polls."""

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from tubes.interrupts import guarded


def check_poll() -> None:
    """Raise RuntimeError where eventlet has taken ``select.poll`` away."""
    if not hasattr(select, "poll"):
        raise RuntimeError(
            "a queue on a server needs select.poll, which monkey patching by eventlet removes: gevent keeps it"
        )


class WakePipe:
    """A pipe to register in the poll. Any thread may set it, even while it is being closed."""

    def __init__(self) -> None:
        self._closing = threading.Lock()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read

    def set(self) -> None:
        """End the current sleep, or the next one as soon as it begins."""
        with self._closing, suppress(OSError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Empty the pipe; call this before looking for the reason."""
        with suppress(BlockingIOError):
            os.read(self._read, 65536)

    def close(self) -> None:
        """Call this when the thread has ended."""
        with self._closing:  # else somebody may write into the next file that gets this number
            os.close(self._write)
            os.close(self._read)
            self._write = -1


class PollingThread(ABC):
    """Has a thread that runs from ``start`` to ``stop`` and includes ``_wake_pipe`` in its polls."""

    def __init__(self) -> None:
        self._is_over = False
        self._wake_pipe = WakePipe()
        self._thread = threading.Thread(target=self._run, name="tubes-listener", daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """What the thread does, until it ``_is_over``."""

    def start(self) -> None:
        try:
            guarded(self._thread.start)
        except BaseException:
            self._is_over = True  # after a greenlet's timeout the thread may yet begin
            if self._thread.is_alive():  # a signal handler has raised
                self.stop()
            else:
                self._wake_pipe.close()
            raise

    def stop(self) -> None:
        """End the thread, and wait for it unless it is the caller."""
        self._is_over = True
        self._wake_pipe.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._wake_pipe.close()
