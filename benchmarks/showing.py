"""How a benchmark shows its progress and its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table


def output(width: int = 140, *, record: bool = False) -> Console:
    """Standard output, ``width`` columns wide if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else width, record=record)


def new_progress() -> Progress:
    """A bar on stderr, with a ``console`` to say more there; shown only if stderr is a terminal."""
    is_seen = sys.stderr.isatty()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True, quiet=not is_seen), disable=not is_seen)


def new_table(title: str, headings: Iterable[str], *, texts: int = 1) -> Table:
    """An empty table. Its first ``texts`` columns hold text, the others figures, which are aligned right."""
    made = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="left" if index < texts else "right")
    return made
