"""Finds the fenced blocks of a Markdown file, and runs its Python ones: ``python blocks.py FILE [REDIS]``.

The blocks of a file run in order in one namespace, in the current folder. One that begins with ``>>>``
is checked as a doctest. One whose first line is a comment with a file name (``# worker.py``) is saved as that
file instead. A Redis URL, if given, replaces the one in the examples.
"""

from __future__ import annotations

import doctest
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""What users read first, and all that it leads to."""

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$", re.M | re.S
)
FILE = re.compile(r"# (?P<name>[\w-]+\.py)\n")

REDIS = "redis://localhost:6379/0"
"""Where the Redis of an example is."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name under which the block is to be saved, if it is a file."""
        found = FILE.match(self.text)
        return found["name"] if found else None


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """All fenced blocks of a file, or those of one language."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        found.append(Block(match["language"], body, text.count("\n", 0, match.start("body")) + 1))
    return [block for block in found if language in (None, block.language)]


def run(path: Path, redis: str = REDIS) -> None:
    """Run the Python blocks of a file; whatever fails raises, with the line in the file."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for written in blocks(path, "python"):
        block = replace(written, text=written.text.replace(REDIS, redis))
        if block.file is not None:
            compile(block.text, block.file, "exec")
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.text.startswith(">>>"):
            _check(block, path, namespace)
        else:
            exec(
                compile("\n" * (block.line - 1) + block.text, str(path), "exec", dont_inherit=True), namespace
            )


def _check(block: Block, path: Path, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, path.name, str(path), block.line - 1)
    test.globs = namespace
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    if runner.run(test, clear_globs=False).failed:
        raise SystemExit(f"{path}:{block.line}: an example does not give what it shows")


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
