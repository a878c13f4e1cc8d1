"""What the commands print for people: tables, and what is in their cells."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tubes.cli_output import line, printable, write_line
from tubes.cli_pipes import task_as_json
from tubes.task import Task

if TYPE_CHECKING:  # imported when a table is printed: other commands need not wait for it
    from rich.table import Table

LEAST_WIDTH = 5
"""The least width of a column, with two spaces, however narrow the terminal: else columns are left out."""


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal."""
    from rich.console import Console

    console = Console(width=None if os.isatty(1) else 200)
    console.width = max(console.width, LEAST_WIDTH * len(table.columns))
    with console.capture() as captured:
        console.print(table)
    write_line(captured.get().rstrip("\n"))


def table_of(title: str, *columns: str) -> Table:
    """An empty table; columns whose names begin with ``>`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(printable(title), style="table.title")
    table = Table(title=heading, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        name = column.strip(">")
        header = Text(printable(name))
        table.add_column(header, justify="right" if name != column else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row. Stored text may be anybody's, so it is shown literally: no markup, no terminal command."""
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))


def print_tasks(tasks: Sequence[Task], title: str, is_json: bool) -> None:
    """Print tasks as a table, or a line of JSON each."""
    if is_json:
        for task in tasks:
            write_line(line(task_as_json(task)))
        return
    columns = [">id", "state", "since", "data", "utube", ">pri", ">attempts", "due at"]
    if any(task.owner for task in tasks):
        columns.append("session")
    table = table_of(title, *columns)
    for task in tasks:
        data = short(repr(task.data) if isinstance(task.data, bytes) else line(task.data))
        state, since, due = task.state.name.lower(), instant(task.updated_at), instant(task.due_at)
        utube = "" if task.utube is None else line(task.utube)
        utube = utube[1:-1] or utube
        row = (str(task.id), state, since, data, utube, str(task.pri), str(task.attempts), due)
        session = () if task.owner is None else (str(task.owner)[:8],)
        add_row(table, *row, *session)
    print_table(table)


def instant(at: datetime | None) -> str:
    """An instant, to the second."""
    return "" if at is None else at.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def short(text: str) -> str:
    """As much of a text as fits into a cell."""
    return text if len(text) <= 60 else f"{text[:57]}..."
