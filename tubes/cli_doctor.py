"""What ``tubes doctor`` prints: findings as they come, a progress bar meanwhile, a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import tubes
from tubes.cli_output import line, printable, progress, write_line
from tubes.cli_tables import add_row, print_table, table_of
from tubes.doctor import Doctor, Finding

MOST_SHOWN = 1000
"""Findings that the table shows; JSON has all."""


class Visit:
    """One run of the doctor on a queue's store."""

    def __init__(self, queue: tubes.Queue, deep: bool, is_json: bool) -> None:
        self._queue = queue
        self._deep = deep
        self._is_json = is_json
        self._shown: list[tuple[Finding, str]] = []
        self._counts: Counter[str] = Counter()

    def examine(self) -> int:
        """Show what is wrong; return how much that is."""
        with self._doctor() as doctor:
            self._tell(doctor.examine(), "found")
        self._sum_up("found")
        return self._counts["found"]

    def repair(self) -> int:
        """Repair, and show what was repaired and what is left; return how much is left."""
        with self._doctor() as doctor:
            self._tell(doctor.repair(), "repaired")
            self._tell(doctor.examine(), "left")
        self._sum_up("repaired", "left")
        return self._counts["left"]

    @contextmanager
    def _doctor(self) -> Iterator[Doctor]:
        """The doctor, and a progress bar meanwhile."""
        with progress("examine", prints=self._is_json) as update:

            def on_progress(name: str, done: int, size: int) -> None:
                update(description=printable(name), completed=done, total=size or None)

            yield Doctor(self._queue, deep=self._deep, on_progress=on_progress)

    def _tell(self, findings: Iterable[Finding], outcome: str) -> None:
        for finding in findings:
            self._counts[outcome] += 1
            if self._is_json:
                write_line(line({**finding.as_json(), "repaired": outcome == "repaired"}))
            elif len(self._shown) < MOST_SHOWN:
                self._shown.append((finding, outcome))

    def _sum_up(self, *outcomes: str) -> None:
        if self._is_json:
            return
        if self._shown:
            table = table_of("Findings", "kind", "tube", "what", "repair", "")
            for finding, outcome in self._shown:
                remedy = finding.remedy or "by hand"
                add_row(table, finding.kind.value, finding.tube or "", finding.what, remedy, outcome)
            print_table(table)
        said = ", ".join(f"{self._counts[outcome]} {outcome}" for outcome in outcomes)
        unshown = self._counts.total() - len(self._shown)
        write_line(said + (f"; {unshown} not shown, --json shows all" if unshown else ""))
