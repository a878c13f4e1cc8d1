"""The suite of bounds: a full tube refuses a put or makes it wait, and its count of tasks never drifts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tubes.errors import NotSupported, TubeFull
from tubes.queue import Queue
from tubes.task import Task
from tubes.testing.clock import FakeClock
from tubes.testing.suite import (
    MakeTube,
    Suite,
    Waiting,
    ids,
    needs,
    refusal,
    refused,
    take,
    transactional,
    without,
)
from tubes.tube import Tube


class Capacity(Suite):
    """Tasks in every state take room; what is gone takes none."""

    @pytest.fixture
    def full(self, make_tube: MakeTube) -> Tube:
        """A tube of three with a ready, a taken and a buried task."""
        tube = make_tube("full", capacity=3)
        tube.put("ready", **self.apart(1))
        tube.put("taken", **self.apart(2))
        tube.bury(tube.put("buried", **self.apart(3)))
        take(tube)
        return tube

    def room_in(self, tube: Tube) -> int:
        """Return how many more tasks can be put; those that this puts are deleted again."""
        put: list[Task] = []
        with suppress(TubeFull):
            while len(put) < 9:
                put.append(tube.put("more", **self.apart(100 + len(put))))
        for task in put:
            tube.delete(task)
        return len(put)

    @needs("bounded")
    def test_a_put_into_a_full_tube_is_refused_and_nothing_is_stored(self, full: Tube) -> None:
        before = full.statistics()
        given: list[dict[str, Any]] = [{}, {"timeout": 0}, {"timeout": -1}]
        for options in given:
            error = refusal(full.put, "x", error=TubeFull, **options)
            assert (error.tube, error.capacity, error.wanted) == ("full", 3, 1) and "full" in str(error)
        assert full.statistics() == before

    @needs("bounded")
    @pytest.mark.parametrize("how", ["ack", "delete", "truncate"])
    def test_what_goes_makes_room(self, full: Tube, how: str) -> None:
        if how == "ack":
            full.ack(full.tasks("t")[0])
        elif how == "delete":
            full.delete(full.tasks("!")[0])
        else:
            full.truncate()
        full.put("x")
        if how != "truncate":
            with pytest.raises(TubeFull):
                full.put("y")

    @needs("bounded")
    def test_what_comes_back_needs_no_room(self, full: Tube) -> None:
        full.release(full.tasks("t")[0])
        assert full.kick() == 1
        with pytest.raises(TubeFull):
            full.put("x")

    @transactional
    @needs("bounded", "timed")
    def test_a_transaction_puts_where_many_that_are_over_were(
        self, queue: Queue, make_tube: MakeTube, clock: FakeClock
    ) -> None:
        tube = make_tube(capacity=1500)
        tube.put_many(range(1500), ttl=1)
        clock.advance(1)
        with queue.transaction() as unit:
            assert len(tube.put_many(range(1500), unit=unit)) == 1500

    @needs("bounded")
    @pytest.mark.parametrize("how", ["release", "bury", "kick", "release_all", "release_owner", "ack_many"])
    def test_what_stays_makes_no_room(
        self, queue: Queue, make_tube: MakeTube, clock: FakeClock, how: str
    ) -> None:
        tube = make_tube(capacity=3)
        driver, owner = tube.driver, queue.store.session
        for n in range(2):
            tube.put(n, **self.apart(n))
        held, other = tube.take_many(2, 0)
        if how in ("bury", "kick"):
            tube.bury(held)
            if how == "kick":
                tube.kick()
        elif how == "release_all":
            tube.release_all()
        elif how == "release_owner":
            now = clock.now_ms()
            queue.store.transact(lambda tx: driver.release_owner(tx, owner, 9, now=now))
        else:
            tube.release(held)
        if how == "ack_many":
            assert ids(tube.ack_many([held, other])) == [other.id]
        assert self.room_in(tube) == (2 if how == "ack_many" else 1)

    @needs("bounded", "timed")
    @pytest.mark.parametrize("how", ["touch", "delayed release", "delay", "ttr"])
    def test_what_stays_makes_no_room_as_time_goes_by(
        self, queue: Queue, make_tube: MakeTube, clock: FakeClock, how: str
    ) -> None:
        tube = make_tube(capacity=3)
        tube.put("x", ttr=5)
        task = take(tube)
        if how == "touch":
            tube.touch(task, 1)
        elif how == "ttr":
            clock.advance(5)
        else:
            tube.release(task, delay=2)
            clock.advance(2 if how == "delay" else 1)
        queue.sweep()
        assert self.room_in(tube) == 2

    @needs("bounded", "timed")
    @pytest.mark.parametrize("end", ["delete", "ttl"])
    @pytest.mark.parametrize("state", ["ready", "taken", "buried", "delayed"])
    def test_what_is_gone_makes_room_in_whatever_state_it_was(
        self, queue: Queue, make_tube: MakeTube, clock: FakeClock, state: str, end: str
    ) -> None:
        tube = make_tube(capacity=2)
        task = tube.put("x", ttl=5)
        if state == "taken":
            take(tube)
        elif state == "buried":
            tube.bury(task)
        elif state == "delayed":
            tube.release(take(tube), delay=9)
        if end == "delete":
            tube.delete(task.id)
        else:
            clock.advance(14)
            queue.sweep()
        assert self.room_in(tube) == 2

    @needs("bounded", "timed")
    def test_a_delayed_task_takes_room(self, make_tube: MakeTube) -> None:
        tube = make_tube(capacity=1)
        tube.put("later", delay=5)
        with pytest.raises(TubeFull):
            tube.put("x")

    @needs("bounded")
    def test_room_is_right_after_many_comings_and_goings(self, make_tube: MakeTube) -> None:
        tube = make_tube(capacity=4)
        for n in range(12):
            tube.put(n, **self.apart(n))
            tube.put(n, **self.apart(n + 100))
            tube.release(take(tube))
            tube.ack_many(tube.take_many(1, 0))
            tube.delete(tube.tasks("r")[0])
        tube.put_many(range(4))
        with pytest.raises(TubeFull):
            tube.put("x")

    @needs("bounded")
    @pytest.mark.parametrize("count", [1, 3])
    def test_a_tube_that_was_emptied_has_all_its_room_and_no_more(
        self, make_tube: MakeTube, count: int
    ) -> None:
        """Emptied by a truncate, or by acks of ``count`` tasks at once."""
        tube = make_tube(capacity=3)
        for empty in (tube.truncate, lambda: tube.ack_many(tube.take_many(count, 0))):
            for n in range(count):
                tube.put(n, **self.apart(n))
            empty()
            tube.put_many("abc")
            with pytest.raises(TubeFull):
                tube.put("d")
            tube.truncate()

    @needs("bounded")
    def test_a_batch_is_stored_whole_or_not_at_all(self, full: Tube) -> None:
        full.delete(full.tasks("!")[0])
        with pytest.raises(TubeFull, match="2 more"):
            full.put_many("ab")
        assert full.statistics()["tasks"]["total"] == 2
        full.put_many("a")

    @needs("bounded")
    def test_a_batch_that_can_never_fit_does_not_wait(self, make_tube: MakeTube) -> None:
        tube = make_tube(capacity=2)
        with pytest.raises(TubeFull):
            tube.put_many("abc", timeout=None)

    @needs("bounded")
    @pytest.mark.parametrize("options", [{}, {"capacity": 0}], ids=str)
    def test_without_a_capacity_there_is_no_limit(self, make_tube: MakeTube, options: dict[str, int]) -> None:
        assert len(make_tube(**options).put_many(range(300))) == 300

    @needs("bounded")
    def test_a_put_waits_for_room_until_its_timeout(self, full: Tube, clock: FakeClock) -> None:
        putter = Waiting(clock, full.put, "late", timeout=5)
        clock.advance(4.999)
        assert clock.waiting == 1
        clock.advance(0.001)
        with pytest.raises(TubeFull):
            putter.end()
        assert full.statistics()["tasks"]["total"] == 3

    @needs("bounded")
    @pytest.mark.parametrize("how", ["ack", "delete", "truncate", "ack_many"])
    def test_a_put_that_waits_is_woken_by_room(self, full: Tube, clock: FakeClock, how: str) -> None:
        putter = Waiting(clock, full.put, "late", timeout=None)
        if how == "ack":
            full.ack(full.tasks("t")[0])
        elif how == "ack_many":
            full.ack_many(full.tasks("t"))
        elif how == "delete":
            full.delete(full.tasks("r")[0])
        else:
            full.truncate()
        assert isinstance(putter.end(), Task)

    @needs("bounded")
    def test_putters_that_wait_are_served_in_the_order_in_which_they_came(
        self, full: Tube, clock: FakeClock
    ) -> None:
        first, second = (Waiting(clock, full.put, "late", timeout=None) for _ in range(2))
        full.ack(full.tasks("t")[0])
        assert isinstance(first.end(), Task) and not second.got
        full.delete(full.tasks("!")[0])
        assert isinstance(second.end(), Task)

    @needs("bounded")
    @transactional
    def test_a_rolled_back_transaction_gives_its_room_back(self, queue: Queue, make_tube: MakeTube) -> None:
        tube = make_tube(capacity=2)
        with pytest.raises(RuntimeError), queue.transaction() as unit:
            tube.put_many("ab", unit=unit)
            with pytest.raises(TubeFull):
                tube.put("c", unit=unit)
            raise RuntimeError
        tube.put_many("ab")

    @needs("bounded")
    def test_a_capacity_that_cannot_be_is_refused(self, queue: Queue) -> None:
        for capacity in (-1, 1.5, "3", None, True):
            assert "capacity" in refused(
                queue.create_tube, "bad", self.type, capacity=capacity, **self.options
            )
        assert "bad" not in queue.tubes()

    @needs("bounded", "timed")
    def test_what_is_over_takes_no_room(self, make_tube: MakeTube, clock: FakeClock) -> None:
        tube = make_tube(capacity=2)
        tube.put_many("ab", ttl=1)
        clock.advance(1)
        tube.put_many("cd")
        with pytest.raises(TubeFull):
            tube.put("e")

    @needs("bounded", "timed")
    def test_a_put_that_waits_is_woken_when_a_task_is_over(
        self, make_tube: MakeTube, clock: FakeClock
    ) -> None:
        tube = make_tube(capacity=1)
        tube.put("short", ttl=3)
        putter = Waiting(clock, tube.put, "late", timeout=10)
        clock.advance(3)
        assert isinstance(putter.end(), Task)

    @without("bounded")
    def test_a_capacity_is_refused_by_a_type_without(self, queue: Queue) -> None:
        with pytest.raises(NotSupported, match="'capacity'"):
            queue.create_tube("bounded", self.type, capacity=3, **self.options)
        assert "bounded" not in queue.tubes()

    @without("bounded")
    def test_a_puts_timeout_is_refused_by_a_type_without(self, tube: Tube) -> None:
        with pytest.raises(NotSupported, match="'timeout'"):
            tube.put("x", timeout=1)
        assert tube.statistics()["tasks"]["total"] == 0
