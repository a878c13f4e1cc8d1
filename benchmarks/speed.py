"""How fast tubes is, as a share of raw ``sqlite3`` and against the embedded peers, all in one run.

Run it: ``python benchmarks/speed.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.contenders import PEERS, Contender, Raw, RawSmallPages, Tubes, TubesAllOptions
from benchmarks.places import DOCS, conclude, machine
from benchmarks.races import in_processes, in_threads
from benchmarks.showing import new_progress, new_table, output

Verb = Callable[[Contender, int], None]
"""What is timed, on how many tasks. The items that it puts are ``prepared`` before."""

CHUNKS = 10
"""Turns that the contenders take within a round, so that a passing load hits all of them."""

BATCH = 100


@dataclass(frozen=True)
class Row:
    """One line of the table: what is done, what it is compared with, and the share that must be reached."""

    key: str
    title: str
    bars: dict[str, float]
    ours: str = Tubes.name
    base: str = Raw.name
    peer_row: str = ""
    """The row that has the peers' figures, if they have none in this one."""


ROWS = (
    Row("put", "put, one by one, fifo", {"normal": 0.60, "full": 0.85}),
    Row("take", "take, ack, one by one, fifo", {"normal": 0.50, "full": 0.80}),
    Row(
        "put_all",
        "put, utubettl with all options, of our fifo",
        {"normal": 0.80, "full": 0.90},
        ours=TubesAllOptions.name,
        base=Tubes.name,
        peer_row="put",
    ),
    Row(
        "take_all",
        "take, ack, utubettl with all options, of our fifo",
        {"normal": 0.80, "full": 0.90},
        ours=TubesAllOptions.name,
        base=Tubes.name,
        peer_row="take",
    ),
    Row("chain", "take(ack=task), of raw's two commits", {"normal": 0.65, "full": 1.50}, peer_row="take"),
    Row("put_many", "put_many by 100", {"normal": 0.35, "full": 0.35}),
    Row("take_many", "take_many + ack_many by 100", {"normal": 0.35, "full": 0.35}),
    Row("threads", "4 + 4 threads, one queue", {"normal": 1.0, "full": 2.5}),
    Row("processes", "4 + 4 processes", {"normal": 0.7, "full": 0.9}),
    Row("threads_chained", "4 + 4 threads, take(ack=task)", {}, peer_row="threads"),
    Row("processes_chained", "4 + 4 processes, take(ack=task)", {}, peer_row="processes"),
)


@dataclass
class Sizes:
    """How many tasks a round puts through each row."""

    single: int
    batch: int
    race: int

    def scaled(self, factor: float) -> Sizes:
        """The same, larger or smaller, in whole batches and chunks."""
        least = BATCH * CHUNKS

        def whole(count: int) -> int:
            return max(round(count * factor / least), 1) * least

        return Sizes(whole(self.single), whole(self.batch), max(int(self.race * factor), 80))


SIZES = {
    "normal": Sizes(single=8_000, batch=50_000, race=8_000),
    "full": Sizes(single=2_000, batch=30_000, race=3_000),
    "off": Sizes(single=8_000, batch=50_000, race=8_000),
}


@dataclass
class Results:
    """Microseconds a task, by row and contender, one figure a round."""

    durability: str
    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    doubles: dict[str, int] = field(default_factory=dict)

    def add(self, row: str, contender: str, microseconds: float) -> None:
        """Keep one round's figure."""
        self.times.setdefault(row, {}).setdefault(contender, []).append(microseconds)

    def ratio(self, row: str, ours: str, other_row: str, other: str) -> float | None:
        """Our speed as a multiple of the other's: the median of the rounds' ratios."""
        mine = self.times.get(row, {}).get(ours, [])
        theirs = self.times.get(other_row, {}).get(other, [])
        if not mine or not theirs:
            return None
        return median(their / my for my, their in zip(mine, theirs, strict=True))

    def against(self, row: Row, peer: str) -> float | None:
        """The same against a peer; if its figures are another row's, both count as shares of their raw's."""
        other = row.peer_row or row.key
        raws, others = self.times.get(row.key, {}).get(Raw.name), self.times.get(other, {}).get(Raw.name)
        if row.peer_row and raws and others and peer in self.times[other]:
            mine, theirs = self.times[row.key][row.ours], self.times[other][peer]
            figures = zip(raws, mine, others, theirs, strict=True)
            return median((raw / my) / (base / their) for raw, my, base, their in figures)
        return self.ratio(row.key, row.ours, other, peer)

    def best_ratio(self, row: str, ours: str, other: str) -> float | None:
        """The same for the fastest round of each, which a busy machine disturbs least."""
        mine, theirs = self.times.get(row, {}).get(ours), self.times.get(row, {}).get(other)
        return min(theirs) / min(mine) if mine and theirs else None


# What is timed


def put(contender: Contender, count: int) -> None:
    put_one = contender.put
    for item in contender.prepared:
        put_one(item)


def take_and_ack(contender: Contender, count: int) -> None:
    take, ack = contender.take, contender.ack
    for _ in range(count):
        ack(take())


def chain(contender: Contender, count: int) -> None:
    taken, step = contender.take(), contender.ack_and_take
    for _ in range(count - 1):
        taken = step(taken)
    contender.ack(taken)


def put_batches(contender: Contender, count: int) -> None:
    items = contender.prepared
    for start in range(0, count, BATCH):
        contender.put_many(items[start : start + BATCH])


def take_batches(contender: Contender, count: int) -> None:
    for _ in range(0, count, BATCH):
        contender.take_and_ack_many(BATCH)


def alternate(
    contenders: Sequence[Contender], verbs: Sequence[Verb], count: int, turn: int
) -> dict[str, float]:
    """Let the contenders do their verb on ``count`` tasks in turns; return microseconds a task by name."""
    spent = dict.fromkeys((contender.name for contender in contenders), 0.0)
    places = list(zip(contenders, verbs, strict=True))
    for chunk in range(CHUNKS):
        start = (turn + chunk) % len(places)
        for contender, verb in places[start:] + places[:start]:
            many = share(contender, count) // CHUNKS
            first = chunk * many
            if verb in (put, put_batches):
                contender.prepared = [contender.item(number) for number in range(first, first + many)]
            began = time.perf_counter()
            verb(contender, many)
            spent[contender.name] += time.perf_counter() - began
    return {contender.name: spent[contender.name] / share(contender, count) * 1e6 for contender in contenders}


def share(contender: Contender, count: int) -> int:
    """How many of ``count`` tasks a contender does."""
    return min(count, contender.backlog)


# One round


@contextmanager
def opened(kinds: Sequence[type[Contender]], durability: str) -> Iterator[list[Contender]]:
    """Open each kind on fresh files."""
    with tempfile.TemporaryDirectory(prefix="tubes-bench-") as folder, ExitStack() as stack:
        contenders = []
        for index, kind in enumerate(kinds):
            place = Path(folder) / str(index)
            place.mkdir()
            contender = kind(place, durability)
            stack.callback(contender.close)
            contenders.append(contender)
        yield contenders


def single_round(results: Results, sizes: Sizes, peers: Sequence[type[Contender]], turn: int) -> None:
    """Put and take one by one, in one thread."""
    count = sizes.single
    with opened((Raw, Tubes, TubesAllOptions, RawSmallPages, *peers), results.durability) as contenders:
        everybody = [put] * len(contenders)
        record(results, "put", alternate(contenders, everybody, count, turn))
        record(results, "take", alternate(contenders, [take_and_ack] * len(contenders), count, turn))
    with opened((Raw, Tubes, RawSmallPages), results.durability) as contenders:
        alternate(contenders, [put] * 3, count, turn)
        verbs: list[Verb] = [take_and_ack, chain, take_and_ack]
        record(results, "chain", alternate(contenders, verbs, count, turn))
    for row, source in (("put_all", "put"), ("take_all", "take")):
        for name in (Tubes.name, TubesAllOptions.name):
            results.add(row, name, results.times[source][name][-1])


def batch_round(results: Results, sizes: Sizes, peers: Sequence[type[Contender]], turn: int) -> None:
    """Put and take by a hundred."""
    with opened((Raw, Tubes, RawSmallPages, *peers), results.durability) as contenders:
        count = sizes.batch
        record(results, "put_many", alternate(contenders, [put_batches] * len(contenders), count, turn))
        record(results, "take_many", alternate(contenders, [take_batches] * len(contenders), count, turn))


def race_round(
    results: Results, sizes: Sizes, peers: Sequence[type[Contender]], turn: int, step: Callable[[], None]
) -> None:
    """Race eight at a time, in threads and in processes."""
    kinds: list[type[Contender]] = [Raw, Tubes, RawSmallPages, *peers]
    for row, race in (("threads", in_threads), ("processes", in_processes)):
        runs: list[tuple[type[Contender], bool]] = [*((kind, False) for kind in kinds), (Tubes, True)]
        start = turn % len(runs)
        for kind, chained in runs[start:] + runs[:start]:
            with tempfile.TemporaryDirectory(prefix="tubes-bench-") as folder:
                outcome = race(kind, Path(folder), results.durability, sizes.race, chained)
            key = f"{row}_chained" if chained else row
            results.add(key, kind.name, outcome.seconds / sizes.race * 1e6)
            if outcome.doubles:
                results.doubles[kind.name] = results.doubles.get(kind.name, 0) + outcome.doubles
            step()
        for name in (Raw.name, RawSmallPages.name):
            results.add(f"{row}_chained", name, results.times[row][name][-1])


def record(results: Results, row: str, figures: dict[str, float]) -> None:
    """Keep what one round gave."""
    for name, microseconds in figures.items():
        results.add(row, name, microseconds)


# Reports


def verdict(results: Results, row: Row) -> tuple[float | None, float | None, str]:
    """The ratio, its bar, and whether it is reached."""
    ratio = results.ratio(row.key, row.ours, row.key, row.base)
    bar = row.bars.get(results.durability)
    if ratio is None or bar is None:
        return ratio, bar, ""
    return ratio, bar, "ok" if ratio >= bar else "short"


def lines(results: Results, peers: Sequence[type[Contender]]) -> list[list[str]]:
    """The table as text: title, tasks a second, ratio, bar, verdict, best, small pages, and ours / peer."""
    table = []
    for row in ROWS:
        if row.key not in results.times:
            continue
        ratio, bar, word = verdict(results, row)
        times = results.times[row.key]
        best = results.best_ratio(row.key, row.ours, row.base)
        small = (
            results.ratio(row.key, row.ours, row.key, RawSmallPages.name) if row.base == Raw.name else None
        )
        cells = [
            row.title,
            f"{1e6 / median(times[row.base]):,.0f}",
            f"{1e6 / median(times[row.ours]):,.0f}",
            shown(ratio),
            "" if bar is None else f"≥ {bar:.2f}",
            word,
            shown(best),
            shown(small),
        ]
        for kind in peers:
            cells.append(shown(results.against(row, kind.name)))
        table.append(cells)
    return table


def shown(ratio: float | None) -> str:
    """A ratio with as many digits as are meaningful."""
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def headings(peers: Sequence[type[Contender]]) -> list[str]:
    """The table's first line."""
    return [
        "",
        "compared/s",
        "ours/s",
        "ratio",
        "bar",
        "",
        "of best",
        "of raw, 1 KiB pages",
        *(f"ours / {kind.name}" for kind in peers),
    ]


def shortfalls(results: Results, peers: Sequence[type[Contender]]) -> list[str]:
    """Every bar that was missed, and every row in which a peer that acks was ahead."""
    missed = []
    for row in ROWS:
        ratio, bar, word = verdict(results, row)
        if word == "short":
            missed.append(f"{results.durability}: {row.title}: {shown(ratio)}, not ≥ {bar}")
        for kind in peers:
            against = results.against(row, kind.name)
            if kind.acks and row.ours == Tubes.name and against is not None and against < 1:
                missed.append(f"{results.durability}: {row.title}: {shown(against)} of {kind.name}")
    return missed


def show(console: Console, results: Results, peers: Sequence[type[Contender]], rounds: int) -> None:
    """Print one durability's table."""
    table = new_table(f"durability={results.durability}, {rounds} rounds", headings(peers))
    for cells in lines(results, peers):
        table.add_row(*cells, style="red" if cells[5] == "short" else "")
    console.print(table)
    for name, count in results.doubles.items():
        console.print(f"{name}: {count} tasks were taken twice")


def markdown(all_results: Sequence[Results], peers: Sequence[type[Contender]], rounds: int) -> str:
    """The page that is kept in docs."""
    parts = [
        "# Speed: the latest table\n",
        "Written by `python benchmarks/speed.py --docs`; [performance.md](performance.md) says what it means.\n",
        f"{time.strftime('%Y-%m-%d')}, {rounds} rounds. {machine()}.\n",
    ]
    for results in all_results:
        parts.append(f"## durability `{results.durability}`\n")
        rows = [headings(peers), ["---", *["---:"] * (len(headings(peers)) - 1)], *lines(results, peers)]
        parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n")
        for name, count in results.doubles.items():
            parts.append(f"{name} handed out {count} tasks twice.\n")
    parts.append("![Speed as a share of raw sqlite3](speed.png)\n")
    return "\n".join(parts)


def chart(all_results: Sequence[Results], peers: Sequence[type[Contender]], path: Path) -> None:
    """Draw each contender's speed as a share of raw's."""
    from importlib import import_module

    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = import_module("matplotlib.pyplot")
    rows = [row for row in ROWS if row.base == Raw.name and row.bars]
    figure, axes = plt.subplots(
        1, len(all_results), figsize=(7 * len(all_results), 7.5), sharey=True, squeeze=False
    )
    names = [Tubes.name, *(kind.name for kind in peers)]
    height = 0.8 / len(names)
    for axis, results in zip(axes[0], all_results, strict=True):
        for place, name in enumerate(names):
            keys = [row.key if name == Tubes.name else row.peer_row or row.key for row in rows]
            values = [results.ratio(key, name, key, Raw.name) or 0.0 for key in keys]
            positions = [index + place * height for index in range(len(rows))]
            axis.barh(
                positions, values, height, label=name, color=f"C{place}", alpha=1 if not place else 0.55
            )
        for index, row in enumerate(rows):
            bar = row.bars.get(results.durability)
            if bar is not None:
                axis.plot([bar, bar], [index - height / 2, index + height / 2], color="black", linewidth=2)
        axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
        axis.set_xlabel("tasks a second, raw sqlite3 = 1")
        axis.set_title(f"durability={results.durability}")
        axis.set_yticks([index + 0.4 - height / 2 for index in range(len(rows))], [row.title for row in rows])
    axes[0][0].invert_yaxis()  # shared by all axes
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(names))
    figure.suptitle("Speed as a share of raw sqlite3 (black: the bar for tubes)")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def as_json(all_results: Sequence[Results], rounds: int) -> dict[str, Any]:
    """Every figure, for other tools."""
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "rounds": rounds,
        "results": [
            {
                "durability": results.durability,
                "ratios": {row.key: verdict(results, row)[0] for row in ROWS},
                "bars": {row.key: row.bars.get(results.durability) for row in ROWS},
                "microseconds": results.times,
                "doubles": results.doubles,
            }
            for results in all_results
        ],
    }


# The command


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durability", action="append", choices=list(SIZES), help="default: normal and full")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the tasks in a round")
    parser.add_argument(
        "--only", choices=("single", "batch", "races"), action="append", help="only these rows"
    )
    parser.add_argument("--no-peers", action="store_true", help="raw sqlite3 and tubes only")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw a picture")
    parser.add_argument("--docs", action="store_true", help="write docs/explanation/speed.md and speed.png")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the bars were reached."""
    options = arguments(argv)
    rounds = 1 if options.quick else options.rounds
    scale = 0.01 if options.quick else options.scale
    peers = () if options.no_peers else PEERS
    parts = options.only or ("single", "batch", "races")
    levels = options.durability or (["normal"] if options.quick else ["normal", "full"])
    races = 2 * (len(peers) + 4)
    steps_a_round = ("single" in parts) + ("batch" in parts) + ("races" in parts) * races
    out = output(200)
    out.print(machine(), highlight=False)
    all_results = []
    with new_progress() as progress:
        bar = progress.add_task("measuring", total=rounds * steps_a_round * len(levels))
        for durability in levels:
            results = Results(durability)
            all_results.append(results)
            sizes = SIZES[durability].scaled(scale)
            for turn in range(rounds):
                progress.update(bar, description=f"{durability}, round {turn + 1} of {rounds}")
                if "single" in parts:
                    single_round(results, sizes, peers, turn)
                    progress.advance(bar)
                if "batch" in parts:
                    batch_round(results, sizes, peers, turn)
                    progress.advance(bar)
                if "races" in parts:
                    race_round(results, sizes, peers, turn, lambda: progress.advance(bar))
    missed = []
    for results in all_results:
        show(out, results, peers, rounds)
        missed += shortfalls(results, peers)
    conclude(out, missed)
    write(options, all_results, peers, rounds)
    return 1 if missed and options.check else 0


def write(
    options: argparse.Namespace, all_results: list[Results], peers: Sequence[type[Contender]], rounds: int
) -> None:
    """Keep the figures where the command line says."""
    if options.json:
        options.json.write_text(json.dumps(as_json(all_results, rounds), indent=1) + "\n")
    if options.chart:
        chart(all_results, peers, options.chart)
    if options.docs:
        (DOCS / "speed.md").write_text(markdown(all_results, peers, rounds))
        chart(all_results, peers, DOCS / "speed.png")


if __name__ == "__main__":
    sys.exit(main())
