"""Runs what is due in the background. The only module that knows the scheduler (APScheduler 3.11).

There is one interval job: it runs every SWEEP_EVERY seconds, and sooner when nudged. A date job would vanish
if it were late or overlapped with another run, so a nudge moves the next run of this one job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.interval import IntervalTrigger

from tubes.clock import real_monotonic, real_now
from tubes.errors import StoreError
from tubes.interrupts import interruptible
from tubes.logs import Log
from tubes.stacks import whole_stacks

SWEEP_EVERY = 1.0
"""Seconds between two looks at what other processes may have left to do."""

log = Log("tubes.sweeper")
scheduler_log = logging.getLogger("tubes.sweeper.scheduler")
scheduler_log.setLevel(logging.ERROR)  # it logs every run


class _Executor(BaseExecutor):  # type: ignore[misc]  # APScheduler has no types
    """Leaves a due job to the scheduler's own thread: pools stop with the main thread, while others go on."""

    due: Any = None

    def _do_submit_job(self, job: Any, run_times: object) -> None:
        self.due = job

    def run(self) -> None:
        """Do what is due."""
        job, self.due = self.due, None
        try:
            job.func()
        finally:
            self._run_job_success(job.id, ())


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Plans by the wall clock, as APScheduler does, but keeps going when that is set forward or back."""

    def __init__(self) -> None:
        self._executor = _Executor()
        super().__init__(
            timezone=UTC, executors={"default": self._executor}, daemon=True, logger=scheduler_log
        )

    def _main_loop(self) -> None:
        while self.state != STATE_STOPPED:
            try:
                self._event.set()  # else it begins with a wait
                super()._main_loop()
            except MemoryError:  # there is some again, and nobody else would start this thread
                continue

    def _process_jobs(self) -> float:
        now, most = real_now(), timedelta(seconds=2 * SWEEP_EVERY)
        for job in self.get_jobs():
            # A late job is worse than one put off: APScheduler counts through every second that it missed
            if job.next_run_time is not None and abs(job.next_run_time - now) > most:
                job.modify(next_run_time=now)
        wait: float | None = super()._process_jobs()
        if self._executor.due is not None:
            self._executor.run()  # only now: in there super() holds the scheduler's lock, which a nudge needs
            return 0.0  # it may be due again
        return SWEEP_EVERY if wait is None else min(wait, SWEEP_EVERY)

    def shutdown(self, wait: bool = True) -> None:
        """End the thread; with ``wait``, wait for it, unless it is the caller."""
        if not wait or threading.current_thread() is self._thread:
            BlockingScheduler.shutdown(self)
        else:
            super().shutdown()


class Sweeper:
    """Calls ``work`` in the background. ``work`` returns the seconds to its next run; ``None``: no hurry."""

    def __init__(self, work: Callable[[], float | None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._next = inf
        self._scheduler: BackgroundScheduler | None = None
        self._stopped = False
        self._failure = ""

    def nudge(self, seconds: float = inf) -> None:
        """Make sure that the work runs within ``seconds``, and within ``SWEEP_EVERY`` in any case.

        The first nudge starts the background thread.
        """
        seconds = min(max(seconds, 0.0), SWEEP_EVERY)
        at = real_monotonic() + seconds
        if at >= self._next:
            return
        failed: Exception | None = None
        with self._lock:
            if at >= self._next or self._stopped:
                return
            self._next = at
            when = real_now() + timedelta(seconds=seconds)
            if self._scheduler is not None:
                self._scheduler.modify_job("sweep", next_run_time=when)
            else:
                try:
                    self._scheduler = self._started(when)
                except BaseException as error:
                    # No thread can be started, or no file opened, just now: the next nudge tries again
                    self._next = inf
                    if not isinstance(error, Exception):  # a greenlet's timeout
                        raise
                    failed = error
        if failed is not None:  # only now: a log handler may put what it is told into a tube, and so nudge
            self._report(failed)

    def _started(self, when: datetime) -> BackgroundScheduler:
        scheduler = _Scheduler()
        scheduler.add_job(
            self._run,
            IntervalTrigger(seconds=SWEEP_EVERY, timezone=UTC),  # by its name a bundled program lacks it
            id="sweep",
            next_run_time=when,
            misfire_grace_time=None,
            coalesce=True,
        )
        try:
            with whole_stacks():
                scheduler.start()
        except BaseException:  # perhaps raised while it waited for its thread, which runs
            with suppress(SchedulerNotRunningError):
                scheduler.shutdown(wait=False)
            raise
        return scheduler

    def _run(self) -> None:
        turn = self._next = real_monotonic() + SWEEP_EVERY
        again: float | None = None
        try:
            again = self._work()
        except BaseException as error:  # a callback may well call sys.exit()
            self._report(error)
        else:
            if self._failure:
                log.warning("the background sweep works again")
            self._failure = ""
        with self._lock:
            if self._next == turn <= real_monotonic():  # it took long: the next one must not follow at once
                self._next = inf
        self.nudge(inf if again is None else again)

    def _report(self, error: BaseException) -> None:
        """Log it once: a disk stays full, and a server that is down says so in other words each time."""
        is_known = isinstance(error, StoreError)
        failure = "the store" if is_known else repr(error)
        if failure != self._failure:
            self._failure = failure
            level = logging.WARNING if is_known else logging.ERROR
            says = "a background sweep failed, and is tried again every %s s: %s"
            log.log(level, says, SWEEP_EVERY, error, exc_info=None if is_known else error)

    def stop(self, *, wait: bool = True) -> None:
        """End the background thread; with ``wait``, wait for a running sweep, unless that is the caller."""
        with self._lock:
            scheduler, self._scheduler, self._stopped = self._scheduler, None, True
        if scheduler is not None:
            interruptible(scheduler.shutdown, wait)
