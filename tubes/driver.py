"""The driver API: what a tube type implements, and nothing else.

A driver step gets an open transaction and ``now``, does one thing, and **returns the changes it made**,
in the order in which it made them. It never commits, reads a clock, waits or calls back. Every step takes
many: one task is a batch of one. A task that does not match is simply absent from the answer; the
tube turns that into an error. A driver raises only for misuse and for what it does not support.

Most types need no driver of their own: a ``TubeType`` names features and an order, and the queue's store
realises it. A driver of your own comes from any callable ``(store, tube) -> Driver``, usually its class.
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
"""The most tasks that one step settles, so that a transaction stays short."""


class TasksLocked(StoreBusy):
    """Others have locked every task that a step is about, and it did not wait. No verb raises this."""


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

    ``unreadable`` says why its entry there cannot be read, if that is so. Such a tube cannot be opened.
    Fields that could not be read are empty; an unreadable ``id`` is 0.
    """

    id: int
    name: str
    type: str
    options: Mapping[str, Any]
    temporary: bool
    unreadable: str = ""


class NewTask(NamedTuple):
    """A task to put. ``payload`` is what is stored: JSON text, or the bytes as given; ``data`` is its value.

    ``utube`` is a sub-queue's stored name; ``tubes.options.sub_queue_name`` turns it into what a Task shows.
    ``ttl_ms`` already includes the delay.
    """

    payload: str | bytes
    data: Any
    pri: int = 0
    utube: str | None = None
    ttl_ms: int | None = None
    ttr_ms: int | None = None
    delay_ms: int = 0


class Ref(NamedTuple):
    """Refers to a task. With a ``token`` it means that lease only; ``task`` is the Task given, if any.

    Several refs of a step may name one task, with different tokens: it is changed once if one matches.
    """

    id: int
    token: int | None = None
    task: Task | None = None


class Change(NamedTuple):
    """One change that a step made: ``raw`` is the driver's own form of the task after it.

    ``due_ms``, for the sweeper, is when time will next change the task; ``None``: never.
    """

    event: Event
    raw: Any
    due_ms: int | None = None


new_item: Callable[[tuple[Any, ...]], NewTask] = partial(tuple.__new__, NewTask)
new_ref: Callable[[tuple[int, int | None, Task | None]], Ref] = partial(tuple.__new__, Ref)
new_change: Callable[[tuple[Event, Any, int | None]], Change] = partial(tuple.__new__, Change)
"""The same as ``NewTask(...)``, ``Ref(...)`` and ``Change(...)`` with all fields, at a third of the cost."""


def first_due(item: NewTask, now: int) -> int | None:
    """When time first changes a new task: the end of its delay, or of its ttl."""
    if item.delay_ms:
        return now + item.delay_ms
    return None if item.ttl_ms is None else now + item.ttl_ms


def put_change(tube: str, id: int, item: NewTask, now: int, is_timed: bool) -> Change:
    """The change that a put makes, without reading the stored task again."""
    _, data, pri, utube, ttl, ttr, delay = item
    name = sub_queue_name(utube) if utube else None
    if not is_timed:
        return new_change((PUT, make_task(id, tube, READY, data, pri, name, now, now), None))
    due, state = first_due(item, now), DELAYED if delay else READY
    task = make_task(id, tube, state, data, pri, name, now, now, due, ttl, ttr)
    return new_change((PUT, task, due))


class Driver(Protocol):
    """The fixed API. ``tx`` is the store's open transaction; ``now`` is milliseconds since the epoch.

    ``owner`` is a session id; ``None``, the administrator's form, matches any owner.

    Optional attributes:

    - ``tube_options``: names of the type's own options, with ``check_tube_options(given)``, which returns
      what is stored of those;
    - ``transactional = False``: no call can be part of a transaction over several calls;
    - ``is_hosted = True``: the tasks are not in the queue's store;
    - ``check_reachable()`` and ``waits_for()``, if the tasks' server may be away by itself: the first raises
      StoreUnavailable if it is, the second names it.

    A hosted driver may also have ``forked()``, called in a forked child; ``holders(tx)``, which returns the
    sessions that may hold tasks; ``longest_wait()``, the most seconds that a call waits for earlier ones; and
    ``own_store()``, which returns the Store that has the tasks, to be examined. See ``tubes.place``, and for
    the last ``tubes.doctor``.
    """

    features: Features

    def create_space(self, tx: Any, tube: TubeRecord) -> None:
        """Create what a new tube's tasks are stored in. Must be idempotent."""
        ...

    def start(self, tx: Any) -> None:
        """Called when a process opens the tube. Must be idempotent."""
        ...

    def stop(self) -> None:
        """Called when the process closes the tube, or has no use for the driver: it may not have been started.

        Must not touch the store.
        """
        ...

    def drop(self, tx: Any) -> None:
        """Remove all tasks, and all that create_space made, in this transaction."""
        ...

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        """Store all items; if a bound leaves no room for all of them, store none and return nothing."""
        ...

    def take(self, tx: Any, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        """Take up to ``limit`` tasks in the type's order.

        Must first settle what is due: up to STEP_LIMIT tasks, whose changes come first in the answer. If that
        may not be all, it takes nothing, and is asked again. Must never take a task whose ttl is over, must
        count the attempt, and must never take two of a sub-queue.

        Optional: ``ack_and_take(tx, refs, limit, *, owner, now)``, for a store without transactions over
        several calls. It acks and then takes in one step; if an ack is refused, it does nothing at all.
        """
        ...

    def ack(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Remove those that ``owner`` holds; if a ref has a token, only while that lease holds."""
        ...

    def touch(
        self, tx: Any, refs: Sequence[Ref], delta_ms: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Add to ttr, ttl and the deadline of those that ``owner`` holds. Asked only if ``timed``."""
        ...

    def release(
        self, tx: Any, refs: Sequence[Ref], *, delay_ms: int, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Give back those that ``owner`` holds: to their old place, or delayed (added to the ttl)."""
        ...

    def bury(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Bury ready, taken and delayed tasks. A task that is buried already yields no change."""
        ...

    def delete(self, tx: Any, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        """Remove tasks in any state."""
        ...

    def kick(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        """Make up to ``limit`` buried tasks ready, in the order of a take."""
        ...

    def expire(self, tx: Any, limit: int, *, now: int) -> Sequence[Change]:
        """Settle up to ``limit`` due tasks: the end of a delay, a ttl or a ttr.

        The changes are in the order in which they fell due, also if one task has two: the end of its delay,
        say, and then of its ttl. If both fall at the same instant, only the end of the ttl counts.
        """
        ...

    def truncate(self, tx: Any, limit: int) -> int:
        """Remove up to ``limit`` tasks in any state, silently; return how many."""
        ...

    def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        """Make ready up to ``limit`` tasks that ``owner`` holds; ``None``: that anybody does (event RELEASE).

        For one owner, tasks that others have locked are skipped; TasksLocked if only such tasks are left.
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

        Waiting consumers ask this before they take, so that they do not all fight for the store's lock. They
        ask again after each change of the tube's tasks, and at the instant that ``next_due`` names.
        """
        ...

    def count(self, tx: Any) -> Mapping[State, int]:
        """Return how many tasks are in each state."""
        ...

    def next_due(self, tx: Any) -> int | None:
        """Return the instant at which ``expire`` will next have something to do, ``None`` if never.

        If the driver holds ready tasks back until some instant, that one counts as well.
        """
        ...

    def normalize_task(self, raw: Any) -> Task:
        """Turn what the driver's own steps return into a Task; a Task stays as it is (tubes do not ask).

        Built-in drivers return a Task as ``raw`` from some steps; from which, depends on the store.
        """
        ...


DriverFactory = Callable[["Store", TubeRecord], Driver]
"""Makes the driver of one tube on one store; a class whose constructor takes both is one."""


def api_methods() -> tuple[str, ...]:
    """The names of the driver API's methods, in the order of the protocol."""
    return tuple(name for name, value in vars(Driver).items() if inspect.isfunction(value) and name[0] != "_")


def check_driver(driver: object) -> None:
    """Raise IncompleteDriver, naming everything that a driver, or a driver class, lacks.

    A factory that is not a class is not checked; each driver that it makes is.
    """
    if isinstance(driver, TubeType) or (callable(driver) and not isinstance(driver, type)):
        return
    missing = [] if _has_features(driver) else ["features"]
    missing += [name for name in _needed_of(driver) if not _has_method(driver, name)]
    if missing:
        kind = driver if isinstance(driver, type) else type(driver)
        raise IncompleteDriver(kind.__name__, missing)


def _has_features(driver: object) -> bool:
    """Whether it has features. A class that only annotates them counts: its instances will have them."""
    if isinstance(driver, type):
        return any("features" in vars(base) or "features" in _annotated(base) for base in driver.__mro__)
    return isinstance(getattr(driver, "features", None), Features)


def _has_method(driver: object, name: str) -> bool:
    """Whether it has such a method, other than the protocol's own, which does nothing."""
    method = getattr(driver, name, None)
    return callable(method) and getattr(method, "__func__", method) is not vars(Driver).get(name)


def _needed_of(driver: object) -> Iterator[str]:
    """The methods that it must have: all of the API's, and those that its optional attributes call for."""
    yield from api_methods()
    if getattr(driver, "is_hosted", False):
        yield "ack_and_take"
    if getattr(driver, "tube_options", ()):
        yield "check_tube_options"


def ack_and_take_of(driver: Driver) -> Callable[..., Sequence[Change]] | None:
    """A driver's ``ack_and_take``, ``None`` if it has none.

    A driver may delegate to another what it lacks itself. If it has an ``ack`` or a ``take`` of its own, the
    other's ``ack_and_take`` would bypass these, so it does not count.
    """
    kind = type(driver)
    if (hasattr(kind, "ack") or hasattr(kind, "take")) and not hasattr(kind, "ack_and_take"):
        return None
    return getattr(driver, "ack_and_take", None)


def _annotated(kind: type) -> Collection[str]:
    """The names that a class annotates. The annotations themselves may be for type checkers alone."""
    if sys.version_info >= (3, 14):  # inspect would evaluate them there
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(kind)
