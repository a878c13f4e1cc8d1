"""The command line of a comparison, and its reports."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.comparison import Comparison
from benchmarks.places import DOCS, conclude, machine
from benchmarks.server_contenders import Contender, Tubes
from benchmarks.showing import new_progress, new_table, output
from benchmarks.speed import Results, shown


class Report:
    """The results of a comparison, on one server or several, with the same contenders."""

    def __init__(
        self, comparison: Comparison, kinds: Sequence[type[Contender]], servers: Sequence[str], rounds: int
    ) -> None:
        self.comparison = comparison
        self.kinds = kinds
        self.rounds = rounds
        self.all_results = [Results(server) for server in servers]
        self.machine = machine(comparison.distributions)

    def missed(self) -> list[str]:
        """Every bar that was missed, with its server if there are several."""
        several = len(self.all_results) > 1
        return [
            f"{results.durability}: {line}" if several else line
            for results in self.all_results
            for line in self.comparison.shortfalls(results, self.kinds)
        ]

    def headings(self) -> list[str]:
        """The table's first line."""
        peers = self.comparison.peers_among(self.kinds)
        return [
            *("", "raw/s", "ours/s", "of raw", "bar", "", "of best"),
            *(f"{kind.name}/s" for kind in peers),
            *(f"ours / {kind.name}" for kind in peers),
            *(["bar"] if peers else []),
        ]

    def lines(self, results: Results) -> list[list[str]]:
        """A table as text."""
        table = []
        raw, peers = self.comparison.raw.name, self.comparison.peers_among(self.kinds)
        for row in self.comparison.rows:
            times = results.times.get(row.key)
            if times is None or (row.ours not in times and row.ours != Tubes.name):
                continue
            ratio = self.comparison.of_raw(results, row, row.ours)
            word = "" if ratio is None or row.of_raw is None else "ok" if ratio >= row.of_raw else "short"
            cells = [row.title, rate(times, raw), rate(times, row.ours), shown(ratio), bar(row.of_raw), word]
            cells.append(shown(results.best_ratio(row.key, row.ours, raw)))
            cells += [rate(times, kind.name) for kind in peers]
            cells += [shown(results.ratio(row.key, row.ours, row.key, kind.name)) for kind in peers]
            cells += [bar(row.of_peers)] if peers else []
            table.append(cells)
        return table

    def show(self, console: Console) -> None:
        """Print the tables."""
        for results in self.all_results:
            table = new_table(f"{results.durability}, {self.rounds} rounds", self.headings())
            for cells in self.lines(results):
                table.add_row(*cells, style="red" if cells[5] == "short" else "")
            console.print(table)

    def markdown(self) -> str:
        """The page that is kept in docs."""
        page, raw = self.comparison.page, self.comparison.raw.name
        parts = [
            f"# Speed on {self.comparison.store}: the latest table\n",
            f"Written by `python benchmarks/{self.comparison.program} --docs`;"
            " [benchmarks/README.md](../../benchmarks/README.md) says what is measured.\n",
            f"{time.strftime('%Y-%m-%d')}, {self.rounds} rounds. {self.machine}.\n",
        ]
        for results in self.all_results:
            heads = self.headings()
            rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *self.lines(results)]
            parts.append(f"## {results.durability}\n")
            parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n")
        missed = [f"- short: {line}" for line in self.missed()] or ["Every bar is reached."]
        parts.append("\n".join(missed) + "\n")
        parts.append(f"![Speed on {self.comparison.store} as a share of {raw}]({page}.png)\n")
        return "\n".join(parts)

    def chart(self, path: Path) -> None:
        """Draw each contender's speed as a share of raw's."""
        matplotlib: Any = import_module("matplotlib")
        matplotlib.use("Agg")
        plt: Any = import_module("matplotlib.pyplot")
        raw, count = self.comparison.raw, len(self.all_results)
        figure, axes = plt.subplots(1, count, figsize=(9 * count, 7), sharey=True, squeeze=False)
        names = [kind.name for kind in self.kinds if kind is not raw]
        height = 0.8 / len(names)
        for axis, results in zip(axes[0], self.all_results, strict=True):
            rows = [
                row for row in self.comparison.rows if row.of_raw is not None and row.key in results.times
            ]
            for place, name in enumerate(names):
                values = [self.comparison.of_raw(results, row, name) or 0.0 for row in rows]
                positions = [index + place * height for index in range(len(rows))]
                alpha = 1 if name == Tubes.name else 0.55
                axis.barh(positions, values, height, label=name, color=f"C{place}", alpha=alpha)
            for index, row in enumerate(rows):
                ends = [index - height / 2, index + height / 2]
                axis.plot([row.of_raw] * 2, ends, color="black", linewidth=2)
            axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
            axis.set_xlabel(f"tasks a second, {raw.name} = 1")
            axis.set_yticks(
                [index + 0.4 - height / 2 for index in range(len(rows))], [row.title for row in rows]
            )
            axis.set_title(
                f"Share of {raw.name} (black: the bar for tubes)\n{results.durability}", fontsize=10
            )
        axes[0][0].invert_yaxis()  # shared by all axes
        axes[0][-1].legend(loc="lower right")
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)

    def as_json(self) -> dict[str, Any]:
        """Every figure, for other tools."""
        return {
            "machine": self.machine,
            "date": time.strftime("%Y-%m-%d"),
            "rounds": self.rounds,
            "servers": [self._figures(results) for results in self.all_results],
        }

    def _figures(self, results: Results) -> dict[str, Any]:
        peers = self.comparison.peers_among(self.kinds)
        return {
            "server": results.durability,
            "rows": [
                {
                    "key": row.key,
                    "title": row.title,
                    "ours": row.ours,
                    "of_raw": self.comparison.of_raw(results, row, row.ours),
                    "bar": row.of_raw,
                    "of_peers": {
                        kind.name: results.ratio(row.key, row.ours, row.key, kind.name) for kind in peers
                    },
                    "peers_bar": row.of_peers,
                }
                for row in self.comparison.rows
            ],
            "microseconds": results.times,
        }


def rate(times: dict[str, list[float]], name: str) -> str:
    """Tasks a second."""
    return f"{1e6 / median(times[name]):,.0f}" if name in times else ""


def bar(least: float | None) -> str:
    """The least that must be reached."""
    return "" if least is None else f"≥ {least:.2f}"


def arguments(comparison: Comparison, argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    everybody = [kind.name for kind in comparison.others]
    page = f"docs/explanation/{comparison.page}"
    parser = argparse.ArgumentParser(description=f"How fast tubes is on {comparison.store}.")
    parser.add_argument("--url", help="a server whose databases we may use; default: one is started")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the tasks in a round")
    parser.add_argument(
        "--only", choices=[part.name for part in comparison.parts], action="append", help="only these rows"
    )
    parser.add_argument(
        "--contender", choices=everybody, action="append", help="raw and these only; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one small round on one server, to see that it runs"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw a picture")
    parser.add_argument("--docs", action="store_true", help=f"write {page}.md and .png")
    options = parser.parse_args(argv)
    if options.docs and (options.contender or options.only or options.quick):
        parser.error("--docs keeps whole tables only")
    return options


def measured(comparison: Comparison, options: argparse.Namespace) -> Report:
    """Run all rounds."""
    rounds, scale = (1, 0.01) if options.quick else (options.rounds, options.scale)
    others = [kind for kind in comparison.others if kind.name in (options.contender or [kind.name])]
    kinds: list[type[Contender]] = [comparison.raw, *others]
    parts = [part for part in comparison.parts if part.name in (options.only or [part.name])]
    with (
        comparison.servers(options.url) as opened,
        new_progress() as progress,
    ):
        servers = opened[:1] if options.quick else opened
        report = Report(comparison, kinds, [server.description for server in servers], rounds)
        bar = progress.add_task("measuring", total=rounds * len(parts) * len(servers))
        for turn in range(rounds):
            for part in parts:
                progress.update(bar, description=f"round {turn + 1} of {rounds}, {part.name}")
                for server, results in zip(servers, report.all_results, strict=True):
                    comparison.measure(results, part, kinds, server, scale, turn)
                    progress.advance(bar)
    return report


def main(comparison: Comparison, argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the bars were reached."""
    options = arguments(comparison, argv)
    out = output(240)
    report = measured(comparison, options)
    out.print(report.machine, highlight=False)
    report.show(out)
    missed = report.missed()
    if missed or Tubes in report.kinds:
        conclude(out, missed)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if options.chart:
        report.chart(options.chart)
    if options.docs:
        (DOCS / f"{comparison.page}.md").write_text(report.markdown())
        report.chart(DOCS / f"{comparison.page}.png")
    return 1 if missed and options.check else 0
