"""A dead process's tasks go back at once to whoever is alive, in tubes of every type."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from faults.harness import TYPES, Crew, ended, eventually, heard, run, waiting

import tubes
from tubes.testing import FakeClock


@pytest.mark.parametrize("type", TYPES)
def test_a_dead_process_s_task_is_taken_at_once(crew: Crew, type: str) -> None:
    """With nothing else in the tube, a take that tries once gets what the dead process held."""
    crew.type = type
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        assert tube.take(timeout=0) is None
        crew.kill(holder)
        task = tube.take(timeout=0)
        assert task is not None and (task.data, task.attempts) == ("held", 2)
        tube.ack(task)


@pytest.mark.parametrize("type", TYPES)
def test_a_waiting_take_gets_a_dead_process_s_task(crew: Crew, type: str) -> None:
    """A take that is already waiting is woken by the death."""
    crew.type = type
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        waiter, found = waiting(tube)
        crew.kill(holder)
        ended(waiter)
        assert found[0] is not None and found[0].data == "held"


@pytest.mark.parametrize("type", TYPES)
def test_a_dead_process_s_task_comes_first_though_others_are_ready(crew: Crew, type: str) -> None:
    """A busy consumer gets it soon, although it always finds other work."""
    crew.type = type
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        options: Any = {"utube": "others"} if tube.features.grouped else {}
        tube.put_many(range(2000), **options)
        tube.ack(tube.take(timeout=0) or 0)  # it has just looked for the dead
        crew.kill(holder)
        while (task := tube.take(timeout=0)) is not None and task.data != "held":
            tube.ack(task)
            time.sleep(0.001)
        assert task is not None and tube.tasks("r", limit=1)


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_a_forked_child_that_lives_on_keeps_no_task_of_its_dead_parent(crew: Crew, type: str) -> None:
    """The proof of life is the process's own: its child does not inherit it."""
    crew.type = type
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold", fork=True)
        eventually(lambda: crew.said("take")() and crew.said("child")())
        child = next(int(line[1]) for line in crew.lines() if line[0] == "child")
        try:
            crew.kill(holder)
            task = tube.take(timeout=0)
            assert task is not None and task.data == "held"
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("type", TYPES)
def test_a_stopped_process_keeps_its_task(crew: Crew, type: str) -> None:
    """A stopped process is alive: nobody else gets its task."""
    crew.type = type
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        holder.send_signal(signal.SIGSTOP)
        assert tube.take(timeout=0.1) is None
        queue.sweep()
        assert tube.take(timeout=0) is None


def test_session_ttr_keeps_a_dead_process_s_task_for_its_grace(crew: Crew) -> None:
    """Nobody gets the task within the grace; after it, whoever is alive does."""
    clock = FakeClock(start_ms=round(time.time() * 1000) + 1000)
    crew.connect["session_ttr"] = 60
    queue, tube = crew.open(sweep=False, clock=clock)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        crew.kill(holder)
        assert tube.take(timeout=0) is None
        clock.advance(59)
        assert tube.take(timeout=0) is None
        clock.advance(2)
        task = tube.take(timeout=0)
        assert task is not None and task.data == "held"


def test_a_session_that_is_joined_from_another_process_keeps_its_tasks(crew: Crew) -> None:
    """A process that joins a dead one's session within its grace may ack its task."""
    crew.connect["session_ttr"] = 60
    queue, tube = crew.open()
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        _, id, _, _, owner = next(line for line in crew.lines() if line[0] == "take")
        crew.kill(holder)
        assert tube.take(timeout=0) is None
        assert queue.identify(owner) == UUID(owner)
        assert tube.ack(int(id)).data == "held"


def test_a_session_that_two_processes_share_outlives_one_of_them(crew: Crew) -> None:
    """While one connection of a session lives, so do its leases."""
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        _, id, _, _, owner = next(line for line in crew.lines() if line[0] == "take")
        queue.identify(owner)
        crew.kill(holder)
        assert tube.take(timeout=0) is None
        assert tube.ack(int(id)).data == "held"


def test_a_session_that_is_over_cannot_be_joined(crew: Crew) -> None:
    """Without a grace a dead process's session is over at once."""
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        owner = next(line for line in crew.lines() if line[0] == "take")[4]
        crew.kill(holder)
        with pytest.raises(tubes.NoSuchSession):
            queue.identify(owner)
        assert tube.take(timeout=0) is not None


def test_a_rescue_that_fails_half_way_is_made_good(crew: Crew, process: Callable[..., Any]) -> None:
    """If a process gives up once it has noticed the dead, their tasks come back afterwards."""
    queue, tube = crew.open(sweep=False)
    with queue:
        tube.put("held")
        holder = crew.start("hold")
        eventually(crew.said("take"))
        crew.kill(holder)
        # The first thing that a rescue does
        assert queue.store.ended_sessions(queue.clock.now_ms(), thoroughly=True)
        task = tube.take(timeout=0)
        assert task is not None and task.data == "held"


def test_a_waiting_process_s_death_takes_nothing_with_it(crew: Crew) -> None:
    """Consumers that die while they wait hold nothing: tasks put later reach the living."""
    crew.type = "fifo"
    queue, tube = crew.open()
    with queue:
        for _ in range(2):
            crew.start("consume")
        tube.put("seen")
        eventually(crew.said("ack!"))
        crew.disband()
        tube.put("later")
        task = tube.take(timeout=0)
        assert task is not None and task.data == "later"


def test_a_killed_transaction_leaves_nothing_behind(crew: Crew) -> None:
    """What a process put inside a transaction dies with it, and so does its lock."""
    queue, tube = crew.open(sweep=False)
    with queue:
        worker = crew.start("transaction")
        eventually(crew.said("inside"))
        crew.kill(worker)
        tube.put("after")
        assert [task.data for task in tube.tasks("r")] == ["after"]


def test_temporary_tubes_survive_until_the_last_process_is_gone(db: Any, process: Callable[..., Any]) -> None:
    """Once every process is gone, killed or not, the first to connect empties a temporary tube."""
    code = """
import os, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1])
tube = queue.create_tube("t", "fifo", temporary=True, if_not_exists=True)
print(tube.statistics()["tasks"]["total"], flush=True)
tube.put(1)
os.kill(os.getpid(), 9) if sys.argv[2] == "die" else None
"""
    with tubes.connect(f"sqlite:///{db}"):
        assert run(code, db, "leave") == "0"
        killed = process(code, db, "die")
        assert heard(killed) == "1" and killed.wait(20) == -signal.SIGKILL
        assert run(code, db, "leave") == "2"
    assert run(code, db, "leave") == "0"


@pytest.mark.parametrize("type", TYPES)
def test_a_temporary_tube_is_emptied_wherever_its_tasks_are(db: Any, type: str) -> None:
    """In front of a sub-queue, behind or aside. A capacity is free again."""
    options: dict[str, Any] = {"capacity": 4} if type == "limfifottl" else {}
    for _ in range(2):
        with tubes.connect(f"sqlite:///{db}") as queue:
            tube = queue.create_tube("t", type, temporary=True, if_not_exists=True, **options)
            assert tube.statistics()["tasks"]["total"] == 0
            aside, _, _, _ = tube.put_many([1, 2, 3, 4])
            tube.bury(aside)
            assert tube.take(timeout=0) is not None
