"""The command line of a comparison, and its reports."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.comparison import Comparison
from benchmarks.places import conclude, machine
from benchmarks.rounds import Panel, Results, add_options, draw, write
from benchmarks.server_contenders import Contender, Tubes
from benchmarks.showing import at_least, judged, markdown, new_progress, output, show, shown


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
            f"{results.condition}: {line}" if several else line
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
            cells = [row.title, results.rate(row.key, raw), results.rate(row.key, row.ours)]
            cells += [*judged(ratio, row.of_raw), shown(results.best_ratio(row.key, row.ours, raw))]
            cells += [results.rate(row.key, kind.name) for kind in peers]
            cells += [shown(results.ratio(row.key, row.ours, row.key, kind.name)) for kind in peers]
            cells += [at_least(row.of_peers)] if peers else []
            table.append(cells)
        return table

    def show(self, console: Console) -> None:
        """Print the tables."""
        for results in self.all_results:
            show(console, f"{results.condition}, {self.rounds} rounds", self.headings(), self.lines(results))

    def page(self) -> str:
        """The page that is kept in docs."""
        parts = [
            f"# Speed on {self.comparison.store}: the latest table\n",
            f"Written by `python benchmarks/{self.comparison.program} --docs`;"
            " [benchmarks/README.md](../../benchmarks/README.md) says what is measured.\n",
            f"{time.strftime('%Y-%m-%d')}, {self.rounds} rounds. {self.machine}.\n",
        ]
        for results in self.all_results:
            parts.append(f"## {results.condition}\n")
            parts.append(markdown(self.headings(), self.lines(results)))
        missed = [f"- short: {line}" for line in self.missed()] or ["Every bar is reached."]
        parts.append("\n".join(missed) + "\n")
        picture = f"Speed on {self.comparison.store} as a share of {self.comparison.raw.name}"
        parts.append(f"![{picture}]({self.comparison.page}.png)\n")
        return "\n".join(parts)

    def chart(self, path: Path) -> None:
        """Draw each contender's speed as a share of raw's."""
        names = [kind.name for kind in self.kinds if kind is not self.comparison.raw]
        panels = []
        for results in self.all_results:
            rows = [
                row for row in self.comparison.rows if row.of_raw is not None and row.key in results.times
            ]
            shares = {name: [self.comparison.of_raw(results, row, name) for row in rows] for name in names}
            titles, bars = [row.title for row in rows], [row.of_raw for row in rows]
            panels.append(Panel(results.condition, titles, bars, shares))
        draw(panels, self.comparison.raw.name, Tubes.name, path)

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
            "server": results.condition,
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


def arguments(comparison: Comparison, argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    everybody = [kind.name for kind in comparison.others]
    parser = argparse.ArgumentParser(description=f"How fast tubes is on {comparison.store}.")
    parser.add_argument("--url", help="a server whose databases we may use; default: one is started")
    parser.add_argument(
        "--only", choices=[part.name for part in comparison.parts], action="append", help="only these rows"
    )
    parser.add_argument(
        "--contender", choices=everybody, action="append", help="raw and these only; default: all"
    )
    add_options(parser, comparison.page)
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
    write(options, comparison.page, report.as_json(), report.page(), report.chart)
    return 1 if missed and options.check else 0
