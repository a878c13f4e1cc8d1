"""How fast tubes is, as a share of raw ``sqlite3`` and against the embedded peers, all in one run.

Run it: ``python benchmarks/speed.py``. README.md beside it says what is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.contenders import PEERS, Contender, Raw, RawSmallPages, Tubes, TubesAllOptions
from benchmarks.places import conclude, machine
from benchmarks.races import in_processes, in_threads
from benchmarks.rounds import CHUNKS, Panel, Results, add_options, draw, write
from benchmarks.showing import judged, markdown, new_progress, output, show, shown

Verb = Callable[[Contender, int], None]
"""What is timed, on how many tasks. The items that it puts are ``prepared`` before."""

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
    with opened((Raw, Tubes, TubesAllOptions, RawSmallPages, *peers), results.condition) as contenders:
        everybody = [put] * len(contenders)
        results.add("put", alternate(contenders, everybody, count, turn))
        results.add("take", alternate(contenders, [take_and_ack] * len(contenders), count, turn))
    with opened((Raw, Tubes, RawSmallPages), results.condition) as contenders:
        alternate(contenders, [put] * 3, count, turn)
        verbs: list[Verb] = [take_and_ack, chain, take_and_ack]
        results.add("chain", alternate(contenders, verbs, count, turn))
    for row, source in (("put_all", "put"), ("take_all", "take")):
        results.add(row, latest(results, source, (Tubes, TubesAllOptions)))


def batch_round(results: Results, sizes: Sizes, peers: Sequence[type[Contender]], turn: int) -> None:
    """Put and take by a hundred."""
    with opened((Raw, Tubes, RawSmallPages, *peers), results.condition) as contenders:
        count = sizes.batch
        results.add("put_many", alternate(contenders, [put_batches] * len(contenders), count, turn))
        results.add("take_many", alternate(contenders, [take_batches] * len(contenders), count, turn))


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
                outcome = race(kind, Path(folder), results.condition, sizes.race, chained)
            key = f"{row}_chained" if chained else row
            results.add(key, {kind.name: outcome.seconds / sizes.race * 1e6})
            if outcome.doubles:
                results.doubles[kind.name] = results.doubles.get(kind.name, 0) + outcome.doubles
            step()
        results.add(f"{row}_chained", latest(results, row, (Raw, RawSmallPages)))


def latest(results: Results, row: str, kinds: Sequence[type[Contender]]) -> dict[str, float]:
    """What the latest round gave in a row, to be compared in another row, too."""
    return {kind.name: results.times[row][kind.name][-1] for kind in kinds}


# Reports


def against_base(results: Results, row: Row) -> float | None:
    """Our speed as a multiple of what the row compares it with."""
    return results.ratio(row.key, row.ours, row.key, row.base)


def against(results: Results, row: Row, peer: str) -> float | None:
    """The same against a peer; if its figures are another row's, both count as shares of their raw's."""
    other = row.peer_row or row.key
    raws, others = results.times.get(row.key, {}).get(Raw.name), results.times.get(other, {}).get(Raw.name)
    if row.peer_row and raws and others and peer in results.times[other]:
        mine, theirs = results.times[row.key][row.ours], results.times[other][peer]
        figures = zip(raws, mine, others, theirs, strict=True)
        return median((raw / my) / (base / their) for raw, my, base, their in figures)
    return results.ratio(row.key, row.ours, other, peer)


def lines(results: Results, peers: Sequence[type[Contender]]) -> list[list[str]]:
    """The table as text: title, tasks a second, ratio, bar, verdict, best, small pages, and ours / peer."""
    table = []
    for row in ROWS:
        if row.key not in results.times:
            continue
        best = results.best_ratio(row.key, row.ours, row.base)
        small = (
            results.ratio(row.key, row.ours, row.key, RawSmallPages.name) if row.base == Raw.name else None
        )
        cells = [
            row.title,
            results.rate(row.key, row.base),
            results.rate(row.key, row.ours),
            *judged(against_base(results, row), row.bars.get(results.condition)),
            shown(best),
            shown(small),
            *(shown(against(results, row, kind.name)) for kind in peers),
        ]
        table.append(cells)
    return table


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
        ratio, bar = against_base(results, row), row.bars.get(results.condition)
        if ratio is not None and bar is not None and ratio < bar:
            missed.append(f"{results.condition}: {row.title}: {shown(ratio)}, not ≥ {bar}")
        for kind in peers:
            share = against(results, row, kind.name)
            if kind.acks and row.ours == Tubes.name and share is not None and share < 1:
                missed.append(f"{results.condition}: {row.title}: {shown(share)} of {kind.name}")
    return missed


def page(all_results: Sequence[Results], peers: Sequence[type[Contender]], rounds: int) -> str:
    """The page that is kept in docs."""
    parts = [
        "# Speed: the latest table\n",
        "Written by `python benchmarks/speed.py --docs`; [performance.md](performance.md) says what it means.\n",
        f"{time.strftime('%Y-%m-%d')}, {rounds} rounds. {machine()}.\n",
    ]
    for results in all_results:
        parts.append(f"## durability `{results.condition}`\n")
        parts.append(markdown(headings(peers), lines(results, peers)))
        for name, count in results.doubles.items():
            parts.append(f"{name} handed out {count} tasks twice.\n")
    parts.append("![Speed as a share of raw sqlite3](speed.png)\n")
    return "\n".join(parts)


def chart(all_results: Sequence[Results], peers: Sequence[type[Contender]], path: Path) -> None:
    """Draw each contender's speed as a share of raw's."""
    rows = [row for row in ROWS if row.base == Raw.name and row.bars]
    panels = []
    for results in all_results:
        shares = {Tubes.name: [against_base(results, row) for row in rows]}
        for kind in peers:
            keys = [row.peer_row or row.key for row in rows]
            shares[kind.name] = [results.ratio(key, kind.name, key, Raw.name) for key in keys]
        bars = [row.bars.get(results.condition) for row in rows]
        panels.append(Panel(f"durability={results.condition}", [row.title for row in rows], bars, shares))
    draw(panels, Raw.name, Tubes.name, path)


def as_json(all_results: Sequence[Results], rounds: int) -> dict[str, Any]:
    """Every figure, for other tools."""
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "rounds": rounds,
        "results": [
            {
                "durability": results.condition,
                "ratios": {row.key: against_base(results, row) for row in ROWS},
                "bars": {row.key: row.bars.get(results.condition) for row in ROWS},
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
    parser.add_argument(
        "--only", choices=("single", "batch", "races"), action="append", help="only these rows"
    )
    parser.add_argument("--no-peers", action="store_true", help="raw sqlite3 and tubes only")
    add_options(parser, "speed")
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
        title = f"durability={results.condition}, {rounds} rounds"
        show(out, title, headings(peers), lines(results, peers))
        for name, count in results.doubles.items():
            out.print(f"{name}: {count} tasks were taken twice")
        missed += shortfalls(results, peers)
    conclude(out, missed)
    figures, text = as_json(all_results, rounds), page(all_results, peers, rounds)
    write(options, "speed", figures, text, partial(chart, all_results, peers))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
