"""The queues that are open, and what becomes of them when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from tubes.interrupts import guarded

if TYPE_CHECKING:
    from tubes.queue import Queue

AFTER_ALL = -1000
"""Priority of the finalizer that closes a multiprocessing child's queues: last, as others may use them."""

_open_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


class OfOneProcess:
    """What has connections, locks and threads, and so can be neither copied nor sent to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} can be neither copied nor pickled: threads share it, and each process connects by itself"
        )


def opened(queue: Queue) -> None:
    """Look after this queue from now on, when the process forks or ends."""
    _open_queues.add(queue)


def closed(queue: Queue) -> None:
    """Look after this queue no more."""
    _open_queues.discard(queue)


def register() -> None:
    """Register the hooks for forks and for the process's end. Called once.

    What is registered last is called first, before a fork and at the end. The queues use threads and other
    modules that have hooks of their own, so ours are registered after all of these are imported.
    """
    os.register_at_fork(
        before=lambda: _with_all_open(lambda queue: queue.store.before_fork()),
        after_in_parent=lambda: _with_all_open(lambda queue: queue.store.after_fork()),
        after_in_child=lambda: _with_all_open(lambda queue: queue.forked()),
    )
    atexit.register(_at_exit)


def _all_open() -> list[Queue]:
    """The open queues, even while other threads open and close some, which breaks off a walk over the set."""
    while True:
        with suppress(RuntimeError):
            return list(_open_queues)


def _with_all_open(act: Callable[[Queue], None]) -> None:
    """Do something with every open queue, even if that raises for one of them, or a signal comes.

    A queue that came to rest before a fork and was not told to go on would block its callers for ever.
    """

    def whole() -> None:
        with ExitStack() as each:
            for queue in _all_open():
                each.callback(act, queue)

    guarded(whole)


def _at_exit() -> None:
    left = _all_open()
    for queue in left:
        getattr(queue.store, "exiting", lambda: None)()
    for queue in left:
        with suppress(Exception):  # what a queue could not give back, others rescue
            queue.close()


_sees_to_exit = 0
"""The id of the multiprocessing child that will close its queues."""


def see_to_exit() -> None:
    """Have the queues closed at a multiprocessing child's end: it skips the interpreter's exit functions.

    ``multiprocess`` is a copy of that package, which pathos and Hugging Face's datasets use.
    """
    global _sees_to_exit
    if _sees_to_exit == os.getpid():
        return
    for package in ("multiprocessing", "multiprocess"):  # one may have started a child of the other
        parent = getattr(sys.modules.get(f"{package}.process"), "parent_process", lambda: None)
        if parent() is not None:
            _sees_to_exit = os.getpid()
            util = import_module(f"{package}.util")  # a child has it loaded; elsewhere it would load much
            util.Finalize(None, _at_end_of_child, exitpriority=AFTER_ALL)


def _at_end_of_child() -> None:
    """Close the queues once the child's threads have ended; multiprocessing waits for those only later."""
    if _left_threads():
        threading.Thread(target=_close_after_threads, name="tubes-exit").start()
    else:
        _at_exit()


def _close_after_threads() -> None:
    while left := _left_threads():
        left[0].join()
    _at_exit()


def _left_threads() -> list[threading.Thread]:
    """The threads that keep the process from ending, except the current one and the main one."""
    ours = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in ours]
