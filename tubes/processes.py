"""The queues that are open, and what becomes of them when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

from tubes.interrupts import guarded

if TYPE_CHECKING:
    from tubes.queue import Queue

AFTER_ALL = -1000
"""Priority of what closes the queues of a child of multiprocessing: the last, since other finalizers may use them."""

_open_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


class OfOneProcess:
    """What has connections, locks and threads, so that there is no second of it, here or in another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} can be neither copied nor pickled: threads share it, and each process connects by itself"
        )


def opened(queue: Queue) -> None:
    """It is to be seen to from now on."""
    _open_queues.add(queue)


def closed(queue: Queue) -> None:
    """There is nothing left to see to."""
    _open_queues.discard(queue)


def register() -> None:
    """Have all this called, once.

    What is registered last is called first, before a fork and at the end. The queues use threads and what else is
    imported with them, which has registered itself for both: so it comes after all that.
    """
    os.register_at_fork(
        before=lambda: _with_all_open(lambda queue: queue.store.before_fork()),
        after_in_parent=lambda: _with_all_open(lambda queue: queue.store.after_fork()),
        after_in_child=lambda: _with_all_open(lambda queue: queue.forked()),
    )
    atexit.register(_at_exit)


def _all_open() -> list[Queue]:
    """The queues that are open, also while other threads open and close some, which ends a walk over the set."""
    while True:
        with suppress(RuntimeError):
            return list(_open_queues)


def _with_all_open(act: Callable[[Queue], None]) -> None:
    """Do something with each open queue, whole: also where that of another raises, or a signal comes.

    A queue that came to rest before a fork, and is not told to go on after it, would hold up its callers for ever.
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
"""The child of multiprocessing that has been told to close its queues."""


def see_to_exit() -> None:
    """Close them also at the end of a child of multiprocessing, which leaves without the interpreter's own."""
    global _sees_to_exit
    process = sys.modules.get("multiprocessing.process")
    if process is not None and _sees_to_exit != os.getpid() and process.parent_process() is not None:
        _sees_to_exit = os.getpid()
        from multiprocessing.util import Finalize  # which is there, and loads much where it is not

        Finalize(None, _at_end_of_child, exitpriority=AFTER_ALL)


def _at_end_of_child() -> None:
    """Close them when its threads have ended too, for which multiprocessing waits only after this."""
    if _left_threads():
        threading.Thread(target=_close_after_threads, name="tubes-exit").start()
    else:
        _at_exit()


def _close_after_threads() -> None:
    while left := _left_threads():
        left[0].join()
    _at_exit()


def _left_threads() -> list[threading.Thread]:
    """Those that keep the process from ending, but for the one that asks and the main one."""
    ours = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in ours]
