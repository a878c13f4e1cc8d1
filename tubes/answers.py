"""What a driver of one's own may answer: anything else is an error that names the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tubes.driver import Change, Driver
from tubes.errors import shown
from tubes.task import Event, Task


class Checked:
    """Asks a driver what its tube asks. A wrong answer raises: in a transaction, that undoes the step."""

    def __init__(self, driver: Driver, tube: str) -> None:
        self._driver = driver
        self._tube = tube

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask = getattr(self._driver, name)
        what, is_right = _ANSWERS.get(name, _CHANGES)

        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = ask(*args, **kwargs)
            if not is_right(answer):
                raise RuntimeError(
                    f"the driver of {self._tube} must return {what} from {name}, not {shown(answer):.200}"
                )
            return answer

        return asked


def _are_changes(answer: Any) -> bool:
    return isinstance(answer, Sequence) and all(map(_is_change, answer))


def _is_change(answer: Any) -> bool:
    return isinstance(answer, Change) and isinstance(answer.event, Event) and _is_instant(answer.due_ms)


def _is_instant(answer: Any) -> bool:
    return answer is None or isinstance(answer, int)


def _are_counts(answer: Any) -> bool:
    return isinstance(answer, Mapping) and all(isinstance(count, int) for count in answer.values())


_CHANGES = "a list of Change", _are_changes
_TASKS = "a list of tasks", lambda answer: isinstance(answer, Sequence)
_ANSWERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "truncate": ("a number", lambda answer: isinstance(answer, int)),
    "peek": _TASKS,
    "tasks_by_state": _TASKS,
    "can_take": ("True or False", lambda answer: isinstance(answer, int)),
    "count": ("a mapping of numbers", _are_counts),
    "next_due": ("milliseconds or None", _is_instant),
    "normalize_task": ("a Task", lambda answer: isinstance(answer, Task)),
}
"""What these methods must return, in words and as a check; all others return changes."""
