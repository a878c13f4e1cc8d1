"""The meaning of every verb, in pure Python without I/O: what any driver on any store must agree with.

Read it as the specification. Times are milliseconds; the caller moves ``now``. A verb changes ``tasks`` and
returns the changes it made; a refused one changes nothing and returns nothing. Time does nothing by itself: a
``take`` settles what is due before it takes, a ``sweep`` does it at once, and so does a ``put`` that finds no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tubes.driver import Features
from tubes.task import TRANSITIONS, Event, State, Transition

Session = str
"""The id of a session, which takes tasks."""


@dataclass
class ModelTask:
    """A task with what users can see of it."""

    id: int
    data: object
    created: int
    pri: int = 0
    utube: str | None = None
    ttl: int | None = None
    ttr: int | None = None
    state: State = State.READY
    due: int | None = None
    updated: int = 0
    attempts: int = 0
    owner: Session | None = None

    @property
    def end(self) -> int | None:
        """When its life is over, wherever it is; ``None``: never."""
        return None if self.ttl is None else self.created + self.ttl


class ModelChange(NamedTuple):
    """One change, with a copy of the task as it was after it."""

    event: Event
    task: ModelTask


class Model:
    """One tube. ``features`` say which parts of it count; ``order``, which of equal priority comes first."""

    def __init__(
        self,
        features: Features,
        order: Literal["oldest", "newest"] = "oldest",
        *,
        now: int = 0,
        pri: int = 0,
        ttl: int | None = None,
        ttr: int | None = None,
        capacity: int = 0,
    ) -> None:
        self.features = features
        self.order = order
        self.now = now
        self.pri, self.ttl, self.ttr, self.capacity = pri, ttl, ttr if ttr is not None else ttl, capacity
        self.tasks: dict[int, ModelTask] = {}
        self.calls = dict.fromkeys(Event, 0)
        self.ends: dict[Session, int] = {}

    # Putting

    def put(self, ids: Sequence[int], datas: Sequence[object], **options: Any) -> list[ModelChange]:
        """Store all, or nothing if there is no room for all. Options not given are the tube's."""
        changes: list[ModelChange] = []
        if self.lacks_room_for(len(ids)):
            if len(ids) > self.capacity:
                return []  # it can never fit
            changes = self.settle()
            if self.lacks_room_for(len(ids)):
                return changes
        for id, data in zip(ids, datas, strict=True):
            task = ModelTask(id, data, self.now, self.pri, ttl=self.ttl, ttr=self.ttr)
            for name in options.keys() - {"delay"}:
                setattr(task, name, options[name])
            delay = options.get("delay", 0)
            if delay and task.ttl is not None:
                task.ttl += delay
            self.tasks[id] = task
            if delay:
                changes.append(self._move(task, Event.PUT, State.DELAYED, self.now + delay))
            else:
                changes.append(self._move(task, Event.PUT, State.READY, task.end))
        return changes

    def lacks_room_for(self, count: int) -> bool:
        """Tell whether a bounded tube is too full; tasks count in every state."""
        return 0 < self.capacity < len(self.tasks) + count

    # Taking

    def take(self, limit: int, owner: Session, *, ack: ModelTask | None = None) -> list[ModelChange]:
        """Ack the last task, settle what is due, then take up to ``limit`` tasks in order."""
        changes = [] if ack is None else self.ack(ack)
        changes += self.settle()
        while limit > 0 and (task := self.next()) is not None:
            task.attempts += 1
            task.owner = owner
            changes.append(self._move(task, Event.TAKE, State.TAKEN, self._deadline(task)))
            limit -= 1
        return changes

    def next(self) -> ModelTask | None:
        """The task that a take would take: the first ready one whose sub-queue is not busy."""
        busy = {task.utube for task in self.in_state(State.TAKEN)} if self.features.grouped else set()
        return min(
            (task for task in self.in_state(State.READY) if task.utube not in busy),
            key=self.place,
            default=None,
        )

    def place(self, task: ModelTask) -> tuple[int, int]:
        """A task's place in line, whenever it became ready: the smaller comes first."""
        return task.pri, task.id if self.order == "oldest" else -task.id

    def _deadline(self, task: ModelTask) -> int | None:
        """When a taken task is due: at the end of its ttr or of its life, whichever comes first."""
        ends = [
            end for end in (task.end, None if task.ttr is None else self.now + task.ttr) if end is not None
        ]
        return min(ends, default=None)

    # Finishing and giving back: by whoever holds the task

    def held(self, id: int, owner: Session, token: int | None = None) -> ModelTask | None:
        """The task, if ``owner`` holds it; with a token, only by that very take."""
        task = self.stored(id, token)
        return task if task is not None and task.state is State.TAKEN and task.owner == owner else None

    def stored(self, id: int, token: int | None = None) -> ModelTask | None:
        """The task, if it is there; with a token, only while that very take of it lasts."""
        task = self.tasks.get(id)
        if task is None or token is None or (task.state is State.TAKEN and task.attempts == token):
            return task
        return None

    def ack(self, task: ModelTask) -> list[ModelChange]:
        return [self._remove(task, Event.ACK)]

    def release(self, task: ModelTask, delay: int = 0) -> list[ModelChange]:
        """Return it to its old place, at once or after a delay, which lengthens its life."""
        if not delay:
            return [self._move(task, Event.RELEASE, State.READY, task.end)]
        if task.ttl is not None:
            task.ttl += delay
        return [self._move(task, Event.RELEASE, State.DELAYED, self.now + delay)]

    def touch(self, task: ModelTask, delta: int) -> list[ModelChange]:
        """Lengthen the ttr, the ttl and the present deadline."""
        task.ttr = None if task.ttr is None else task.ttr + delta
        task.ttl = None if task.ttl is None else task.ttl + delta
        return [self._move(task, Event.TOUCH, State.TAKEN, None if task.due is None else task.due + delta)]

    # Administration: by any session

    def bury(self, task: ModelTask) -> list[ModelChange]:
        if task.state is State.BURIED:
            return []
        return [self._move(task, Event.BURY, State.BURIED, task.end)]

    def kick(self, count: int) -> list[ModelChange]:
        """Bring back buried tasks in the order in which they would be taken."""
        kicked = sorted(self.in_state(State.BURIED), key=self.place)[:count]
        return [self._move(task, Event.KICK, State.READY, task.end) for task in kicked]

    def delete(self, task: ModelTask) -> list[ModelChange]:
        return [self._remove(task, Event.DELETE)]

    def release_all(self) -> list[ModelChange]:
        return [change for task in self.in_state(State.TAKEN) for change in self.release(task)]

    def truncate(self) -> int:
        """Remove everything; the one change that makes no event."""
        count = len(self.tasks)
        self.tasks.clear()
        return count

    # Time and death

    def settle(self) -> list[ModelChange]:
        """Do what is due, task by task. If a life ends with a delay or ttr, or before, only its end counts.

        Before: a task whose life was over, unseen, may have been released with a delay since.
        """
        changes = []
        for task in sorted(self.tasks.values(), key=lambda task: task.id):
            if task.due is None or task.due > self.now:
                continue
            if task.end is None or task.due < task.end:
                event = Event.TTR if task.state is State.TAKEN else Event.DELAY
                changes.append(self._move(task, event, State.READY, task.end))
            if task.end is not None and task.end <= self.now:
                changes.append(self._remove(task, Event.TTL))
        return changes

    def end_session(self, owner: Session, grace: int = 0) -> None:
        """A session's last connection has gone: the session is over after its grace."""
        self.ends[owner] = self.now + grace

    def rescue(self) -> list[ModelChange]:
        """Give back what dead sessions held."""
        dead = {owner for owner, end in self.ends.items() if end <= self.now}
        orphans = [task for task in self.in_state(State.TAKEN) if task.owner in dead]
        return [change for task in orphans for change in self.release(task)]

    def sweep(self) -> list[ModelChange]:
        return self.rescue() + self.settle()

    # Looking

    def in_state(self, state: State) -> list[ModelTask]:
        return [task for _, task in sorted(self.tasks.items()) if task.state is state]

    def statistics(self) -> dict[str, dict[str, int]]:
        """Tarantool's keys."""
        states = {state.name.lower(): len(self.in_state(state)) for state in State if state is not State.DONE}
        done = self.calls[Event.ACK] + self.calls[Event.DELETE] + self.calls[Event.TTL]
        return {
            "tasks": {**states, "total": len(self.tasks), "done": done},
            "calls": {event.value: count for event, count in self.calls.items()},
        }

    # Within

    def _move(self, task: ModelTask, event: Event, state: State, due: int | None) -> ModelChange:
        """Make one change: one event, one count, and a legal move of the table."""
        source = None if event is Event.PUT else task.state
        assert Transition(source, event, state) in TRANSITIONS
        self.calls[event] += 1
        task.state, task.due, task.updated = state, due, self.now
        if state is not State.TAKEN:
            task.owner = None
        return ModelChange(event, replace(task))

    def _remove(self, task: ModelTask, event: Event) -> ModelChange:
        del self.tasks[task.id]
        return self._move(task, event, State.DONE, None)
