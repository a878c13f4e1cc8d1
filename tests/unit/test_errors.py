"""One tree of errors: each carries its data, and is a built-in error too if one fits."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

import tubes
from tubes import errors

ALL = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, (errors.TubeError, Warning))
}


def test_every_error_is_a_tube_error() -> None:
    assert all(issubclass(value, tubes.TubeError) for value in ALL.values() if not issubclass(value, Warning))


def test_every_error_is_public() -> None:
    assert all(getattr(tubes, name) is value and name in tubes.__all__ for name, value in ALL.items())


def test_the_tree_drawn_in_the_module_is_the_tree() -> None:
    drawn = {}
    above = {0: "TubeError"}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│ ]*)[├└]── (\w+)(?: \((\w+)\))?", line)
        if found:
            depth = len(found[1]) // 4 + 1
            above[depth] = found[2]
            drawn[found[2]] = (above[depth - 1], found[3])
    assert drawn.keys() == ALL.keys() - {"TubeError", "TubesWarning"}
    for name, (parent, relative) in drawn.items():
        bases = [base.__name__ for base in ALL[name].__bases__]
        assert bases == ([parent] if relative is None else [parent, relative]), name


@pytest.mark.parametrize(
    ("error", "relative"),
    [
        (tubes.UnknownDriver("x"), LookupError),
        (tubes.IncompleteDriver("x", ["put"]), TypeError),
        (tubes.BadOption("x"), ValueError),
        (tubes.NotSupported("x"), ValueError),
        (tubes.NoSuchTube("x"), LookupError),
        (tubes.NoSuchSession("x"), LookupError),
        (tubes.TaskNotFound("x", 1), LookupError),
    ],
)
def test_ordinary_except_works(error: tubes.TubeError, relative: type[Exception]) -> None:
    assert isinstance(error, relative)


def test_errors_carry_their_data_and_show_it() -> None:
    lost = tubes.LeaseLost("jobs", 7, 2)
    assert (lost.tube, lost.id, lost.token) == ("jobs", 7, 2)
    assert str(lost) == "task 7 of tube 'jobs' is no longer held by the take with token 2"
    full = tubes.TubeFull("jobs", 10, 3)
    assert (full.tube, full.capacity, full.wanted) == ("jobs", 10, 3)
    assert "capacity 10, no room for 3 more" in str(full)
    assert tubes.IncompleteDriver("Lifo", ["put", "take"]).missing == ("put", "take")
    assert tubes.BadOption("no", option="ttl", value=-1).value == -1
    assert tubes.NoSuchSession("6f9c").session == "6f9c"
    busy = tubes.TubeBusy("jobs", "consumers are waiting")
    assert (busy.tube, str(busy)) == ("jobs", "tube 'jobs' cannot be dropped: consumers are waiting")


def test_a_near_miss_is_suggested_and_otherwise_everything_that_there_is() -> None:
    assert errors.suggestion("fifottll", ["fifo", "fifottl"]) == "; did you mean 'fifottl'?"
    assert errors.suggestion("countdown", ["pri", "ttl"], ["delay"]) == "; did you mean 'delay'?"
    assert errors.suggestion("TTL", ["pri", "ttl"]) == "; did you mean 'ttl'?"
    assert errors.suggestion("jobs", ["Jobs", "mails"]) == "; did you mean 'Jobs'?"
    assert errors.suggestion("countdown", ["pri", "ttl"]) == "; there are: pri, ttl"
    assert errors.suggestion("zzz", ["utube", "fifo"]) == "; there are: fifo, utube"
    assert errors.suggestion("zzz", []) == ""
    assert str(tubes.NoSuchTube("job", ["jobs"])) == "there is no tube 'job'; did you mean 'jobs'?"


@pytest.mark.parametrize(
    "error",
    [
        tubes.UnknownDriver("fifi", ["fifo"]),
        tubes.IncompleteDriver("d", ["put"]),
        tubes.BadOption("bad", option="pri", value=-1),
        tubes.NotSupported("no", option="ttl"),
        tubes.TubeExists("t"),
        tubes.NoSuchTube("t", ["tt"]),
        tubes.NoSuchSession("s"),
        tubes.TaskNotFound("t", 1),
        tubes.NotTaken("t", 1),
        tubes.LeaseLost("t", 1, 2),
        tubes.TubeFull("t", 3, 4),
        tubes.TubeBusy("t", "why"),
        tubes.OutcomeUnknown("lost"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_the_parent_of_a_worker_process_as_it_was(error: tubes.TubeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_error_reaches_another_process_whatever_was_given() -> None:
    """Even if the refused value cannot be pickled, its repr can."""
    given: Any = {"pri": lambda: 0}
    with tubes.connect("sqlite://") as queue, pytest.raises(tubes.BadOption) as caught:
        queue.create_tube("jobs", "fifottl").put("x", **given)
    there = pickle.loads(pickle.dumps(caught.value))
    assert type(there) is tubes.BadOption
    assert (str(there), there.option, there.value) == (str(caught.value), "pri", repr(given["pri"]))


@pytest.mark.parametrize("given", [10**5000, [10**5000]], ids=["a number", "a list"])
def test_what_cannot_be_shown_is_refused_like_anything_else(given: Any) -> None:
    """Python itself refuses to write down a number of thousands of digits."""
    with tubes.connect("sqlite://", sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifottl")
        for call in (
            lambda: tubes.connect(given),
            lambda: tubes.connect("sqlite://", durability=given),
            lambda: tubes.connect("sqlite://", clock=given),
            lambda: tubes.connect("sqlite://", sweep=given),
            lambda: tubes.connect("sqlite://", namespace=given),
            lambda: tubes.connect("sqlite://", session_ttr=given),
            lambda: tubes.register_driver("jobs", given),
            lambda: tubes.TubeType(given),
            lambda: tubes.TubeType(order=given),
            lambda: queue.create_tube(given, "fifo"),
            lambda: queue.get_tube(given),
            lambda: queue.identify(given),
            lambda: jobs.tasks(given),
            lambda: jobs.put("x", ttl=given),
            lambda: jobs.put("x", unit=given),
            lambda: jobs.put("x", connection=given),
            lambda: jobs.ack_many(given),
            lambda: jobs.on_task_change(given),
        ):
            with pytest.raises(tubes.BadOption, match=r"cannot be shown|must be|not a value of type"):
                call()
        with pytest.raises(tubes.UnknownDriver, match="cannot be shown"):
            queue.create_tube("more", given)


def test_a_value_that_cannot_be_shown_reaches_another_process_as_such() -> None:
    error = tubes.BadOption("no", value=[10**5000, lambda: 0])
    assert "list" in pickle.loads(pickle.dumps(error)).value
