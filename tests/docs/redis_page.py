"""What docs/reference/redis.md takes from the .lua files' heads; ``python redis_page.py`` writes it there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "redis.md"
LUA = files("tubes.drivers.redis") / "lua"

INCLUDED = ("tube", "queue", "tasks", "plain", "rules")
"""What scripts include; the heads of the first two say what the keys are."""


def names() -> list[str]:
    """All scripts, without what they include."""
    found = (file.name.removesuffix(".lua") for file in LUA.iterdir() if file.name.endswith(".lua"))
    return sorted(set(found) - {*INCLUDED})


def head(name: str) -> list[str]:
    """The comment with which a file begins, line by line."""
    lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return [line.removeprefix("--").removeprefix(" ") for line in lines[:end]]


def included(name: str) -> str:
    """Whose script it is: a tube's or a queue's."""
    return "queue" if "include queue" in head(name) else "tube"


def described(name: str) -> dict[str, str]:
    """The parts of a script's head: what it does, under ``""``, and KEYS, ARGV, Reply, Cost."""
    parts: dict[str, str] = {"": ""}
    part = ""
    for line in head(name):
        if line.startswith("include ") or not line:
            continue
        found = re.match(r"(KEYS|ARGV|Reply|Cost): ", line)
        if found:
            part = found[1]
            line = line[found.end() :]
        parts[part] = f"{parts.get(part, '')} {line.strip()}".strip()
    return parts


def errors(name: str) -> list[str]:
    """The errors that a script may answer instead."""
    return sorted({*re.findall(r"error_reply\('(\w+)", (LUA / f"{name}.lua").read_text(encoding="utf-8"))})


def scripts(whose: str) -> str:
    """An entry for each script of a tube or of a queue."""
    entries = []
    for name in names():
        if included(name) == whose:
            parts = described(name)
            del parts["KEYS"]  # the same for all; the tables have them
            lines = [f"### `{name}`", "", _escaped(parts.pop("")), ""]
            lines += [f"- *{part}*: {_escaped(text)}" for part, text in parts.items()]
            if errors(name):
                lines.append(f"- *Errors*: {', '.join(f'`{error}`' for error in errors(name))}")
            entries.append("\n".join(lines))
    return "\n\n".join(entries)


def keys(whose: str) -> str:
    """A table of the keys of a tube or of a queue, in their order."""
    rows: list[list[str]] = []
    for line in head(whose):
        found = re.match(r"  (\w+) +(hash|zset|set|list) +(.*)", line)
        if found:
            rows.append([found[1], found[2], found[3]])
        elif rows and line.startswith("   "):
            rows[-1][2] += f" {line.strip()}"
        elif rows:
            break
    table = ["| | key | type | what it holds |", "|---|---|---|---|"]
    for number, (name, type, text) in enumerate(rows, 1):
        table.append(f"| {number} | `{name}` | {type} | {_escaped(text)} |")
    return "\n".join(table)


def parts() -> dict[str, str]:
    """What stands between the marks of the page, by their names."""
    return {
        "keys of a tube": keys("tube"),
        "keys of a queue": keys("queue"),
        "scripts of a tube": scripts("tube"),
        "scripts of a queue": scripts("queue"),
    }


def marked(page: str, name: str) -> re.Match[str]:
    """The text between the marks of a part."""
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n*<!-- end -->", page, re.S)
    assert found, f"the page has no marks for the {name}"
    return found


def _escaped(text: str) -> str:
    return re.sub(r"([|*<])", r"\\\1", text)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts().items():
        found = marked(text, name)
        text = f"{text[: found.start(1)]}{part}\n\n{text[found.end() - len('<!-- end -->') :]}"
    PAGE.write_text(text, encoding="utf-8")
