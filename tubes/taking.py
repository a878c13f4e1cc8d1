"""The middle layer of a tube: it takes tasks, waits for them, and gives back what others have left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tubes import options as checked
from tubes.driver import STEP_LIMIT, Change, Driver, Ref, TasksLocked, TubeRecord, ack_and_take_of
from tubes.errors import (
    BadOption,
    Conflict,
    NoSuchTube,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TubeError,
    store_works,
)
from tubes.interrupts import guarded, interruptible, is_raised_by_handler
from tubes.options import Seconds
from tubes.steps import Steps
from tubes.store import Unit
from tubes.task import ACK, TAKE, State, Task
from tubes.unknown import taken_by
from tubes.waiting import Deadline, seconds_until

if TYPE_CHECKING:
    from tubes.queue import Queue

RECONNECT_AFTER = 0.25
"""Seconds between two looks of who waits while the store cannot be reached."""


class Takes(Steps):
    """The middle layer of a ``Tube``: taking, settling what is due, releasing what ended sessions hold."""

    def __init__(self, queue: Queue, record: TubeRecord, driver: Driver) -> None:
        super().__init__(queue, record, driver)
        self._has_ack_and_take = ack_and_take_of(driver) is not None
        self.ended: set[str] = set()
        """Ended sessions whose tasks are still to be released here."""

    # Taking

    def _take(
        self,
        limit: int,
        timeout: Seconds | None,
        ack: Task | int | None,
        unit: Unit | None,
        connection: Any,
    ) -> list[Task]:
        wait = checked.timeout_seconds(timeout)
        if wait != 0.0 and (unit is not None or connection is not None):
            raise BadOption("a take inside a transaction cannot wait: pass timeout=0", option="timeout")
        unit = self._unit(unit, connection)
        kept: list[Task] = []
        try:
            if unit is None:
                guarded(self._take_or_wait, limit, kept, wait, ack)
            else:
                self._take_now(limit, kept, ack, unit)
            return kept
        except BaseException as error:
            # Interrupted between the commit and the return: nobody has these tasks. If there was no commit,
            # there are no such leases, and this does nothing.
            if kept and (is_raised_by_handler(error) or not isinstance(error, StoreError)):
                self.give_back(kept, unit)
            raise

    def _take_or_wait(self, limit: int, kept: list[Task], wait: float | None, ack: Task | int | None) -> None:
        self._queue.rescuer.look(self)
        try:
            self._take_now(limit, kept, ack)
            if not kept and wait != 0.0:
                try:
                    self._wait_and_take(limit, kept, wait)
                except StoreError as error:
                    is_over = self._queue.is_closed and isinstance(error, StoreUnavailable)
                    if ack is None and not is_over:
                        raise
                    kept.clear()  # closed meanwhile; or the ack stands, and the next call gets the error
        finally:
            deliveries = self._queue.deliveries
            if deliveries.line:
                deliveries.deliver()  # only after leaving the line: a callback must not hold up other waiters

    def _take_now(
        self, limit: int, kept: list[Task], ack: Task | int | None = None, unit: Unit | None = None
    ) -> None:
        """Try once. What is taken is in ``kept`` before the commit, so that no interrupt can lose it.

        Outside a unit, the caller delivers the callbacks.
        """
        if self._unknown and unit is None:
            self._give_back_unknown()
        to_ack = None if ack is None else self._ref(ack)
        settled = len(self._take_step(limit, kept, to_ack, unit))
        if kept:
            return
        if to_ack is not None:
            settled -= 1  # that is the ack
        try:
            self._settle_and_take(limit, kept, settled, unit)
        except StoreError:
            if to_ack is None or unit is not None:
                raise
            kept.clear()  # the ack stands: the error came from looking for more, and the next call gets it

    def _settle_and_take(self, limit: int, kept: list[Task], settled: int, unit: Unit | None) -> None:
        """Try again, if the last step settled due tasks and took none, or if a rescue released some."""
        while not kept and settled:  # more may be due than one step settles
            settled = len(self._take_step(limit, kept, None, unit))
        if not kept and unit is None and self._queue.rescuer.rescue_for(self):
            self._take_step(limit, kept, None, unit)
        if not kept:
            self._check_exists(unit)

    def _take_step(
        self, limit: int, kept: list[Task], to_ack: Ref | None, unit: Unit | None
    ) -> Sequence[Change]:
        """Run the step of a take, and commit it."""
        driver, store, clock, queue = self._checked, self._store, self._clock, self._queue
        owner, now = "", 0

        def step(tx: Any) -> Sequence[Change]:
            nonlocal owner, now
            kept.clear()
            if queue.is_closed:
                if to_ack is not None:
                    queue.check_open()
                return ()
            owner, now = store.session, clock.now_ms()
            if to_ack is None:
                changes = driver.take(tx, limit, owner=owner, now=now)
            else:
                changes = self._ack_and_take(tx, to_ack, limit, owner, now)
            for event, raw, _ in changes:
                if event is TAKE:
                    kept.append(self._task(raw))
            return changes

        try:
            try:
                changes = self._commit(step) if unit is None else self._run(step, unit)
            except Conflict:
                if unit is not None or owner == store.session:
                    raise
                changes = self._commit(step)  # for the session that another thread has joined since
        except BaseException as error:
            # A one-statement step has committed what it took even if something later failed, such as decoding.
            # An interrupt elsewhere than in the main thread, such as a gevent.Timeout, may come before the answer
            if isinstance(error, OutcomeUnknown):
                self._unknown.add(owner, now if error.at_ms is None else error.at_ms)
            elif unit is None and not isinstance(error, TubeError):
                self._unknown.add(owner, now)
            raise
        if to_ack is not None and not any(event is ACK for event, _, _ in changes):
            self._refuse(to_ack, unit)
        return changes

    def _ack_and_take(self, tx: Any, ref: Ref, limit: int, owner: str, now: int) -> Sequence[Change]:
        """Ack, and take in the same step. A refused ack is not in the changes, and nothing is taken."""
        driver: Any = self._checked
        if self._has_ack_and_take:
            changes: Sequence[Change] = driver.ack_and_take(tx, (ref,), limit, owner=owner, now=now)
            return changes
        tx.begin()
        acked: Sequence[Change] = driver.ack(tx, (ref,), owner=owner, now=now)
        if not acked:
            return acked
        taken = driver.take(tx, limit, owner=owner, now=now)
        return [*acked, *taken]

    # Waiting

    def _wait_and_take(self, limit: int, kept: list[Task], timeout: float | None) -> None:
        """Stand in line for tasks; ``Waiters`` says which waiter takes, and when each looks.

        ``calls`` counts the tasks that this waiter was called for and has not tried to take yet. If it leaves
        without them, others are called instead.
        """
        waiters, clock, key = self._store.waiters, self._clock, self._id
        deadline = Deadline(clock, timeout)
        self._queue.sweep_in_background()
        signal = waiters.enter(key)
        calls = 0
        try:
            while True:
                is_last = deadline.left() == 0.0
                is_first, is_called = waiters.heed(key, signal)
                calls = int(is_called)
                most = limit if is_first else 1  # those ahead of it were called for the other tasks
                due = self._try_in_line(most, kept, is_called, is_first, is_last)
                if kept or self._queue.is_closed:
                    return
                calls = 0
                if is_first:
                    waiters.looked_in_vain(key, signal)
                if is_last:
                    return
                self._queue.deliveries.deliver()  # the callbacks of what was due
                pause = deadline.left()  # a look takes time
                if is_first and due is not None:  # the first in line settles what is due; the others wait on
                    pause = due if pause is None else min(pause, due)
                interruptible(clock.wait, signal, pause)
        finally:
            calls += waiters.leave(key, signal, [(task.id, task.attempts) for task in kept])
            waiters.wake_first(key)  # there may be more tasks, and it must settle what is due from now on
            if calls > len(kept):
                self._store.call_instead(key, calls - len(kept))

    def _try_in_line(
        self, limit: int, kept: list[Task], is_called: bool, is_first: bool, is_last: bool
    ) -> float | None:
        """Take if it is this waiter's turn; if nothing came of it, return the seconds until something may."""
        try:
            if is_called:
                self._take_now(limit, kept)
            if not kept and (is_called or is_first or is_last):
                return self._look_and_take(limit, kept, is_last=is_last)
            return None
        except (StoreUnavailable, StoreBusy, OutcomeUnknown):
            if not self.place.reconnects or self._queue.is_closed or is_last:
                raise
            kept.clear()  # nobody knows whether these are taken: _give_back_unknown looks for them
            return RECONNECT_AFTER

    def _look_and_take(self, limit: int, kept: list[Task], *, is_last: bool) -> float | None:
        """Take if there seems to be something; if not, or in vain, return the seconds until there may be."""
        if self._unknown:
            self._give_back_unknown()
        is_ready, due = self._look()
        tried = self._clock.now_ms()
        is_anything_due = is_ready or (due is not None and due <= tried) or self.ended
        if is_anything_due or self._store.deaths_suspected(allow_recent=not is_last):
            self._take_now(limit, kept)
            if not kept:
                due = self._look()[1]
        return None if due is None else seconds_until(due, tried, self._clock.now_ms())

    def _look(self) -> tuple[bool, int | None]:
        """Tell, without a write, whether a task is ready, and when the next task here is due."""
        driver = self._checked

        def look(tx: Any) -> tuple[bool, int | None]:
            is_ready = driver.can_take(tx)
            if not (is_ready or self.place.has_tube(tx)):
                raise NoSuchTube(self.name)
            return is_ready, driver.next_due(tx)

        return self.place.read(look)

    # Giving back

    def give_back(self, tasks: Sequence[Task], unit: Unit | None = None) -> None:
        """Release tasks taken for a caller that is gone; if that fails, the next take or sweep does it.

        What was taken in a transaction goes back in it. A transaction that is over was rolled back, or has
        waited for this; one in which this fails cannot be committed.
        """
        if unit is not None and not unit.is_open:
            return
        try:
            self._give_back(tasks, unit)
        except BaseException as error:
            if unit is None:
                for task in tasks:
                    self._unknown.add(*taken_by(task))
            if not isinstance(error, StoreError):
                raise

    def _give_back(self, tasks: Sequence[Task], unit: Unit | None = None) -> None:
        def release(session: str, refs: Sequence[Ref], tx: Any) -> Sequence[Change]:
            return self._checked.release(tx, refs, delay_ms=0, owner=session, now=self._clock.now_ms())

        of_session: dict[str, list[Ref]] = {}
        for task in tasks:
            of_session.setdefault(taken_by(task)[0], []).append(Ref(task.id, task.token))
        for session, refs in of_session.items():
            self._run(partial(release, session, refs), unit)

    def _give_back_unknown(self) -> None:
        """Release what takes of unknown outcome may hold: no caller was told of these tasks.

        They are recognised by the session and the millisecond of the take. If another thread of the session
        took a task in that very millisecond, it loses its lease.
        """
        unknown, after = self._unknown.due(), -1
        while unknown:
            tasks = [self._task(raw) for raw in self._read(partial(self._taken_after, after))]
            self._give_back([task for task in tasks if taken_by(task) in unknown])
            if len(tasks) < STEP_LIMIT:
                self._unknown.looked_for(unknown)
                return
            after = tasks[-1].id

    def _taken_after(self, after: int, tx: Any) -> Sequence[Any]:
        return self._checked.tasks_by_state(tx, State.TAKEN, after=after, limit=STEP_LIMIT)

    # What is due, and what ended sessions hold

    def expire(self, seen: Mapping[int, int | None] = {}) -> tuple[int, int | None]:
        """Settle what is due; return the number of changes, and when more is due.

        ``seen``: when something is next due in several tubes, by their ids; one that is not there is asked.
        """
        self.place.check_reachable()
        expired = 0
        if self._unknown:
            self._give_back_unknown()
        due = seen[self._id] if self._id in seen else self.next_due_ms()
        while due is not None and due <= self._clock.now_ms():
            changes = self._run(self._expiry)
            expired += len(changes)
            if not changes:
                break
            due = self.next_due_ms()
        return expired, due

    def rescue(self, *, thoroughly: bool = False) -> int:
        """Release what the sessions in ``ended`` hold; return the number of tasks.

        Sessions whose tasks others have locked stay there for the next time: a take must not wait for them.
        So do those that a damaged task is in the way of; StoreError, if that was all.
        ``thoroughly``: also what unknown sessions hold, if the tasks are not in the queue's own store, which
        looks for such sessions itself.
        """
        self.place.check_reachable()
        if thoroughly:
            self.ended |= self.place.strangers()
        released, damage = 0, None
        for session in [*self.ended]:
            try:
                while count := self._release_some(session):
                    released += count
                self.ended.discard(session)
            except TasksLocked:
                pass
            except StoreError as error:
                if not store_works(error):
                    raise
                damage = error
        if damage is not None and not released:
            raise damage
        return released

    def next_due_ms(self) -> int | None:
        """When the next task here is due."""
        return self.place.read(self._checked.next_due) if self.features.timed else None

    def _release_some(self, owner: str | None) -> int:
        """Release up to ``STEP_LIMIT`` tasks that a session holds; ``None``: that any session holds."""
        return len(
            self._run(lambda tx: self._checked.release_owner(tx, owner, STEP_LIMIT, now=self._clock.now_ms()))
        )

    def _expiry(self, tx: Any) -> Sequence[Change]:
        return self._checked.expire(tx, STEP_LIMIT, now=self._clock.now_ms())
