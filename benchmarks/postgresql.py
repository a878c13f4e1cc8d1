"""How fast tubes is on PostgreSQL, as a share of raw psycopg and against the peers, all in one run on one server.

Run it: ``python benchmarks/postgresql.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.places import DOCS, ON_POSTGRESQL, machine
from benchmarks.postgresql_contenders import BATCH, PEERS, Contender, Raw, Tubes, TubesAllOptions
from benchmarks.postgresql_crews import Crew, crews
from benchmarks.postgresql_server import described, server
from benchmarks.speed import CHUNKS, Results, record, shown

WARM = 10
"""Commits, at least, on each connection before the clock runs: psycopg prepares what comes often, asyncpg at once."""

FOUR = 4
"""Connections that work side by side, each in a process of its own."""


OTHERS: tuple[type[Contender], ...] = (Tubes, TubesAllOptions, *PEERS)
"""Whom ``--contender`` can name; raw always takes part."""


@dataclass(frozen=True)
class Row:
    """One line of the table: where its figures are, and what must be reached."""

    key: str
    title: str
    of_raw: float | None = None
    of_peers: float | None = None
    """How many times as fast as each of the peers."""

    ours: str = Tubes.name


ROWS = (
    Row("put", "put, one connection", of_raw=0.8, of_peers=1.0),
    Row("take", "take, ack, one connection", of_raw=0.7, of_peers=1.5),
    Row("put_many", "put_many by 100, one connection", of_raw=0.5, of_peers=1.0),
    Row("take_many", "take_many + ack_many by 100, one connection", of_raw=0.5, of_peers=1.0),
    Row("put_four", "put, four connections", of_raw=0.8, of_peers=1.0),
    Row("take_four", "take, ack, four connections", of_raw=0.7, of_peers=1.5),
    Row("put", "put, utubettl with all options, one connection", ours=TubesAllOptions.name),
    Row("take", "take, ack, utubettl with all options, one connection", ours=TubesAllOptions.name),
    Row("put_four", "put, utubettl with all options, four connections", ours=TubesAllOptions.name),
    Row("take_four", "take, ack, utubettl with all options, four connections", ours=TubesAllOptions.name),
)


class Step(NamedTuple):
    """A row of the table, and the contenders' loop that is timed for it."""

    row: str
    loop: str


@dataclass(frozen=True)
class Part:
    """What is put and then taken by all contenders, with a fresh database each, and how much a round."""

    name: str
    put: Step
    take: Step
    connections: int
    tasks: int
    least: int
    all_options: bool


PARTS = (
    Part("one", Step("put", "put_all"), Step("take", "take_all"), 1, 2_000, 100, True),
    Part(
        "batch",
        Step("put_many", "put_batches"),
        Step("take_many", "take_batches"),
        1,
        20_000,
        BATCH * CHUNKS,
        False,
    ),
    Part(
        "four", Step("put_four", "put_all"), Step("take_four", "take_all"), FOUR, 4_000, FOUR * CHUNKS, True
    ),
)


def measure(
    results: Results, part: Part, kinds: Sequence[type[Contender]], url: str, scale: float, turn: int
) -> None:
    """One round of one part."""
    count = max(round(part.tasks * scale / part.least), 1) * part.least
    if not part.all_options:
        kinds = [kind for kind in kinds if kind is not TubesAllOptions]
    with crews(kinds, url, part.connections) as opened:
        for crew in opened:
            for step in (part.put, part.take):
                crew.run(step.loop, 0, WARM * part.least // CHUNKS)
        least = part.least // CHUNKS
        record(results, part.put.row, in_turns(opened, part.put.loop, count, least, turn))
        for crew in opened:
            crew.analyze()
        record(results, part.take.row, in_turns(opened, part.take.loop, count, least, turn))
        for crew in opened:
            crew.check_empty()


def in_turns(opened: Sequence[Crew], loop: str, count: int, least: int, turn: int) -> dict[str, float]:
    """Let the crews work on ``count`` tasks, a tenth at a time, in turns; return microseconds a task by name."""
    spent = dict.fromkeys((crew.kind.name for crew in opened), 0.0)
    for chunk in range(CHUNKS):
        start = (turn + chunk) % len(opened)
        for crew in [*opened[start:], *opened[:start]]:
            many = share(crew.kind, count, least)
            spent[crew.kind.name] += crew.run(loop, chunk * many, many)
    return {
        crew.kind.name: spent[crew.kind.name] / (share(crew.kind, count, least) * CHUNKS) * 1e6
        for crew in opened
    }


def share(kind: type[Contender], count: int, least: int) -> int:
    """How many tasks a contender does in one turn, in whole batches."""
    return max(min(count, kind.backlog) // CHUNKS // least, 1) * least


# Reports


def against_raw(results: Results, row: Row) -> float | None:
    """Our speed as a share of raw's."""
    return results.ratio(row.key, row.ours, row.key, Raw.name)


def shortfalls(results: Results, kinds: Sequence[type[Contender]]) -> list[str]:
    """Every bar that was missed."""
    missed = []
    for row in ROWS:
        ratio = against_raw(results, row)
        if ratio is not None and row.of_raw is not None and ratio < row.of_raw:
            missed.append(f"{row.title}: {ratio:.2f} of {Raw.name}, not ≥ {row.of_raw}")
        for kind in peers_among(kinds):
            times = results.ratio(row.key, row.ours, row.key, kind.name)
            if times is not None and row.of_peers is not None and times < row.of_peers:
                missed.append(f"{row.title}: {times:.2f} times {kind.name}, not ≥ {row.of_peers}")
    return missed


def peers_among(kinds: Sequence[type[Contender]]) -> list[type[Contender]]:
    """Those of the contenders that are other projects."""
    return [kind for kind in kinds if kind in PEERS]


def headings(kinds: Sequence[type[Contender]]) -> list[str]:
    """The table's first line."""
    peers = peers_among(kinds)
    return [
        "",
        "raw/s",
        "ours/s",
        "of raw",
        "bar",
        "",
        "of best",
        *(f"{kind.name}/s" for kind in peers),
        *(f"ours / {kind.name}" for kind in peers),
        *(["bar"] if peers else []),
    ]


def lines(results: Results, kinds: Sequence[type[Contender]]) -> list[list[str]]:
    """The table as text."""
    table = []
    peers = peers_among(kinds)
    for row in ROWS:
        times = results.times.get(row.key)
        if times is None or (row.ours not in times and row.ours != Tubes.name):
            continue
        ratio = against_raw(results, row)
        word = "" if ratio is None or row.of_raw is None else "ok" if ratio >= row.of_raw else "short"
        cells = [row.title, rate(times, Raw.name), rate(times, row.ours), shown(ratio), bar(row.of_raw), word]
        cells.append(shown(results.best_ratio(row.key, row.ours, Raw.name)))
        cells += [rate(times, kind.name) for kind in peers]
        cells += [shown(results.ratio(row.key, row.ours, row.key, kind.name)) for kind in peers]
        cells += [bar(row.of_peers)] if peers else []
        table.append(cells)
    return table


def rate(times: dict[str, list[float]], name: str) -> str:
    """Tasks a second."""
    return f"{1e6 / median(times[name]):,.0f}" if name in times else ""


def bar(least: float | None) -> str:
    """What must be reached."""
    return "" if least is None else f"≥ {least:.1f}"


def show(console: Console, results: Results, kinds: Sequence[type[Contender]], rounds: int) -> None:
    """Print the table."""
    table = Table(title=f"{results.durability}, {rounds} rounds", title_justify="left")
    for index, heading in enumerate(headings(kinds)):
        table.add_column(heading, justify="right" if index else "left")
    for cells in lines(results, kinds):
        table.add_row(*cells, style="red" if cells[5] == "short" else "")
    console.print(table)


def markdown(results: Results, kinds: Sequence[type[Contender]], rounds: int, where: str) -> str:
    """The page that is kept in docs."""
    heads = headings(kinds)
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines(results, kinds)]
    missed = [f"- short: {line}" for line in shortfalls(results, kinds)] or ["Every bar is reached."]
    parts = [
        "# Speed on PostgreSQL: the last table\n",
        "Written by `python benchmarks/postgresql.py --docs`;"
        " [benchmarks/README.md](../../benchmarks/README.md) says what is measured.\n",
        f"{time.strftime('%Y-%m-%d')}, {rounds} rounds. {where}. {results.durability}.\n",
        "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n",
        "\n".join(missed) + "\n",
        "![Speed on PostgreSQL as a share of raw psycopg](speed-postgresql.png)\n",
    ]
    return "\n".join(parts)


def chart(results: Results, kinds: Sequence[type[Contender]], path: Path) -> None:
    """Draw everybody's speed as a share of raw's."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = import_module("matplotlib.pyplot")
    rows = [row for row in ROWS if row.of_raw is not None and row.key in results.times]
    names = [kind.name for kind in kinds if kind is not Raw]
    figure, axis = plt.subplots(figsize=(9, 7))
    height = 0.8 / len(names)
    for place, name in enumerate(names):
        values = [results.ratio(row.key, name, row.key, Raw.name) or 0.0 for row in rows]
        positions = [index + place * height for index in range(len(rows))]
        axis.barh(
            positions, values, height, label=name, color=f"C{place}", alpha=1 if name == Tubes.name else 0.55
        )
    for index, row in enumerate(rows):
        axis.plot([row.of_raw] * 2, [index - height / 2, index + height / 2], color="black", linewidth=2)
    axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel(f"tasks a second, {Raw.name} = 1")
    axis.set_yticks([index + 0.4 - height / 2 for index in range(len(rows))], [row.title for row in rows])
    axis.invert_yaxis()
    axis.set_title(f"Share of {Raw.name} (black: what is asked of tubes)\n{results.durability}", fontsize=10)
    axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def as_json(results: Results, kinds: Sequence[type[Contender]], rounds: int, where: str) -> dict[str, Any]:
    """Every figure, for other tools."""
    return {
        "machine": where,
        "server": results.durability,
        "date": time.strftime("%Y-%m-%d"),
        "rounds": rounds,
        "rows": [
            {
                "key": row.key,
                "title": row.title,
                "ours": row.ours,
                "of_raw": against_raw(results, row),
                "bar": row.of_raw,
                "of_peers": {
                    kind.name: results.ratio(row.key, row.ours, row.key, kind.name)
                    for kind in peers_among(kinds)
                },
                "peers_bar": row.of_peers,
            }
            for row in ROWS
        ],
        "microseconds": results.times,
    }


# The command


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    everybody = [kind.name for kind in OTHERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server where databases may be created; default: one is started")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many tasks a round")
    parser.add_argument(
        "--only", choices=[part.name for part in PARTS], action="append", help="some rows only"
    )
    parser.add_argument(
        "--contender", choices=everybody, action="append", help="raw and these only; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw a picture")
    parser.add_argument(
        "--docs", action="store_true", help="write docs/explanation/speed-postgresql.md and .png"
    )
    options = parser.parse_args(argv)
    if options.docs and (options.contender or options.only or options.quick):
        parser.error("--docs keeps whole tables only")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the bars were reached."""
    options = arguments(argv)
    rounds, scale = (1, 0.01) if options.quick else (options.rounds, options.scale)
    kinds: list[type[Contender]] = [
        Raw,
        *(kind for kind in OTHERS if kind.name in (options.contender or [kind.name])),
    ]
    parts = [part for part in PARTS if part.name in (options.only or [part.name])]
    out = Console(width=None if sys.stdout.isatty() else 200)
    where = machine(ON_POSTGRESQL)
    out.print(where, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        server(options.url) as url,
        Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress,
    ):
        results = Results(described(url))
        bar = progress.add_task("measuring", total=rounds * len(parts))
        for turn in range(rounds):
            for part in parts:
                progress.update(bar, description=f"round {turn + 1} of {rounds}, {part.name}")
                measure(results, part, kinds, url, scale, turn)
                progress.advance(bar)
    show(out, results, kinds, rounds)
    missed = shortfalls(results, kinds)
    for line in missed:
        out.print(f"short: {line}", style="red", highlight=False)
    if not missed and Tubes in kinds:
        out.print("every bar is reached")
    if options.json:
        options.json.write_text(json.dumps(as_json(results, kinds, rounds, where), indent=1) + "\n")
    if options.chart:
        chart(results, kinds, options.chart)
    if options.docs:
        (DOCS / "speed-postgresql.md").write_text(markdown(results, kinds, rounds, where))
        chart(results, kinds, DOCS / "speed-postgresql.png")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
