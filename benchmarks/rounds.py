"""What several rounds gave, and how it is told: for speed.py and for the comparisons on servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.places import DOCS

CHUNKS = 10
"""Turns that the contenders take within a round, so that a passing load hits all of them."""


@dataclass
class Results:
    """Microseconds a task, by row and contender, one figure a round."""

    condition: str
    """The durability, or the server."""

    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    doubles: dict[str, int] = field(default_factory=dict)

    def add(self, row: str, figures: dict[str, float]) -> None:
        """Keep one round's figures, by contender."""
        for contender, microseconds in figures.items():
            self.times.setdefault(row, {}).setdefault(contender, []).append(microseconds)

    def ratio(self, row: str, ours: str, other_row: str, other: str) -> float | None:
        """Our speed as a multiple of the other's: the median of the rounds' ratios."""
        mine = self.times.get(row, {}).get(ours, [])
        theirs = self.times.get(other_row, {}).get(other, [])
        if not mine or not theirs:
            return None
        return median(their / my for my, their in zip(mine, theirs, strict=True))

    def best_ratio(self, row: str, ours: str, other: str) -> float | None:
        """The same for the fastest round of each, which a busy machine disturbs least."""
        mine, theirs = self.times.get(row, {}).get(ours), self.times.get(row, {}).get(other)
        return min(theirs) / min(mine) if mine and theirs else None

    def rate(self, row: str, contender: str) -> str:
        """Tasks a second."""
        times = self.times.get(row, {}).get(contender)
        return f"{1e6 / median(times):,.0f}" if times else ""


# A picture


class Panel(NamedTuple):
    """One part of a picture: its rows with their bars, and each contender's shares of raw's speed in them."""

    title: str
    rows: Sequence[str]
    bars: Sequence[float | None]
    shares: Mapping[str, Sequence[float | None]]


def draw(panels: Sequence[Panel], raw: str, ours: str, path: Path) -> None:
    """Draw each contender's speed as a share of raw's."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(1, len(panels), figsize=(8 * len(panels), 7.5), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        height = 0.8 / len(panel.shares)
        for place, (name, shares) in enumerate(panel.shares.items()):
            positions = [index + place * height for index in range(len(panel.rows))]
            alpha = 1 if name == ours else 0.55
            values = [share or 0.0 for share in shares]
            axis.barh(positions, values, height, label=name, color=f"C{place}", alpha=alpha)
        for index, bar in enumerate(panel.bars):
            if bar is not None:
                ends = [index - height / 2, index + height / 2]
                axis.plot([bar, bar], ends, color="black", linewidth=2)
        axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
        axis.set_xlabel(f"tasks a second, {raw} = 1")
        axis.set_title(panel.title, fontsize=10)
        axis.set_yticks([index + 0.4 - height / 2 for index in range(len(panel.rows))], panel.rows)
    axes[0][0].invert_yaxis()  # shared by all axes
    labels = axes[0][0].get_legend_handles_labels()
    figure.legend(*labels, loc="lower center", ncols=len(panels[0].shares))
    figure.suptitle(f"Speed as a share of {raw} (black: the bar for {ours})")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


# The command line


def add_options(parser: argparse.ArgumentParser, page: str) -> None:
    """Add the options of every program that measures in rounds and keeps its figures."""
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the tasks in a round")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw a picture")
    parser.add_argument("--docs", action="store_true", help=f"write docs/explanation/{page}.md and .png")


def write(
    options: argparse.Namespace,
    page: str,
    figures: dict[str, Any],
    text: str,
    chart: Callable[[Path], None],
) -> None:
    """Keep everything where the command line says."""
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.chart:
        chart(options.chart)
    if options.docs:
        (DOCS / f"{page}.md").write_text(text)
        chart(DOCS / f"{page}.png")
