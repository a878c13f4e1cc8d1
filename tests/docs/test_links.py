"""Links between pages lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import blocks
from .blocks import ROOT

PAGES = [*blocks.PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def links(page: Path) -> list[str]:
    """The targets of a page's links, outside of code."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [match["target"] for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text))]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make, as GitHub names them."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    bad = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            bad.append(link)
    return bad


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_pages_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert set(PAGES) <= reached


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[x](#a-title) [y](page.md#a-title) `[z](no.md)`\n", encoding="utf-8")
    assert broken(page) == []
    page.write_text("# A title\n[x](#b) [y](no.md) [z](page.md#c)\n", encoding="utf-8")
    assert broken(page) == ["#b", "no.md", "page.md#c"]
