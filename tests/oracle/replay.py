"""Replays recorded scenarios: on the model, and on the real queue, step by step beside Tarantool's answers.

A step must do what Tarantool answered, translated by the rules of the departures. A few departures change not
how a step is reported but what happens next: another waiter gets the task, say. Translation cannot help then,
so a small model of Tarantool's queue with our departures plays along. It notes when its course may have left
Tarantool's. At the first step where the translated recording and the model then differ, the two have parted:
from there to the end of that scenario, the model says what is expected. If they differ and nothing has been
noted, the replay fails. The queue is compared with the recording up to the parting, and always with the
model.

A call that Tarantool took and we refuse is played twice: as it was, which must be refused and change nothing,
and as Tarantool took it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oracle.model import Model
from oracle.outcome import Failed, Outcome, Step, differences, same
from oracle.recording import Case, Departure, Recording
from oracle.stage import Stage


class Disagreement(AssertionError):
    """A step did not go as expected."""


@dataclass
class Report:
    """How a replay went: steps judged by the recording and by the model alone, and what parted them."""

    by_recording: int = 0
    by_model: int = 0
    parted: set[str] = field(default_factory=set)


class Replay:
    """Plays one case."""

    def __init__(self, case: Case, departures: Iterable[Departure], stage: Stage | None) -> None:
        self._case = case
        self._recording = Recording(case, departures)
        self._model = Model()
        self._stage = stage
        self._report = Report()

    def run(self) -> Report:
        """Play every step; raise Disagreement at the first that goes another way."""
        for number, step in enumerate((self._case.opening, *self._case.steps)):
            try:
                self._step(step)
            except AssertionError as error:
                raise Disagreement(f"{self._case.name}, step {number}, {_input(step)}: {error}") from error
        self._finish()
        return self._report

    def _step(self, step: Step) -> None:
        call = self._recording.call(step)
        box = self._model.box(call)
        accepted = self._recording.accepted(call, None if box is None else box.type)
        if accepted is not None:
            if box is not None or step["op"] == "create":  # a tube that is gone here refuses nothing
                self._refused(call)
            call = dict(accepted)
        told, done = self._perform(call)
        recorded = self._recording.outcome(step, self._model, told)
        for outcome in (recorded, told, done):
            self._arrange(outcome)
        self._compare(recorded, told, done)

    def _perform(self, call: Step) -> tuple[Outcome, Outcome | None]:
        told = self._model.perform(call)
        if self._stage is None:
            return told, None
        return told, self._stage.perform(call, self._model.instants, waits=self._model.waited)

    def _arrange(self, outcome: Outcome | None) -> None:
        """Put the background calls that ended into one order, since nobody can say in which they return.

        Their results show which of them got which task, and the events in which order.
        """
        if outcome is not None:
            outcome.woke.sort(key=lambda ended: ended[0])

    def _refused(self, call: Step) -> None:
        """The call as it was made is an error at once, and changes nothing."""
        expected = Outcome(result=Failed("bad"), stats=self._model.stats())
        in_front = {key: value for key, value in call.items() if key != "bg"}
        for outcome in self._perform(in_front):
            if outcome is not None and (wrong := differences(expected, outcome)):
                raise Disagreement(f"should be refused without effect: {'; '.join(wrong)}")

    def _compare(self, recorded: Outcome, told: Outcome, done: Outcome | None) -> None:
        report = self._report
        if not report.parted:
            wrong = differences(recorded, told)
            if wrong:
                report.parted = self._recording.parting(self._case, self._model.partings)
            if wrong and not report.parted:
                same = done is not None and not differences(told, done)
                who = "model and queue" if same else "model"
                raise Disagreement(f"recording and {who} differ: {'; '.join(wrong)}")
        if report.parted:
            report.by_model += 1
        else:
            report.by_recording += 1
            if done is not None and (wrong := differences(recorded, done)):
                raise Disagreement(f"recording and queue differ: {'; '.join(wrong)}")
        if done is not None and (wrong := differences(told, done)):
            raise Disagreement(f"model and queue differ: {'; '.join(wrong)}")

    def _finish(self) -> None:
        told = self._model.finish()
        late = self._recording.outcome({"op": "sleep", "woke": self._case.late}, self._model, told)
        for outcome in (late, told):
            self._arrange(outcome)
        if not same(tuple(late.woke), tuple(told.woke)):  # nothing was recorded of the rest
            self._report.parted |= self._recording.parting(self._case, self._model.partings)
            if not self._report.parted:
                raise Disagreement(
                    f"{self._case.name}, after the last step: expected {late.woke}, the model has {told.woke}"
                )
        if self._stage is not None:
            done = self._stage.finish(self._model.instants)
            self._arrange(done)
            if wrong := differences(told, done):
                raise Disagreement(f"{self._case.name}, after the last step: {'; '.join(wrong)}")


def replay(case: Case, departures: Iterable[Departure], stage: Stage | None = None) -> Report:
    """Play a case on the model, and on ``stage`` if there is one; Disagreement if it goes another way."""
    return Replay(case, departures, stage).run()


def _input(step: Step) -> str:
    outcome = {"r", "err", "msg", "took", "events", "woke", "stats", "other_stats"}
    return ", ".join(f"{key}={value!r}" for key, value in step.items() if key not in outcome)
