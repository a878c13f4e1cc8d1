"""What a tube does by itself, whatever its driver: steps, options of an empty batch, unknown outcomes."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from faults.harness import Ended, end_when_woken, eventually, put_before_it_leaves

import tubes
from tubes import aio
from tubes.driver import STEP_LIMIT, Change, TasksLocked
from tubes.task import milliseconds
from tubes.testing import FakeClock
from tubes.testing.suite import refusal, take
from tubes.unknown import taken_by


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("jobs", "fifottl")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tasks take many steps: three at most in each."""
    for module in ("tubes.tube", "tubes.taking"):
        monkeypatch.setattr(f"{module}.STEP_LIMIT", 3)


def test_who_has_buried_a_task_may_bury_it_again_by_what_it_took(tube: tubes.Tube) -> None:
    tube.put("x")
    task = take(tube)
    assert tube.bury(task) == tube.bury(task)


def _settle(tube: tubes.Tube, clock: FakeClock) -> int:
    tube.put_many(range(7), delay=1)
    clock.advance(1)
    return tube.expire()[0]


def _rescue(tube: tubes.Tube, clock: FakeClock) -> int:
    tube.put_many(range(7))
    tube.ended = {task.owner.hex for task in tube.take_many(7) if task.owner}
    return tube.rescue()


def _release(tube: tubes.Tube, clock: FakeClock) -> int:
    tube.put_many(range(7))
    tube.take_many(7)
    return tube.release_all()


def _kick(tube: tubes.Tube, clock: FakeClock) -> int:
    for task in tube.put_many(range(7)):
        tube.bury(task)
    return tube.kick(7)


def _truncate(tube: tubes.Tube, clock: FakeClock) -> int:
    tube.put_many(range(7))
    return tube.truncate()


@pytest.mark.parametrize("call", [_settle, _rescue, _release, _kick, _truncate])
def test_a_call_of_several_steps_does_them_all(
    small_steps: None, tube: tubes.Tube, clock: FakeClock, call: Callable[[tubes.Tube, FakeClock], int]
) -> None:
    assert call(tube, clock) == 7  # by 3, 3 and 1


@pytest.mark.parametrize(("count", "kicked"), [(2, 2), (3, 3), (7, 7), (8, 8), (100, 8)])
def test_a_kick_makes_exactly_so_many_ready_in_however_many_steps(
    small_steps: None, tube: tubes.Tube, count: int, kicked: int
) -> None:
    for task in tube.put_many(range(8)):
        tube.bury(task)
    assert tube.kick(count) == kicked
    assert len(tube.tasks("r")) == kicked


def test_what_takes_of_unknown_outcome_hold_is_found_behind_what_others_hold(
    small_steps: None, tube: tubes.Tube, clock: FakeClock
) -> None:
    tube.put_many(range(12))
    known = tube.take_many(7, timeout=0)
    clock.advance(1)
    lost = tube.take_many(2, timeout=0)
    tube._unknown.add(tube._store.session, milliseconds(lost[0].updated_at))
    assert tube.expire() == (0, None)
    assert tube.tasks("t") == known
    assert tube._unknown and not tube._unknown.due()  # it is looked for again, but not at once


@pytest.mark.parametrize(
    ("fails", "error"), [("place.transact", tubes.OutcomeUnknown("cut")), ("driver.take", KeyError("data"))]
)
def test_what_a_take_holds_that_fails_when_it_is_committed_is_given_back(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception
) -> None:
    """The server's answer never came; or a lone statement is committed, but its result cannot be used."""
    owner, name = fails.split(".")
    verb = getattr(getattr(tube, owner), name)

    def fail(*given: Any, **options: Any) -> None:
        monkeypatch.undo()
        verb(*given, **options)
        raise error

    tube.put("x")
    monkeypatch.setattr("tubes.rescuer.LOOK_EVERY", math.inf)
    monkeypatch.setattr(getattr(tube, owner), name, fail)
    with pytest.raises(type(error)):
        tube.take(timeout=0)
    assert [task.data for task in tube.tasks("t")] == ["x"]
    assert tube.expire() == (0, None)
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_an_option_that_cannot_be_is_refused_of_no_tasks_too(tube: tubes.Tube) -> None:
    for wrong in ({"pri": -1}, {"utube": "a"}, {"prio": 1}, {"ttl": "x"}):
        with pytest.raises(tubes.BadOption, match=next(iter(wrong))):
            tube.put_many((), **wrong)
    assert tube.put_many((), pri=1) == []


def test_statistics_of_all_leave_out_no_tube_because_the_store_is_away(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(tx: object) -> None:
        raise tubes.StoreUnavailable("no such server")

    monkeypatch.setattr(tube.driver, "count", is_away)
    with pytest.raises(tubes.StoreUnavailable):
        tube._queue.statistics()


@pytest.fixture
def held(tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch) -> tubes.Task | None:
    """A taken task. However late the next take is, it looks for dead sessions only if it finds nothing."""
    monkeypatch.setattr("tubes.rescuer.LOOK_EVERY", math.inf)
    tube.put("held")
    return tube.take(timeout=0)


def test_an_ack_stands_when_the_look_for_more_meets_a_store_that_is_away(
    tube: tubes.Tube, held: tubes.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would tell the caller that nothing was changed; the next call gets it."""

    def is_away(*_: object) -> None:
        raise tubes.StoreUnavailable("no such server")

    monkeypatch.setattr(tube._queue.rescuer, "rescue_for", is_away)
    assert tube.take(timeout=0, ack=held) is None
    assert tube.statistics()["calls"]["ack"] == 1
    with pytest.raises(tubes.StoreUnavailable):
        tube.take(timeout=0)


def test_an_ack_while_the_queue_closes_is_refused_and_not_left_out_without_a_word(
    tube: tubes.Tube, held: tubes.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as closing:
        closing.setattr(tube._queue, "is_closed", True)
        with pytest.raises(tubes.StoreUnavailable, match="closed"):
            tube.take(timeout=0, ack=held)
    assert tube.tasks("t") == [held]


def test_a_lease_of_a_session_that_this_process_has_lost_is_lost(
    tube: tubes.Tube, held: tubes.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That lease was ours; one of somebody else's session never was."""
    monkeypatch.setattr(tube._store, "session", "f" * 32)  # as if taken for dead, and in a new session
    assert type(refusal(tube.ack, held, error=tubes.NotTaken)) is tubes.NotTaken
    monkeypatch.setattr(tube._store, "lost_sessions", {held.owner.hex} if held.owner else set())
    assert type(refusal(tube.ack, held, error=tubes.NotTaken)) is tubes.LeaseLost


@pytest.fixture
def no_take_is_committed(tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is away whenever a take is about to commit, and rolls it back."""
    transact = tube.place.transact

    def transact_or_fail(step: Any, on_commit: Any = None) -> Any:
        def failing(tx: Any) -> Any:
            tx.begin()
            changes = step(tx)
            if any(change.event is tubes.Event.TAKE for change in changes):
                raise tubes.StoreUnavailable("the disk is full")
            return changes

        return transact(failing, on_commit)

    monkeypatch.setattr(tube.place, "transact", transact_or_fail)


def test_an_ack_stands_and_what_was_not_committed_is_not_taken(
    tube: tubes.Tube, held: tubes.Task, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(tube._queue.rescuer, "rescue_for", lambda taker: bool(taker.put("of the dead")))
    request.getfixturevalue("no_take_is_committed")
    assert tube.take(timeout=0, ack=held) is None
    assert tube.statistics()["tasks"]["ready"] == 1


def test_an_ack_stands_and_what_was_waited_for_and_not_committed_is_not_taken(
    tube: tubes.Tube, clock: FakeClock, request: pytest.FixtureRequest
) -> None:
    tube.put("held")
    held = tube.take(timeout=0)
    request.getfixturevalue("no_take_is_committed")
    with ThreadPoolExecutor(1) as executor:
        taking = executor.submit(tube.take, ack=held)
        eventually(lambda: clock.waiting == 1)
        tube.put("next")
        assert taking.result(20) is None
    assert tube.statistics()["tasks"]["ready"] == 1


def test_what_a_waiting_take_of_unknown_outcome_took_is_given_back_before_it_is_handed_out(
    tube: tubes.Tube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether that take was committed: if it was not, two consumers could have the task."""
    transact = tube.place.transact

    def transact_and_lose(step: Any, on_commit: Any = None) -> Any:
        if any(change.event is tubes.Event.TAKE for change in transact(step, on_commit)):
            monkeypatch.setattr(tube.place, "transact", transact)
            raise tubes.OutcomeUnknown("cut")
        return ()

    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(tube.place, "reconnects", True)
        taking = executor.submit(tube.take, 60)
        eventually(lambda: clock.waiting == 1)
        monkeypatch.setattr(tube.place, "transact", transact_and_lose)
        with tube._queue.transaction() as unit:
            tube.put("x", unit=unit)
        eventually(lambda: tube.place.transact is transact and clock.waiting == 1)
        clock.advance(1)
        task = taking.result(20)
    assert task is not None and task.attempts == 2


def test_a_put_of_more_than_a_tube_can_hold_tells_that_it_is_gone(queue: tubes.Queue) -> None:
    tube = queue.create_tube("jobs", "limfifottl", capacity=1)
    with pytest.raises(tubes.TubeFull):
        tube.put_many("ab")
    tube.drop()
    with pytest.raises(tubes.NoSuchTube):
        tube.put_many("ab")


def test_a_put_of_more_than_what_is_due_makes_room_for_stores_nothing() -> None:
    clock = FakeClock()
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        tube = queue.create_tube("jobs", "limfifottl", capacity=2)
        tube.put("over", ttl=1)
        tube.put("kept")
        clock.advance(1)
        with pytest.raises(tubes.TubeFull):
            tube.put_many("ab")
        assert [task.data for task in tube.tasks("r")] == ["kept"]


def test_a_task_that_comes_after_a_delete_has_looked_was_not_there(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id may be known before: on PostgreSQL, that of a put whose transaction is still open."""
    task = tube.put("x")
    monkeypatch.setattr(tube.driver, "delete", lambda *given, **options: ())
    with pytest.raises(tubes.TaskNotFound):
        tube.delete(task.id)


def test_an_ack_in_a_transaction_does_not_stand_by_itself(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube.put("held")
    held = tube.take(timeout=0)

    def is_away(*_: object) -> None:
        raise tubes.StoreUnavailable("no such server")

    with pytest.raises(tubes.StoreUnavailable), tube._queue.transaction() as unit:
        monkeypatch.setattr(tube._store, "has_tube", is_away)
        tube.take(timeout=0, ack=held, unit=unit)
    assert tube.tasks("t") == [held]


def test_what_was_taken_in_a_transaction_that_is_over_is_not_given_back(tube: tubes.Tube) -> None:
    """It was rolled back with the transaction, or the commit has waited for it to be given back."""
    tube.put("x")
    with tube._queue.transaction() as unit:
        task = tube.take(timeout=0, unit=unit)
    assert task is not None
    tube.give_back([task], unit)
    assert tube.tasks("t") == [task]


def test_what_is_stored_between_two_looks_at_the_counts_is_counted_once(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube.put("x")
    queue, counts = tube._queue, tube._store.counts
    pending = counts.pending

    def pending_and_stored() -> tuple[Mapping[int, Mapping[str, int]], int]:
        seen = pending()
        queue.flush_counts()
        return seen

    monkeypatch.setattr(counts, "pending", pending_and_stored)
    assert tube.statistics()["calls"]["put"] == 1


def test_the_sweeper_is_told_of_what_is_due_first(
    tube: tubes.Tube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ttl in (20, 5, 10):
        tube.bury(tube.put("x", ttl=ttl))
    told: list[int] = []
    monkeypatch.setattr(tube._queue, "due_at", told.append)
    assert tube.kick(3) == 3
    assert told == [clock.now_ms() + 5000]


def test_who_settles_what_is_due_learns_what_is_due_next(tube: tubes.Tube, clock: FakeClock) -> None:
    for ttl in (5, 20):
        tube.put("x", ttl=ttl)
    clock.advance(5)
    assert tube.expire() == (1, clock.now_ms() + 15_000)


def test_all_are_released_once_also_where_others_go_on_taking(tube: tubes.Tube) -> None:
    def take_again(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.RELEASE and task.attempts < 3:
            tube.take(timeout=0)

    tube.put("x")
    tube.take(timeout=0)
    tube.on_task_change(take_again)
    assert tube.release_all() == 1


def test_what_is_taken_in_a_second_try_is_taken_once(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store runs a step again after a conflict."""
    transact = tube.place.transact

    def transact_again(step: Any, on_commit: Any = None) -> Any:
        def conflicting(tx: Any) -> None:
            tx.begin()
            step(tx)
            raise tubes.Conflict("somebody was faster")

        with pytest.raises(tubes.Conflict):
            transact(conflicting)
        return transact(step, on_commit)

    tube.put_many("ab")
    monkeypatch.setattr(tube.place, "transact", transact_again)
    assert [task.data for task in tube.take_many(5, timeout=0)] == ["a", "b"]


def test_all_that_a_session_held_is_released_in_however_many_steps(small_steps: None, tmp_path: Path) -> None:
    """The releases are counted too, though nobody else has the store open."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        jobs.put_many(range(8))
        assert len(jobs.take_many(8, timeout=0)) == 8
    with tubes.connect(url, sweep=False) as queue:
        assert [task.data for task in queue.tube.jobs.tasks("r")] == [*range(8)]
        assert queue.statistics("jobs")["calls"]["release"] == 8


def test_what_is_given_back_for_somebody_who_is_gone_is_that_very_take(tube: tubes.Tube) -> None:
    """The caller may have lost it since, to another thread of this session."""
    tube.put("x")
    old = take(tube)
    tube.release(old)
    new = tube.take(timeout=0)
    tube.give_back([old])
    assert tube.tasks("t") == [new]


def test_it_is_given_back_in_the_session_that_took_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with (
        tubes.connect(url, sweep=False, session_ttr=60) as queue,
        tubes.connect(url, sweep=False) as other,
    ):
        jobs = queue.create_tube("jobs", "fifo")
        jobs.put("x")
        task = take(jobs)
        queue.identify(other.identify())
        assert jobs.tasks("t") == [task]
        jobs.give_back([task])
        assert jobs.tasks("t") == []


def test_a_batch_that_is_acked_gives_its_room_back_in_a_type_without_times(queue: tubes.Queue) -> None:
    """Such a type acks in another way than limfifottl."""
    tubes.register_driver("limfifo", tubes.TubeType(tubes.Features(bounded=True)))
    tube = queue.create_tube("few", "limfifo", capacity=3)
    for _ in range(2):
        tube.put_many("abc")
        assert len(tube.ack_many(tube.take_many(3, 0))) == 3
    tube.put_many("abc")
    with pytest.raises(tubes.TubeFull):
        tube.put("d")


def are_asleep(clock: FakeClock, number: int) -> bool:
    return clock.waiting == number


@pytest.mark.parametrize("how", ["put", "put_many", "release", "kick"])
def test_nobody_is_called_for_what_the_first_in_line_found_as_it_was_committed(
    tube: tubes.Tube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A waiter called in vain is passed over by the next call, and overtaken by the one behind it."""
    waiters, key, publish, heed = tube._store.waiters, tube.record.id, tube.publish, tube._store.waiters.heed
    called: list[bool] = []
    takes: list[Future[tubes.Task | None]] = []
    tube.put("held")
    held = tube.take(timeout=0)
    assert held is not None
    if how == "kick":
        tube.bury(held)
    make_ready: dict[str, Callable[[], object]] = {
        "put": lambda: tube.put("x"),
        "put_many": lambda: tube.put_many(["x", "y"]),
        "release": lambda: tube.release(held),
        "kick": lambda: tube.kick(1),
    }
    ready = 2 if how == "put_many" else 1

    def are_served(number: int) -> bool:
        """Whether so many takes are done, and all others sleep."""
        asleep = [signal for signal in waiters.line.get(key, ()) if not signal.is_set]
        return sum(take.done() for take in takes) == number and len(asleep) == clock.waiting == 3 - number

    def publish_late(changes: Sequence[Change]) -> None:
        if changes[0].event is not tubes.Event.TAKE:
            waiters.wake_first(key)
            eventually(lambda: are_served(ready))
        publish(changes)

    def heed_and_tell(*given: Any) -> tuple[bool, bool]:
        told = heed(*given)
        called.append(told[1])
        return told

    with ThreadPoolExecutor(3) as threads:
        for number in range(3):
            takes.append(threads.submit(tube.take, 60))
            eventually(partial(are_asleep, clock, number + 1))
        monkeypatch.setattr(waiters, "heed", heed_and_tell)
        monkeypatch.setattr(tube, "publish", publish_late)
        make_ready[how]()
        eventually(lambda: are_served(ready))
        monkeypatch.setattr(tube, "publish", publish)
        tube.put("z")
        eventually(lambda: are_served(ready + 1))
        times = called.count(True)
        tube._queue.close()  # which calls somebody for what it gives back
    assert times == 1


def test_who_is_called_by_an_ack_that_frees_nothing_is_not_overtaken(
    queue: tubes.Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("urls", "utube")
    tube.put("held", utube="a")
    held = tube.take(timeout=0)
    assert held is not None
    waiters, key = tube._store.waiters, tube.record.id
    heed, may_look = waiters.heed, Event()
    takes: list[Future[tubes.Task | None]] = []
    with ThreadPoolExecutor(2) as threads, queue:
        for number in range(2):
            takes.append(threads.submit(tube.take, 60))
            eventually(partial(are_asleep, clock, number + 1))
        first, second = waiters.line[key]

        def heed_late(*given: Any) -> tuple[bool, bool]:
            assert given[1] is not first or may_look.wait(30)
            return heed(*given)

        monkeypatch.setattr(waiters, "heed", heed_late)
        tube.ack(held)
        tube.put("x", utube="b")
        eventually(lambda: takes[1].done() or (clock.waiting == 1 and not second.is_set))
        may_look.set()
        eventually(lambda: any(take.done() for take in takes))
        assert [take.done() for take in takes] == [True, False]
        tube.put("y", utube="c")
        assert takes[1].result() is not None


@pytest.mark.parametrize("moment", ["it is ended as it is called", "it has another task"])
def test_for_who_leaves_without_what_it_was_called_for_another_process_is_called(
    tube: tubes.Tube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    called: list[int] = []
    monkeypatch.setattr(tube._store, "_call_others", lambda tube, count: called.append(count))
    if moment == "it has another task":
        put_before_it_leaves(tube, "y", monkeypatch)
    else:
        end_when_woken(clock, monkeypatch)
    with ThreadPoolExecutor(1) as threads, suppress(Ended):
        take = threads.submit(tube.take, 60)
        eventually(lambda: clock.waiting == 1)
        tube.put("x")
        task = take.result()
        assert task is not None and task.data == "x"
    assert called == [1]
    assert len(tube.tasks("r")) == 1


def test_a_tube_that_another_has_dropped_is_forgotten_and_its_driver_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a long-lived process would have more and more of them."""
    url = f"sqlite:///{tmp_path / 'q.db'}"
    with tubes.connect(url, sweep=False) as queue, tubes.connect(url, sweep=False) as other:
        tube, stopped = queue.create_tube("jobs", "fifo"), list[str]()
        monkeypatch.setattr(tube.driver, "stop", lambda: stopped.append(tube.name))
        other.tube.jobs.drop()
        queue.sweep()
        assert (stopped, list(queue._open_tubes)) == (["jobs"], [])


def test_a_task_of_another_tube_is_refused_in_a_batch_too(tube: tubes.Tube) -> None:
    other = tube._queue.create_tube("other", "fifo")
    theirs = other.put("theirs")
    tube.put("ours")
    ours = take(tube)
    with pytest.raises(tubes.BadOption, match="not a task of tube 'jobs'"):
        tube.ack_many([ours, theirs])
    assert tube.tasks("t") == [ours]


def test_what_a_transaction_of_unknown_outcome_took_is_given_back(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = tube._queue
    transaction = queue.store.transaction

    @contextmanager
    def transaction_without_an_answer(on_commit: Callable[[], None]) -> Iterator[Any]:
        with transaction(on_commit) as tx:
            yield tx
        raise tubes.OutcomeUnknown("the connection is lost")

    tube.put("x")
    monkeypatch.setattr(queue.store, "transaction", transaction_without_an_answer)
    with pytest.raises(tubes.OutcomeUnknown), queue.transaction() as unit:
        tube.take(timeout=0, unit=unit)
    assert len(tube.tasks("t")) == 1
    queue.sweep()
    assert len(tube.tasks("r")) == 1


def test_a_session_is_known_until_all_that_it_held_is_released(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And set aside meanwhile, so that nobody looks for it again and again."""

    def are_locked(*_: Any, **__: Any) -> Any:
        raise TasksLocked("others have them")

    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, clock=clock, sweep=False) as queue:
        store = queue.store
        jobs = queue.create_tube("jobs", "fifo")
        queue.create_tube("others", "fifo")
        jobs.put("x")
        with tubes.connect(url, clock=clock, sweep=False, session_ttr=5) as other:
            assert other.tube.jobs.take(timeout=0) is not None
            session = other.identify().hex
        tubes.connect(url, clock=clock, sweep=False, session_ttr=10).close()
        clock.advance(5)
        with monkeypatch.context() as locking:
            locking.setattr(jobs.driver, "release_owner", are_locked)
            assert queue.sweep() == 0
            assert store.set_aside == {session}
            clock.advance(5)
            assert queue.sweep() == 0
            assert session in store.set_aside and session in jobs.ended  # though another has ended since
        assert queue.sweep() == 1
        assert store.set_aside == set()
        assert queue.sweep() == 0
        assert store.ended_sessions(clock.now_ms(), thoroughly=True) == []


def test_a_session_is_forgotten_though_another_thread_rescues_from_the_next_meanwhile(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread begins when the first has given everything back, and ends when the first has."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, clock=clock, sweep=False) as queue:
        store: Any = queue.store
        jobs = queue.create_tube("jobs", "fifo")
        jobs.put_many([1, 2])
        for ttr in (5, 10):
            with tubes.connect(url, clock=clock, sweep=False, session_ttr=ttr) as other:
                assert other.tube.jobs.take(timeout=0) is not None
        rescuing, goes_on = Event(), Event()
        second = Thread(target=queue.sweep)
        release_owner, read = jobs.driver.release_owner, store.read

        def release(*given: Any, **named: Any) -> Any:
            if current_thread() is second:
                rescuing.set()
                assert goes_on.wait(30)
            return release_owner(*given, **named)

        def read_when_all_is_given_back(look: Any) -> Any:
            if look == store.tubes and second.ident is None and read(jobs.driver.can_take):
                clock.advance(5)
                second.start()
                assert rescuing.wait(30)
            return read(look)

        monkeypatch.setattr(jobs.driver, "release_owner", release)
        monkeypatch.setattr(store, "read", read_when_all_is_given_back)
        clock.advance(5)
        assert queue.rescuer.rescue() == 1
        goes_on.set()
        second.join(30)
        assert len(jobs.tasks("r")) == 2
        queue.sweep()
        assert store.set_aside == set()
        assert store.ended_sessions(clock.now_ms(), thoroughly=True) == []


def test_a_session_is_known_as_long_as_a_tube_cannot_be_opened_here(tmp_path: Path, clock: FakeClock) -> None:
    """Only that tube's driver knows what it held there."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, clock=clock, sweep=False) as queue:
        store = queue.store
        store.transact(lambda tx: store.add_tube(tx, "later", "of_nobody", {}, temporary=False))
        with tubes.connect(url, clock=clock, sweep=False, session_ttr=5) as other:
            session = other.identify().hex
        clock.advance(5)
        queue.sweep()
        queue.sweep()
        assert store.set_aside == {session}


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_there_is_no_second_of_a_queue(again: Callable[[Any], object], queue: tubes.Queue) -> None:
    """Closing a copy would close the original; and each process connects by itself."""
    tube = queue.create_tube("jobs", "fifo")
    with queue.transaction() as unit:
        for one in queue, tube, unit:
            with pytest.raises(TypeError, match=rf"{type(one).__name__} .*neither copied nor pickled"):
                again(one)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_nor_of_an_awaited_one(again: Callable[[Any], object]) -> None:
    async def main() -> None:
        async with aio.connect("sqlite://") as queue:
            for one in queue, await queue.create_tube("jobs", "fifo"):
                with pytest.raises(TypeError, match="neither copied nor pickled"):
                    again(one)

    asyncio.run(main())


@pytest.mark.parametrize("type", ["fifo", "fifottl"])
def test_a_task_of_another_store_is_not_taken_for_one_of_ours_with_its_number(type: str) -> None:
    with tubes.connect("sqlite://") as one, tubes.connect("sqlite://") as other:
        ours, theirs = (queue.create_tube("jobs", type) for queue in (one, other))
        mine, foreign = ([*map(tube.put, "ab")] and tube.take_many(2, timeout=0) for tube in (ours, theirs))
        assert (mine[0].id, mine[0].token) == (foreign[0].id, foreign[0].token)
        for verb in (ours.ack, ours.release, ours.bury, ours.delete):
            with pytest.raises(tubes.NotTaken):
                verb(foreign[0])
        assert ours.ack_many(foreign) == []
        assert [task.data for task in ours.ack_many(mine)] == ["a", "b"]


def test_a_take_settles_all_that_is_due_before_it_says_that_there_is_nothing(
    queue: tubes.Queue, clock: FakeClock
) -> None:
    """However many steps that takes."""
    tube = queue.create_tube("jobs", "fifottl")
    tube.put_many(range(2 * STEP_LIMIT), ttl=1)
    tube.put("x", delay=2)
    clock.advance(2)
    task = tube.take(timeout=0)
    assert task is not None and task.data == "x"


def test_a_take_in_a_transaction_leaves_takes_of_unknown_outcome_to_the_next(queue: tubes.Queue) -> None:
    """Else it would wait for itself, or give back what the transaction might not know of."""
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many("ab")
    taken = take(tube)
    tube._unknown.add(*taken_by(taken))
    with queue.transaction() as unit:
        other = tube.take(timeout=0, unit=unit)
        assert other is not None and other.data == "b"
    again = tube.take(timeout=0)
    assert again is not None and (again.data, again.attempts) == ("a", 2)
