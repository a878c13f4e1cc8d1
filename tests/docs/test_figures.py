"""The README's figures on speed are those of the pages that the benchmarks wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROWS = {
    "SQLite": ("put, one by one, fifo", "take, ack, one by one, fifo"),
    "PostgreSQL": ("put, one connection", "take, ack, one connection"),
    "Redis": ("put", "take, ack"),
}
"""By store, the rows of its page that the README gives, in the order of the README's columns."""


def cells(line: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def measured(page: Path, row: str, peer: str) -> list[float]:
    """How many times as fast as a peer we are in this row of the page's tables, from least to most."""
    ratios, names = [], []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|  |"):
            names = cells(line)
        elif line.startswith(f"| {row} |"):
            ratios.append(float(cells(line)[names.index(f"ours / {peer}")]))
    return sorted(ratios)


@pytest.mark.parametrize("store", ROWS)
def test_the_readme_gives_the_figures_of_the_page(store: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = (line for line in readme.splitlines() if re.match(rf"\| {store} \|.*\[all rows\]", line))
    _, *claims, link = cells(line)
    page = ROOT / re.findall(r"\((.*)\)", link)[0]
    for row, claim in zip(ROWS[store], claims, strict=True):
        for said in claim.split(", "):
            peer, figures = said.split(" ", 1)
            ratios = measured(page, row, peer)
            assert figures == " to ".join(dict.fromkeys(f"{ratios[end]:.1f}" for end in (0, -1))), (peer, row)
