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

    def row(what: str, found: object, must: str = "", holds: bool | None = None) -> None:
        mark = "" if holds is None else "[green]yes[/green]" if holds else "[red]NO[/red]"
        table.add_row(what, str(found), must, mark)

    all_fetched = outcome.fetched == outcome.pages
    row("pages fetched", outcome.fetched, f"{outcome.pages}, all there are", all_fetched)
    row("pages per second", f"{outcome.per_second:.0f}")
    row("seconds", f"{outcome.seconds:.1f}")
    row("worker processes", outcome.workers)
    row("workers killed while they fetched a page", outcome.killed, "1", outcome.killed == 1)
    row("hosts", outcome.hosts)
    row("most requests in flight per host", outcome.most_per_host, "1", outcome.most_per_host == 1)
    row("most hosts busy at once", outcome.most_hosts_busy, "2 or more", outcome.most_hosts_busy >= 2)
    row("tasks lost", outcome.lost, "0", outcome.lost == 0)
    row("tasks run again after the kill", outcome.rerun, "1 or more", outcome.rerun >= 1)
    return table


def show(outcome: Outcome) -> None:
    """Print the table, and what failed."""
    print_table(summary(outcome))
    for failure in outcome.failed:
        write_line(f"a worker failed: {failure}")
    for promise, holds in outcome.checks().items():
        if not holds:
            write_line(f"not so: {promise}")
