"""Plays a scenario through the asyncio API.

Its callbacks run in the event loop, which must not wait for the turn of a call, since that call waits for
the loop. So what other connections report during a turn is kept until its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any

from oracle.outcome import Stats, Step
from oracle.stage import PATIENCE, Stage

import tubes
from tubes.testing.through_asyncio import connect_awaited, running_loop
from tubes.waiting import Waiters


class Turn(AbstractContextManager["Turn"]):
    """Held by the thread that acts for a connection; what the others report comes after."""

    def __init__(self, notes: threading.RLock) -> None:
        self._lock = threading.RLock()
        self._notes = notes
        self._thread: int | None = None
        self._depth = 0
        self._acting: tubes.Queue | None = None
        self._kept: list[Callable[[], None]] = []

    def __enter__(self) -> Turn:
        self._lock.acquire()
        self._thread = threading.get_ident()
        self._depth += 1
        return self

    def acts(self, connection: tubes.Queue) -> None:
        """This thread, if it has the turn, acts for this connection."""
        if self._thread == threading.get_ident():
            self._acting = connection

    def report(self, connection: tubes.Queue, report: Callable[[], None]) -> None:
        """Report at once, or at the end of another connection's turn."""
        with self._notes:
            if self._thread is None or self._acting in (None, connection):
                report()
            else:
                self._kept.append(report)

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            with self._notes:
                self._thread = self._acting = None
                kept, self._kept = self._kept, []
                for report in kept:
                    with suppress(RuntimeError):  # a callback that is meant to fail
                        report()
        self._lock.release()


class AwaitedStage(Stage):
    """Plays one scenario in the empty store at ``url``."""

    _turn: Turn
    are_fibers = False

    def __init__(self, url: str) -> None:
        super().__init__(url, connect_awaited)
        self._notes = threading.RLock()
        self._turn = Turn(self._notes)

    def _callback(self, queue: tubes.Queue, name: str) -> Callable[[tubes.Task, tubes.Event], None]:
        def on_task_change(task: tubes.Task, event: tubes.Event) -> None:
            self._turn.report(queue, lambda: self._note(name, task, event))

        return on_task_change

    def _hear(self) -> None:
        """A call that waits again has posted its callbacks to the loop, which may not have called them."""
        heard = threading.Event()
        running_loop().call_soon_threadsafe(heard.set)
        heard.wait(PATIENCE)

    def _waiters(self, queue: tubes.Queue) -> Waiters:
        facing: Any = queue
        return super()._waiters(facing._awaited._plain)

    def _statistics(self) -> dict[str, Stats]:
        """Ask the plain queue behind it after each step; a step that asks does so through the API."""
        home: Any = self._home
        stats = home._awaited._plain.statistics()
        return {name: Stats(each["tasks"], each["calls"]) for name, each in stats.items()}

    def _attempt(self, step: Step, queue: tubes.Queue) -> Any:
        self._turn.acts(queue)
        return super()._attempt(step, queue)
