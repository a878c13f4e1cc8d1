"""The driver API: what a tube type implements, and nothing else.

A driver step gets an open transaction and ``now``, does one thing, and **returns the changes it made**,
in the order in which it made them. It never commits, reads a clock, waits or calls back. Plural is the
primitive: one task is a batch of one. A task that does not match is simply absent from the answer; the
tube turns that into an error. A driver raises only for misuse and for what it does not support.

Most types need no driver of their own: a ``TubeType`` names features and an order, and the store that the
queue is on realises it. A driver of one's own is any callable ``(store, tube) -> Driver``, usually a class.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tubes.errors import BadOption, IncompleteDriver, StoreBusy, shown
from tubes.options import sub_queue_name
from tubes.task import DELAYED, PUT, READY, Event, State, Task, make_task

if TYPE_CHECKING:
    from tubes.store import Store

STEP_LIMIT = 1000
"""Tasks that one step settles at most, so that a transaction stays short."""


class TasksLocked(StoreBusy):
    """Others have locked all that a step is about, and it did not wait for them. No verb raises it."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a type can do beyond first in, first out. All default to no.

    timed: ttl, ttr and delay · priority: pri · grouped: utube, at most one taken task per sub-queue ·
    bounded: capacity, and a put's timeout.
    """

    timed: bool = False
    priority: bool = False
    grouped: bool = False
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class TubeType:
    """A tube type that the queue's store realises: its features, its order, and what it is for.

    ``order`` says which ready task is taken first among those of one priority: the ``oldest`` or the
    ``newest`` put. A returned task keeps its place.
    """

    features: Features = field(default_factory=Features)
    order: Literal["oldest", "newest"] = "oldest"
    doc: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.features, Features):
            raise BadOption(f"features must be Features(...), not {shown(self.features)}", option="features")
        if self.order not in ("oldest", "newest"):
            raise BadOption(f"order must be oldest or newest, not {shown(self.order)}", option="order")


@dataclass(frozen=True, slots=True)
class TubeRecord:
    """A tube as the store's catalogue knows it. ``options`` are as stored: durations in milliseconds.

    ``unreadable`` says why its entry there cannot be read, where that is so. Such a tube cannot be opened. What could
    not be read of it is empty, and 0 stands for its ``id``.
    """

    id: int
    name: str
    type: str
    options: Mapping[str, Any]
    temporary: bool
    unreadable: str = ""


class NewTask(NamedTuple):
    """A task to put. ``payload`` is what is stored: JSON text, or bytes as they are; ``data`` is what it means.

    ``utube`` is a sub-queue's stored name; ``tubes.options.sub_queue_name`` makes of it what a Task shows. The delay is
    in ``ttl_ms`` already.
    """

    payload: str | bytes
    data: Any
    pri: int = 0
    utube: str | None = None
    ttl_ms: int | None = None
    ttr_ms: int | None = None
    delay_ms: int = 0


class Ref(NamedTuple):
    """Points at a task. With a ``token`` it means that very lease; ``task`` is what the caller knows of it."""

    id: int
    token: int | None = None
    task: Task | None = None


class Change(NamedTuple):
    """One change that a step made: ``raw`` is the driver's own form of the task after it.

    ``due_ms`` is when time will next do something to the task, for the sweeper; ``None``: never.
    """

    event: Event
    raw: Any
    due_ms: int | None = None


new_item: Callable[[tuple[Any, ...]], NewTask] = partial(tuple.__new__, NewTask)
new_ref: Callable[[tuple[int, int | None, Task | None]], Ref] = partial(tuple.__new__, Ref)
new_change: Callable[[tuple[Event, Any, int | None]], Change] = partial(tuple.__new__, Change)
"""These make what ``NewTask(...)``, ``Ref(...)`` and ``Change(...)`` make, from all fields, at a third of the cost."""


def first_due(item: NewTask, now: int) -> int | None:
    """When time first does something to a new task: the end of its delay, or of its ttl."""
    if item.delay_ms:
        return now + item.delay_ms
    return None if item.ttl_ms is None else now + item.ttl_ms


def put_change(tube: str, id: int, item: NewTask, now: int, is_timed: bool) -> Change:
    """The change that a put makes: what was stored need not be read again."""
    _, data, pri, utube, ttl, ttr, delay = item
    name = sub_queue_name(utube) if utube else None
    if not is_timed:
        return new_change((PUT, make_task(id, tube, READY, data, pri, name, now, now), None))
    due, state = first_due(item, now), DELAYED if delay else READY
    task = make_task(id, tube, state, data, pri, name, now, now, due, ttl, ttr)
    return new_change((PUT, task, due))


class Driver(Protocol):
    """The fixed API. ``tx`` is the store's open transaction; ``now`` is milliseconds since the epoch.

    ``owner`` is a session id; ``None`` is the administrator's form, which matches any owner.

    A driver may also have ``tube_options``, names of options of its own, with ``check_tube_options(given)``, which
    returns what is stored of those; ``transactional = False``, where no call can be a part of a transaction over
    several; and ``is_hosted = True``, where its tasks are not in the queue's store. Where these may be away by
    themselves, ``check_reachable()`` raises StoreUnavailable if they are, and ``waits_for()`` names their server. One
    that ``is_hosted`` may have ``forked()``, called in a forked child; ``follow_session()``, called when the queue's
    session is another; and ``longest_wait()``, seconds that a call waits for those before it. See ``tubes.place``.
    """

    features: Features

    def create_space(self, tx: Any, tube: TubeRecord) -> None:
        """Make room for a new tube's tasks. Must be idempotent."""
        ...

    def start(self, tx: Any) -> None:
        """Called when a process opens the tube. Must be idempotent."""
        ...

    def stop(self) -> None:
        """Called when the process closes the tube. Must not touch the store."""
        ...

    def drop(self, tx: Any) -> None:
        """Remove all that create_space made and all tasks, in this transaction."""
        ...

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        """Store all items, or none and return nothing where a bound leaves no room for all."""
        ...

    def take(self, tx: Any, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        """Take up to ``limit`` tasks in the type's order.

        Must first settle what is due (up to STEP_LIMIT tasks; those changes come first in the answer, and where that
        was not all it takes nothing, and is asked again), must never take a task whose ttl is over, must count the
        attempt, and must never take two of a sub-queue.

        Optional: ``ack_and_take(tx, refs, limit, *, owner, now)``, for a store without transactions over several
        calls. It acks and then takes in one step, or does nothing at all where an ack is refused.
        """
        ...

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Remove those that ``owner`` holds, by that very lease where the ref has a token."""
        ...

    def touch(
        self, tx: Any, refs: Sequence[Ref], delta_ms: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Add to ttr, ttl and the deadline of those that ``owner`` holds. NotSupported unless timed."""
        ...

    def release(
        self, tx: Any, refs: Sequence[Ref], *, delay_ms: int, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Give back those that ``owner`` holds: to their old place, or delayed, which is added to the ttl."""
        ...

    def bury(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Bury ready, taken and delayed tasks. A buried one is no change."""
        ...

    def delete(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Remove tasks in any state."""
        ...

    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        """Make up to ``limit`` buried tasks ready, in the order of a take."""
        ...

    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        """Do what time asks of up to ``limit`` tasks: the end of a delay, a ttl or a ttr.

        In the order in which these fell due, also where two come to one task: the end of its delay, and then of its
        ttl. Where both are at one instant, it is the end of its ttl alone.
        """
        ...

    def truncate(self, tx: Any, limit: int) -> int:
        """Remove up to ``limit`` tasks in any state, silently; return how many."""
        ...

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        """Make up to ``limit`` tasks that ``owner`` holds ready (event RELEASE); ``None``: of everybody.

        What others have locked of one owner's is not waited for; TasksLocked if there is nothing else.
        """
        ...

    def peek(self, tx: Any, ids: Sequence[int]) -> Sequence[Any]:
        """Return the raw tasks of these ids, in any order."""
        ...

    def tasks_by_state(self, tx: Any, state: State, *, after: int, limit: int) -> Sequence[Any]:
        """Return up to ``limit`` raw tasks in a state whose id is above ``after``, by id."""
        ...

    def can_take(self, tx: Any) -> bool:
        """Tell cheaply, without a write, whether a take would find a ready task.

        Consumers that wait ask before they try, so that many of them do not fight for the store's lock.
        """
        ...

    def count(self, tx: Any) -> Mapping[State, int]:
        """Return how many tasks are in each state."""
        ...

    def next_due(self, tx: Any) -> int | None:
        """Return the instant of the next thing that ``expire`` would do, ``None`` when there is none."""
        ...

    def normalize_task(self, raw: Any) -> Task:
        """Turn what the driver's own steps return into a Task. A Task stays as it is: a tube does not ask for it."""
        ...


DriverFactory = Callable[["Store", TubeRecord], Driver]
"""Makes the driver of one tube on one store; a class that takes both is one."""


def api_methods() -> tuple[str, ...]:
    """The names of the driver API's methods, in the order of the protocol."""
    return tuple(name for name, value in vars(Driver).items() if inspect.isfunction(value) and name[0] != "_")


def check_driver(driver: object) -> None:
    """Raise IncompleteDriver that names everything that a driver, or a driver class, lacks.

    A factory that is no class cannot be looked into: what it makes is checked when the first tube is opened.
    """
    if isinstance(driver, TubeType) or (callable(driver) and not isinstance(driver, type)):
        return
    missing = [] if _has_features(driver) else ["features"]
    missing += [name for name in _needed_of(driver) if not _has_method(driver, name)]
    if missing:
        kind = driver if isinstance(driver, type) else type(driver)
        raise IncompleteDriver(kind.__name__, missing)


def _has_features(driver: object) -> bool:
    """Whether it has features. A class has them too whose instances will: then it annotates them."""
    if isinstance(driver, type):
        return any("features" in vars(base) or "features" in _annotated(base) for base in driver.__mro__)
    return isinstance(getattr(driver, "features", None), Features)


def _has_method(driver: object, name: str) -> bool:
    """Whether it has a method of its own: one that is inherited from the protocol does nothing."""
    method = getattr(driver, name, None)
    return callable(method) and getattr(method, "__func__", method) is not vars(Driver).get(name)


def _needed_of(driver: object) -> Iterator[str]:
    """The methods that it must have: all of the API's, and those to which what else it has obliges it."""
    yield from api_methods()
    if getattr(driver, "is_hosted", False):
        yield "ack_and_take"
    if getattr(driver, "tube_options", ()):
        yield "check_tube_options"


def ack_and_take_of(driver: Driver) -> Callable[..., Sequence[Change]] | None:
    """A driver's ``ack_and_take``, ``None`` where it has none.

    A driver may pass on to another what it does not have itself. If it has an ``ack`` or a ``take``, the other's
    ``ack_and_take`` would pass these by.
    """
    kind = type(driver)
    if (hasattr(kind, "ack") or hasattr(kind, "take")) and not hasattr(kind, "ack_and_take"):
        return None
    return getattr(driver, "ack_and_take", None)


def _annotated(kind: type) -> Collection[str]:
    """The names that a class annotates. What it says of them may be there for type checkers alone."""
    if sys.version_info >= (3, 14):  # which would evaluate it
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(kind)
