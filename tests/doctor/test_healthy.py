"""A store where nothing is wrong: nothing is found and nothing written, also while others work on it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from interpreter import PIPE, Process

import tubes
from tubes.doctor import Doctor, Kind

from .conftest import Patient, fill

TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")
WORKER = Path(__file__).with_name("worker.py")
LOOKS = 2


def test_nothing_is_found_and_nothing_written_whatever_has_been_done(patient: Patient) -> None:
    """Every verb, every state, payloads of both kinds, a temporary tube, one that was dropped."""
    queue = patient.opened[0]
    for type in TYPES:
        tube = fill(queue, type, type)
        tube.put(b"\xff\x00")
        tube.put({"\ud800": "\u0000"})
        for verb in ("ack", "release", "bury", "delete"):
            task = tube.take(timeout=0)
            assert task is not None
            getattr(tube, verb)(task)
        if tube.features.timed:
            tube.put("later", delay=60, ttl=3600)
            tube.touch(tube.take(timeout=0) or 0, 30)
            tube.release(tube.take(timeout=0) or 0, delay=90)
            tube.put("without", ttl=3600)
        if tube.features.priority:
            tube.put("first", pri=0)
        held = tube.take(timeout=0)
        assert held is not None
        tube.bury(tube.put("aside"))
        assert tube.kick(1) == 1
    fill(queue, "utubettl", "gone")
    queue.drop_tube("gone")
    queue.create_tube("fleeting", "utubettl", temporary=True).put("x", utube="a")
    queue.flush_counts()
    before = patient.rows()
    for deep in (False, True):
        doctor = Doctor(queue, deep=deep)
        assert [*doctor.examine()] == []
        assert [*doctor.repair()] == []
    assert patient.rows() == before


def test_the_command_leaves_nothing_of_itself(patient: Patient) -> None:
    fill(patient.opened[0], "utube")
    patient.opened[0].flush_counts()
    before = patient.rows()
    for options in ((), ("--deep",), ("--deep", "--fix")):
        said = patient.doctor(*options)
        assert (said.status, said.out) == (0, "")
    assert patient.rows() == before


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
    queue = patient.opened[0]
    for type in TYPES:
        if type == "limfifottl":
            queue.create_tube(type, type, capacity=30)
        else:
            queue.create_tube(type, type)
    workers = [Process([WORKER, patient.url, *TYPES], stdin=PIPE) for _ in range(2)]
    try:
        deadline = time.monotonic() + 30
        while not all(queue.statistics(type)["calls"]["take"] for type in TYPES):
            assert time.monotonic() < deadline
        doctor = Doctor(queue, deep=True)
        for look in (doctor.examine, doctor.repair) * LOOKS:
            assert [*look()] == []
        assert [worker.poll() for worker in workers] == [None] * 2
    finally:
        for worker in workers:
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0] * 2
