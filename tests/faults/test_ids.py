"""Ids that are unknown, of the wrong type, negative or huge raise the right error and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faults.harness import TYPES, Connect

import tubes

Verb = Callable[[tubes.Tube, Any], object]

OWNERS: dict[str, Verb] = {
    "ack": lambda tube, id: tube.ack(id),
    "release": lambda tube, id: tube.release(id),
    "take(ack=)": lambda tube, id: tube.take(timeout=0, ack=id),
}
ANYBODY: dict[str, Verb] = {
    "bury": lambda tube, id: tube.bury(id),
    "delete": lambda tube, id: tube.delete(id),
    "peek": lambda tube, id: tube.peek(id),
}
TOUCH: dict[str, Verb] = {"touch": lambda tube, id: tube.touch(id, 1)}
MANY: dict[str, Verb] = {"ack_many": lambda tube, ids: tube.ack_many([ids])}

UNKNOWN = [0, 4, 999, 2**31, 2**53, 2**63 - 1]
IMPOSSIBLE = [
    -1,
    -(2**63),
    2**63,
    2**64,
    2**70,
    True,
    False,
    1.0,
    1.5,
    float("nan"),
    "1",
    b"1",
    [1],
    (1,),
    {},
]


@pytest.fixture(params=TYPES)
def tube(request: pytest.FixtureRequest, connect: Connect) -> tubes.Tube:
    """A tube with one taken, one ready and one buried task."""
    made = connect(sweep=False).create_tube("jobs", request.param)
    options: Any = {"utube": "b"} if made.features.grouped else {}
    made.put("taken")
    made.take(timeout=0)
    made.put("ready", **options)
    made.bury(made.put("buried", **options))
    return made


def shape(tube: tubes.Tube) -> list[tuple[int, str, int]]:
    """Id, state and attempts of all stored tasks."""
    states = tubes.State.READY, tubes.State.TAKEN, tubes.State.BURIED, tubes.State.DELAYED
    return [(task.id, task.state.value, task.attempts) for state in states for task in tube.tasks(state)]


def refuses(tube: tubes.Tube, verbs: dict[str, Verb], ids: list[Any], error: type[Exception]) -> None:
    """Every verb raises that error for every id, names the id in it, and changes nothing."""
    before = shape(tube)
    for name, verb in verbs.items():
        for id in ids:
            with pytest.raises(error) as caught:
                verb(tube, id)
            assert type(caught.value) is error, (name, id, caught.value)
            assert str(id) in str(caught.value), (name, id, caught.value)
    assert shape(tube) == before


def test_unknown_ids_are_not_taken_or_not_found(tube: tubes.Tube) -> None:
    """Verbs that need a lease raise NotTaken; verbs that anybody may call raise TaskNotFound."""
    refuses(tube, OWNERS | TOUCH, UNKNOWN, tubes.NotTaken)
    refuses(tube, ANYBODY, UNKNOWN, tubes.TaskNotFound)
    assert tube.ack_many(UNKNOWN) == []


@pytest.mark.parametrize("type", ["fifo", "utubettl"])
def test_one_row_keeps_the_largest_id_from_being_given_again(connect: Connect, type: str) -> None:
    """Otherwise each task that was once the last would leave a row for ever."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", type)
    tasks = [tube.delete(tube.put(n)) for n in range(3)]
    assert [task.id for task in tasks] == sorted({task.id for task in tasks})
    with queue.transaction() as unit:
        kept = unit.connection.exec_driver_sql("SELECT id, state FROM tubes_task").all()
    assert kept == [(tasks[-1].id, "-")]


def test_impossible_ids_are_bad_options(tube: tubes.Tube) -> None:
    """What cannot be an id is refused before any task is looked for."""
    refuses(tube, OWNERS | ANYBODY | TOUCH | MANY, IMPOSSIBLE, tubes.BadOption)


def test_none_is_no_id(tube: tubes.Tube) -> None:
    """None is refused, except as ``take(ack=None)``, which acks nothing."""
    verbs = {name: verb for name, verb in (OWNERS | ANYBODY | TOUCH | MANY).items() if name != "take(ack=)"}
    refuses(tube, verbs, [None], tubes.BadOption)


def test_tasks_that_one_does_not_hold_are_not_taken(tube: tubes.Tube) -> None:
    """Nobody may ack, release or touch a ready or a buried task."""
    refuses(tube, OWNERS | TOUCH, [2, 3], tubes.NotTaken)


def test_a_task_of_another_tube_is_refused(tube: tubes.Tube, connect: Connect) -> None:
    """Given the Task, a verb sees the mistake; given its id, it finds no such task in its own tube."""
    other = connect(sweep=False).create_tube("other", "fifo")
    task = other.put("other")
    refuses(tube, ANYBODY, [task.id], tubes.TaskNotFound)
    for verb in (OWNERS | ANYBODY | TOUCH).values():
        with pytest.raises(tubes.BadOption, match="not a task of tube 'jobs'"):
            verb(tube, task)
    assert other.peek(task).data == "other"


def test_a_task_that_is_done_is_done_once(tube: tubes.Tube) -> None:
    """After its ack, every verb on its id is an error, and so is another ack or release of its Task."""
    task = tube.peek(1)
    tube.ack(task)
    refuses(tube, OWNERS | TOUCH, [1], tubes.NotTaken)
    refuses(tube, ANYBODY, [1], tubes.TaskNotFound)
    for verb in OWNERS.values():
        with pytest.raises(tubes.NotTaken):
            verb(tube, task)


def test_counts_and_limits_are_checked(tube: tubes.Tube) -> None:
    """Impossible numbers of tasks are refused, and change nothing."""
    before = shape(tube)
    bad: list[Any] = [-1, 1.5, True, None, "1", 2**63]
    for number in bad:
        with pytest.raises(tubes.BadOption):
            tube.kick(number)
        with pytest.raises(tubes.BadOption):
            tube.take_many(number, timeout=0)
        with pytest.raises(tubes.BadOption):
            tube.tasks("r", limit=number)
    assert shape(tube) == before


@pytest.mark.parametrize("name", [5, None, 5.0, b"jobs"])
def test_what_is_no_name_of_a_tube_is_a_bad_option(connect: Connect, name: Any) -> None:
    queue = connect()
    for verb in (queue.get_tube, queue.drop_tube, queue.tube.__getitem__):
        with pytest.raises(tubes.BadOption, match="pass a tube's name, not"):
            verb(name)


def test_a_tube_of_another_queue_is_not_dropped(connect: Connect) -> None:
    """Its number is also that of a tube here, which must not be dropped instead."""
    queue = connect()
    queue.create_tube("jobs", "fifo").put("kept")
    with (
        tubes.connect("sqlite://", sweep=False) as other,
        pytest.raises(tubes.BadOption, match="belongs to another queue"),
    ):
        queue.drop_tube(other.create_tube("mails", "fifo"))
    assert queue.tube.jobs.statistics()["tasks"]["ready"] == 1


@pytest.mark.parametrize("state", ["x", "READY", None, 5])
def test_what_is_no_state_is_a_bad_option_that_names_them(tube: tubes.Tube, state: Any) -> None:
    with pytest.raises(tubes.BadOption, match="'r' \\(READY\\)"):
        tube.tasks(state)
