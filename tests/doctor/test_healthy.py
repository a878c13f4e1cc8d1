"""A store where nothing is wrong: nothing is found and nothing written, also while others work on it."""

from __future__ import annotations

import pytest

import tubes
from tubes.doctor import Doctor, Kind

from .conftest import Patient, do_everything, find_nothing, find_nothing_while_others_work


def test_nothing_is_found_and_nothing_written_whatever_has_been_done(patient: Patient) -> None:
    do_everything(patient.opened[0])
    find_nothing(patient, patient.rows)


def test_what_others_have_locked_is_left_to_them(doctors_url: str) -> None:
    """A better task is put while the one in front is being taken, and so stays behind, as it is taken in order."""
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
        (finding,) = doctor.examine()  # nobody could know that it would not be taken
        assert finding.kind is Kind.LINE
        assert len([*doctor.repair()]) == 1
        task = tube.take(timeout=0)
        assert task is not None and task.data == "better"


def test_nothing_is_found_while_others_work(patient: Patient) -> None:
    find_nothing_while_others_work(patient)
