"""Runs what is due in the background. The only module that knows the scheduler (APScheduler 3.11).

One interval job: it runs every FLOOR seconds, and sooner when somebody nudges. Date jobs would vanish when
they are late or overlap, so it is always this one job whose next run is moved.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from tubes.clock import real_monotonic, real_now
from tubes.errors import StoreError

FLOOR = 1.0
"""Seconds between two looks at what other processes may have left to do."""

log = logging.getLogger("tubes.sweeper")
scheduler_log = logging.getLogger("tubes.sweeper.scheduler")
scheduler_log.setLevel(
    logging.ERROR
)  # it warns of every turn that a long sweep makes it skip; the next one does it


class Sweeper:
    """Calls ``work`` in a background thread. ``work`` returns seconds to its next turn, ``None``: no hurry."""

    def __init__(self, work: Callable[[], float | None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._next = float("inf")
        self._scheduler: BackgroundScheduler | None = None
        self._stopped = False
        self._failure = ""

    def nudge(self, seconds: float) -> None:
        """Make sure that the work runs within ``seconds``. The first nudge starts the background thread."""
        at = real_monotonic() + max(seconds, 0.0)
        if at >= self._next:
            return
        with self._lock:
            if at >= self._next or self._stopped:
                return
            self._next = at
            when = real_now() + timedelta(seconds=max(seconds, 0.0))
            if self._scheduler is None:
                self._start(when)
            else:
                self._scheduler.modify_job("sweep", next_run_time=when)

    def _start(self, when: datetime) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=UTC, executors={"default": ThreadPoolExecutor(1)}, daemon=True, logger=scheduler_log
        )
        self._scheduler.add_job(
            self._run,
            "interval",
            seconds=FLOOR,
            id="sweep",
            next_run_time=when,
            misfire_grace_time=None,
            coalesce=True,
            max_instances=1,
        )
        self._scheduler.start()

    def _run(self) -> None:
        self._next = real_monotonic() + FLOOR
        try:
            again = self._work()
        except Exception as error:
            self._report(error)
            return
        if self._failure:
            log.warning("the background sweep works again")
        self._failure = ""
        if again is not None:
            self.nudge(again)

    def _report(self, error: Exception) -> None:
        """Say it once: a disk stays full, and a server that is away is so in other words each time."""
        is_known = isinstance(error, StoreError)
        failure = "the store" if is_known else repr(error)
        if failure != self._failure:
            self._failure = failure
            level = logging.WARNING if is_known else logging.ERROR
            says = "a background sweep failed, and is tried again every %s s: %s"
            log.log(level, says, FLOOR, error, exc_info=not is_known)

    def stop(self) -> None:
        """End the background thread; waits for a running sweep, unless it is the one that calls."""
        with self._lock:
            scheduler, self._scheduler, self._stopped = self._scheduler, None, True
        if scheduler is not None:
            own = threading.current_thread().name.startswith("ThreadPoolExecutor")
            scheduler.shutdown(wait=not own)
