"""The lowest layer of a tube: it runs its driver's steps through the store and hands on their changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from tubes import options as checked
from tubes.answers import Checked
from tubes.driver import Change, Driver, Features, Ref, TubeRecord, new_ref
from tubes.errors import BadOption, LeaseLost, NoSuchTube, NotSupported, NotTaken, StoreError
from tubes.events import Listener
from tubes.interrupts import guarded
from tubes.place import Place, place_of
from tubes.processes import OfOneProcess
from tubes.store import Unit, check_unit
from tubes.task import TAKE, Event, Task
from tubes.unknown import UnknownTakes, taken_by
from tubes.waiting import LEASES_KEPT, Lease, room

if TYPE_CHECKING:
    from tubes.queue import Queue

T = TypeVar("T")
Step = Callable[[Any], Sequence[Change]]

_READY_EVENTS = frozenset((Event.PUT, Event.RELEASE, Event.KICK, Event.DELAY, Event.TTR))
_FREEING_EVENTS = frozenset((Event.ACK, Event.DELETE, Event.TTL))


class Steps(OfOneProcess):
    """The lowest layer of a ``Tube``: from a step to its changes, and from there to the listeners."""

    def __init__(self, queue: Queue, record: TubeRecord, driver: Driver) -> None:
        self._queue = queue
        self._store = queue.store
        self._clock = queue.clock
        self._record = record
        self._id = record.id
        self._room = room(record.id)
        self.driver = driver
        self.place: Place = place_of(queue.store, record, driver)
        self._checked = driver if self.place.is_realised else cast("Driver", Checked(driver, repr(self)))
        """The driver, its answers checked unless it is the store's own: what a tube itself asks."""
        self._unknown = UnknownTakes(self._clock.monotonic)
        self._callback: Listener | None = None
        self._others: list[Listener] = []
        features = driver.features
        self._waking = _READY_EVENTS
        if features.grouped or not self.place.is_realised:
            # These let the next task of the sub-queue be taken, or whatever a driver of your own holds back
            self._waking |= _FREEING_EVENTS | {Event.BURY}
        self._making_room = _FREEING_EVENTS if features.bounded else frozenset()

    # What it is

    @property
    def name(self) -> str:
        """The tube's name."""
        return self._record.name

    @property
    def type(self) -> str:
        """The name of the tube's type, as given to ``create_tube``."""
        return self._record.type

    @property
    def record(self) -> TubeRecord:
        """The tube as the store's catalogue has it: id, stored options, whether it is temporary."""
        return self._record

    @property
    def features(self) -> Features:
        """What the tube's type can do."""
        return self.driver.features

    @property
    def _listeners(self) -> tuple[Listener, ...]:
        """The user's callbacks: that of ``on_task_change`` first."""
        own = () if self._callback is None else (self._callback,)
        return (*own, *self._others)

    def __repr__(self) -> str:
        return f"<Tube {self.name} ({self.type})>"

    # Running a step

    def _run(self, step: Step, unit: Unit | None = None) -> Sequence[Change]:
        """Run a step, commit, publish. In a unit, only run it: the unit publishes after its commit."""
        if unit is not None:
            return unit.run(step, self)
        return guarded(self._commit_and_deliver, step)

    def _read(self, look: Callable[[Any], T], unit: Unit | None = None) -> T:
        """Read the committed tasks; in a unit, also what it has done so far."""
        return self.place.read(look) if unit is None else unit.read(look)

    def _commit(self, step: Step) -> Sequence[Change]:
        """Run a step by itself, commit, publish. Callbacks are then in line; the caller delivers them."""
        is_heard = self._callback is not None or self._others
        changes = self.place.transact(step, self.line_up if is_heard else None)
        if changes:
            self.publish(changes)
        return changes

    def _commit_and_deliver(self, step: Step) -> Sequence[Change]:
        changes = self._commit(step)
        deliveries = self._queue.deliveries
        if deliveries.line:
            deliveries.deliver()
        return changes

    # Handing on

    def publish(self, changes: Sequence[Change]) -> None:
        """Tell the framework's own listeners: counts, waiting consumers, the sweeper."""
        queue, store = self._queue, self._store
        waking = 0
        first_due: int | None = None
        tally: dict[Event, int] = {}
        for event, _, due in changes:
            tally[event] = tally.get(event, 0) + 1
            if due is not None and (first_due is None or due < first_due):
                first_due = due
        for event, count in tally.items():
            if event in self._waking:
                waking += count
            if event in self._making_room:
                store.call(self._room, count)
        if waking:
            leases = self._next_leases(changes, waking) if store.waiters.line else ()
            store.call(self._id, waking, leases)
        for event, count in tally.items():
            if store.counts.add(self._id, event, count):
                queue.counted()
        if first_due is not None:
            queue.due_at(first_due)

    def _next_leases(self, changes: Sequence[Change], waking: int) -> Sequence[Lease]:
        """The next leases of the tasks now ready, for ``Waiters.call``.

        Empty if nobody waits, or if there are enough tasks to call all waiters anyhow.
        """
        waiting = len(self._store.waiters.line.get(self._id, ()))
        if not waiting or waking > waiting + LEASES_KEPT:
            return ()
        ready = (self._task(raw) for event, raw, _ in changes if event in self._waking)
        return [(task.id, task.attempts + 1) for task in ready]

    def line_up(self, changes: Sequence[Change]) -> None:
        """Put changes in line for the user's callbacks; called in commit order."""
        listeners = self._listeners
        if listeners:
            for event, raw, _ in changes:
                self._queue.deliveries.add(listeners, self._task(raw), event)

    def doubt(self, changes: Sequence[Change]) -> None:
        """Note changes that may or may not be committed: what they took is looked for, and given back."""
        for event, raw, _ in changes:
            if event is TAKE:
                self._unknown.add(*taken_by(self._task(raw)))

    # What a call is given and answers

    def _unit(self, unit: Unit | None, connection: Any) -> Unit | None:
        """The transaction that a call is part of; ``None``: the call is one by itself."""
        if not self.place.is_transactional and not (unit is None and connection is None):
            raise NotSupported(
                f"{self._described()} keeps its tasks in a store without transactions over several calls",
                option="unit" if connection is None else "connection",
            )
        if connection is not None:
            if unit is not None:
                raise BadOption("unit= and connection= name two transactions: pass one", option="connection")
            return self._queue.join_transaction(connection)
        if unit is not None:
            check_unit(unit, self._store)
            self._queue.check_open()
        return unit

    def _task(self, raw: Any) -> Task:
        return raw if type(raw) is Task else self._checked.normalize_task(raw)

    def _one(self, changes: Sequence[Change]) -> Task:
        return self._task(changes[0][1])

    def _tasks(self, changes: Sequence[Change]) -> list[Task]:
        return [self._task(raw) for _, raw, _ in changes]

    def _ref(self, task: Task | int) -> Ref:
        if isinstance(task, Task):
            if task.tube != self._record.name:
                raise BadOption(f"{task!r} is not a task of tube {self.name!r}", value=task)
            return new_ref((task.id, task.token, task))
        return Ref(checked.whole("task id", task))

    def _refuse(self, ref: Ref, unit: Unit | None) -> NoReturn:
        self._check_exists(unit)
        raise self._not_taken(ref)

    def _not_taken(self, ref: Ref) -> NotTaken:
        known = ref.task
        if known is not None and ref.token is not None and known.owner is not None:
            if known.owner.hex in (self._store.session, *self._store.lost_sessions):
                with suppress(StoreError):  # this thread's own transaction may be in the way
                    self._store.prove_life()  # it may be that this process was taken for dead
                return LeaseLost(self.name, ref.id, ref.token)
        return NotTaken(self.name, ref.id)

    def _check_exists(self, unit: Unit | None = None) -> None:
        read = self._store.read if unit is None else unit.read
        if not read(lambda tx: self._store.has_tube(tx, self._record)):
            raise NoSuchTube(self.name)

    def _described(self) -> str:
        return f"{self.type} tube {self.name!r}"
