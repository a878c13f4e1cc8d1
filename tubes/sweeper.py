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


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]  # APScheduler has no types
    """Plans by the wall clock, as APScheduler does, and goes on where that is set back."""

    def _process_jobs(self) -> float:
        latest = real_now() + timedelta(seconds=2 * FLOOR)
        for job in self.get_jobs():
            if job.next_run_time is not None and job.next_run_time > latest:
                job.modify(next_run_time=real_now())
        wait: float | None = super()._process_jobs()
        return FLOOR if wait is None else min(wait, FLOOR)


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
            if self._scheduler is not None:
                self._scheduler.modify_job("sweep", next_run_time=when)
            else:
                try:
                    self._scheduler = self._started(when)
                except RuntimeError as error:  # no thread can be had just now: the next nudge tries again
                    self._next = float("inf")
                    self._report(error)

    def _started(self, when: datetime) -> BackgroundScheduler:
        scheduler = _Scheduler(
            timezone=UTC, executors={"default": ThreadPoolExecutor(1)}, daemon=True, logger=scheduler_log
        )
        scheduler.add_job(
            self._run,
            "interval",
            seconds=FLOOR,
            id="sweep",
            next_run_time=when,
            misfire_grace_time=None,
            coalesce=True,
            max_instances=1,
        )
        scheduler.start()
        return scheduler

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
