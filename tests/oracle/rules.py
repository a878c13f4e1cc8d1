"""How a recorded step becomes what is expected here: one function for each way in which a departure shows.

None of them knows a case; each looks only at the step and at the type of its tube.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from oracle.model import (
    DURATIONS,
    LARGEST,
    LONGEST,
    TUBE_OPTIONS,
    is_nonsense,
    is_refused,
    is_refused_value,
    known_options,
    stand_in,
)
from oracle.outcome import Failed, Step, Told
from oracle.recording import Recorded

# Translations of the outcome


def an_ack_is_an_ack(recorded: Recorded) -> None:
    """The removal that reports an ack is reported as an ack. It was counted as one all along."""
    if recorded.step["op"] == "ack":
        events = recorded.outcome.events
        for index, told in enumerate(events):
            if told.name == "delete" and told.task == recorded.result:
                events[index] = told._replace(name="ack")


def a_delay_is_a_delay(recorded: Recorded) -> None:
    """The end of a delay has one name."""
    outcome = recorded.outcome
    outcome.events = [
        told._replace(name="delay") if told.name == "delayed" else told for told in outcome.events
    ]
    for calls in recorded.calls.values():
        calls["delay"] += calls.pop("delayed", 0)


def one_change_is_one_event(recorded: Recorded) -> None:
    """Neighbours are not announced, a ttl is only a ttl, and a touch counts once."""
    events: list[Told] = []
    cut_short = Counter(recorded.cut_short)
    for told in recorded.outcome.events:
        if told.name == "wake":
            continue
        if told.name == "ttl":
            _drop_last(events, told, "delete")
            for event, *names in (("ttr", "ttr"), ("delay", "delay", "delayed")):
                if cut_short[told.tube, event] and _drop_last(events, told, *names):
                    cut_short[told.tube, event] -= 1
        events.append(told)
    recorded.outcome.events = events
    for tube, calls in recorded.calls.items():
        calls["delete"] -= calls["ttl"]
        for event in ("ttr", "delay"):
            calls[event] -= recorded.cut_short.get((tube, event), 0)
        calls["touch"] //= 2


def _drop_last(events: list[Told], ended: Told, *names: str) -> bool:
    """Drop the last event of a task if it has such a name and the same moment; tell whether it had."""
    for index in range(len(events) - 1, -1, -1):
        told = events[index]
        if (told.tube, told.task.key) == (ended.tube, ended.task.key):
            if told.name in names and told.at == ended.at:
                del events[index]
                return True
            return False
    return False


def no_negative_touch(recorded: Recorded) -> None:
    """A negative touch is refused."""
    step = recorded.step
    if step["op"] == "touch" and recorded.result is None and _is_negative(step.get("delta")):
        recorded.result = Failed("bad")


def full_is_an_error(recorded: Recorded) -> None:
    """A put that found no room says so."""
    outcome = recorded.outcome
    if recorded.step["op"] == "put" and "bg" not in recorded.step and outcome.result is None:
        outcome.result = Failed("full")
    outcome.woke = [
        (label, Failed("full") if label in recorded.puts and result is None else result)
        for label, result in outcome.woke
    ]


def another_type_is_an_error(recorded: Recorded) -> None:
    """if_not_exists opens what was asked for, or nothing."""
    step, result = recorded.step, recorded.result
    if step["op"] == "create" and isinstance(result, dict) and result["type"] != step["driver"]:
        recorded.result = Failed("exists" if step["driver"] in TUBE_OPTIONS else "unknown_type")


def a_refusal_comes_first(recorded: Recorded) -> None:
    """A call is refused for an option, or for an id that is none, before anything else is looked at."""
    of_others = [Failed(kind) for kind in ("not_taken", "exists", "unknown_type", "unsupported")]
    if isinstance(recorded.step.get("id"), float):
        of_others.append(Failed("not_found"))
    if recorded.result in of_others and is_refused(recorded.step, recorded.type):
        recorded.result = Failed("bad")


def a_put_into_a_dropped_tube(recorded: Recorded) -> None:
    """A put that waited for room in a tube that is dropped learns that it is gone."""
    if recorded.step["op"] == "drop":
        outcome = recorded.outcome
        outcome.woke = [
            (label, Failed("no_tube") if label in recorded.puts and result == Failed("bad") else result)
            for label, result in outcome.woke
        ]


# Calls that are refused here, and what Tarantool took them for


def without_useless_options(step: Step, type: str | None) -> Step | None:
    """Tarantool ignores unknown options, and accepts many values that we do not, and any name."""
    if step["op"] == "take" and is_refused_value("timeout", step.get("timeout")):
        return {**step, "timeout": LONGEST}
    known = known_options(step, type)
    if known is None or not is_refused(step, type):
        return None
    options = step.get("opts") or {}
    kept = {name: _meant(name, value) for name, value in options.items() if name in known}
    kept = {name: value for name, value in kept.items() if not is_refused_value(name, value)}
    instead = {**step, "opts": kept}
    if step["op"] == "create":
        instead["tube"] = stand_in(step["tube"])
    return instead


def _meant(name: str, value: Any) -> Any:
    """What Tarantool takes a value for that is not valid here, if for anything."""
    if not is_refused_value(name, value) or is_nonsense(name, value):
        return value
    if name in DURATIONS | {"timeout"} and isinstance(value, (int, float)):
        return min(max(value, 0), LONGEST)
    if name in ("pri", "capacity"):
        return min(math.ceil(value), LARGEST)
    if name == "if_not_exists":
        return value is not None
    if name == "utube":  # each table is a different one
        return value.replace("\0", "<NUL>") if isinstance(value, str) else uuid.uuid4().hex
    return value


def with_a_whole_id(step: Step, type: str | None) -> Step | None:
    """Tarantool has one kind of number, so 2.0 is the id 2."""
    id = step.get("id")
    if not isinstance(id, float) or not id.is_integer():
        return None
    if step["op"] == "touch" and not step.get("delta"):  # which looks at nothing
        return None
    return {**step, "id": int(id)}


def as_tarantool_took_it(step: Step, type: str | None) -> Step | None:
    """A call may have both an id and options that are not valid here."""
    known = with_a_whole_id(step, type)
    return without_useless_options(known or step, type) or known


def with_a_whole_count(step: Step, type: str | None) -> Step | None:
    """Tarantool kicks whole tasks: a fractional count is rounded down, and a negative one kicks none.

    For false, as for no count, it kicks one.
    """
    count = step.get("count")
    if step["op"] != "kick" or count is None:
        return None
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST:
        return None
    return {**step, "count": 1 if count is False else _whole(count)}


def kicked_whole_tasks(recorded: Recorded) -> None:
    """A kick answers how many tasks it kicked."""
    if recorded.step["op"] == "kick" and isinstance(recorded.result, (int, float, str)):
        recorded.result = _whole(recorded.result)


def _whole(count: float | str) -> int:
    """How often a Lua loop runs for a count, which may be a number in text."""
    if isinstance(count, str):
        count = float.fromhex(count) if "x" in count.lower() else float(count)
    return min(max(int(count), 0), LARGEST)


Translation = Callable[[Recorded], None]


def both(*translations: Translation) -> Translation:
    """Apply one after the other."""

    def translate(recorded: Recorded) -> None:
        for translation in translations:
            translation(recorded)

    return translate


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and value < 0
