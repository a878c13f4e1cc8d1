"""README's two commands are the ones that the checks run, and ``tubes`` has those that the pages show."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tubes.cli import cli

from .blocks import PAGES, ROOT, blocks

DEMO = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/tubes demo"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest"


def test_readme_names_two_commands_that_do_all_the_setting_up() -> None:
    shown = [block.text.strip() for block in blocks(ROOT / "README.md", "console")]
    assert [command for command in shown if "venv" in command] == [DEMO, TEST]


def test_the_checks_run_readmes_commands() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert f"{TEST} || exit 1" in lines
    assert f"{DEMO} || exit 1" in lines
    assert "set -euo pipefail" in lines


def commands(page: Path) -> Iterator[list[str]]:
    """The calls of ``tubes`` in a page's console blocks, in words; of what a shell would insert, each is a 1."""
    for block in blocks(page, "console"):
        for line in re.sub(r"\$\([^)]*\)", "1", block.text).splitlines():
            for part in re.split(r" (?:\||>|;) ", line):
                found = re.match(r"(?:\$ )?tubes (.*)", part)
                if found:
                    yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(commands(page))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_commands_in_a_page_are_those_of_the_command_line(page: Path) -> None:
    for name, *arguments in commands(page):
        cli.commands[name].make_context(name, arguments)


def test_a_command_without_such_an_option_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ cat x | tubes put jobs --dealy 5  # later\n```\n", encoding="utf-8")
    with pytest.raises(click.NoSuchOption, match="dealy"):
        test_the_commands_in_a_page_are_those_of_the_command_line(page)


def test_the_checks_can_be_started() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_checks_run_every_benchmark() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    programs = [
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert programs
    once = script.split('step "One iteration of each benchmark"')[1]
    assert [name for name in programs if not re.search(rf"\b{name}\.py\b", once)] == []
