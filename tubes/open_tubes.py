"""The tubes that a queue has open, each with its driver: opened when asked for, forgotten when dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tubes.driver import Driver, TubeRecord
from tubes.errors import (
    BadOption,
    IncompleteDriver,
    NoSuchTube,
    StoreError,
    StoreUnavailable,
    UnknownDriver,
    store_works,
)
from tubes.interrupts import guarded, is_raised_by_handler
from tubes.making import make_driver, start_driver, stop_driver
from tubes.registry import find_driver
from tubes.taking import Takes
from tubes.tube import Tube

if TYPE_CHECKING:
    from tubes.queue import Queue


class OpenTubes:
    """The tubes of one queue, by name.

    Never wait for the store with this lock held: a thread that is in a transaction may want the lock.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.store
        self._tubes: dict[str, Tube] = {}
        self._lock = threading.RLock()
        self._is_over = False
        """Whether the drivers are being stopped, so that no more tubes are opened."""

    def __iter__(self) -> Iterator[Tube]:
        return iter(list(self._tubes.values()))

    def get(self, name: str) -> Tube | None:
        """The tube of that name, if it is open. It may have been dropped elsewhere since."""
        return self._tubes.get(name)

    def open(self, record: TubeRecord, driver: Driver | None = None, *, is_started: bool = False) -> Tube:
        """Open a tube, with ``driver`` if given, unless another thread has opened it already.

        ``is_started``: the store has told that a driver of its own has nothing to do at the start.
        """
        tube = self._get_same(record)
        if tube is not None:
            if driver is not None:
                stop_driver(driver)
            return tube
        if driver is None:
            driver = make_driver(self._store, find_driver(record.type), record)
        try:
            opened = Tube(self._queue, record, driver)
            if not (is_started and opened.place.is_realised):
                start_driver(record, opened.place.start)
        except BaseException:  # also what a signal's handler raises
            stop_driver(driver)
            raise
        return guarded(self._opened, opened)

    def _opened(self, opened: Tube) -> Tube:
        """Register an opened tube and return it, or the one of another thread that was faster."""
        record = opened.record
        unused: Driver | None = opened.driver
        with self._lock:
            tube = self._get_same(record)
            if tube is None and not self._is_over:
                self._store.set_aside.clear()
                dropped = self._tubes.get(record.name)  # others dropped it, and made a new one of that name
                self._tubes[record.name] = tube = opened
                unused = None if dropped is None else dropped.driver
        if unused is not None:
            stop_driver(unused)
        if tube is None:
            raise StoreUnavailable("this queue is closed")
        return tube

    def open_all(self) -> list[Tube]:
        """Open every tube whose type is registered here, in order of creation; forget those that are gone.

        A tube is left out for as long as its type is not registered, its driver cannot be made here (a
        package that it needs is not installed, say), its entry cannot be read, or it is damaged itself. A
        caller that asks for such a tube is told why.
        """
        before = list(self)
        records = self._queue.records()
        unopened = [record for record in records if not (record.unreadable or self._get_same(record))]
        started = self._told("are_started", unopened)
        tubes = [tube for record in records if (tube := self._open_if_possible(record, started)) is not None]
        ids = {record.id for record in records}
        for tube in before:
            if tube.record.id not in ids:
                guarded(self._forget_if_idle, tube)
        return tubes

    def _forget_if_idle(self, tube: Tube) -> None:
        if not self._store.waiters.count(tube.record.id):
            self.forget(tube)

    def forget(self, tube: Tube) -> None:
        """Forget a tube that was dropped."""
        with self._lock:
            if self._tubes.get(tube.name) is not tube:
                return  # whoever removed it stops its driver
            del self._tubes[tube.name]
        stop_driver(tube.driver)

    def close(self) -> None:
        """Stop all drivers; no more tubes are opened."""
        with self._lock:
            self._is_over = True
            left = list(self)
        for tube in left:
            stop_driver(tube.driver)

    def forked(self) -> None:
        """Called in a forked child: a thread of the parent's may hold a lock."""
        self._lock = threading.RLock()
        for tube in self:
            tube.place.forked()

    def asked_of_many(self, what: str, tubes: Sequence[Tube]) -> Mapping[int, Any]:
        """What the store tells of many tubes at once (``next_dues``, say), by id: of those it can."""
        return self._told(what, [tube.record for tube in tubes if tube.place.is_realised])

    def _told(self, what: str, asked: Sequence[TubeRecord]) -> Mapping[int, Any]:
        ask = getattr(self._store, what, None)
        if ask is None or not asked:
            return {}
        try:
            return cast("Mapping[int, Any]", self._store.read(lambda tx: ask(tx, asked)))
        except Exception as error:
            if is_raised_by_handler(error) or (isinstance(error, StoreError) and not store_works(error)):
                raise
            return {}  # something is wrong with one of them: each will be asked by itself

    def _get_same(self, record: TubeRecord) -> Tube | None:
        """This very tube if it is open, not a dropped one of the same name."""
        tube = self._tubes.get(record.name)
        return tube if tube is not None and tube.record.id == record.id else None

    def _open_if_possible(self, record: TubeRecord, started: Mapping[int, bool]) -> Tube | None:
        if record.unreadable:
            return self._get_same(record)
        try:
            return self.open(record, is_started=started.get(record.id, False))
        except (UnknownDriver, IncompleteDriver, BadOption):
            return None
        except StoreError as error:
            if not store_works(error):
                raise
            return None


@contextmanager
def apart_from_others(tube: Takes, failed: list[Exception] | None = None) -> Iterator[None]:
    """Keep an error of this tube alone from ending a loop over all tubes; note it in ``failed``."""
    try:
        yield
    except NoSuchTube:  # dropped elsewhere since
        pass
    except Exception as error:
        if is_raised_by_handler(error):  # such as an alarm's, which is meant for the caller
            raise
        if isinstance(error, StoreError) and not tube.place.fails_alone(error):
            raise
        if failed is not None:
            error.add_note(f"in {tube!r}")
            failed.append(error)
