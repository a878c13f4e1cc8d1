"""The entries of tubes in a queue's catalogue: how they are written and read; see queue.lua."""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from math import inf
from typing import NamedTuple

from tubes.driver import TubeRecord
from tubes.options import check_stored_options, whole

NUMBER = "[1-9][0-9]{0,15}"
"""A pattern for what ``new_number`` returns."""


def new_number() -> int:
    """Return a random number for a tube, one that no other tube has."""
    return secrets.randbelow(2**52) + 1


class Entry(NamedTuple):
    """An entry of the catalogue: its place in the order, the tube, and the id before its tasks' first."""

    order: float
    tube: TubeRecord
    after: int = 0


def written_entry(tube: TubeRecord) -> str:
    """The part of a tube's entry that add_tube.lua is given; it adds the rest."""
    return json.dumps({"type": tube.type, "options": dict(tube.options), "temporary": tube.temporary})


@lru_cache(maxsize=10_000)  # a process that sweeps reads all entries every second
def read_entry(name: bytes, stored: bytes) -> Entry:
    """Read the entry of the tube of that name; if it cannot be read, the record says why."""
    number = 0
    try:
        entry = json.loads(stored)
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise ValueError(f"it is not an object with a type, but {entry!r}")
        number, order, after = (whole(each, entry.get(each)) for each in ("id", "order", "after"))
        options, temporary = check_stored_options(entry.get("options")), bool(entry.get("temporary"))
        return Entry(order, TubeRecord(number, name.decode(), entry["type"], options, temporary), after)
    except (ValueError, RecursionError) as error:
        shown = name.decode(errors="backslashreplace")
        return Entry(inf, TubeRecord(number, shown, "", {}, False, str(error)))
