"""What ``tubes doctor`` prints: findings as they come, a bar meanwhile, a table at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import tubes
from tubes.cli_pipes import line, write_line
from tubes.doctor import Doctor, Finding, Progress

MOST_SHOWN = 1000
"""Findings that the table shows; JSON has all."""


class Visit:
    """One run of the doctor on a queue's store."""

    def __init__(self, queue: tubes.Queue, deep: bool, is_json: bool) -> None:
        self._is_json = is_json
        self._shown: list[tuple[Finding, str]] = []
        self._counts = {"found": 0, "repaired": 0, "left": 0}
        self._doctor = Doctor(queue, deep=deep, on_progress=lambda *done: self._on_progress(*done))
        self._on_progress: Progress = lambda name, done, size: None

    def examine(self) -> int:
        """Show what is wrong; return how much that is."""
        with self._bar():
            for finding in self._doctor.examine():
                self._tell(finding, "found", repaired=False)
        self._sum_up(("found",))
        return self._counts["found"]

    def repair(self) -> int:
        """Repair, and show what was repaired and what is left; return how much is left."""
        with self._bar():
            for finding in self._doctor.repair():
                self._tell(finding, "repaired", repaired=True)
            for finding in self._doctor.examine():
                self._tell(finding, "left", repaired=False)
        self._sum_up(("repaired", "left"))
        return self._counts["left"]

    def _tell(self, finding: Finding, outcome: str, *, repaired: bool) -> None:
        self._counts[outcome] += 1
        if self._is_json:
            write_line(line({**finding.as_json(), "repaired": repaired}))
        elif len(self._shown) < MOST_SHOWN:
            self._shown.append((finding, outcome))

    def _sum_up(self, outcomes: tuple[str, ...]) -> None:
        if self._is_json:
            return
        from rich.text import Text

        from tubes.cli import print_table, table_of

        if self._shown:
            table = table_of("Findings", "kind", "tube", "what", "repair", "")
            for finding, outcome in self._shown:
                row = (
                    finding.kind.value,
                    finding.tube or "",
                    finding.what,
                    finding.remedy or "by hand",
                    outcome,
                )
                table.add_row(*map(Text, row))
            print_table(table)
        said = ", ".join(f"{self._counts[outcome]} {outcome}" for outcome in outcomes)
        unshown = sum(self._counts.values()) - len(self._shown)
        write_line(said + (f"; {unshown} not shown, --json has all" if unshown else ""))

    @contextmanager
    def _bar(self) -> Iterator[None]:
        """A bar on stderr when that is a terminal."""
        if not os.isatty(2):
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            job = bar.add_task("examine", total=None)

            def moved(name: str, done: int, size: int) -> None:
                bar.update(job, description=name, completed=done, total=size or None)

            self._on_progress = moved
            yield
