"""The options of tubes and of their tasks: which of them a type's features allow, and what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypedDict

from tubes import options as checked
from tubes.driver import Features, TubeRecord
from tubes.options import Seconds
from tubes.store import Unit

PUT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "timed": ("ttl", "ttr", "delay"),
    "priority": ("pri",),
    "grouped": ("utube",),
    "bounded": ("timeout",),
}
TUBE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "timed": ("ttl", "ttr"),
    "priority": ("pri",),
    "grouped": (),
    "bounded": ("capacity",),
}


class PutOptions(TypedDict, total=False):
    """The options of a put; durations in seconds. A type's features say which of them it supports."""

    pri: int
    ttl: Seconds | None
    ttr: Seconds | None
    delay: Seconds
    utube: str | float | None
    timeout: Seconds | None
    unit: Unit | None
    connection: Any


class ReleaseOptions(TypedDict, total=False):
    """The options of a release; ``delay`` only if the type is timed."""

    delay: Seconds | None
    unit: Unit | None
    connection: Any


def _supported(features: Features, table: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The options that a type with these features knows."""
    return frozenset(name for feature, names in table.items() if getattr(features, feature) for name in names)


_ALL_PUT_OPTIONS = frozenset(chain(*PUT_OPTIONS.values()))
_ALL_TUBE_OPTIONS = frozenset(chain(*TUBE_OPTIONS.values()))

_OF_TRANSACTION = ("unit", "connection")
"""What every verb that changes a task takes: the transaction that the call is part of."""

_OF_CREATION = ("if_not_exists", "temporary", "on_task_change")
"""What ``create_tube`` itself takes, whatever the type."""


def check_tube_options(options: Iterable[str], features: Features, own: Iterable[str], where: str) -> None:
    """Refuse options that a tube with these features cannot have; ``own`` are the type's own."""
    known = _supported(features, TUBE_OPTIONS).union(own)
    checked.check_names(options, _ALL_TUBE_OPTIONS.union(own), known, where, _OF_CREATION)


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A tube's options as they are stored."""
    stored: dict[str, Any] = {}
    for option in ("ttl", "ttr"):
        if options.get(option) is not None:
            stored[f"{option}_ms"] = checked.milliseconds(option, options[option])
    for option in ("pri", "capacity"):
        if option in options:
            stored[option] = checked.whole(option, options[option])
    return stored


def differing_options(
    given: Mapping[str, Any], asked: Mapping[str, Any], stored: Mapping[str, Any]
) -> list[str]:
    """The names of given options that the tube has with other values. ``asked``: what would be stored."""
    has = {"ttr_ms": stored.get("ttl_ms"), "pri": 0, "capacity": 0, **stored}  # the defaults, unless stored
    names = {option: option.removesuffix("_ms") for option in asked}
    return [name for option, name in names.items() if name in given and has.get(option) != asked[option]]


def release_delay(options: ReleaseOptions, features: Features, where: str) -> int:
    """The milliseconds of a release's delay."""
    delay = options.get("delay")
    known = ("delay",) if features.timed or delay is None else ()
    checked.check_names(options, ("delay",), known, where, _OF_TRANSACTION)
    return 0 if delay is None else checked.milliseconds("delay", delay)


Settings = tuple[int, str | None, int | None, int | None, int]
"""What a NewTask has besides its data: pri, utube, ttl_ms, ttr_ms, delay_ms."""


class TaskSettings:
    """The settings of one tube's tasks: what a put does not say comes from the tube, then from the type."""

    def __init__(self, features: Features, tube: TubeRecord) -> None:
        ttl_ms = tube.options.get("ttl_ms")
        ttr_ms = tube.options.get("ttr_ms", ttl_ms)
        self.defaults: Settings = (
            tube.options.get("pri", 0),
            "" if features.grouped else None,
            ttl_ms,
            ttr_ms,
            0,
        )
        self._supported = _supported(features, PUT_OPTIONS)
        self._allowed = self._supported.union(_OF_TRANSACTION)
        self._where = f"put into {tube.type} tube {tube.name!r}"

    def of(self, options: PutOptions) -> Settings:
        """Check a put's options; return the settings of its tasks."""
        if not options.keys() <= self._allowed:
            checked.check_names(options, _ALL_PUT_OPTIONS, self._supported, self._where, _OF_TRANSACTION)
        pri, utube, ttl_ms, ttr_ms, delay_ms = self.defaults
        if "pri" in options:
            pri = checked.whole("pri", options["pri"])
        if "utube" in options:
            utube = checked.sub_queue(options["utube"])
        if "ttl" in options:
            ttl_ms = checked.optional_milliseconds("ttl", options["ttl"])
        if "ttr" in options:
            ttr_ms = checked.optional_milliseconds("ttr", options["ttr"])
        delay = options.get("delay")
        if delay is not None:
            delay_ms = checked.milliseconds("delay", delay)
            if ttl_ms is not None:
                ttl_ms += delay_ms
        return pri, utube, ttl_ms, ttr_ms, delay_ms
