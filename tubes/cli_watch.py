"""``tubes stats --every``: a table on the terminal that is kept up to date, and what changes per second."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tubes.cli_tables import add_row, table_of
from tubes.clock import real_monotonic

Found = Mapping[str, Any]
"""What a look has found: statistics, as ``Tube.statistics`` returns them, by tube."""

STATES = ("ready", "taken", "buried", "delayed")

RATES: Mapping[str, Callable[[Any], int]] = {
    "put/s": lambda counts: counts["calls"]["put"],
    "take/s": lambda counts: counts["calls"]["take"],
    "done/s": lambda counts: counts["tasks"]["done"],
}

LOOKS = 30
"""How many looks the curve of the stored tasks goes back."""

HEIGHTS = "▁▂▃▄▅▆▇█"


@contextmanager
def shown_live(otherwise: Callable[[Found], None]) -> Iterator[Callable[[Found], None]]:
    """Show what is found in a table that is kept up to date, if standard output is a terminal that can."""
    console = Console()
    if not os.isatty(1) or console.is_dumb_terminal:
        yield otherwise
        return
    course = Course()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(course.table(found, real_monotonic()), refresh=True)


class Course:
    """How the tubes have come along, look after look."""

    def __init__(self) -> None:
        self._stored: dict[str, deque[int]] = {}
        self._last: Found = {}
        self._looked = 0.0

    def table(self, found: Found, now: float) -> Table:
        """What was found now, in seconds that only grow, and what has changed since the last look."""
        table = table_of("Tasks", "tube", *(f">{column}" for column in (*STATES, *RATES)), "stored")
        for tube, counts in found.items():
            stored = self._stored.setdefault(tube, deque(maxlen=LOOKS))
            stored.append(counts["tasks"]["total"])
            states = (str(counts["tasks"][state]) for state in STATES)
            last = self._last.get(tube)
            rates = ("" if last is None else self._rate(of(counts) - of(last), now) for of in RATES.values())
            add_row(table, tube, *states, *rates, curve(stored))
        self._last, self._looked = found, now
        return table

    def _rate(self, more: int, now: float) -> str:
        return f"{max(more, 0) / (now - self._looked):.0f}"  # fewer: dropped, and made again


def curve(values: Sequence[int]) -> str:
    """Numbers as a curve; the largest of them is as high as a line."""
    top = max(*values, 1)
    return "".join(HEIGHTS[value * (len(HEIGHTS) - 1) // top] for value in values)
