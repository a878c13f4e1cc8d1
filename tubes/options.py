"""Turns the user's arguments into checked, stored values, once: seconds to milliseconds, names, ids."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tubes.errors import BadOption, NotSupported, shown, suggestion

Seconds = float | int | timedelta
"""A public duration: a number of seconds or a timedelta."""

LONGEST_MS = 2**53 - 1
"""The longest duration: 285,000 years, and exact in every store and in JSON."""

LONGEST_SUM_MS = 2**60
"""The most that delays and touches add up to, so that resulting instants fit into 64 bits in every store."""

LARGEST_ID = 2**63 - 1

_MARK = "\1"
"""Precedes a sub-queue's stored name if that would otherwise be the unnamed one's, or begin with a mark."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)


def tube_name(name: object, *, option: str = "name", what: str = "tube name") -> str:
    """Check a tube's name (Tarantool queue README, ``create_tube``), or that of something else: ``what``."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return str.__str__(name)
    raise BadOption(
        f"bad {what} {shown(name)}: letters, digits and _, at most 32, not starting with a digit",
        option=option,
        value=name,
    )


def milliseconds(option: str, value: object) -> int:
    """Turn seconds or a timedelta into whole milliseconds, rounded up so that nothing ends early."""
    if type(value) is int and 0 <= value <= LONGEST_MS // 1000:
        return value * 1000
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise BadOption(
            f"{option} must be seconds or a timedelta, not {shown(value)}", option=option, value=value
        )
    if value < 0 or value * 1000 > LONGEST_MS:
        raise BadOption(
            f"{option} must be from 0 to {LONGEST_MS // 1000} seconds, not {shown(value)}",
            option=option,
            value=value,
        )
    return math.ceil(float(_digits(value * 1000, 15)))  # those that a float is good for: 0.1 + 0.2 is 300 ms


def optional_milliseconds(option: str, value: object) -> int | None:
    """Turn a duration into milliseconds that may be ``None``, which means "never"."""
    return None if value is None else milliseconds(option, value)


def seconds(option: str, value: object) -> float:
    """Check a duration that is only waited for, never stored."""
    return milliseconds(option, value) / 1000


def timeout_seconds(value: object) -> float | None:
    """A take's ``timeout``: ``None`` waits for ever; a negative one tries once, as in Tarantool."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value <= 0:
            return 0.0
        if value == math.inf:
            return None
    return seconds("timeout", value)


def check_flag(option: str, value: object) -> None:
    """Check that a flag is True or False; a text such as "no" is neither."""
    if not isinstance(value, bool):
        raise BadOption(f"{option} must be True or False, not {shown(value)}", option=option, value=value)


def whole(option: str, value: object, *, least: int = 0) -> int:
    """Check a whole number; return a plain int, since a member of an enum would be shown by its name."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_ID:
        raise BadOption(
            f"{option} must be a whole number from {least} to {LARGEST_ID}, not {shown(value)}",
            option=option,
            value=value,
        )
    return int.__pos__(value)


def _digits(value: float, count: int) -> str:
    """A number as text with so many digits, even if its class has a text form of its own."""
    return f"{float(value):.{count}g}"


def sub_queue(value: object) -> str:
    """Check a sub-queue's name; return it as it is stored, which is ``""`` for the unnamed one.

    Names are compared as text: 1 is "1" and 1.5 is "1.5", with the digits that Tarantool gives it.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return _number_as_text(value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadOption(f"utube {value!r} is not valid text", option="utube", value=value) from error
    if "\0" in value:
        raise _no_sub_queue(value)
    return _MARK + value if not value or value[0] == _MARK else str.__str__(value)


def _number_as_text(value: object) -> str:
    """The name of a sub-queue that is given as a number or a bool."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        with suppress(ValueError):  # it has thousands of digits
            return int.__repr__(value)  # int's own repr, even for a member of an enum
    if isinstance(value, float) and math.isfinite(value):
        return _digits(value, 14)
    raise _no_sub_queue(value)


def _no_sub_queue(value: object) -> BadOption:
    return BadOption(f"utube must be text without NUL, not {shown(value)}", option="utube", value=value)


def sub_queue_name(stored: str | None) -> str | None:
    """The name that ``sub_queue`` stored as this text; ``None`` for the unnamed sub-queue, and for none."""
    if not stored:
        return None
    return stored[1:] if stored[0] == _MARK else stored


def described_sub_queue(stored: str) -> str:
    """What a message calls a sub-queue, by its stored name."""
    name = sub_queue_name(stored)
    return "the unnamed sub-queue" if name is None else f"sub-queue {name!r}"


def check_stored_options(options: object) -> dict[str, Any]:
    """Check a tube's options as a catalogue has them; ValueError for what tubes cannot have written there."""
    if not isinstance(options, dict):
        raise ValueError(f"its options are not an object, but {options!r}")
    for name, absent in (("pri", 0), ("capacity", 0), ("ttl_ms", None), ("ttr_ms", None)):
        value = options.get(name, absent)
        if value is not absent:
            whole(name, value)
    return options


def iterated(option: str, values: Iterable[Any]) -> Iterator[Any]:
    """Begin to iterate over a batch's values; BadOption for what is not iterable."""
    try:
        return iter(values)
    except TypeError as error:
        raise BadOption(
            f"{option} must be an iterable, not {shown(values)}", option=option, value=values
        ) from error


def payloads(datas: Iterable[Any]) -> list[Any]:
    """The payloads of a batch; BadOption for a single payload, whose parts would be stored instead."""
    if isinstance(datas, Mapping | bytes | bytearray | memoryview):
        kind = type(datas).__name__
        raise BadOption(
            f"datas must be an iterable of payloads, not one: put a {kind} with put(), or several in a list",
            option="datas",
            value=datas,
        )
    return [*iterated("datas", datas)]


def check_names(
    given: Iterable[str],
    allowed: Iterable[str],
    supported: Iterable[str],
    where: str,
    besides: Iterable[str] = (),
) -> None:
    """Refuse unknown options, and those that this type does not support, by name.

    ``besides`` are the options of the call itself, which are checked elsewhere.
    """
    supported, besides, allowed = set(supported), set(besides), set(allowed)
    for option in given:
        if option in supported or option in besides:
            continue
        if option in allowed:
            raise NotSupported(
                f"{where} does not support {option!r}; it supports: {', '.join(sorted(supported)) or 'none'}",
                option=option,
            )
        raise BadOption(
            f"{where} has no option {option!r}{suggestion(option, supported, besides | allowed)}",
            option=option,
        )
