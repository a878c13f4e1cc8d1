"""The driver API: what is refused, how drivers are found, and that they do what TRANSITIONS says."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import interpreter
import pytest
from faults.harness import DESCRIPTORS, ended

import tubes
from tubes import (
    TRANSITIONS,
    BadOption,
    Change,
    Driver,
    Event,
    Features,
    IncompleteDriver,
    NewTask,
    Queue,
    Ref,
    State,
    StoreError,
    TubeRecord,
    TubeType,
    UnknownDriver,
    check_driver,
)
from tubes.driver import STEP_LIMIT
from tubes.registry import driver_names, find_driver
from tubes.store import Store
from tubes.testing import FakeClock
from tubes.testing.suite import Waiting, take
from tubes.tube import Tube

METHODS = [name for name, value in vars(Driver).items() if inspect.isfunction(value) and name[0] != "_"]
HOSTED = [*METHODS, "ack_and_take"]
BUILT_IN = {"fifo", "fifottl", "limfifottl", "utube", "utubettl"}


def complete(**changes: Any) -> dict[str, Any]:
    """The attributes of a driver that has everything, and does nothing."""
    return {"features": Features(), **{name: lambda self: None for name in METHODS}, **changes}


# check_driver


def test_the_api_has_the_methods_of_the_protocol() -> None:
    assert {"put", "take", "ack", "release", "bury", "kick", "touch", "delete", "peek"} <= set(METHODS)
    check_driver(type("Complete", (), complete()))


def test_features_may_be_annotated_with_what_only_type_checkers_import() -> None:
    """Python 3.14 evaluates an annotation only when asked for it; older versions need it as text then."""
    annotation = "Features" if sys.version_info >= (3, 14) else "'Features'"
    written: dict[str, Any] = {}
    exec(f"class Annotated:\n    features: {annotation}", written)
    methods = {name: value for name, value in complete().items() if name != "features"}
    check_driver(type("Complete", (written["Annotated"],), methods))


def test_an_empty_driver_lacks_everything_and_all_of_it_is_named() -> None:
    with pytest.raises(IncompleteDriver) as caught:
        check_driver(type("Empty", (), {}))
    assert caught.value.driver == "Empty"
    assert set(caught.value.missing) == {"features", *METHODS}
    assert all(name in str(caught.value) for name in METHODS)


@pytest.mark.parametrize("missing", [("take",), ("put", "next_due"), ("features", "normalize_task")], ids=str)
def test_exactly_what_is_missing_is_named(missing: tuple[str, ...]) -> None:
    attributes = {name: value for name, value in complete().items() if name not in missing}
    for driver in (type("Partial", (), attributes), type("Partial", (), attributes)()):
        with pytest.raises(IncompleteDriver) as caught:
            check_driver(driver)
        assert set(caught.value.missing) == set(missing)


def test_a_method_that_cannot_be_called_is_missing() -> None:
    with pytest.raises(IncompleteDriver, match="kick"):
        check_driver(type("Wrong", (), complete(kick=None)))


def test_a_method_of_the_protocol_s_own_is_missing_in_a_class_that_inherits_it() -> None:
    """It would do nothing: a waiting consumer would never be called, say."""
    attributes = {name: value for name, value in complete().items() if name != "can_take"}
    kind = type("Partial", (Driver,), attributes)
    for driver in (kind, kind()):
        with pytest.raises(IncompleteDriver) as caught:
            check_driver(driver)
        assert caught.value.missing == ("can_take",)
    check_driver(type("Complete", (Driver,), complete()))


@pytest.mark.parametrize(
    ("said", "needed"),
    [({"is_hosted": True}, "ack_and_take"), ({"tube_options": ("colour",)}, "check_tube_options")],
    ids=str,
)
def test_what_a_driver_needs_for_what_it_says_of_itself_is_named_too(said: Any, needed: str) -> None:
    """Else the first take with an ack, or the first tube with the option, would fail for lack of it."""
    attributes = {name: value for name, value in complete(**said).items() if name != "take"}
    for driver in (type("Partial", (), attributes), type("Partial", (), attributes)()):
        with pytest.raises(IncompleteDriver) as caught:
            check_driver(driver)
        assert set(caught.value.missing) == {"take", needed}
    check_driver(type("Complete", (), complete(**said, **{needed: lambda self: None})))


def test_an_incomplete_driver_is_a_type_error_of_our_tree() -> None:
    assert issubclass(IncompleteDriver, TypeError) and issubclass(IncompleteDriver, tubes.TubeError)


# register_driver


def test_an_incomplete_class_is_refused_and_not_registered() -> None:
    with pytest.raises(IncompleteDriver, match="create_space"):
        tubes.register_driver("incomplete_class", type("Incomplete", (), {"features": Features()}))
    assert "incomplete_class" not in driver_names()


def test_an_incomplete_driver_that_a_function_makes_is_refused_when_a_tube_is_made() -> None:
    def make(store: Any, tube: TubeRecord) -> Any:
        return type("Incomplete", (), {"features": Features()})()

    tubes.register_driver("incomplete_made", make)
    with tubes.connect("sqlite://", sweep=False) as queue:
        with pytest.raises(IncompleteDriver, match="normalize_task"):
            queue.create_tube("jobs", "incomplete_made")
        assert queue.tubes() == []


def test_any_callable_makes_drivers_and_what_it_makes_has_its_options(tmp_path: Path) -> None:
    class Coloured:
        tube_options = ("colour",)
        features = Features()

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        @staticmethod
        def check_tube_options(given: Any) -> Any:
            return {name: value.upper() for name, value in given.items()}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def make(store: Any, tube: TubeRecord, type: TubeType) -> Any:
        return Coloured(store.realise(type, tube))

    class Factory:
        def __call__(self, store: Any, tube: TubeRecord) -> Any:
            return make(store, tube, TubeType())

    tubes.register_driver("made_by_a_partial", partial(make, type=TubeType()))
    tubes.register_driver("made_by_an_object", Factory())
    with tubes.connect("sqlite://", sweep=False) as queue:
        for type in ("made_by_a_partial", "made_by_an_object"):
            tube = queue.create_tube(type, type, colour="red")
            assert tube.record.options == {"colour": "RED"}
            assert tube.put("x").data == "x"


@pytest.mark.parametrize(
    "answer", [None, {"colour": {1}}, {"colour": float("nan")}, {"ttl_ms": "red"}, {"capacity": -1}], ids=repr
)
def test_options_that_cannot_be_read_again_are_refused(answer: Any) -> None:
    """Else there would be a tube that nobody can open, or drop."""

    class Coloured(Twice):
        tube_options = ("colour",)

        @staticmethod
        def check_tube_options(given: Any) -> Any:
            return answer if "colour" in given else {"colour": ("red", 1)}

    def make(store: Any, tube: TubeRecord) -> Coloured:
        return Coloured(store.realise(TubeType(), tube))

    type = f"coloured_{len(driver_names())}"
    tubes.register_driver(type, make)
    with tubes.connect("sqlite://", sweep=False) as queue:
        with pytest.raises(BadOption, match="'jobs' cannot be stored: "):
            queue.create_tube("jobs", type, colour="red")
        assert queue.tubes() == []
        assert queue.create_tube("jobs", type).record == queue.records()[0]


@pytest.mark.parametrize("driver", [None, 5, "fifo", Features()], ids=repr)
def test_what_is_no_driver_is_refused(driver: Any) -> None:
    with pytest.raises((BadOption, IncompleteDriver)):
        tubes.register_driver("no_driver", driver)
    assert "no_driver" not in driver_names()


@pytest.mark.parametrize(
    "wrong", [{"order": "newst"}, {"order": None}, {"features": {"timed": True}}], ids=str
)
def test_a_type_that_cannot_be_is_refused_where_it_is_written(wrong: Any) -> None:
    """A misspelt order would mean the oldest first, and nobody would notice."""
    (option,) = wrong
    with pytest.raises(BadOption, match=f"{option} must be") as caught:
        TubeType(**wrong)
    assert caught.value.option == option


@pytest.mark.parametrize("name", ["", "two words", "1st", "x" * 33, None], ids=repr)
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(BadOption, match="bad type name") as caught:
        tubes.register_driver(name, TubeType())
    assert caught.value.option == "type"


def test_a_name_is_registered_once() -> None:
    first = TubeType(doc="the first")
    tubes.register_driver("clashing", first)
    tubes.register_driver("clashing", first)
    tubes.register_driver("clashing", replace(first))  # a module that was imported twice
    with pytest.raises(BadOption, match="'clashing' is registered already"):
        tubes.register_driver("clashing", TubeType(doc="another"))
    assert find_driver("clashing") is first


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_built_in_type_says_what_it_is_for(name: str) -> None:
    built_in = find_driver(name)
    assert isinstance(built_in, TubeType) and built_in.doc


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_built_in_type_cannot_be_replaced(name: str) -> None:
    with pytest.raises(BadOption, match=name):
        tubes.register_driver(name, TubeType(doc="mine"))


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_type_that_the_store_cannot_realise_is_refused_with_the_reason(
    store: str, request: pytest.FixtureRequest
) -> None:
    """And there is no such tube then, even on a store that rolls nothing back."""
    tubes.register_driver("impossible", TubeType(Features(grouped=True), order="newest"))
    url = "sqlite://" if store == "sqlite" else request.getfixturevalue("redis_db")
    with tubes.connect(url, sweep=False) as queue:
        with pytest.raises(tubes.NotSupported, match="newest"):
            queue.create_tube("jobs", "impossible")
        assert queue.tubes() == []


class Twice:
    """A driver of your own, whose steps do two things each; the second may fail."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.features, self.fails = driver, driver.features, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> list[Change]:
        first = self.driver.put(tx, items, now=now)
        if self.fails:
            raise BadOption("the second cannot be")
        return [*first, *self.driver.put(tx, items, now=now)]

    def truncate(self, tx: Any, limit: int) -> int:
        count: int = self.driver.truncate(tx, 1)
        if self.fails:
            raise BadOption("the second cannot be")
        return count


@pytest.mark.parametrize("is_listened_to", [False, True])
def test_a_step_of_a_driver_of_ones_own_is_undone_whole(is_listened_to: bool) -> None:
    """Its transaction is opened first: else the steps that it is made of would commit one by one."""

    def make_twice(store: Any, tube: Any) -> Twice:
        return Twice(store.realise(TubeType(), tube))

    name = f"twice_{is_listened_to}"
    tubes.register_driver(name, make_twice)
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", name)
        events: list[str] = []
        if is_listened_to:
            tube.on_task_change(lambda task, event: events.append(event))
        tube.put("x")
        driver: Any = tube.driver
        driver.fails = True
        for call in (lambda: tube.put("y"), tube.truncate):
            with pytest.raises(BadOption, match="second"):
                call()
        assert [task.data for task in tube.tasks("r")] == ["x", "x"]
        assert len(events) == 2 * is_listened_to


class Buggy:
    """A driver of your own, one method of which always raises an error that is not one of ours."""

    def __init__(self, driver: Any, method: str) -> None:
        self.driver, self.features = driver, driver.features
        setattr(self, method, self.raising)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def raising(self, *_: object, **__: object) -> Any:
        raise KeyError("a bug of the driver")


@pytest.fixture
def buggy(request: pytest.FixtureRequest) -> str:
    """The name of a type whose drivers have the given bug."""

    def make(store: Any, tube: Any) -> Any:
        return Buggy(store.realise(TubeType(Features(timed=True)), tube), request.param)

    name = f"buggy_{request.param}"
    if name not in driver_names():
        tubes.register_driver(name, make)
    return name


@pytest.mark.parametrize("buggy", ["start"], indirect=True)
def test_a_tube_whose_driver_cannot_be_started_is_not_made(
    buggy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that driver, which nobody else knows of, is stopped, as is the one that checked the options."""
    stopped: list[Any] = []
    monkeypatch.setattr(Buggy, "stop", lambda self: stopped.append(self), raising=False)
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue:
        with pytest.raises(UnknownDriver, match=r"cannot be started \(\w+: "):
            queue.create_tube("bad", buggy)
        assert queue.tubes() == [] and len({*stopped}) == 2


@pytest.mark.parametrize("buggy", ["start"], indirect=True)
@pytest.mark.parametrize("error", [KeyError, BadOption, StoreError])
def test_a_driver_that_cannot_be_started_any_more_costs_its_own_tube_alone(
    buggy: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object) -> None:
        raise error("not any more")

    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with monkeypatch.context() as patch, tubes.connect(url, sweep=False) as queue:
        patch.setattr(Buggy, "raising", lambda *_: None)
        queue.create_tube("bad", buggy)
        queue.create_tube("good", "fifo").put("precious")
    monkeypatch.setattr(Buggy, "raising", raising)
    with tubes.connect(url, sweep=False) as queue:
        assert [task.data for task in queue.tube.good.take_many(2, timeout=0)] == ["precious"]
        with pytest.raises(UnknownDriver if error is KeyError else error, match="not any more"):
            queue.get_tube("bad")


@pytest.mark.parametrize("buggy", ["release_owner", "expire", "next_due", "count", "stop"], indirect=True)
def test_what_a_driver_raises_keeps_nobody_from_the_other_tubes(
    buggy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There, dead sessions' tasks are rescued, due ones settled, counts shown; and the queue closes."""
    url, clock = f"sqlite:///{tmp_path / 'queue.db'}", FakeClock()
    with tubes.connect(url, clock=clock, sweep=False) as queue:
        queue.create_tube("bad", buggy).put("theirs", ttl=1)
        good = queue.create_tube("good", "fifottl")
        good.put("held by the dead")
        dead = (
            "import os, sys, tubes; queue = tubes.connect(sys.argv[1]); queue.tube.good.take(0); os._exit(0)"
        )
        interpreter.run(["-c", dead, url]).check_returncode()
        assert [task.data for task in good.tasks("t")] == ["held by the dead"]
        assert [task.data for task in good.take_many(2, timeout=0)] == ["held by the dead"]

        good.put("short", ttl=1)
        clock.advance(2)
        fails = buggy not in ("buggy_count", "buggy_stop")
        with pytest.raises(KeyError) if fails else nullcontext() as said:
            queue.sweep()
        assert said is None or said.value.__notes__ == [f"in <Tube bad ({buggy})>"]
        assert good.tasks("r") == []
        assert queue.statistics()["good"]["calls"]["ttl"] == 1
    is_logged = "a bug of the driver" in caplog.text
    assert is_logged == (buggy in ("buggy_count", "buggy_stop"))


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_take_with_an_ack_is_a_take_of_a_driver_with_a_difference(
    store: str, request: pytest.FixtureRequest
) -> None:
    """Even if the driver that it delegates the rest to does both in one step."""

    class Counting:
        takes = 0

        def __init__(self, driver: Any) -> None:
            self.driver, self.features = driver, driver.features

        def __getattr__(self, name: str) -> Any:
            return getattr(self.driver, name)

        def take(self, tx: Any, limit: int, **given: Any) -> Sequence[Change]:
            self.takes += 1
            changes: Sequence[Change] = self.driver.take(tx, limit, **given)
            return changes

    def make(store: Any, tube: Any) -> Counting:
        return Counting(store.realise(TubeType(), tube))

    type = f"counts_takes_{store}"
    tubes.register_driver(type, make)
    url = "sqlite://" if store == "sqlite" else request.getfixturevalue("redis_db")
    with tubes.connect(url, sweep=False) as queue:
        tube = queue.create_tube("jobs", type)
        tube.put_many("ab")
        task = tube.take(0)
        while task is not None:
            task = tube.take(0, ack=task)
        driver: Any = tube.driver
        assert driver.takes >= 3
        with pytest.raises(tubes.NotTaken):
            tube.take(0, ack=1)


class OneAtATime:
    """A driver of your own, of which one task at a time is taken; it has no sub-queues."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.features = driver, driver.features

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def take(self, tx: Any, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        changes: Sequence[Change] = self.driver.expire(tx, STEP_LIMIT, now=now)
        if self.driver.count(tx)[State.TAKEN]:
            return changes
        return [*changes, *self.driver.take(tx, 1, owner=owner, now=now)]

    def can_take(self, tx: Any) -> bool:
        return not self.driver.count(tx)[State.TAKEN] and self.driver.can_take(tx)


@pytest.mark.parametrize("freeing", ["ack", "delete", "bury"])
def test_whatever_a_driver_of_ones_own_waits_for_wakes_who_waits(freeing: str) -> None:
    """In memory nobody looks now and then: a consumer that is not called would wait for ever."""

    def make(store: Any, tube: Any) -> OneAtATime:
        return OneAtATime(store.realise(TubeType(Features(timed=True)), tube))

    type, clock = f"one_at_a_time_{freeing}", FakeClock()
    tubes.register_driver(type, make)
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        tube = queue.create_tube("jobs", type)
        tube.put("first")
        held, second = take(tube), tube.put("second")
        waiting = Waiting(clock, tube.take, timeout=None)
        getattr(tube, freeing)(held)
        assert waiting.end().id == second.id


@pytest.mark.parametrize("type", ["fifo", "fifottl"])
def test_verbs_and_callbacks_show_the_same_task(type: str) -> None:
    """Even if the driver's steps return Tasks already, which it would turn into others."""

    class Loud(Twice):
        put = property(lambda self: self.driver.put)

        def normalize_task(self, raw: Any) -> tubes.Task:
            task: tubes.Task = self.driver.normalize_task(raw)
            return replace(task, data=task.data.upper())

    def make(store: Any, tube: Any) -> Loud:
        return Loud(store.realise(TubeType(Features(timed=type == "fifottl")), tube))

    tubes.register_driver(f"loud_{type}", make)
    with tubes.connect("sqlite://", sweep=False) as queue:
        told: list[tubes.Task] = []
        tube = queue.create_tube("jobs", f"loud_{type}", on_task_change=lambda task, event: told.append(task))
        put = tube.put("x")
        taken = take(tube)
        assert told == [put, taken, tube.ack(taken)]


def test_a_driver_that_tells_of_nothing_that_it_stores_has_not_filled_its_tube() -> None:
    """For a type without bounds, nobody would understand a TubeFull."""

    class Silent(Twice):
        def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> list[Change]:
            self.driver.put(tx, items, now=now)
            return []

    def make(store: Any, tube: Any) -> Silent:
        return Silent(store.realise(TubeType(), tube))

    tubes.register_driver("tells_nothing", make)
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", "tells_nothing")
        with pytest.raises(RuntimeError, match=r"the driver of <Tube jobs .* returned no change for what"):
            tube.put("x")


WRONG_ANSWERS: dict[str, Callable[[Iterable[Change]], Any]] = {
    "None": lambda changes: None,
    "<generator": lambda changes: (change for change in changes),
    "<Task": lambda changes: [change.raw for change in changes],
    "'soon'": lambda changes: [change._replace(due_ms=cast("Any", "soon")) for change in changes],
    "'put'": lambda changes: [change._replace(event=cast("Any", f"{change.event}")) for change in changes],
}


@pytest.mark.parametrize("is_listened_to", [False, True])
@pytest.mark.parametrize("answer", WRONG_ANSWERS)
def test_a_step_that_answers_no_changes_is_told_and_undone(answer: str, is_listened_to: bool) -> None:
    """Else what the caller hears has failed would be stored, and a generator would run after the commit."""

    class Wrong(Twice):
        def put(self, tx: Any, items: Sequence[NewTask], *, now: int) -> Any:
            changes = self.driver.put(tx, items, now=now)
            return WRONG_ANSWERS[answer](changes) if self.fails else changes

        def take(self, tx: Any, limit: int, **given: Any) -> Any:
            changes = self.driver.take(tx, limit, **given)
            return WRONG_ANSWERS[answer](changes) if self.fails else changes

    def make(store: Any, tube: Any) -> Wrong:
        return Wrong(store.realise(TubeType(), tube))

    name = f"answers_{[*WRONG_ANSWERS].index(answer)}_{is_listened_to}"
    tubes.register_driver(name, make)
    clock = FakeClock()
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        tube = queue.create_tube("jobs", name)
        heard: list[Event] = []
        if is_listened_to:
            tube.on_task_change(lambda task, event: heard.append(event))
        tube.put_many("ab")
        held, before = tube.take(0), tube.statistics()
        driver: Any = tube.driver
        heard.clear()

        def put_in_a_transaction() -> None:
            with queue.transaction() as unit:
                tube.put("x", unit=unit)

        calls: list[Callable[[], Any]] = [
            lambda: tube.put("x"),
            lambda: tube.put_many("xy"),
            put_in_a_transaction,
            lambda: tube.take(0),
            lambda: tube.take(0, ack=held),
        ]
        for call in calls:
            clock.advance(1)  # else held is given back, as taken in the millisecond of a failed take
            driver.fails = True
            with pytest.raises(RuntimeError, match=r"the driver of <Tube jobs .* from (put|take), not"):
                call()
            driver.fails = False
        assert tube.statistics() == before and heard == []


WRONG_LOOKS: dict[str, tuple[Any, Callable[[Queue, Tube], Any]]] = {
    "truncate": (None, lambda queue, tube: tube.truncate()),
    "peek": (None, lambda queue, tube: tube.peek(1)),
    "tasks_by_state": (iter(()), lambda queue, tube: tube.tasks("r")),
    "can_take": (None, lambda queue, tube: tube.take(1)),
    "count": ({State.READY: "1"}, lambda queue, tube: tube.statistics()),
    "next_due": ("soon", lambda queue, tube: queue.sweep()),
    "normalize_task": (None, lambda queue, tube: tube.peek(1)),
}


@pytest.mark.parametrize("method", WRONG_LOOKS)
def test_a_wrong_answer_of_another_method_is_told_and_undone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a peek would say that there is no such task, a take wait for ever, and others fail within tubes."""
    answer, call = WRONG_LOOKS[method]

    def make(store: Any, tube: Any) -> Any:
        return store.realise(TubeType(Features(timed=True)), tube)

    tubes.register_driver(f"looks_wrongly_{method}", make)
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", f"looks_wrongly_{method}")
        tube.put("x", delay=60 if method == "can_take" else 0)
        right = getattr(tube.driver, method)

        def wrong(*given: Any, **named: Any) -> Any:
            right(*given, **named)
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(tube.driver, method, wrong)
            with pytest.raises(RuntimeError, match=rf"the driver of <Tube jobs .* from {method}, not"):
                call(queue, tube)
        assert tube.statistics()["tasks"]["total"] == 1


# Entry points


def test_the_built_in_types_are_found_through_entry_points() -> None:
    entries = {entry.name: entry for entry in entry_points(group="tubes.drivers")}
    assert entries.keys() >= BUILT_IN
    for name in BUILT_IN:
        assert find_driver(name) is entries[name].load()
    assert set(driver_names()) >= BUILT_IN


@pytest.mark.filterwarnings("error")
def test_a_tube_is_warned_of_before_it_is_made() -> None:
    """Else, if warnings are errors, create_tube would fail and yet leave a tube."""
    with tubes.connect("sqlite://", sweep=False) as queue:
        with pytest.raises(tubes.TubesWarning, match="no ttr"):
            queue.create_tube("short", "fifottl", ttl=5)
        assert queue.tubes() == []


def test_counts_that_a_store_cannot_keep_are_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the store raises."""

    def fails(calls: Any) -> None:
        raise LookupError("a fault of the store's")

    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        with monkeypatch.context() as patch:
            patch.setattr(queue.store, "add_calls", fails)
            with pytest.raises(LookupError):
                queue.flush_counts()
        queue.flush_counts()
        assert tube.statistics()["calls"]["put"] == 1


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_tube_is_made_without_a_look_at_all_others(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else making a thousand would take a million looks."""
    url = "sqlite://" if store == "sqlite" else request.getfixturevalue("redis_db")
    with tubes.connect(url, sweep=False) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(queue.store, "tubes", None)
            made = queue.create_tube("jobs", "fifo")
            assert queue.create_tube("jobs", "fifo", if_not_exists=True) is made
        assert queue.tubes() == ["jobs"]


def test_of_a_tube_that_is_there_its_own_options_are_warned_of() -> None:
    """The options given have no effect on it."""
    with tubes.connect("sqlite://", sweep=False) as queue:
        queue.create_tube("long", "fifottl", ttl=5, ttr=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tube = queue.create_tube("long", "fifottl", ttl=5, if_not_exists=True)
        assert tube.record.options["ttr_ms"] == 1000
        with pytest.raises(tubes.TubeExists):
            queue.create_tube("long", "fifottl", ttl=5)
        for options in ({"ttl": 5}, {"if_not_exists": True}):
            with pytest.warns(tubes.TubesWarning, match="no ttr") as warned:
                queue.create_tube("short", "fifottl", **options)
            assert [warning.filename for warning in warned] == [__file__]  # once, where it was called


def test_what_is_no_tube_is_no_attribute() -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        queue.create_tube("jobs", "fifo")
        assert hasattr(queue.tube, "jobs") and not hasattr(queue.tube, "job")
        with pytest.raises(AttributeError, match="did you mean 'jobs'"):
            _ = queue.tube.job


def test_the_names_of_tubes_are_listed_counted_and_looked_up() -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        for name in ("jobs", "mail"):
            queue.create_tube(name, "fifo")
        assert [*queue.tube] == dir(queue.tube) == ["jobs", "mail"]
        assert (len(queue.tube), "jobs" in queue.tube, "job" in queue.tube) == (2, True, False)


@pytest.mark.parametrize("name", ["jobs", "_queue", "get_tube", "_"])
def test_a_tube_is_an_attribute_whatever_its_name(name: str) -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        tube = queue.create_tube(name, "fifo")
        assert getattr(queue.tube, name) is queue.tube[name] is tube


def test_an_unknown_type_is_an_error_that_suggests_a_near_one() -> None:
    with tubes.connect("sqlite://", sweep=False) as queue:
        with pytest.raises(UnknownDriver, match="did you mean 'utubettl'"):
            queue.create_tube("jobs", "utubetl")
        with pytest.raises(LookupError, match="zzz"):
            queue.create_tube("jobs", "zzz")


class Package:
    """Installs packages with entry points, each of a single module that may contain anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, code: str, entry: str, group: str = "tubes.drivers") -> None:
        (self.folder / f"{name}.py").write_text(code)
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")

    def run(self, program: str, *given: str) -> list[str]:
        """What a program prints that has them installed."""
        installed = f"import sys; sys.path.insert(0, {str(self.folder)!r})\n{program}"
        done = interpreter.run(["-c", installed, *given], text=True)
        assert done.returncode == 0, done.stderr
        said: str = done.stdout
        return said.splitlines()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    (tmp_path / "site").mkdir()
    return Package(tmp_path / "site")


ASK = """
import sys, tubes
for type in sys.argv[1:]:
    for _ in range(2):
        try:
            with tubes.connect("sqlite://", sweep=False) as queue:
                print(queue.create_tube("jobs", type))
        except tubes.UnknownDriver as error:
            print(error)
"""


@pytest.mark.slow
def test_an_entry_point_that_cannot_be_loaded_is_told_with_the_reason(package: Package) -> None:
    package("wants", "import nothing_of_that_name", "wants = wants:Driver")
    package("lacks", "", "lacks = lacks:Driver")
    package("breaks", "1 / 0", "breaks = breaks:Driver")
    package("garbles", "x = = 1", "garbles = garbles:Driver")
    package("ends", "raise SystemExit('no licence')", "ends = ends:Driver")
    half = "import tubes; Driver = tubes.TubeType(); tubes.register_driver('halts', Driver); [].pop()"
    package("halts", half, "halts = halts:Driver")
    reasons = {
        "wants": "nothing_of_that_name",
        "lacks": "no attribute 'Driver'",
        "breaks": "division by zero",
        "garbles": "invalid syntax",
        "ends": "no licence",
        "halts": "pop from empty list",
    }
    said = package.run(ASK, *reasons)
    for (type, reason), first, again in zip(reasons.items(), said[::2], said[1::2], strict=True):
        assert first == again
        assert first.startswith(f"unknown tube type '{type}': {type}:Driver cannot be imported ("), first
        assert reason in first


def test_a_module_that_cannot_be_loaded_is_tried_once(package: Package) -> None:
    """Every opening of tubes asks for it again."""
    package("breaks", "print('tried'); 1 / 0", "breaks = breaks:Driver")
    said = package.run(ASK, "breaks")
    assert len(said) == 3 and said.count("tried") == 1


WITHOUT_FILES = f"""
import tubes, tubes.registry
{DESCRIPTORS}
def without_files(attempt):
    with free_descriptors(0):
        try:
            attempt()
        except tubes.TubeError as error:
            print(type(error).__name__, error)
"""
"""The beginning of a program that can make a call while no more files can be opened."""


def test_a_module_that_was_loaded_when_no_file_could_be_opened_is_tried_again(package: Package) -> None:
    """It was the process that lacked something: once it no longer does, the type can be used."""
    package("late", "import tubes; Driver = tubes.TubeType()", "late = late:Driver")
    program = """
tubes.registry._found.clear()  # those that were there when this interpreter was started
with tubes.connect("sqlite://", sweep=False) as queue:
    queue.create_tube("known", "fifo")
    without_files(lambda: queue.create_tube("jobs", "late"))
    print(queue.create_tube("jobs", "late"))
"""
    refused, made = package.run(WITHOUT_FILES + program)
    assert refused.startswith("UnknownDriver") and os.strerror(errno.EMFILE) in refused
    assert made == "<Tube jobs (late)>"


@pytest.mark.parametrize("known", ["", "tubes.registry._entries('tubes.stores')"], ids=["read", "import"])
def test_a_first_connect_when_no_file_can_be_opened_is_an_error_of_ours(package: Package, known: str) -> None:
    """The first connect reads what is installed, and imports a store."""
    package(
        "late",
        "from tubes.drivers.sql.sqlite import SqliteStore as Store",
        "late = late:Store",
        "tubes.stores",
    )
    program = f"""
import importlib.metadata
tubes.registry._found.clear()
list(importlib.metadata.entry_points(group="tubes.stores"))  # which folders there are is known in any case
{known}
without_files(lambda: tubes.connect("late://"))
print(tubes.registry.find_store("late").__name__)
"""
    refused, again = package.run(WITHOUT_FILES + program)
    assert refused.startswith("StoreUnavailable") and os.strerror(errno.EMFILE) in refused
    assert again == "SqliteStore"


@pytest.mark.parametrize(
    "code, why",
    [
        ("import oddity", "'odd+fast' needs a package that is not installed: No module named 'oddity'"),
        (
            "raise ImportError('libodd.so.1: cannot open')",
            "'odd+fast' cannot be loaded: libodd.so.1: cannot open",
        ),
        (
            "import sqlite3\nsqlite3.SQLITE_ODD",
            "'odd+fast' cannot be loaded: module 'sqlite3' has no attribute 'SQLITE_ODD'",
        ),
    ],
    ids=["not there", "lacks a library of the system's", "finds another module in a library's place"],
)
def test_a_store_whose_module_cannot_be_imported_is_unavailable_with_the_reason(
    package: Package, code: str, why: str
) -> None:
    package("odd", code, "odd = odd:Store", "tubes.stores")
    program = """
import tubes, tubes.registry
tubes.registry._found.clear()  # those that were there when this interpreter was started
try:
    tubes.connect("odd+fast://host/db")
except tubes.StoreUnavailable as error:
    print(error)
"""
    [said] = package.run(program)
    assert said == f"the store for {why}"


def test_what_a_signal_s_handler_raises_while_a_type_is_loaded_is_not_the_type_s(package: Package) -> None:
    """A program that is told to end does so, and the type can be used later on."""
    code = "import signal, tubes\nsignal.raise_signal(signal.SIGTERM)\nDriver = tubes.TubeType()"
    package("slow", code, "slow = slow:Driver")
    ends = "import signal\nsignal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))\n"
    said = package.run(ends + ASK.replace("tubes.UnknownDriver", "SystemExit"), "slow")
    assert said == ["3", "<Tube jobs (slow)>"]


def test_a_type_that_two_packages_register_is_told_and_neither_is_used(package: Package) -> None:
    """Else chance would decide: tasks would be in the one's order today, in the other's tomorrow."""
    plain = "import tubes; Driver = tubes.TubeType()"
    package("mine", plain, "both = mine:Driver")
    package("yours", plain, "both = yours:Driver\nyours = yours:Driver")
    package("again", plain, "yours = yours:Driver")
    first, again, third, _ = package.run(ASK, "both", "yours")
    assert first == again and first.startswith("unknown tube type 'both': two packages register it, as ")
    assert "mine:Driver" in first and "yours:Driver" in first
    assert third == "<Tube jobs (yours)>"


@pytest.mark.slow
def test_a_module_that_registers_what_its_entry_point_names_does_so_once(package: Package) -> None:
    """As the how-to's modules do once they are packaged, whether found by type, imported first or run."""
    code = "import tubes\nDriver = {}\ntubes.register_driver({!r}, Driver)"
    package("itself", code.format("tubes.TubeType()", "itself"), "itself = itself:Driver")
    package("other", code.format("tubes.TubeType()", "claimed"), "")
    package("owner", "import tubes; Driver = tubes.TubeType(order='newest')", "claimed = owner:Driver")
    assert package.run(ASK, "itself") == ["<Tube jobs (itself)>"] * 2
    assert package.run("import itself" + ASK, "itself") == ["<Tube jobs (itself)>"] * 2
    as_program = "import runpy; runpy.run_module('itself', run_name='__main__')\n"
    assert package.run(as_program + ASK, "itself") == ["<Tube jobs (itself)>"] * 2
    refused = "import tubes\ntry: import other\nexcept tubes.BadOption as error: print(error)"
    assert package.run(refused) == ["driver 'claimed' is registered already"]


PEDANTIC = """
import importlib.metadata
made = importlib.metadata.EntryPoint.__init__
def checked(entry, name, value, group):
    made(entry, name, value, group)
    if not entry.pattern.match(value):
        raise ValueError("Invalid object reference", value)
importlib.metadata.EntryPoint.__init__ = checked
import tubes, tubes.registry
tubes.registry._found.clear()  # those that were there when this interpreter was started
"""
"""The beginning of a program as on Python 3.15, where one bad entry point spoils all of its package's."""


@pytest.mark.parametrize("group", ["tubes.drivers", "console_scripts"])
def test_a_package_whose_entry_points_cannot_be_read_keeps_nobody_from_others(
    package: Package, group: str
) -> None:
    package("vague", "", "vague = no module", group)
    package("sound", "import tubes; Driver = tubes.TubeType()", "sound = sound:Driver")
    said = package.run(PEDANTIC + ASK, "sound", "fifo", "vague")
    assert said[:4] == ["<Tube jobs (sound)>"] * 2 + ["<Tube jobs (fifo)>"] * 2
    assert [line.partition(";")[0] for line in said[4:]] == ["unknown tube type 'vague'"] * 2


@pytest.mark.parametrize(
    "value", ["os", *(["no module", "os:path:no"] if sys.version_info < (3, 15) else [])]
)
def test_a_type_whose_entry_point_names_nothing_is_registered_already(package: Package, value: str) -> None:
    package("vague", "", f"vague = {value}")
    register = "import tubes\ntry: tubes.register_driver('vague', tubes.TubeType())\n"
    said = package.run(register + "except tubes.BadOption as error: print(error)")
    assert said == ["driver 'vague' is registered already"]


MAKE = """
import sys, tubes
with tubes.connect(sys.argv[1]) as queue:
    for name in ("gone", "broken", "needy", "changed"):
        queue.create_tube(name, name).put(name)
    queue.create_tube("jobs", "fifottl").put("jobs")
    queue.tube.jobs.put("late", delay=0.001)
    queue.tube.jobs.take(0)
    import os; os._exit(0)
"""

USE = """
import sys, tubes
from tubes.cli import run
with tubes.connect(sys.argv[1], sweep=False) as queue:
    print(queue.tubes(), [*queue.statistics()])
    queue.sweep()
    print([queue.tube.jobs.take(timeout=5).data for _ in range(2)])
    for name in ("gone", "broken", "needy", "changed"):
        try:
            queue.tube[name]
        except tubes.TubeError as error:
            print(type(error).__name__, error)
sys.exit(run(["ls", "--url", sys.argv[1]]) or run(["doctor", "--deep", "--url", sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_tube_whose_driver_cannot_be_had_here_keeps_nobody_from_the_others(
    package: Package, tmp_path: Path
) -> None:
    """Its package is incomplete, or another version. Elsewhere, tasks are rescued, and due ones settled."""
    url = f"sqlite:///{tmp_path / 'mixed.db'}"
    plain = "import tubes; Driver = tubes.TubeType()"
    damaged = {
        "gone": "import nothing_of_that_name",
        "broken": "class Driver: pass",
        "needy": "def Driver(store, tube): import nothing_of_that_name",
        "changed": "import tubes; Driver = tubes.TubeType(tubes.Features(priority=True), order='newest')",
    }
    for name in damaged:
        package(name, plain, f"{name} = {name}:Driver")
    package.run(MAKE, url)
    for name, code in damaged.items():
        (package.folder / f"{name}.py").write_text(code)
    known, taken, gone, broken, needy, changed, *table = package.run(USE, url)
    assert known == "['gone', 'broken', 'needy', 'changed', 'jobs'] ['jobs']"
    assert taken == "['jobs', 'late']"
    assert gone.startswith("UnknownDriver unknown tube type 'gone'")
    assert broken.startswith("IncompleteDriver driver Driver is incomplete")
    assert needy.startswith(
        "UnknownDriver unknown tube type 'needy': its driver cannot be made (ModuleNotFoundError: "
    )
    assert changed.startswith("NotSupported a type whose order is newest")
    shown = "\n".join(table)
    assert all(f"{name} (not registered here)" in shown for name in damaged)
    assert "0 found" in shown


# A tube whose driver comes later

ELSEWHERE = """
import tubes
tubes.register_driver({type!r}, tubes.TubeType())
queue = tubes.connect({url!r})
tube = queue.create_tube("late", {type!r})
tube.put_many(["first", "second"])
{then}
"""


def elsewhere(url: str, type: str, then: str) -> None:
    """In another process, register a type and put two tasks into a tube of it."""
    program = ELSEWHERE.format(url=url, type=type, then=then)
    interpreter.run(["-c", program]).check_returncode()


def test_a_tube_waits_for_its_driver_and_opens_when_that_is_registered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'late.db'}"
    elsewhere(url, "comes_later", "queue.close()")
    with tubes.connect(url, sweep=False) as queue:
        assert queue.tubes() == ["late"]
        assert queue.statistics() == {}
        for use in (lambda: queue.tube["late"], lambda: queue.tube.late, lambda: queue.statistics("late")):
            with pytest.raises(UnknownDriver, match="comes_later"):
                use()
        queue.sweep()
        tubes.register_driver("comes_later", TubeType())
        task = queue.tube.late.take(0)
        assert task is not None and task.data == "first"
        assert queue.statistics("late")["calls"]["put"] == 2


def test_a_driver_is_stopped_of_a_tube_that_is_open_already_and_of_one_that_was_dropped(
    tmp_path: Path,
) -> None:
    """One is left over if a tube that exists is created, or if others drop a tube and make it again."""
    stopped: list[Any] = []

    class Noting:
        def __init__(self, store: Any, tube: TubeRecord) -> None:
            """Nothing to keep."""

        def stop(self) -> None:
            stopped.append(self)

        def count(self, tx: Any) -> dict[State, int]:
            return {}

    methods = dict.fromkeys(METHODS, lambda self, *given, **named: ())
    whole = type("Whole", (Noting,), {**methods, **vars(Noting), "features": Features()})
    tubes.register_driver("notes_its_end", whole)
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue, tubes.connect(url, sweep=False) as other:
        tube = queue.create_tube("jobs", "notes_its_end", if_not_exists=True)
        stopped.clear()
        assert queue.create_tube("jobs", "notes_its_end", if_not_exists=True) is tube
        assert stopped and tube.driver not in stopped
        other.drop_tube("jobs")
        other.create_tube("jobs", "notes_its_end")
        stopped.clear()
        assert [*queue.statistics()] == ["jobs"]  # a walk over all tubes has the new one at once
        assert queue.tube.jobs is not tube
        assert stopped == [tube.driver]


def test_a_driver_is_not_stopped_while_somebody_waits_in_a_tube_that_others_dropped(tmp_path: Path) -> None:
    """The sweep leaves it to the next one: who waits finds out by asking the driver."""
    stopped: list[Any] = []

    def make(store: Any, tube: TubeRecord) -> Any:
        driver = store.realise(TubeType(), tube)
        driver.stop = lambda: stopped.append(driver)
        return driver

    tubes.register_driver("is_waited_for", make)
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue, tubes.connect(url, sweep=False) as other:
        tube = queue.create_tube("jobs", "is_waited_for")
        other.drop_tube("jobs")
        waiters, key = queue.store.waiters, tube.record.id
        signal = waiters.enter(key)
        queue.sweep()
        assert tube.driver not in stopped
        waiters.leave(key, signal)
        queue.sweep()
        assert tube.driver in stopped


@pytest.mark.parametrize("fails_later", [False, True])
def test_every_driver_that_is_made_is_stopped(tmp_path: Path, fails_later: bool) -> None:
    """Also one that only checks a new tube's options, and those of a tube that each sweep fails to open."""
    made, stopped, fails = list[Any](), list[Any](), False

    def fail(tx: Any) -> None:
        raise KeyError("a bug of the driver")

    def make(store: Any, tube: TubeRecord) -> Any:
        driver = store.realise(TubeType(), tube)
        driver.stop = lambda: stopped.append(driver)
        if fails:
            driver.start = fail
        made.append(driver)
        return driver

    tubes.register_driver(f"is_stopped_{fails_later}", make)
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with tubes.connect(url, sweep=False) as queue:
        queue.create_tube("jobs", f"is_stopped_{fails_later}")
    fails = fails_later
    with tubes.connect(url, sweep=False) as queue:
        queue.sweep()
        queue.sweep()
    assert len(made) > 4 if fails_later else len(made) == 3
    assert sorted(map(id, stopped)) == sorted(map(id, made))


@pytest.fixture
def failing() -> Iterator[Any]:
    """A queue with two tubes whose drivers cannot tell what is due: one is broken, one's server is away."""

    class Failing:
        is_hosted = True

        def __init__(self, store: Store, tube: TubeRecord) -> None:
            self.name = tube.name

        def count(self, tx: Any) -> dict[State, int]:
            return {}

        def next_due(self, tx: Any) -> int | None:
            if self.name == "broken":
                raise ZeroDivisionError
            raise tubes.StoreUnavailable("its server is away")

    methods = dict.fromkeys(HOSTED, lambda self, *given, **named: ())
    whole = type("Whole", (Failing,), {**methods, **vars(Failing), "features": Features(timed=True)})
    with pytest.MonkeyPatch.context() as patch, tubes.connect("sqlite://", sweep=False) as queue:
        patch.setitem(importlib.import_module("tubes.registry")._registered, "fails", whole)
        for name in ("broken", "away"):
            queue.create_tube(name, "fails")
        yield queue


@pytest.mark.parametrize("form", [list, set, tuple])
def test_what_unknown_sessions_hold_in_a_hosted_tube_is_released_and_nothing_else(form: Any) -> None:
    """Its driver may tell who holds tasks in any form, and that nobody holds some."""
    released: list[str | None] = []

    class Held:
        is_hosted = True

        def __init__(self, store: Store, tube: TubeRecord) -> None:
            self.store = store

        def holders(self, tx: Any) -> Any:
            return form([None, "unknown", self.store.session])

        def release_owner(self, tx: Any, owner: str | None, limit: int, *, now: int) -> list[Change]:
            released.append(owner)
            return []

    methods = dict.fromkeys(HOSTED, lambda self, *given, **named: ())
    whole = type("Whole", (Held,), {**methods, **vars(Held), "features": Features()})
    tubes.register_driver(f"held_in_a_{form.__name__}", whole)
    with tubes.connect("sqlite://", sweep=False) as queue:
        queue.create_tube("jobs", f"held_in_a_{form.__name__}")
        queue.sweep()
        assert released == ["unknown"]


def test_a_hosted_tube_is_part_of_no_transaction(failing: Any) -> None:
    """Even if its driver does not say so: its steps are not rolled back."""
    with failing.transaction() as unit, pytest.raises(tubes.NotSupported, match="several calls"):
        failing.tube.away.put("x", unit=unit)


def test_a_server_that_is_away_hides_no_fault_of_another_driver(failing: Any) -> None:
    failing._sweeps = True
    for sweep in (failing.sweep, failing._background):
        with pytest.raises(ZeroDivisionError):
            sweep()


def test_a_tube_whose_server_is_away_costs_no_look_at_all_that_is_taken(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That look comes every ten seconds, and when the queue's own store is back."""
    looks: list[bool] = []
    monkeypatch.setattr(
        failing.store,
        "deaths_suspected",
        lambda *, thoroughly=False, allow_recent=False: looks.append(thoroughly),
    )
    failing._sweeps = True
    failing.drop_tube("broken")
    for _ in range(3):
        with pytest.raises(tubes.StoreUnavailable):
            failing._background()
    assert looks == [True, False, False]


def test_a_tube_that_is_opened_while_its_queue_is_closed_is_stopped_as_the_others(tmp_path: Path) -> None:
    """Its driver, which has a store of its own, is slow to start, and another tube's is slow to stop."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    starts, goes_on, has_ended = (threading.Event() for _ in range(3))
    stopped: list[str] = []

    class Slow:
        is_hosted = True

        def __init__(self, store: Any, tube: TubeRecord) -> None:
            self.name = tube.name

        def start(self, tx: Any) -> None:
            if is_closing:
                starts.set()
                goes_on.wait(10)

        def stop(self) -> None:
            stopped.append(self.name)
            goes_on.set()
            assert not is_closing or self.name == "late" or has_ended.wait(10)

    methods = dict.fromkeys(HOSTED, lambda self, *given, **named: ())
    whole = type("Whole", (Slow,), {**methods, **vars(Slow), "features": Features()})
    tubes.register_driver("starts_and_stops_slowly", whole)

    def open_late() -> None:
        with pytest.raises(tubes.StoreUnavailable):
            queue.get_tube("late")
        has_ended.set()

    is_closing = False
    with tubes.connect(url, sweep=False) as other:
        other.create_tube("early", "starts_and_stops_slowly")
        queue = tubes.connect(url, sweep=False, session_ttr=60)
        other.create_tube("late", "starts_and_stops_slowly")
        is_closing = True
        thread = threading.Thread(target=open_late)
        thread.start()
        assert starts.wait(10)
        queue.close()
        ended(thread)
        assert has_ended.is_set() and sorted(stopped) == ["early", "late"]
        is_closing = False


def test_a_queue_that_cannot_be_opened_gives_all_back_and_says_why(tmp_path: Path) -> None:
    """Its session cannot even be ended, since the store was damaged meanwhile."""
    file = tmp_path / "queue.db"
    stores: list[Store] = []
    stopped: list[str] = []

    class Failing:
        is_hosted = True

        def __init__(self, store: Store, tube: TubeRecord) -> None:
            stores.append(store)
            self.name = tube.name

        def start(self, tx: Any) -> None:
            if fails and self.name == "late":
                with closing(sqlite3.connect(file)) as db:
                    db.execute("DROP TABLE IF EXISTS tubes_connection")
                raise tubes.StoreUnavailable("its server is away")

        def stop(self) -> None:
            stopped.append(self.name)

    methods = dict.fromkeys(HOSTED, lambda self, *given, **named: ())
    whole = type("Whole", (Failing,), {**methods, **vars(Failing), "features": Features()})
    tubes.register_driver("fails_to_start", whole)
    fails = False
    with tubes.connect(f"sqlite:///{file}", sweep=False) as queue:
        for name in ("early", "late"):
            queue.create_tube(name, "fails_to_start")
    stopped.clear()
    fails = True
    with pytest.raises(tubes.StoreUnavailable, match="its server is away"):
        tubes.connect(f"sqlite:///{file}", sweep=False)
    assert stopped == ["late", "early"]
    with pytest.raises(tubes.StoreUnavailable, match="closed"):
        stores[-1].refresh()


def test_what_the_dead_held_in_a_tube_that_waits_is_released_when_its_driver_comes(tmp_path: Path) -> None:
    """A process dies with a task, and the one that notices does not know the type yet."""
    url = f"sqlite:///{tmp_path / 'late.db'}"
    elsewhere(url, "comes_too_late", "tube.take(0); import os; os._exit(0)")
    with tubes.connect(url, sweep=False) as queue:
        queue.create_tube("known", "fifo")
        queue.sweep()
        assert queue.tube.known.take(0) is None
        tubes.register_driver("comes_too_late", TubeType())
        tube = queue.tube.late
        queue.sweep()
        task = tube.take(0)
        assert task is not None and (task.data, task.attempts) == ("first", 2)


# TRANSITIONS


def reach(tube: Tube, clock: FakeClock, state: State, ttl: float) -> int:
    """Put a task and bring it into a state."""
    task = tube.put("x", ttl=ttl, ttr=10, delay=5 if state is State.DELAYED else 0)
    if state is State.TAKEN:
        tube.take(0)
    elif state is State.BURIED:
        tube.bury(task)
    return task.id


def moves(tube: Tube, queue: Queue, clock: FakeClock, id: int) -> dict[str, Any]:
    """Everything that calls, or time, can do to a task."""

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        queue.sweep()

    return {
        "take": lambda: tube.take(0),
        "ack": lambda: tube.ack(id),
        "release": lambda: tube.release(id),
        "release late": lambda: tube.release(id, delay=5),
        "touch": lambda: tube.touch(id, 1),
        "bury": lambda: tube.bury(id),
        "kick": lambda: tube.kick(),
        "delete": lambda: tube.delete(id),
        "some time": lambda: wait(10),
        "a lifetime": lambda: wait(200),
    }


@pytest.fixture
def stage() -> Any:
    clock = FakeClock()
    with tubes.connect("sqlite://", clock=clock, sweep=False) as queue:
        yield clock, queue, queue.create_tube("jobs", "fifottl")


def test_drivers_make_exactly_the_moves_of_the_table(stage: tuple[FakeClock, Queue, Tube]) -> None:
    """All is tried from every state: what happens is in the table, and what is in the table happens."""
    clock, queue, tube = stage
    seen: set[tuple[State | None, Event, State]] = set()
    cases = [(state, 100.0) for state in (State.READY, State.TAKEN, State.DELAYED, State.BURIED)]
    cases += [(State.TAKEN, 10), (State.DELAYED, 0)]  # their ttl ends with the ttr, and with the delay
    for state, ttl in cases:
        for move in moves(tube, queue, clock, 0):
            events: list[tuple[Event, State]] = []
            tube.on_task_change(lambda task, event, log=events: log.append((event, task.state)))  # type: ignore[misc]
            id = reach(tube, clock, state, ttl)
            put = events[0]
            seen.add((None, *put))
            events.clear()
            try:
                moves(tube, queue, clock, id)[move]()
            except tubes.TubeError:
                assert events == []
            if events:
                seen.add((state, *events[0]))
            tube.truncate()
    assert seen == set(TRANSITIONS)


def test_the_table_says_every_move_once() -> None:
    assert len(TRANSITIONS) == len(set(TRANSITIONS))
    assert {transition.event for transition in TRANSITIONS} == set(Event)
    assert all(transition.source is not State.DONE for transition in TRANSITIONS), "what is done is gone"


# The steps themselves


def test_a_step_of_none_matches_nothing(stage: tuple[FakeClock, Queue, Tube]) -> None:
    """A driver returns nothing for what does not match; raising errors is the tube's part."""
    clock, queue, tube = stage
    refs = [Ref(12345), Ref(tube.put("x").id, token=7)]
    driver: Driver = tube.driver
    me, now = queue.store.session, clock.now_ms()

    def steps(tx: Any) -> list[Sequence[Change]]:
        return [
            driver.ack(tx, refs, owner=me, now=now),
            driver.release(tx, refs, delay_ms=0, owner=me, now=now),
            driver.touch(tx, refs, 1000, owner=me, now=now),
            driver.bury(tx, refs, owner=None, now=now),
            driver.delete(tx, refs, owner=None, now=now),
            driver.kick(tx, 5, now=now),
            driver.expire(tx, 5, now=now),
            driver.release_owner(tx, me, 5, now=now),
            driver.put(tx, [], now=now),
        ]

    assert [list(changes) for changes in queue.store.transact(steps)] == [[]] * 9
