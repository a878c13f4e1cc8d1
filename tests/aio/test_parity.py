"""Both APIs have the same verbs, with the same arguments, defaults, types and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tubes
import tubes.aio

DOORS = [(tubes.Tube, tubes.aio.Tube), (tubes.Queue, tubes.aio.Queue)]

INTERNAL = {
    tubes.Tube: {
        "doubt", "expire", "give_back", "line_up", "next_due_ms", "publish", "rescue",
    },
    tubes.Queue: {
        "check_open", "counted", "due_at", "flush_counts", "forked", "join_transaction",
        "sweep_in_background",
    },
}  # fmt: skip
"""Called by the framework's own modules, not by users."""

AT_ONCE = {"on_task_change", "add_listener"}
"""They ask no store for anything, so there is nothing to await."""

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def verbs(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if name[0] != "_" and inspect.isfunction(value)}


def pairs() -> list[Any]:
    found = [
        pytest.param((getattr(plain, name), getattr(awaited, name)), id=f"{plain.__name__}.{name}")
        for plain, awaited in DOORS
        for name in sorted(verbs(plain) - INTERNAL[plain])
    ]
    return [*found, pytest.param((tubes.connect, tubes.aio.connect), id="connect")]


@pytest.mark.parametrize(("plain", "awaited"), DOORS)
def test_both_doors_have_the_same_verbs(plain: type, awaited: type) -> None:
    assert verbs(awaited) - {"run", "run_sync"} == verbs(plain) - INTERNAL[plain]


@pytest.mark.parametrize(("plain", "awaited"), DOORS)
def test_both_doors_have_the_same_properties(plain: type, awaited: type) -> None:
    def properties(cls: type) -> dict[str, str | None]:
        return {name: value.__doc__ for name, value in vars(cls).items() if isinstance(value, property)}

    assert properties(plain).items() <= properties(awaited).items()


@pytest.mark.parametrize("pair", pairs())
def test_a_verb_takes_the_same_arguments_with_the_same_defaults_and_types(pair: Pair) -> None:
    plain, awaited = (inspect.signature(verb) for verb in pair)
    assert list(awaited.parameters.values()) == list(plain.parameters.values())
    if pair[0] is not tubes.connect and pair[0].__name__ != "transaction":
        assert awaited.return_annotation == plain.return_annotation


@pytest.mark.parametrize("pair", pairs())
def test_a_verb_has_the_same_documentation(pair: Pair) -> None:
    plain, awaited = pair
    assert awaited.__doc__ and awaited.__doc__ == plain.__doc__


@pytest.mark.parametrize("pair", pairs())
def test_a_verb_is_awaited_if_it_asks_the_store(pair: Pair) -> None:
    awaited = pair[1]
    is_at_once = awaited.__name__ in AT_ONCE or awaited.__name__ in ("connect", "transaction")
    assert inspect.iscoroutinefunction(awaited) is not is_at_once
