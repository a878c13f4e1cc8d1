"""The reference pages are true: each table is compared with the code or the database that it describes."""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import tubes
from tubes import errors
from tubes.doctor import Finding, Kind
from tubes.feature_options import PUT_OPTIONS, TUBE_OPTIONS
from tubes.registry import find_driver
from tubes.stats import statistics
from tubes.task import Transition

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")


def text(page: str, heading: str = "") -> str:
    """A page, or what stands under one of its headings."""
    whole = (REFERENCE / page).read_text(encoding="utf-8")
    if not heading:
        return whole
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", whole, re.M | re.S)
    assert found, f"{page} has no heading {heading!r}"
    return found[2]


def table(page: str, heading: str = "") -> list[list[str]]:
    """The rows of the first table under a heading, without its header."""
    lines = [line for line in text(page, heading).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


def code(cell: str) -> list[str]:
    """What is marked as code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_moves_is_the_table_in_the_code() -> None:
    states = {state.name.lower(): state for state in tubes.State}
    drawn = [
        Transition(None if source == "nothing" else states[source], tubes.Event(event), states[target])
        for sources, event, targets, _ in table("states.md", "Every move")
        for source in sources.split(", ")
        for target in targets.split(", ")
    ]
    assert sorted(map(str, drawn)) == sorted(map(str, tubes.TRANSITIONS))


def test_the_picture_of_the_states_has_every_move_of_the_table() -> None:
    states = {state.name.lower(): state for state in tubes.State}
    drawn = [
        Transition(states.get(source), tubes.Event(event), states[target])
        for source, target, events in re.findall(r"^ +(\S+) --> (\w+): (.*)$", text("states.md"), re.M)
        for event in events.split(", ")
    ]
    assert sorted(map(str, drawn)) == sorted(map(str, tubes.TRANSITIONS))


def test_the_states_and_their_codes_are_those_of_the_code() -> None:
    shown = {name: code(cell)[0] for name, cell, *_ in table("states.md", "States and events")}
    assert shown == {state.name.lower(): state.value for state in tubes.State}


def test_the_types_and_their_features_are_those_of_the_code() -> None:
    rows = table("types.md", "The five types")
    assert [code(row[0])[0] for row in rows] == list(TYPES)
    for name, *cells in rows:
        definition = find_driver(code(name)[0])
        assert isinstance(definition, tubes.TubeType)
        features = definition.features
        wanted = [features.timed, features.priority, features.grouped, features.bounded]
        assert [cell == "yes" for cell in cells] == wanted, name


@pytest.mark.parametrize(
    ("heading", "known"), [("Options of a tube", TUBE_OPTIONS), ("Options of a put", PUT_OPTIONS)]
)
def test_the_options_are_those_of_the_code(heading: str, known: dict[str, tuple[str, ...]]) -> None:
    shown = {(code(row[0])[0], row[1]) for row in table("types.md", heading)}
    assert shown == {(option, feature) for feature, options in known.items() for option in options}


def test_a_tasks_fields_are_those_of_the_code() -> None:
    shown = [code(row[0])[0] for row in table("types.md", "What a task shows")]
    assert shown == [field.name for field in fields(tubes.Task)]


def test_the_options_of_connect_and_their_defaults_are_those_of_the_code() -> None:
    shown = {code(row[0])[0]: code(row[1])[0] for row in table("connect.md", "Options")}
    parameters = inspect.signature(tubes.connect).parameters
    wanted = {name: str(given.default) for name, given in parameters.items() if name != "url"}
    assert {name: default.strip('"') for name, default in shown.items()} == wanted


def test_the_keys_of_statistics_are_those_of_the_code() -> None:
    page = text("statistics.md")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    shown = {key for row in rows for key in code(row.split(" | ")[0])}
    keys = statistics({}, {})
    assert shown == keys["tasks"].keys() | keys["calls"].keys()


def test_the_kinds_of_findings_are_those_of_the_code() -> None:
    assert [code(row[0])[0] for row in table("doctor.md", "Kinds of findings")] == [
        kind.value for kind in Kind
    ]
    finding = Finding(Kind.LINE, "what", "remedy")
    assert [code(row[0])[0] for row in table("doctor.md", "JSON")] == [*finding.as_json(), "repaired"]


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    drawn = re.search(r"```text\n(.*?)\n```", text("errors.md"), re.S)
    assert drawn and drawn[1] in (errors.__doc__ or "")


def public(cls: type) -> dict[str, Callable[..., object]]:
    return {name: value for name, value in vars(cls).items() if name[0] != "_" and inspect.isfunction(value)}


INTERNAL = {
    tubes.Tube: {
        "doubt",
        "expire",
        "give_back",
        "next_due_ms",
        "publish",
        "line_up",
        "rescue",
    },
    tubes.Queue: {
        "check_open",
        "counted",
        "due_at",
        "flush_counts",
        "forked",
        "join_transaction",
        "sweep_in_background",
    },
}
"""Public among the framework's own modules, but not for users."""


@pytest.mark.parametrize("cls", [tubes.Tube, tubes.Queue])
def test_every_verb_has_an_entry_and_every_entry_is_a_verb(cls: type) -> None:
    entries = set(re.findall(r"^### (\w+)", text_of_section(cls.__name__), re.M))
    methods = public(cls).keys() - INTERNAL[cls]
    assert entries - {"Properties", "tube"} == methods


def text_of_section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text("verbs.md"), re.M | re.S)
    assert found
    return found[1]


@pytest.mark.parametrize("cls", [tubes.Tube, tubes.Queue])
def test_every_parameter_of_a_verb_is_named_in_its_entry(cls: type) -> None:
    section = text_of_section(cls.__name__)
    for name, method in public(cls).items():
        if name in INTERNAL[cls]:
            continue
        entry = section.split(f"### {name}")[1].split("\n### ")[0]
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name == "self" or parameter.kind is parameter.VAR_KEYWORD:
                continue
            is_named = re.search(rf"`[^`\n]*\b{parameter.name}\b", entry)
            assert is_named, f"{cls.__name__}.{name}: {parameter.name}"


def test_errors_named_in_the_entries_exist() -> None:
    names = re.findall(r"`([A-Z]\w+)`(?=[,: ·])", text("verbs.md"))
    known = {name for name in names if hasattr(tubes, name) or name in ("TypeError", "AttributeError")}
    assert set(names) - {"Task", "None", "Queue", "Tube"} <= known


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    file = tmp_path_factory.mktemp("schema") / "jobs.db"
    tubes.connect(f"sqlite:///{file}").close()
    return sqlite3.connect(file)


def names(database: sqlite3.Connection, kind: str) -> set[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = ? AND name GLOB 'tubes_*'", (kind,))
    return {name for (name,) in found}


def test_every_table_has_its_heading_and_every_column_its_row(database: sqlite3.Connection) -> None:
    headings = {code(line)[0] for line in text("sqlite.md").splitlines() if line.startswith("## `")}
    assert headings == names(database, "table")
    for name in headings:
        shown = [code(row[0])[0] for row in table("sqlite.md", f"`{name}`")]
        assert shown == [row[1] for row in database.execute(f"PRAGMA table_info({name})")], name


@pytest.mark.parametrize("kind", ["index", "trigger"])
def test_the_indexes_and_triggers_are_those_of_the_database(kind: str, database: sqlite3.Connection) -> None:
    heading = "Indexes of `tubes_task`" if kind == "index" else "Triggers of `tubes_task`"
    assert {code(row[0])[0] for row in table("sqlite.md", heading)} == names(database, kind)


def test_the_settings_are_those_of_a_new_file(database: sqlite3.Connection) -> None:
    shown = {code(row[0])[0]: row[1] for row in table("sqlite.md", "Settings")}
    assert shown["page_size"] == str(database.execute("PRAGMA page_size").fetchone()[0])
    assert code(shown["journal_mode"])[0].lower() == database.execute("PRAGMA journal_mode").fetchone()[0]
