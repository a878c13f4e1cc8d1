"""What the demo shows to a person: a live line while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tubes.cli_output import write_line
from tubes.cli_tables import print_table, table_of
from tubes.demo import Crawl, Outcome

LINE_EVERY = 0.2
"""Share of the pages after which a line is printed, if there is no terminal."""


@contextmanager
def shown_live() -> Iterator[Callable[[Crawl], None]]:
    """A bar on a terminal, else a line now and then; gives the function that is told of the progress."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (TextColumn("crawling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        job = bar.add_task("")

        def on_progress(crawl: Crawl) -> None:
            text = f"pages, {crawl.per_second:.0f}/s, {crawl.workers} workers, {crawl.ready} ready"
            bar.update(job, completed=crawl.fetched, total=crawl.pages, description=text)
            if crawl.note:
                bar.console.print(crawl.note)

        yield on_progress


class Lines:
    """Tells the progress in lines, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __call__(self, crawl: Crawl) -> None:
        if crawl.note:
            self._console.print(crawl.note)
        if crawl.fetched >= self._next * crawl.pages:
            self._next = crawl.fetched / crawl.pages + LINE_EVERY
            self._console.print(
                f"{crawl.fetched} of up to {crawl.pages} pages, {crawl.per_second:.0f}/s, {crawl.workers} workers"
            )


def summary(outcome: Outcome) -> Table:
    """The outcome beside what it must be."""
    table = table_of("A polite crawl, as the web site saw it", "", ">found", "must be", "")
    for what, found, must, holds in outcome.rows():
        mark = "" if not must else "[green]yes[/green]" if holds else "[red]NO[/red]"
        table.add_row(what, str(found), must, mark)
    return table


def show(outcome: Outcome) -> None:
    """Print the table, and what failed."""
    print_table(summary(outcome))
    for failure in outcome.failed:
        write_line(f"a worker failed: {failure}")
