"""What a tube does by itself, whatever its driver: work in steps, options of nothing, what nobody knows of."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubes
from tubes.task import milliseconds
from tubes.testing import FakeClock


@pytest.fixture
def tube(queue: tubes.Queue) -> tubes.Tube:
    return queue.create_tube("jobs", "fifottl")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes many steps takes few tasks."""
    monkeypatch.setattr("tubes.tube.STEP_LIMIT", 3)


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


def test_an_ack_stands_when_the_look_for_more_meets_a_store_that_is_away(
    tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would tell the caller that nothing was changed; the next call has it."""
    tube.put("held")
    held = tube.take(timeout=0)

    def is_away(*_: object) -> None:
        raise tubes.StoreUnavailable("no such server")

    monkeypatch.setattr(tube._queue, "rescue_for", is_away)
    assert tube.take(timeout=0, ack=held) is None
    assert tube.statistics()["calls"]["ack"] == 1
    with pytest.raises(tubes.StoreUnavailable):
        tube.take(timeout=0)


def test_all_that_a_session_held_is_released_in_however_many_steps(small_steps: None, tmp_path: Path) -> None:
    """And counted, though nobody else has the store open."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        jobs.put_many(range(8))
        assert len(jobs.take_many(8, timeout=0)) == 8
    with tubes.connect(url, sweep=False) as queue:
        assert [task.data for task in queue.tube.jobs.tasks("r")] == [*range(8)]
        assert queue.statistics("jobs")["calls"]["release"] == 8


def test_what_is_given_back_for_somebody_who_is_gone_is_that_very_take(tube: tubes.Tube) -> None:
    """He may have lost it since, to another thread of this session."""
    tube.put("x")
    old = tube.take(timeout=0)
    assert old is not None
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
        task = jobs.take(timeout=0)
        assert task is not None
        queue.identify(other.identify())
        assert jobs.tasks("t") == [task]
        jobs.give_back([task])
        assert jobs.tasks("t") == []


def test_a_task_of_another_tube_is_refused_in_a_batch_too(tube: tubes.Tube) -> None:
    other = tube._queue.create_tube("other", "fifo")
    theirs = other.put("theirs")
    tube.put("ours")
    ours = tube.take(timeout=0)
    assert ours is not None
    with pytest.raises(tubes.BadOption, match="not a task of tube 'jobs'"):
        tube.ack_many([ours, theirs])
    assert tube.tasks("t") == [ours]
