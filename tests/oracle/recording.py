"""Reads what Tarantool answered and translates it, by the departures' rules, into what is expected here."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oracle.model import ABSENT, Model, stand_in
from oracle.outcome import NAP_MS, UNTOLD, Failed, Outcome, Seen, Stats, Step, Told

CASES = Path(__file__).parent / "cases"

TASK_CALLS = {"put", "take", "ack", "release", "touch", "bury", "delete", "peek"}
SILENT_CALLS = {"release_all", "truncate"}
"""Calls that return nothing in Tarantool, and a count here."""


@dataclass(frozen=True)
class Case:
    """One recorded scenario."""

    name: str
    driver: str
    steps: Sequence[Step]
    create: Mapping[str, Any] = field(default_factory=dict)
    late: Sequence[Any] = ()
    loose: bool = False
    quirks: Sequence[str] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Case:
        known = {place.name for place in fields(cls)}
        return cls(**{key: value for key, value in raw.items() if key in known})

    @property
    def opening(self) -> Step:
        """The step that creates the tube, which is judged like all others."""
        opts = dict(self.create)
        return {"op": "create", "tube": "t", "driver": self.driver, "opts": opts, "r": {"type": self.driver}}


def load(name: str) -> list[Case]:
    """The cases of one file."""
    return [Case.read(raw) for raw in json.loads((CASES / f"{name}.json").read_text())]


@dataclass
class Recorded:
    """A step on its way from Tarantool's outcome to the expected one. Rules change ``outcome`` and ``calls``.

    ``type`` is that of its tube.
    """

    step: Step
    type: str | None
    outcome: Outcome
    calls: defaultdict[str, Counter[str]]
    cut_short: Mapping[tuple[str, str], int]
    puts: set[str]

    @property
    def result(self) -> Any:
        """What the call returned; if it is in the background, only if it ended at once."""
        if "bg" not in self.step:
            return self.outcome.result
        return next((result for label, result in self.outcome.woke if label == self.step["bg"]), UNTOLD)

    @result.setter
    def result(self, result: Any) -> None:
        if "bg" not in self.step:
            self.outcome.result = result
        self.outcome.woke = [
            (label, result if label == self.step.get("bg") else other) for label, other in self.outcome.woke
        ]


Translation = Callable[[Recorded], None]
Acceptance = Callable[[Step, str | None], Step | None]


@dataclass(frozen=True)
class Departure:
    """One way in which this package knowingly differs from Tarantool's queue.

    ``translates`` turns the recorded outcome of a step into ours. ``accepts`` says what Tarantool took a call
    for that we refuse: the replay then expects a refusal without any effect, and goes on with the call that
    this returns. ``parts`` names what may send the two on courses of their own, if a tube is made with the
    options ``parts_with``: situations that the model notes, and tags that the recorder gave a case in which
    it saw a defect. ``renews_ids``: a recorded id means the latest task that had it. Without any of these, no
    recorded step shows the departure.
    """

    name: str
    reason: str
    translates: Translation | None = None
    accepts: Acceptance | None = None
    parts: frozenset[str] = frozenset()
    parts_with: Mapping[str, Any] = field(default_factory=dict)
    renews_ids: bool = False

    @property
    def shows(self) -> bool:
        """Tell whether a recorded step can show it."""
        return bool(self.translates or self.accepts or self.parts or self.renews_ids)


class Recording:
    """Translates the steps of one case, in order."""

    def __init__(self, case: Case, departures: Iterable[Departure]) -> None:
        self._loose = case.loose
        self._departures = tuple(departures)
        self._renews_ids = any(departure.renews_ids for departure in self._departures)
        self._keys: dict[tuple[str, int], int] = {}
        self._background: dict[str, Step] = {}
        self.puts: set[str] = set()
        self._told: dict[str, Stats] = {}
        self._expected: dict[str, Stats] = {}
        self._late_ms = 0

    def call(self, step: Step) -> dict[str, Any]:
        """The step with the task it means, instead of Tarantool's id."""
        call = dict(step)
        if "tube" in step and step["op"] != "create":
            call["tube"] = stand_in(step["tube"])
        if "id" in step:
            call["id"] = self._key(_tube(step), step["id"])
        if "bg" in step:
            self._background[step["bg"]] = step
            (self.puts.add if step["op"] == "put" else self.puts.discard)(step["bg"])
        return call

    def accepted(self, call: Step, type: str | None) -> Step | None:
        """What Tarantool took a call for that we refuse, ``None`` if we don't."""
        ended = [call] if "err" in call else []
        ended += [result for label, result in call.get("woke", ()) if label == call.get("bg")]
        if any(_is_error(result) and result["err"] != "callback" for result in ended):
            return None
        for departure in self._departures:
            instead = departure.accepts(call, type) if departure.accepts else None
            if instead is not None:
                return instead
        return None

    def parting(self, case: Case, situations: set[str]) -> set[str]:
        """The departures that may have parted the courses, by what the model noted and by the case's tags."""
        signs = situations.union(case.quirks)
        made = [step.get("opts") or {} for step in (case.opening, *case.steps) if step["op"] == "create"]
        return {
            departure.name
            for departure in self._departures
            if departure.parts & signs and any(departure.parts_with.items() <= opts.items() for opts in made)
        }

    def outcome(self, step: Step, model: Model, told: Outcome) -> Outcome:
        """The expected outcome of a step; ``told`` is what the model makes of it."""
        tube = _tube(step)
        box = model.boxes.get(tube)
        recorded = Recorded(
            step=step,
            type=None if box is None else box.type,
            outcome=self._read(step, tube, told),
            calls=self._count(step),
            cut_short=model.cut_short,
            puts=self.puts,
        )
        for departure in self._departures:
            if departure.translates is not None:
                departure.translates(recorded)
        for name, counts in recorded.calls.items():
            for event, count in counts.items():
                self._expected[name].calls[event] = self._expected[name].calls.get(event, 0) + count
        if step["op"] in ("create", "drop") and not isinstance(recorded.result, Failed):
            self._renew(step["op"], tube, is_new=tube not in self._told)
        outcome = recorded.outcome
        outcome.late_ms = self._late_ms
        if step["op"] == "sleep":  # which ends when it should
            self._late_ms = 0
        elif recorded.result == Failed("full"):
            self._late_ms += NAP_MS
        if step["op"] == "statistics" and isinstance(recorded.result, dict):
            recorded.result = self._corrected(tube, recorded.result)
        outcome.stats = {name: stats.copy() for name, stats in self._expected.items()}
        return outcome

    # Tasks

    def _key(self, tube: str, id: Any) -> Any:
        if isinstance(id, float) and id.is_integer():
            return float(self._key(tube, int(id)))
        if isinstance(id, bool) or not isinstance(id, int) or id < 0:
            return id
        if not self._renews_ids:
            return id
        return self._keys.get((tube, id), ABSENT + id)

    def _learn(self, tube: str, id: int, made: list[int]) -> None:
        """Tarantool gave this id to a new task: the next one that the model made in the same step."""
        self._keys[tube, id] = made.pop(0) if made else ABSENT + id

    def _made(self, step: Step, told: Outcome) -> list[int]:
        """The tasks that the model made in this step."""
        results = [told.result] if step["op"] == "put" else []
        results += [result for label, result in told.woke if label in self.puts]
        return [result.key for result in results if isinstance(result, Seen)]

    def _read(self, step: Step, tube: str, told: Outcome) -> Outcome:
        """Read what was recorded. An id may be given again in the middle of a step, so the order matters."""
        made = self._made(step, told)
        is_put = step["op"] == "put"
        is_last = step["op"] in ("put", "take")  # which may have waited
        result = None if is_last else self._result(step)
        answers = {} if is_last else self._answers(step, [step.get("bg")])  # a call that never waits
        events = []
        for event in step.get("events", ()):
            place, _, name = event[0].rpartition(":")
            place = stand_in(place or "t")
            if name == "put":
                self._learn(place, event[1][0], made)
            at = None if self._loose or len(event) < 3 else round(event[2] * 1000)
            events.append(Told(place, name, self._seen(place, event[1]), at))
        if is_put and isinstance(step.get("r"), list) and made:  # nobody listened
            self._learn(tube, step["r"][0], made)
        for label, ended in step.get("woke", ()):
            if label in self.puts and isinstance(ended, list) and made:
                self._learn(_tube(self._background[label]), ended[0], made)
        if is_last:
            result = self._result(step)
        labels = [label for label, _ in step.get("woke", ())]
        answers.update(self._answers(step, [label for label in labels if label not in answers]))
        woke = [(label, answers[label]) for label in labels]
        took = None if self._loose or "bg" in step else round(step.get("took", 0) * 1000)
        return Outcome(result, events, woke, took, is_sorted=step["op"] == "sleep")

    def _seen(self, tube: str, raw: Sequence[Any]) -> Seen:
        id, state, data = raw
        return Seen(self._key(tube, id), state, data)

    # Results

    def _result(self, step: Step) -> Any:
        if "bg" in step:
            return None
        return self._answer(step, {"err": step["err"]} if "err" in step else step.get("r"))

    def _answers(self, step: Step, labels: Sequence[Any]) -> dict[str, Any]:
        """The results of those calls that ended in the background in this step."""
        return {
            label: self._answer(self._background.get(label, {"op": "take"}), result)
            for label, result in step.get("woke", ())
            if label in labels
        }

    def _answer(self, step: Step, result: Any) -> Any:
        if step["op"] == "set_callback":  # it is meant for the recorder
            return UNTOLD
        if _is_error(result):
            return _failed(result["err"])
        if step["op"] in SILENT_CALLS:
            return UNTOLD
        if step["op"] in TASK_CALLS and isinstance(result, list):
            return self._seen(_tube(step), result)
        return result

    # Statistics

    def _count(self, step: Step) -> defaultdict[str, Counter[str]]:
        """Take over what changed in the statistics; return by how much ``calls`` changed."""
        changed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        news = {"t": step["stats"]} if "stats" in step else {}
        for name, new in {**news, **step.get("other_stats", {})}.items():
            tube = stand_in(name)
            told, expected = self._told[tube], self._expected[tube]
            told.tasks.update(new.get("tasks", {}))
            expected.tasks.update(new.get("tasks", {}))
            for event, value in new.get("calls", {}).items():
                changed[tube][event] += value - told.calls.get(event, 0)
                told.calls[event] = value
        return changed

    def _renew(self, op: str, tube: str, *, is_new: bool) -> None:
        if op == "drop":
            del self._told[tube], self._expected[tube]
            self._keys = {known: key for known, key in self._keys.items() if known[0] != tube}
        elif is_new:
            self._told[tube], self._expected[tube] = Stats.zero(), Stats.zero()

    def _corrected(self, tube: str, raw: Mapping[str, Mapping[str, int]]) -> Stats:
        """Statistics that were asked for, corrected like those that came with the steps."""
        told, expected = self._told[tube], self._expected[tube]
        tasks = {key: expected.tasks[key] + value - told.tasks[key] for key, value in raw["tasks"].items()}
        calls = dict(expected.calls)
        for event, value in raw["calls"].items():
            wrong = value - told.calls.get(event, 0)
            if event in calls or wrong:
                calls[event] = calls.get(event, 0) + wrong
        return Stats(tasks, calls)


def _tube(step: Step) -> str:
    return str(stand_in(step.get("tube", "t")))


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and "err" in result


def _failed(kind: str) -> Failed:
    return Failed("bad" if kind.startswith("bad_") else kind)
