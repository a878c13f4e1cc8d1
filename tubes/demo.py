"""``tubes demo``: a polite crawl by several processes, one killed in the middle of a page, and the proof.

The crawler is ``examples/crawler.py``, unchanged; the site is ``tubes.demo_site``, whose counts are reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

import tubes
from tubes.clock import pause, real_monotonic
from tubes.demo_site import Library, Report, Site

STUCK_AFTER = 20.0
"""Seconds without a page after which the crawl counts as stuck."""

LOOK_EVERY = 0.1

CRAWLER = "tubes.examples.crawler"


@dataclass(frozen=True)
class Crawl:
    """How far the crawl is."""

    fetched: int
    pages: int
    per_second: float
    workers: int
    ready: int
    note: str
    """What has just happened, if anything worth a line."""


class Row(NamedTuple):
    """One thing that was found, what it must be, and whether it is."""

    what: str
    found: float
    must: str = ""
    holds: bool = True


@dataclass(frozen=True)
class Outcome:
    """How the crawl went: what the site saw, except ``left``, ``seconds`` and what became of the workers."""

    type: str
    workers: int
    hosts: int
    pages: int
    """Pages that the site's own links lead to."""
    fetched: int
    seconds: float
    most_per_host: int
    most_hosts_busy: int
    missed: int
    left: int
    """Tasks that are still in the queue, in whatever state."""
    killed: int
    """Workers that were killed while they fetched a page."""
    rerun: int
    failed: Sequence[str]
    """Of each worker that failed, its exit status and the end of its log."""

    @property
    def lost(self) -> int:
        return self.missed + self.left

    @property
    def per_second(self) -> float:
        return self.fetched / self.seconds

    def rows(self) -> list[Row]:
        """What the demo shows and promises."""
        return [
            Row("pages fetched", self.fetched, f"{self.pages}, all there are", self.fetched == self.pages),
            Row("pages per second", round(self.per_second)),
            Row("seconds", round(self.seconds, 1)),
            Row("worker processes", self.workers),
            Row("workers killed while they fetched a page", self.killed, "1", self.killed == 1),
            Row("other workers that failed", len(self.failed), "0", not self.failed),
            Row("hosts", self.hosts),
            Row("most requests in flight per host", self.most_per_host, "1", self.most_per_host == 1),
            Row("most hosts busy at once", self.most_hosts_busy, "2 or more", self.most_hosts_busy >= 2),
            Row("tasks lost", self.lost, "0", self.lost == 0),
            Row("tasks run again after the kill", self.rerun, "1 or more", self.rerun >= 1),
        ]

    @property
    def ok(self) -> bool:
        return all(row.holds for row in self.rows())

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "seconds": round(self.seconds, 2),
            "per_second": round(self.per_second, 1),
            "lost": self.lost,
            "checks": {row.what: row.holds for row in self.rows() if row.must},
            "ok": self.ok,
        }


def run(*, pages: int, workers: int, hosts: int, type: str, on_progress: Callable[[Crawl], None]) -> Outcome:
    """Crawl up to ``pages`` pages on ``hosts`` hosts with ``workers`` processes; kill one after a third."""
    with (
        TemporaryDirectory(prefix="tubes-demo-") as folder,
        tubes.connect(url := f"sqlite:///{quote(folder)}/crawl.db", durability="normal") as queue,
    ):
        tube = queue.create_tube("pages", type)
        with Site(Library(pages), hosts) as site:
            with _crew(workers, url, Path(folder), site.seeds) as crew:
                seconds = _watch(tube, site, crew, on_progress)
            return _outcome(tube, site, crew, seconds)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path
    was_killed: bool = False

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Make sure that it is gone."""
        self.process.kill()
        self.process.wait()

    def failure(self) -> str | None:
        if self.was_killed or self.process.returncode == 0:
            return None
        return f"exit status {self.process.returncode}: {self.log.read_text(errors='replace').strip()[-400:]}"


@contextmanager
def _crew(workers: int, url: str, folder: Path, seeds: Sequence[str]) -> Iterator[list[_Worker]]:
    """The crawlers, out of reach of a terminal's Ctrl-C. At the end none is left, even if they were stuck.

    They find modules where this process does: not others of the same names in the current folder, where ``-m``
    looks first; and tubes even if a bundle has set the path of this process only.
    """
    path = os.pathsep.join(folder or os.curdir for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "no_proxy": "*"}
    command = [sys.executable, "-P", "-m", CRAWLER, url, str(folder / "seen.db"), *seeds]
    crew: list[_Worker] = []
    try:
        for number in range(workers):
            log = folder / f"worker{number}.log"
            with log.open("wb") as errors:
                process = subprocess.Popen(command, start_new_session=True, env=environment, stderr=errors)
            crew.append(_Worker(process, log))
        yield crew
    finally:
        for worker in crew:
            worker.end()


def _watch(tube: tubes.Tube, site: Site, crew: list[_Worker], on_progress: Callable[[Crawl], None]) -> float:
    """Report the crawl's progress until it ends or is stuck; kill one worker; return the seconds taken."""
    begun = moved = real_monotonic()
    fetched, asked = 0, False
    while any(worker.is_running for worker in crew):
        pause(LOOK_EVERY)
        report = site.report()
        now = real_monotonic()
        if report.fetched > fetched:
            fetched, moved = report.fetched, now
        elif now - moved > STUCK_AFTER:
            break
        if not asked and fetched >= len(site) // 3:
            asked = True
            site.hold_next()
        note = _kill_held(crew, report)
        running = sum(worker.is_running for worker in crew)
        ready = tube.statistics()["tasks"]["ready"]
        on_progress(Crawl(fetched, len(site), fetched / (now - begun), running, ready, note))
    return real_monotonic() - begun


def _kill_held(crew: Sequence[_Worker], report: Report) -> str:
    """Kill the worker whose request the site holds open, once. Return what to say of it."""
    for worker in crew:
        if worker.process.pid == report.held_for and not worker.was_killed:
            worker.was_killed = True
            worker.process.kill()
            return f"killed process {worker.process.pid} in the middle of a page (SIGKILL)"
    return ""


def _outcome(tube: tubes.Tube, site: Site, crew: Sequence[_Worker], seconds: float) -> Outcome:
    last, reachable = site.report(), site.reachable()
    return Outcome(
        type=tube.type,
        workers=len(crew),
        hosts=len(site.seeds),
        pages=len(reachable),
        fetched=last.fetched,
        seconds=seconds,
        most_per_host=max(last.at_once.values()),
        most_hosts_busy=last.busy,
        missed=len(site.missed(reachable)),
        left=tube.statistics()["tasks"]["total"],
        killed=sum(worker.was_killed for worker in crew),
        rerun=last.again,
        failed=[failure for worker in crew if (failure := worker.failure())],
    )
