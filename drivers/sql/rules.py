"""What must be true of a single task row, and how to repair it. The examiner reads rows and asks here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tubes.doctor import Kind
from tubes.driver import Features
from tubes.task import FIRST_MS, LAST_MS, STORED

NUMBERS = ("tube", "pri", "created_ms", "updated_ms", "attempts")
MAYBE_NUMBERS = ("front", "place", "due_ms", "ttl_ms", "ttr_ms")

FARTHEST_MS = 2**61
"""No duration is longer than half of it, and no next time is later.

The sum of two such values still fits into a column; with larger ones, every take can fail.
"""

LAST_ID = 2**62
"""The highest id that others can follow: soon after a higher one, a sequence has none left to give."""

MOST_ATTEMPTS = 2_000_000_000
"""The column for the number of takes holds 147 million more."""

FOLLOWING = {"place", "due_ms"}
"""The numbers that follow from the rest: SQLite has a float there, if a sum exceeded 64 bits."""

WORDS = {state.value: state.name.lower() for state in STORED}


class Facts(NamedTuple):
    """A row, with the sizes of its payloads instead of the payloads."""

    id: int
    tube: int | None
    state: str
    front: int | None
    pri: int
    place: int | None
    utube: str | None
    created_ms: int
    updated_ms: int
    due_ms: int | None
    ttl_ms: int | None
    ttr_ms: int | None
    attempts: int
    owner: str | None
    text_size: int | None
    bytes_size: int | None

    @property
    def end_ms(self) -> int | None:
        """When its ttl is over."""
        return None if self.ttl_ms is None else self.created_ms + self.ttl_ms

    @property
    def keeps_an_id(self) -> bool:
        """Whether it is no task but SQLite's row without a tube, which prevents reuse of the largest id."""
        return self.tube is None and self.state == "-"


COLUMNS = Facts._fields[:-2]
"""The columns of a row except its payload."""


@dataclass(frozen=True)
class Wrong:
    """One thing that is wrong with a row. ``columns`` make it right; a row that ``is_empty`` is removed.

    Which task may stand in front of a sub-queue is not judged here: that takes a look at all of its tasks.
    """

    rule: str
    kind: Kind
    what: str
    remedy: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    is_empty: bool = False


def no_numbers(row: Facts) -> list[str]:
    """The columns that must hold a number, and do not."""
    odd = [name for name in NUMBERS if type(getattr(row, name)) is not int]
    return odd + [name for name in MAYBE_NUMBERS if type(getattr(row, name)) not in (int, type(None))]


def wrongs(row: Facts, features: Features | None, now: int) -> list[Wrong]:
    """All that is wrong with a row of a tube whose type has these features; ``None``: nobody knows which."""
    odd = no_numbers(row)
    found = []
    if odd:
        what = f"has something other than a number in {', '.join(odd)}"
        if not set(odd) <= FOLLOWING:
            return [Wrong("number", Kind.STATE, what)]
        found.append(Wrong("number", Kind.STATE, what, "recompute it", dict.fromkeys(odd)))
        row = row._replace(**found[0].columns)
    for wrong in _impossible(row, now):
        found.append(wrong)
        row = row._replace(**wrong.columns)  # the rest is checked as if that were right
    return [*found, *_contradictions(row, features)]


def _impossible(row: Facts, now: int) -> Iterator[Wrong]:
    """Numbers that no verb can have made."""
    if row.id > LAST_ID:
        yield Wrong("id", Kind.STATE, "has an id that no put gives")
    right = min(now, LAST_MS - 1)  # counted from an earlier time, its ttl might be over at once
    for name, ms, verb in (("created_ms", row.created_ms, "put"), ("updated_ms", row.updated_ms, "changed")):
        if not FIRST_MS <= ms < LAST_MS:
            what = f"was {verb} at {ms} ms, which is not a valid time"
            yield Wrong(name, Kind.STATE, what, "set it to now", {name: right})
    for name, duration, word in (("ttl_ms", row.ttl_ms, "ttl"), ("ttr_ms", row.ttr_ms, "ttr")):
        if duration is not None and not 0 <= duration <= FARTHEST_MS:
            what = f"has an impossible {word} of {duration} ms"
            yield Wrong(name, Kind.STATE, what, "set it to never", {name: None})
    least = 1 if row.state == "t" else 0
    if not least <= row.attempts <= MOST_ATTEMPTS:
        what = f"is {WORDS.get(row.state, 'in an unknown state')} but has {row.attempts} attempts"
        yield Wrong("attempts", Kind.STATE, what, f"set them to {least}", {"attempts": least})


def _contradictions(row: Facts, features: Features | None) -> list[Wrong]:
    """What cannot all be true of a row at once."""
    if row.state not in WORDS:
        aside = {"state": "!", "front": None, "place": row.pri, "due_ms": row.end_ms, "owner": None}
        what = f"is in the unknown state {row.state!r}"
        return [Wrong("state", Kind.STATE, what, "bury it", aside)]
    if row.text_size is None and row.bytes_size is None:
        return [Wrong("payload", Kind.GHOST, "has no payload", "remove it", is_empty=True)]
    return [*_stuck(row, features)] or [*_slight(row, features)]


def _stuck(row: Facts, features: Features | None) -> Iterator[Wrong]:
    """What keeps a task in a state for ever. Any other fault follows from that."""
    ready = {"state": "r", "front": 1, "place": row.pri, "due_ms": row.end_ms, "owner": None}
    if row.state == "t" and row.owner is None:
        yield Wrong("nobody", Kind.OWNER, "is taken by nobody", "give it back", ready)
    elif row.state == "~" and features is not None and not features.timed:
        what = "is delayed in a tube whose type has no delays"
        yield Wrong("endless", Kind.STATE, what, "make it ready", ready)


def _slight(row: Facts, features: Features | None) -> Iterator[Wrong]:
    word = WORDS[row.state]
    if row.text_size is not None and row.bytes_size is not None:
        yield Wrong("two", Kind.STATE, "has two payloads")
    if row.state != "t" and row.owner is not None:
        yield Wrong("owner", Kind.STATE, f"is {word} and has an owner", "clear that", {"owner": None})
    yield from _place_in_line(row, features)
    yield from _times(row, features)


def _place_in_line(row: Facts, features: Features | None) -> Iterator[Wrong]:
    word = WORDS[row.state]
    utube = row.utube
    if features is not None and features.grouped and utube is None:
        utube = ""
        what = "has no sub-queue in a tube of sub-queues"
        yield Wrong("utube", Kind.STATE, what, "move it to the unnamed one", {"utube": ""})
    elif features is not None and not features.grouped and utube is not None:
        yield Wrong("no utube", Kind.STATE, f"has the sub-queue {utube!r} in a tube that has none")
        return
    if row.state in "~!":
        right: tuple[int | None, ...] = (None,)
    elif row.state == "r" and utube is not None:
        right = (0, 1)
    else:
        right = (1,)
    if row.front not in right:
        where = {None: "aside", 0: "behind another", 1: "in front"}.get(row.front, f"at {row.front}")
        what = f"is {word} and stands {where}, where nothing finds it"
        yield Wrong("front", Kind.ORPHAN, what, "give it its place", {"front": right[0]})


def _times(row: Facts, features: Features | None) -> Iterator[Wrong]:
    word, due = WORDS[row.state], row.due_ms
    may_be_timed = features is None or features.timed
    right = _right_due(row, may_be_timed)
    place = right if row.state == "t" and may_be_timed else row.pri
    if right != due:
        what = f"is {word} and its due time is {_instant(due)}, not {_instant(right)}"
        yield Wrong("due", Kind.STATE, what, "correct it", {"due_ms": right, "place": place})
    elif row.place != place and (features is not None or row.place != row.pri):
        what = f"is {word} and stands at {row.place} in the order, not at {place}"
        yield Wrong("place", Kind.STATE, what, "move it there", {"place": place})


def _right_due(row: Facts, may_be_timed: bool) -> int | None:
    """When time next does something to a task: as stored, if that is possible, else as the row implies."""
    due, end = row.due_ms, row.end_ms
    if due is not None and not FIRST_MS <= due <= FARTHEST_MS:
        due = None
    if row.state == "~":
        return row.updated_ms if due is None else due
    if row.state != "t" or row.ttr_ms is None or not may_be_timed:
        return end
    if due is not None and (end is None or due <= end):
        return due
    over = row.updated_ms + row.ttr_ms
    return over if end is None else min(over, end)


def _instant(ms: int | None) -> str:
    return "never" if ms is None else f"{ms} ms"
