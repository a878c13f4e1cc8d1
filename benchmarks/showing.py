"""How a benchmark shows its progress and its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

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


def shown(ratio: float | None) -> str:
    """A ratio with as many digits as are meaningful."""
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def at_least(bar: float | None) -> str:
    """A bar, as it stands in a table."""
    return "" if bar is None else f"≥ {bar:.2f}"


def judged(ratio: float | None, bar: float | None) -> tuple[str, str, str]:
    """Three cells of a table: a ratio, its bar, and whether it is reached."""
    word = "" if ratio is None or bar is None else "ok" if ratio >= bar else "short"
    return shown(ratio), at_least(bar), word


def show(out: Console, title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table, with what is short in red."""
    table = new_table(title, headings)
    for cells in lines:
        table.add_row(*cells, style="red" if "short" in cells else "")
    out.print(table)


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same table for a page of the documentation."""
    rows = [headings, ["---", *["---:"] * (len(headings) - 1)], *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"
