"""In a store where nothing is wrong, nothing is found or written, even while others work on it."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import tubes
from tubes.doctor import Doctor, Kind
from tubes.options import LONGEST_MS
from tubes.testing.suite import take

from .conftest import (
    Patient,
    do_everything,
    find_nothing,
    find_nothing_while_others_work,
    touch_often,
)


@pytest.mark.slow
def test_nothing_is_found_and_nothing_written_whatever_has_been_done(patient: Patient) -> None:
    do_everything(patient.opened[0])
    find_nothing(patient, patient.rows)


@pytest.mark.slow
@pytest.mark.parametrize("type", ["fifottl", "utubettl"])
def test_the_longest_durations_are_not_called_wrong(type: str, patient: Patient) -> None:
    """Even after a delay, touches and a release have made them longer still."""
    longest = LONGEST_MS // 1000
    tube = patient.opened[0].create_tube("jobs", type)
    durations = (None, 0, longest)
    for ttl, ttr in product(durations, durations):
        options: dict[str, Any] = {"ttl": ttl, "ttr": ttr}
        tube.put("delayed", delay=longest, **options)
        tube.put("ready", **options)
    for verb in ("release", "bury", "ack"):
        task = tube.take(timeout=0)
        assert task is not None and task.data == "ready"
        for _ in range(100):
            tube.touch(task, longest)
        if verb == "release":
            tube.release(task, delay=longest)
        elif verb == "bury":
            tube.bury(task)
    find_nothing(patient, patient.rows)


def test_who_holds_tasks_is_looked_at_by_as_many_statements_however_many_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with ExitStack() as opened:
        queue = opened.enter_context(tubes.connect(url, sweep=False))
        queue.create_tube("jobs", "fifo").put_many(range(10))
        store: Any = queue.store
        looks: list[list[str]] = []
        for more in 1, 9:
            for _ in range(more):
                assert opened.enter_context(tubes.connect(url, sweep=False)).tube.jobs.take(timeout=0)
            looks.append([])
            store._reader.set_trace_callback(looks[-1].append)
            assert list(Doctor(queue).examine()) == []
            store._reader.set_trace_callback(None)
    assert len(looks[0]) == len(looks[1]) > 10


@pytest.mark.parametrize("verb", ["bury", "release"])
def test_the_longest_durations_add_up_without_end(verb: str, patient: Patient) -> None:
    """A worker can touch its task by the longest duration for ever."""
    tube, longest = patient.opened[0].create_tube("jobs", "utubettl"), LONGEST_MS // 1000
    tube.put("x", ttl=longest, ttr=longest)
    task = take(tube)
    touch_often(tube, task)
    if verb == "bury":
        tube.bury(task)
    else:
        tube.release(task, delay=longest)
    find_nothing(patient, patient.rows)


@pytest.mark.slow
def test_what_others_have_locked_is_left_to_them(doctors_url: str) -> None:
    """A better task put while the one in front is being taken rightly stays behind: that take may succeed."""
    with (
        tubes.connect(doctors_url, sweep=False) as queue,
        tubes.connect(doctors_url, sweep=False, busy_timeout=0.1) as looker,
    ):
        tube = queue.create_tube("jobs", "utubettl")
        doctor = Doctor(looker, deep=True)
        tube.put("worse", utube="a", pri=1)
        with pytest.raises(ZeroDivisionError), queue.transaction() as unit:
            assert tube.take(timeout=0, unit=unit) is not None
            looker.tube.jobs.put("better", utube="a", pri=0)
            assert [*doctor.examine()] == []
            assert [*doctor.repair()] == []
            raise ZeroDivisionError
        (finding,) = doctor.examine()  # nobody could know that the take would be undone
        assert finding.kind is Kind.LINE
        assert len([*doctor.repair()]) == 1
        task = tube.take(timeout=0)
        assert task is not None and task.data == "better"


def test_nothing_is_found_while_others_work(patient: Patient) -> None:
    find_nothing_while_others_work(patient)


def test_a_sub_queue_in_which_a_take_is_not_committed_yet_is_in_order(doctors_url: str) -> None:
    """A put of a better task leaves the one in front alone, which a take may have, or give back."""
    with tubes.connect(doctors_url, sweep=False, busy_timeout=0.2) as queue:
        tube = queue.create_tube("jobs", "utubettl")
        tube.put("taken", utube="a", pri=1)
        with queue.transaction() as unit:
            assert tube.take(timeout=0, unit=unit) is not None
            with tubes.connect(doctors_url, sweep=False, busy_timeout=0.2) as other:
                other.tube.jobs.put("better", utube="a", pri=0)
                assert [*Doctor(other).examine()] == []
        assert [*Doctor(queue).examine()] == []
