"""The import rules of the project, checked on the syntax trees of its files.

``python tests/packaging/import_rules.py [ROOT]`` prints what breaks them. Every import counts wherever it
stands: at the top, inside a function, under ``if TYPE_CHECKING``, or as ``import_module("a literal")``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = {"tubes": "tubes", "drivers": "tubes.drivers", "migrations": "tubes.migrations"}
"""Folders of the checkout, and the packages that they are imported as."""

DRIVER_API = (
    "tubes.driver",
    "tubes.store",
    "tubes.task",
    "tubes.errors",
    "tubes.options",
    "tubes.waiting",
    # What a store is handed, or hands on: the clock it passes as ``now``, the counts it keeps, the codec;
    # and what it gives to be examined.
    "tubes.clock",
    "tubes.doctor",
    "tubes.interrupts",
    "tubes.logs",
    "tubes.stats",
    "tubes.payload",
)
"""All of the framework that a driver or a store may know."""

STORE_LIBRARIES = ("sqlalchemy", "alembic", "sqlite3", "redis", "psycopg", "asyncpg", "aiosqlite")
"""Databases and the libraries that talk to them: the framework names none."""

CLOCK_CALLS = ("now", "utcnow", "today")
"""``datetime.now()`` and its like. Stored time is called ``now_ms`` and comes in as an argument."""


@dataclass(frozen=True)
class Found:
    """One import of one module."""

    path: Path
    line: int
    module: str
    names: tuple[str, ...]
    """What the import may bring in: for ``from a import b`` both ``a`` and ``a.b``."""


def is_in(name: str, package: str) -> bool:
    """Tell whether a dotted name is a package or lies in it."""
    return name == package or name.startswith(f"{package}.")


def broken_rules(root: Path) -> list[str]:
    """Return one line for each place that breaks a rule."""
    problems = []
    for path, module in modules(root):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for found in imports(tree, path, module):
            why = _forbidden_import(found)
            if why:
                problems.append(f"{path.relative_to(root)}:{found.line}: {found.names[-1]}: {why}")
        if module != "tubes.clock":
            for line, call in clock_calls(tree):
                problems.append(
                    f"{path.relative_to(root)}:{line}: {call}: a clock is read only in tubes.clock"
                )
    return problems


def modules(root: Path) -> Iterator[tuple[Path, str]]:
    """All Python files of the package, with the names that they are imported by."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield path, ".".join((package, *(part for part in parts if part != "__init__")))


def imports(tree: ast.AST, path: Path, module: str) -> Iterator[Found]:
    """Every import in a file."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Found(path, node.lineno, module, (alias.name,))
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join((*above, source)) if source else ".".join(above)
            for alias in node.names:
                yield Found(path, node.lineno, module, (source, f"{source}.{alias.name}"))
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Found(path, node.lineno, module, (node.args[0].value,))


def clock_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every ``….now()``, ``….utcnow()`` and ``….today()`` in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CLOCK_CALLS:
                yield node.lineno, ast.unparse(node)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _forbidden_import(found: Found) -> str | None:
    """Say which rule an import breaks, ``None`` when it breaks none."""
    module, names = found.module, found.names

    def brings(*packages: str) -> bool:
        return any(is_in(name, package) for name in names for package in packages)

    if brings("drivers", "migrations"):
        return "the import names are tubes.drivers and tubes.migrations"
    if brings("time") and module != "tubes.clock":
        return "a clock is read only in tubes.clock"
    if brings("apscheduler") and module != "tubes.sweeper":
        return "the scheduler is known to tubes.sweeper alone"
    if brings("greenlet") and module != "tubes.bridge":
        return "greenlets are known to tubes.bridge alone"
    if is_in(module, "tubes.drivers"):
        if _is_ours(names) and not brings(*DRIVER_API, "tubes.drivers", "tubes.migrations"):
            return f"drivers know only {', '.join(DRIVER_API)}"
    elif is_in(module, "tubes.migrations"):
        if _is_ours(names) and not brings("tubes.errors", "tubes.migrations", "tubes.drivers.sql"):
            return "migrations know only tubes.errors and tubes.drivers.sql"
    else:
        if brings("tubes.drivers", "tubes.migrations"):
            return "the framework knows no driver and no migration: they come through entry points"
        if brings(*STORE_LIBRARIES):
            return "the framework knows no database"
    return None


def _is_ours(names: tuple[str, ...]) -> bool:
    return is_in(names[0], "tubes")


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems = broken_rules(root)
    print("\n".join(problems) or "the import rules are kept")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
