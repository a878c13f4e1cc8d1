"""The suite of ownership: who may finish a task, and what becomes of the tasks of sessions that are gone."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tubes.driver import Ref
from tubes.errors import BadOption, Conflict, LeaseLost, NoSuchSession, NotTaken
from tubes.queue import Queue
from tubes.task import Event, State, Task
from tubes.testing.atomicity import Stop
from tubes.testing.children import Child, take_and_hold
from tubes.testing.clock import FakeClock
from tubes.testing.suite import Connect, MakeTube, Suite, ids, refusal, refused, take, transactional, until
from tubes.tube import Tube


def verbs_of_the_owner(tube: Tube) -> list[Callable[[Any], Any]]:
    """The verbs that only the holder of a task may use."""

    def touch(task: Any) -> Any:
        return tube.touch(task, 1)

    verbs: list[Callable[[Any], Any]] = [tube.ack, tube.release]
    return [*verbs, touch] if tube.features.timed else verbs


def verbs_by_lease(tube: Tube) -> list[Callable[[Any], Any]]:
    """All verbs that heed a lease if they are given one."""

    def take_and_ack(task: Any) -> Any:
        return tube.take(0, ack=task)

    return [*verbs_of_the_owner(tube), tube.bury, tube.delete, take_and_ack]


class Ownership(Suite):
    """Leases, seen from one session."""

    def test_only_a_taken_task_can_be_acked_released_or_touched(self, tube: Tube) -> None:
        ready = tube.put("ready", **self.apart(0))
        buried = tube.bury(tube.put("buried", **self.apart(1)))
        for task in (ready, buried):
            for verb in verbs_of_the_owner(tube):
                error = refusal(verb, task.id, error=NotTaken)
                assert type(error) is NotTaken and str(task.id) in str(error)
        assert [tube.peek(ready.id), tube.peek(buried.id)] == [ready, buried]

    def test_a_step_that_is_given_a_lease_that_is_over_changes_nothing(
        self, queue: Queue, tube: Tube, clock: FakeClock
    ) -> None:
        """Even if nobody has taken the task since, and the step is given only its id and its old token."""
        driver, owner = tube.driver, queue.store.session
        tube.put("x")
        task = take(tube)
        released = tube.release(task)
        refs, now = [Ref(task.id, task.token)], clock.now_ms()
        transact = queue.store.transact
        assert not transact(lambda tx: driver.bury(tx, refs, owner=owner, now=now))
        assert not transact(lambda tx: driver.delete(tx, refs, owner=owner, now=now))
        assert tube.peek(task.id) == released

    def test_a_task_that_was_taken_again_cannot_be_finished_by_its_old_lease(self, tube: Tube) -> None:
        tube.put("x")
        old = take(tube)
        tube.release(old)
        new = take(tube)
        assert new.id == old.id and new.token != old.token
        for verb in verbs_by_lease(tube):
            assert str(old.id) in refused(verb, old, error=LeaseLost)
        assert tube.ack_many([old]) == []
        assert tube.peek(new.id) == new
        assert tube.ack(new).state is State.DONE

    def test_a_task_that_was_released_is_no_longer_held(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        tube.release(task)
        for verb in verbs_by_lease(tube):
            refused(verb, task, error=LeaseLost)
        for verb in verbs_of_the_owner(tube):
            refused(verb, task.id, error=NotTaken)
        assert tube.peek(task.id).state is State.READY

    def test_a_lease_counts_by_its_token_alone(self, queue: Queue, tube: Tube, clock: FakeClock) -> None:
        """What else the caller knows of the task may help a driver, but may be missing."""
        driver, owner = tube.driver, queue.store.session

        def ack(*tasks: Task) -> list[int]:
            refs, now = [Ref(task.id, task.token) for task in tasks], clock.now_ms()
            changes = queue.store.transact(lambda tx: driver.ack(tx, refs, owner=owner, now=now))
            return [driver.normalize_task(change.raw).id for change in changes]

        for n in range(2):
            tube.put(n, **self.apart(n))
        old = tube.take_many(2, 0)
        tube.release_all()
        new = tube.take_many(2, 0)
        assert ids(new) == ids(old)
        assert ack(old[0]) == ack(*old) == []
        given: dict[str, Any] = {
            "refs": [Ref(old[0].id, old[0].token)],
            "owner": owner,
            "now": clock.now_ms(),
        }
        for step in (partial(driver.release, delay_ms=0), driver.bury, driver.delete):
            assert not queue.store.transact(partial(step, **given))
        assert ack(new[0], old[1]) == [new[0].id]
        assert tube.tasks("t") == [new[1]]

    def test_a_second_ack_is_refused(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        tube.ack(task)
        with pytest.raises(LeaseLost):
            tube.ack(task)
        with pytest.raises(NotTaken):
            tube.ack(task.id)
        assert tube.statistics()["calls"]["ack"] == 1

    def test_by_id_the_session_alone_is_asked(self, tube: Tube) -> None:
        tube.put("x")
        old = take(tube)
        tube.release(old)
        take(tube)
        assert tube.ack(old.id).state is State.DONE

    def test_by_a_task_as_it_was_put_as_well(self, tube: Tube) -> None:
        """A task that was not taken names no lease."""

        def ack_many(task: Task) -> Task:
            return tube.ack_many([task])[0]

        for verb in (*verbs_of_the_owner(tube), ack_many):
            put = tube.put("x")
            take(tube)
            assert verb(put).id == put.id
            tube.truncate()

    def test_tokens_grow_with_every_take(self, tube: Tube) -> None:
        tube.put("x")
        tokens = []
        for _ in range(4):
            task = take(tube)
            assert task.token is not None
            tokens.append(task.token)
            tube.release(task)
        assert tokens == sorted(set(tokens))

    def test_attempts_are_counted_at_the_take(self, tube: Tube) -> None:
        id = tube.put("x").id
        for attempt in range(1, 4):
            assert take(tube).attempts == attempt
            assert tube.peek(id).attempts == attempt
            if attempt == 1:
                tube.release(id)
            elif attempt == 2:
                tube.bury(id)
                tube.kick()
        assert tube.ack(id).attempts == 3

    def test_a_task_that_was_never_taken_is_buried_and_deleted_as_it_was_put(self, tube: Tube) -> None:
        task = tube.put("x")
        take(tube)
        assert tube.bury(task).state is State.BURIED
        assert tube.delete(task).state is State.DONE

    def test_ack_many_acks_a_task_once(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        assert ids(tube.ack_many([task, task, task.id])) == [task.id]
        assert tube.statistics()["calls"]["ack"] == 1

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_of_two_leases_of_a_task_ack_many_heeds_the_last(self, tube: Tube, newest_first: bool) -> None:
        tube.put("x")
        old = take(tube)
        tube.release(old)
        new = take(tube)
        (done,) = tube.ack_many([new, old] if newest_first else [old, new])
        assert (done.id, done.attempts) == (new.id, 2)

    def test_ack_many_leaves_what_this_session_has_taken_anew(self, tube: Tube) -> None:
        for n in range(2):
            tube.put(n, **self.apart(n))
        old, other = tube.take_many(2, 0)
        tube.release(old)
        new = take(tube)
        assert new.id == old.id
        assert ids(tube.ack_many([old, other])) == [other.id]
        assert tube.tasks("t") == [new]

    def test_ack_many_heeds_each_lease_by_itself(self, tube: Tube) -> None:
        for n in range(3):
            tube.put(n, **self.apart(n))
        old, second, third = tube.take_many(3, 0)
        tube.release(second)
        second = take(tube)
        tube.release(old)
        new = take(tube)
        assert (new.id, new.attempts, second.attempts, third.attempts) == (old.id, 2, 2, 1)
        assert ids(tube.ack_many([old, second, third])) == [second.id, third.id]
        assert tube.tasks("t") == [new]

    def test_a_session_has_one_name(self, queue: Queue) -> None:
        assert queue.identify() == queue.identify() == queue.identify(queue.identify())
        assert isinstance(queue.identify(), uuid.UUID)

    def test_an_unknown_session_cannot_be_joined(self, queue: Queue) -> None:
        before = queue.identify()
        with pytest.raises(NoSuchSession):
            queue.identify(uuid.uuid4())
        nobodies: tuple[Any, ...] = ("me", "", 7, b"me")
        for nobody in nobodies:
            with pytest.raises(BadOption, match="UUID"):
                queue.identify(nobody)
        assert queue.identify() == before


class SharedOwnership(Suite):
    """Leases and sessions, with others on the same store."""

    @pytest.fixture
    def other(self, make_queue: Connect, tube: Tube) -> Tube:
        """The same tube, opened by another session."""
        return make_queue().tube[tube.name]

    def test_what_another_session_holds_cannot_be_acked_released_or_touched(
        self, tube: Tube, other: Tube
    ) -> None:
        tube.put("x")
        task = take(other)
        for verb in verbs_of_the_owner(tube):
            for ref in (task, task.id):
                error = refusal(verb, ref, error=NotTaken)
                assert type(error) is NotTaken and str(task.id) in str(error)  # it was never ours to lose
        for ref in (task, task.id):
            assert type(refusal(tube.take, 0, ack=ref, error=NotTaken)) is NotTaken
        assert tube.ack_many([task]) == []
        assert other.peek(task.id) == task
        assert other.ack(task).state is State.DONE

    def test_ack_many_leaves_what_another_session_holds(self, tube: Tube, other: Tube) -> None:
        """Although all leases have the same number."""
        for n in range(4):
            tube.put(n, **self.apart(n))
        theirs, mine = other.take_many(2, 0), take(tube)
        theirs.append(take(other))
        assert tube.ack_many(theirs[:2]) == tube.ack_many(theirs[1:]) == []
        assert ids(tube.ack_many([*theirs, mine])) == [mine.id]
        assert ids(other.ack_many(theirs)) == ids(theirs)

    @pytest.mark.parametrize("verb", ["bury", "delete"])
    def test_bury_and_delete_by_id_ask_nobody(self, tube: Tube, other: Tube, verb: str) -> None:
        tube.put("x")
        task = take(other)
        getattr(tube, verb)(task.id)
        with pytest.raises(LeaseLost):
            other.ack(task)

    def test_release_all_takes_from_everybody(self, tube: Tube, other: Tube) -> None:
        tube.put("x", **self.apart(1))
        tube.put("y", **self.apart(2))
        mine, theirs = take(tube), take(other)
        assert other.release_all() == 2
        for held, task in ((tube, mine), (other, theirs)):
            with pytest.raises(LeaseLost):
                held.ack(task)

    def test_a_lease_that_went_to_another_session_is_lost(self, tube: Tube, other: Tube) -> None:
        tube.put("x")
        old = take(tube)
        tube.release(old.id)
        new = take(other)
        with pytest.raises(LeaseLost):
            tube.ack(old)
        assert other.ack(new).state is State.DONE

    @transactional
    def test_a_take_that_was_rolled_back_is_no_lease_of_whoever_takes_next(
        self, tube: Tube, other: Tube, queue: Queue
    ) -> None:
        """Although its number may be given again."""
        tube.put("x")
        with pytest.raises(Stop), queue.transaction() as unit:
            never = tube.take(0, unit=unit)
            raise Stop
        held = take(other)
        for verb in verbs_by_lease(tube):
            refused(verb, never, error=NotTaken)
        assert other.peek(held.id) == held

    def test_the_tasks_of_a_session_that_ends_are_ready_again(
        self, tube: Tube, other: Tube, make_queue: Connect
    ) -> None:
        leaving = make_queue()
        for n in range(3):
            tube.put(n, **self.apart(n))
        held = leaving.tube[tube.name].take_many(2, 0)
        mine = take(tube)
        leaving.close()
        assert sorted(ids(tube.tasks(State.READY))) == sorted(ids(held))
        assert tube.peek(mine.id) == mine
        assert [tube.peek(task.id).attempts for task in held] == [1, 1]
        assert tube.statistics()["calls"]["release"] == 2
        assert take(other).attempts == 2

    def test_what_an_unknown_session_holds_is_given_back(
        self, queue: Queue, tube: Tube, clock: FakeClock
    ) -> None:
        """A process that others have taken for dead may still finish a take, where that is not refused."""
        put, stranger = tube.put("x"), uuid.uuid4().hex
        with suppress(Conflict):
            queue.store.transact(lambda tx: tube.driver.take(tx, 1, owner=stranger, now=clock.now_ms()))
        queue.sweep()
        assert take(tube).id == put.id

    def test_a_session_keeps_its_tasks_for_its_grace(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        leaving = make_queue(session_ttr=10)
        tube.put("x")
        task = take(leaving.tube[tube.name])
        leaving.close()
        clock.advance(9.9)
        queue.sweep()
        assert tube.peek(task.id).state is State.TAKEN
        assert tube.take(0) is None
        clock.advance(0.1)
        assert queue.sweep() == 1
        assert take(tube).id == task.id

    def test_a_grace_can_be_configured_later(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        leaving = make_queue()
        leaving.configure(session_ttr=5)
        tube.put("x")
        task = take(leaving.tube[tube.name])
        leaving.close()
        assert tube.take(0) is None
        clock.advance(5)
        queue.sweep()
        assert take(tube).id == task.id

    def test_a_grace_is_the_session_s_whichever_of_its_connections_sets_it(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        one, two = make_queue(), make_queue()
        two.identify(one.identify())
        two.configure(session_ttr=5)
        tube.put("x")
        task = take(one.tube[tube.name])
        two.close()
        one.close()
        assert tube.take(0) is None
        clock.advance(5)
        queue.sweep()
        assert take(tube).id == task.id

    def test_a_session_that_is_joined_again_keeps_its_tasks_and_can_ack_them(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        leaving = make_queue(session_ttr=10)
        tube.put("x")
        task = take(leaving.tube[tube.name])
        session = leaving.identify()
        leaving.close()
        clock.advance(9)
        back = make_queue()
        assert back.identify(session) == session == back.identify()
        clock.advance(100)
        queue.sweep()
        assert tube.peek(task.id).state is State.TAKEN
        assert back.tube[tube.name].ack(task).state is State.DONE

    def test_a_session_keeps_its_own_grace_whoever_joins_it(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        leaving, back = make_queue(session_ttr=10), make_queue()
        tube.put("x")
        task = take(leaving.tube[tube.name])
        assert back.tube[tube.name].peek(task.id) == task
        back.identify(leaving.identify())
        assert back.tube[tube.name].take(0) is None
        leaving.close()
        back.close()
        clock.advance(9.9)
        queue.sweep()
        assert tube.peek(task.id).state is State.TAKEN
        clock.advance(0.1)
        assert queue.sweep() == 1

    def test_a_session_that_is_over_cannot_be_joined(self, make_queue: Connect, tube: Tube) -> None:
        leaving = make_queue()
        session = leaving.identify()
        leaving.close()
        with pytest.raises(NoSuchSession, match=str(session)):
            make_queue().identify(session)

    @transactional
    def test_a_session_that_ends_does_not_disturb_a_transaction(
        self, tube: Tube, queue: Queue, make_queue: Connect, clock: FakeClock
    ) -> None:
        make_queue(session_ttr=5).close()
        tube.put("x")
        clock.advance(5)
        with queue.transaction() as unit:
            assert tube.take(0, unit=unit) is not None

    def test_a_session_ends_with_the_last_of_its_connections(self, tube: Tube, make_queue: Connect) -> None:
        one, two = make_queue(), make_queue()
        two.identify(one.identify())
        tube.put("x")
        task = take(one.tube[tube.name])
        one.close()
        assert tube.take(0) is None
        two.tube[tube.name].release(task)
        take(two.tube[tube.name])
        two.close()
        assert take(tube).id == task.id

    def test_who_joins_another_session_leaves_its_own(self, tube: Tube, make_queue: Connect) -> None:
        one, two = make_queue(), make_queue()
        theirs, joined = one.tube[tube.name], two.tube[tube.name]
        tube.put("w")
        joined.ack(take(joined))
        tube.put("x")
        task = take(joined)
        two.identify(one.identify())
        assert tube.peek(task.id).state is State.READY
        with pytest.raises(NotTaken):
            joined.ack(task)
        for taker, acker in ((joined, theirs), (theirs, joined)):  # what either takes, the other may ack
            task = take(taker)
            assert task.owner == one.identify() and acker.ack(task).state is State.DONE
            tube.put("y")

    def test_statistics_are_those_of_everybody(self, tube: Tube, other: Tube) -> None:
        tube.put("x")
        task = take(other)
        other.statistics()
        assert tube.statistics()["calls"] == other.statistics()["calls"]
        other.ack(task)
        assert other.statistics() == tube.statistics()
        assert tube.statistics()["calls"]["ack"] == 1

    def test_a_callback_hears_what_is_done_through_its_own_queue(self, tube: Tube, other: Tube) -> None:
        seen: list[Event] = []
        tube.on_task_change(lambda task, event: seen.append(event))
        other.put("x")
        other.ack(take(other))
        tube.delete(tube.put("y"))
        assert seen == [Event.PUT, Event.DELETE]

    def test_a_tube_that_somebody_dropped_and_made_anew_is_another(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        tube, other = make_tube(), make_queue()
        old = other.tube[tube.name]
        id = tube.put("x").id
        tube.drop()
        anew = make_tube()
        anew.put("y")
        with pytest.raises(LookupError):
            old.take(0)
        with pytest.raises(LookupError):
            old.peek(id)
        assert anew.statistics()["tasks"]["ready"] == 1
        assert take(other.tube[tube.name]).data == "y"

    # Processes

    def test_the_task_of_a_killed_process_goes_to_whoever_is_alive(self, tube: Tube, child: Child) -> None:
        first, second = self.in_order([tube.put(n, **self.apart(0)) for n in range(2)])
        child.start(take_and_hold, tube)
        assert child.hear() == first.id
        tube.bury(second)  # so that only the child's task is left to take
        assert tube.take(0) is None
        child.kill()
        taken: list[Task] = []

        def taken_again() -> bool:
            taken.extend(tube.take_many(5, 0))
            return bool(taken)

        until(taken_again)
        assert [(task.id, task.attempts) for task in taken] == [(first.id, 2)]
        assert tube.statistics()["calls"]["release"] == 1
