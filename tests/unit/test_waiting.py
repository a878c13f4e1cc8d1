"""Waiters are woken in the order in which they came, as many as there is something for."""

from __future__ import annotations

import pytest

from tubes.waiting import Waiters


def test_the_first_in_line_is_woken_first() -> None:
    waiters = Waiters()
    line = [waiters.enter("jobs") for _ in range(3)]
    waiters.wake("jobs")
    assert [signal.is_set for signal in line] == [True, False, False]


def test_one_that_is_awake_already_is_not_counted_again() -> None:
    """Two tasks wake two consumers, also when the first has not come round to leaving the line."""
    waiters = Waiters()
    line = [waiters.enter("jobs") for _ in range(4)]
    waiters.wake("jobs")
    waiters.wake("jobs", 2)
    assert [signal.is_set for signal in line] == [True, True, True, False]


def test_more_wake_ups_than_waiters_wake_all_of_them() -> None:
    waiters = Waiters()
    line = [waiters.enter("jobs") for _ in range(2)]
    waiters.wake("jobs", 10)
    assert all(signal.is_set for signal in line)


def test_waking_nobody_is_harmless_and_wakes_nobody_later() -> None:
    waiters = Waiters()
    waiters.wake("jobs", 5)
    waiters.enter("jobs")
    waiters.wake("jobs", 0)
    assert waiters.enter("jobs").is_set is False


def test_each_key_has_a_line_of_its_own() -> None:
    waiters = Waiters()
    jobs, room = waiters.enter(1), waiters.enter((1, "room"))
    waiters.wake((1, "room"))
    assert (jobs.is_set, room.is_set) == (False, True)
    assert sorted(map(str, waiters.keys())) == ["(1, 'room')", "1"]


def test_who_has_left_is_not_woken() -> None:
    waiters = Waiters()
    first, second = waiters.enter("jobs"), waiters.enter("jobs")
    waiters.leave("jobs", first)
    waiters.wake("jobs")
    assert (first.is_set, second.is_set) == (False, True)


def test_an_empty_line_is_forgotten() -> None:
    waiters = Waiters()
    assert not waiters
    signal = waiters.enter("jobs")
    assert waiters
    assert waiters.count("jobs") == 1
    waiters.leave("jobs", signal)
    assert not waiters
    assert (waiters.keys(), waiters.count("jobs")) == ([], 0)


def test_leaving_a_line_that_is_gone_is_harmless() -> None:
    waiters = Waiters()
    signal = waiters.enter("jobs")
    waiters.leave("jobs", signal)
    waiters.leave("jobs", signal)


def test_waking_all_wakes_every_line() -> None:
    waiters = Waiters()
    line = [waiters.enter(key) for key in ("a", "b", "b")]
    waiters.wake_all()
    assert all(signal.is_set for signal in line)


def test_the_store_is_told_when_somebody_stands_in_line() -> None:
    """After the waiter is in line, so that nothing that is signalled from then on can be missed."""
    seen: list[int] = []
    waiters = Waiters(lambda: seen.append(waiters.count("jobs")))
    waiters.enter("jobs")
    waiters.enter("jobs")
    assert seen == [1, 2]


def test_who_cannot_begin_to_wait_leaves_the_line() -> None:
    def fails() -> None:
        raise OSError("too many open files")

    waiters = Waiters(on_wait=fails)
    with pytest.raises(OSError, match="too many"):
        waiters.enter(1)
    assert not waiters
