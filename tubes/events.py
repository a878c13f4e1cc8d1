"""Hands committed changes to the user's callbacks: in commit order, one at a time, each isolated."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence

from tubes.errors import BadOption, shown
from tubes.interrupts import forget_raised, guarded, interruptible, is_raised_by_handler
from tubes.logs import Log
from tubes.task import Event, Task

Listener = Callable[[Task, Event], object]
"""A user's callback: the task after the change, and what happened to it."""

log = Log("tubes.events")


def check_listener(listener: object) -> None:
    """Refuse what cannot be called, and coroutine functions, which nobody here would await."""
    if not callable(listener):
        raise BadOption(
            f"a callback must be callable, not {shown(listener)}", option="on_task_change", value=listener
        )
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(listener.__call__):
        raise BadOption(
            f"{shown(listener)} is a coroutine function, which nobody would await here: use tubes.aio for it",
            option="on_task_change",
            value=listener,
        )


class Deliveries:
    """One line of changes on their way to callbacks, for all tubes of a queue.

    A thread that adds to an idle line delivers it, after its own commit and outside every lock; a callback
    that calls the tube again only appends. An error in a callback is logged and changes nothing.
    """

    def __init__(self) -> None:
        self.line: deque[tuple[Sequence[Listener], Task, Event]] = deque()
        """The changes on their way. Most calls find none here, and save the call of ``deliver``."""
        self._delivering = threading.Lock()

    def add(self, listeners: Sequence[Listener], task: Task, event: Event) -> None:
        """Append one change. Called in the order of the commits."""
        self.line.append((listeners, task, event))

    def deliver(self) -> None:
        """Call back until the line is empty, unless another thread is doing so already."""
        if self.line:
            guarded(self._deliver)

    def _deliver(self) -> None:
        while self.line and self._delivering.acquire(blocking=False):
            try:
                while self.line:
                    interruptible(self._call_first)
            finally:
                self._delivering.release()

    def _call_first(self) -> None:
        """Call the listeners of the first change. If this is ended early, the others are still called later.

        What ends it is what a signal's handler raises, for Ctrl-C or an alarm, not an error of a callback.
        """
        left, task, event = self.line[0]
        del self.line[0]  # no signal can come between: handlers run only where something is called
        try:
            while left:
                listener, *left = left
                forget_raised()
                try:
                    listener(task, event)
                except Exception as error:
                    if is_raised_by_handler(error):
                        raise
                    log.exception("callback %r failed on %s of %r", listener, event, task)
        finally:
            if left:
                self.line.appendleft((left, task, event))
