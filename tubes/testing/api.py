"""The suite of the verbs: what each returns, refuses and leaves behind, with nobody else involved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tubes.driver import STEP_LIMIT, Change, NewTask, Ref, check_driver
from tubes.errors import BadOption, NoSuchTube, NotSupported, NotTaken, TaskNotFound, TubeBusy, TubeExists
from tubes.queue import Queue
from tubes.task import STORED, State, Task
from tubes.testing.clock import FakeClock
from tubes.testing.suite import UNKNOWN_ID, MakeTube, Suite, ids, refused, take, take_all
from tubes.tube import Tube

PAYLOADS = [
    None, True, 0, -1, 2**53 + 1, 2**70, 0.1, 0.1 + 0.2, 1.0, -1e300, "", "text", "ä\0\U0001f40d", [], [1, [2, [3]]],
    {}, {"a": {"b": [None, False]}}, b"", b"\0\xff bytes\0", b" \r\n", b"[1]", "[1]", "null", "x" * 100_000,
]  # fmt: skip


class Api(Suite):
    """What every type does."""

    def test_a_driver_has_all_of_the_api(self, tube: Tube) -> None:
        check_driver(tube.driver)
        assert tube.features == self.features

    def test_a_put_task_is_ready_and_as_it_was_put(self, tube: Tube) -> None:
        task = tube.put({"n": 1})
        assert (task.tube, task.state, task.data) == (tube.name, State.READY, {"n": 1})
        assert (task.pri, task.utube, task.attempts, task.owner, task.token) == (0, None, 0, None, None)
        assert task.created_at == task.updated_at and task.created_at.utcoffset() == timedelta(0)
        assert tube.peek(task.id) == task

    def test_a_payload_comes_back_as_it_went_in(self, tube: Tube) -> None:
        for data in PAYLOADS:
            put = tube.put(data)
            seen = [put, tube.peek(put.id), *tube.tasks(State.READY), task := take(tube), tube.ack(task)]
            for each in seen:
                assert each.data == data and type(each.data) is type(data)

    def test_a_batch_carries_every_kind_of_payload(self, tube: Tube) -> None:
        tasks = tube.put_many(PAYLOADS)
        assert [task.data for task in tasks] == PAYLOADS
        assert [tube.peek(task.id).data for task in tasks] == PAYLOADS

    def test_many_that_are_taken_and_acked_carry_every_kind_of_payload(self, tube: Tube) -> None:
        tasks = [tube.put(data, **self.apart(n)) for n, data in enumerate(PAYLOADS)]
        expected = [task.data for task in self.in_order(tasks)]
        taken = tube.take_many(len(tasks), 0)
        assert [task.data for task in taken] == expected
        assert [task.data for task in tube.ack_many(taken)] == expected

    def test_a_step_stores_each_task_as_it_is_given(self, queue: Queue, tube: Tube, clock: FakeClock) -> None:
        """A put_many gives all its tasks the same options; a driver must not count on that."""
        timed, grouped, pri = self.features.timed, self.features.grouped, int(self.features.priority)
        items = [
            NewTask('"a"', "a", 0, "" if grouped else None),
            NewTask(b"b", b"b", 2 * pri, "b" if grouped else None, *((9_001, 4_002) if timed else ())),
            NewTask("[3]", [3], pri, "c" if grouped else None, *((8_003, None, 5_004) if timed else ())),
        ]
        changes = queue.store.transact(lambda tx: tube.driver.put(tx, items, now=clock.now_ms()))
        tasks = [tube.driver.normalize_task(change.raw) for change in changes]
        assert [task.data for task in tasks] == ["a", b"b", [3]]
        assert [task.pri for task in tasks] == [0, 2 * pri, pri]
        assert [task.utube for task in tasks] == [None, "b", "c"] if grouped else [None] * 3
        times = [(task.state, task.ttl, task.ttr) for task in tasks]
        if timed:
            assert times[1:] == [(State.READY, 9.001, 4.002), (State.DELAYED, 8.003, None)]
        assert times[0] == (State.READY, None, None)
        assert [tube.peek(task.id) for task in tasks] == tasks

    def test_what_json_cannot_carry_is_a_type_error_and_nothing_is_stored(self, tube: Tube) -> None:
        for data in ({1, 2}, object(), float("nan"), [b"inside"], {1: "key"}):
            refused(tube.put, data, error=TypeError)
            refused(tube.put_many, [1, data], error=TypeError)
        assert tube.statistics()["tasks"]["total"] == 0

    def test_a_take_from_an_empty_tube_returns_none(self, tube: Tube) -> None:
        assert tube.take(0) is None
        assert tube.take(-1) is None
        assert tube.take_many(5, 0) == []

    def test_a_taken_task_is_held_by_this_session_and_its_attempt_is_counted(
        self, queue: Queue, tube: Tube
    ) -> None:
        put = tube.put("x")
        task = take(tube)
        assert (task.id, task.state, task.data, task.attempts) == (put.id, State.TAKEN, "x", 1)
        assert task.owner == queue.identify() and task.token is not None
        assert tube.peek(task.id) == task
        assert tube.take(0) is None

    def test_an_acked_task_is_done_and_gone(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        done = tube.ack(task)
        assert (done.id, done.state, done.data) == (task.id, State.DONE, "x")
        assert (done.owner, done.token, done.due_at) == (None, None, None)
        with pytest.raises(TaskNotFound):
            tube.peek(task.id)
        with pytest.raises(NotTaken):
            tube.ack(task.id)

    def test_a_released_task_is_ready_and_in_nobodys_hands(self, tube: Tube) -> None:
        tube.put("x")
        task = tube.release(take(tube))
        assert (task.state, task.owner, task.token, task.attempts) == (State.READY, None, None, 1)
        assert take(tube).attempts == 2

    def test_a_buried_task_is_not_taken_until_it_is_kicked(self, tube: Tube) -> None:
        task = tube.bury(tube.put("x").id)
        assert (task.state, task.owner) == (State.BURIED, None)
        assert tube.take(0) is None
        assert tube.kick() == 1
        assert take(tube).id == task.id

    def test_a_taken_task_can_be_buried_and_is_no_longer_held(self, tube: Tube) -> None:
        tube.put("x")
        task = tube.bury(take(tube).id)
        assert (task.state, task.owner, task.token) == (State.BURIED, None, None)
        assert tube.peek(task.id) == task
        with pytest.raises(NotTaken):
            tube.ack(task.id)

    def test_burying_a_buried_task_is_harmless(self, tube: Tube) -> None:
        task = tube.bury(tube.put("x").id)
        assert tube.bury(task.id) == task
        assert tube.statistics()["calls"]["bury"] == 1

    def test_a_kick_tells_how_many_it_brought_back(self, tube: Tube) -> None:
        for task in tube.put_many("abc"):
            tube.bury(task)
        assert [tube.kick(0), tube.kick(2), tube.kick(2), tube.kick(2)] == [0, 2, 1, 0]

    @pytest.mark.parametrize("how", ["ready", "taken", "buried"])
    def test_a_task_is_deleted_in_any_state(self, tube: Tube, how: str) -> None:
        task = tube.put("x")
        if how == "taken":
            take(tube)
        if how == "buried":
            tube.bury(task)
        gone = tube.delete(task.id)
        assert (gone.id, gone.state, gone.data, gone.owner) == (task.id, State.DONE, "x", None)
        with pytest.raises(TaskNotFound):
            tube.peek(task.id)
        assert tube.take(0) is None

    def test_a_task_that_does_not_exist_is_an_error_that_names_it(self, tube: Tube) -> None:
        for id in (0, UNKNOWN_ID, 2**63 - 1):
            for verb in (tube.peek, tube.bury, tube.delete):
                assert str(id) in refused(verb, id, error=TaskNotFound)
            for owned in (tube.ack, tube.release):
                assert str(id) in refused(owned, id, error=NotTaken)
            assert tube.ack_many([id]) == []

    def test_what_cannot_be_an_id_is_refused(self, tube: Tube) -> None:
        for id in ("1", None, 1.5, True, -1, 2**63):
            for verb in (tube.peek, tube.bury, tube.delete, tube.ack, tube.release):
                assert "id" in refused(verb, id)

    def test_a_task_of_another_tube_is_refused(self, make_tube: MakeTube) -> None:
        one, other = make_tube("one"), make_tube("other")
        task = one.put("x")
        other.put("y")
        for verb in (other.peek, other.bury, other.delete, other.ack, other.release):
            assert "other" in refused(verb, task)

    def test_ids_grow_and_are_never_used_again(self, tube: Tube) -> None:
        last = tube.put("x").id
        for end in (tube.delete, lambda id: tube.ack(take(tube)), lambda id: tube.truncate()):
            end(last)
            task = tube.put("x")
            assert task.id > last
            last = task.id

    def test_tasks_of_a_state_come_by_id_and_in_pages(self, tube: Tube) -> None:
        tasks = tube.put_many(range(7))
        for task in tasks[1:4]:
            tube.bury(task)
        assert ids(tube.tasks(State.BURIED)) == ids(tasks[1:4])
        assert ids(tube.tasks("r", limit=2)) == [tasks[0].id, tasks[4].id]
        assert ids(tube.tasks(State.BURIED, limit=2**63 - 1)) == ids(tasks[1:4])
        assert ids(tube.tasks("r", after=tasks[4].id)) == ids(tasks[5:])
        assert ids(tube.tasks(State.BURIED, after=tasks[1].id, limit=1)) == [tasks[2].id]
        assert tube.tasks(State.TAKEN) == tube.tasks(State.DELAYED) == tube.tasks(State.DONE) == []
        held = take(tube)
        assert tube.tasks(State.TAKEN) == tube.tasks(State.TAKEN, after=held.id - 1) == [held]
        assert tube.tasks(State.TAKEN, after=held.id) == []

    def test_every_state_is_listed_by_id_and_in_pages(self, tube: Tube) -> None:
        """Whatever the order in which the tasks are taken, or fall due."""
        for state in STORED:
            if state is State.DELAYED and not self.features.timed:
                continue
            tasks = []
            for n in range(4):
                options: dict[str, Any] = {"pri": 4 - n} if self.features.priority else {}
                if state is State.DELAYED:
                    options["delay"] = 9 - n
                tasks.append(tube.put(n, **options, **self.apart(n)))
            if state is State.TAKEN:
                assert len(tube.take_many(4, 0)) == 4
            elif state is State.BURIED:
                for task in reversed(tasks):
                    tube.bury(task)
            expected = ids(tasks)
            assert ids(tube.tasks(state)) == expected
            assert ids(tube.tasks(state, limit=2)) == expected[:2]
            assert ids(tube.tasks(state, after=expected[0], limit=2)) == expected[1:3]
            assert ids(tube.tasks(state, after=expected[2])) == expected[3:]
            tube.truncate()

    def test_put_many_returns_what_it_stored_and_nothing_for_nothing(self, tube: Tube) -> None:
        tasks = tube.put_many(iter("abc"))
        assert [task.data for task in tasks] == list("abc")
        assert ids(tasks) == sorted(set(ids(tasks)))
        assert [tube.peek(task.id) for task in tasks] == tasks
        assert tube.put_many([]) == []

    @pytest.mark.parametrize(
        "data", [{"a": 1}, b"abc", bytearray(b"abc")], ids=["dict", "bytes", "bytearray"]
    )
    def test_put_many_of_one_payload_does_not_store_its_parts(self, tube: Tube, data: Any) -> None:
        assert f"put a {type(data).__name__} with put()" in refused(tube.put_many, data)
        assert tube.statistics()["tasks"]["total"] == 0

    def test_ack_many_acks_what_is_held_and_returns_that(self, tube: Tube) -> None:
        first = tube.put("a")
        task = take(tube)
        other = tube.put("b")
        assert ids(tube.ack_many([task, other.id, UNKNOWN_ID])) == [first.id]
        assert tube.ack_many([task]) == []
        assert tube.statistics()["tasks"]["total"] == 1

    def test_ack_many_leaves_what_is_held_no_longer(self, tube: Tube) -> None:
        for n in range(3):
            tube.put(n, **self.apart(n))
        first, lost, last = taken = tube.take_many(3, 0)
        tube.release(lost)
        assert ids(tube.ack_many(taken)) == ids([first, last])
        assert ids(tube.tasks("r")) == [lost.id]
        assert tube.statistics()["tasks"]["total"] == 1

    def test_release_all_returns_how_many(self, tube: Tube) -> None:
        tasks = tube.put_many("abc", **self.apart(0))
        taken = tube.take_many(2, 0)
        assert tube.release_all() == len(taken)
        assert tube.release_all() == 0
        assert ids(tube.tasks(State.READY)) == ids(tasks)

    def test_truncate_removes_everything_silently(self, tube: Tube) -> None:
        tasks = tube.put_many("abc")
        take(tube)
        before = tube.statistics()["calls"]
        assert tube.truncate() == len(tasks)
        statistics = tube.statistics()
        assert statistics["tasks"] == dict.fromkeys(statistics["tasks"], 0)
        assert statistics["calls"] == before
        assert tube.take(0) is None
        assert tube.truncate() == 0

    def test_tasks_in_every_state_are_counted_and_truncated(self, tube: Tube) -> None:
        tasks = [tube.put(n, **self.apart(n)) for n in range(5)]
        take(tube)
        for task in tube.tasks(State.READY)[:2]:
            tube.bury(task)
        if self.features.timed:
            tasks.append(tube.put("later", delay=5, **self.apart(5)))
        assert tube.statistics()["tasks"] == {
            "ready": 2, "taken": 1, "buried": 2, "delayed": len(tasks) - 5, "total": len(tasks), "done": 0,
        }  # fmt: skip
        assert tube.truncate() == len(tasks)
        assert [tube.tasks(state) for state in STORED] == [[]] * len(STORED)

    def test_a_take_may_ask_for_more_than_any_tube_has(self, tube: Tube) -> None:
        tube.put_many("ab")
        taken = {task.data for task in tube.take_many(2**63 - 1, 0)}
        assert taken in ({"a", "b"}, {"a"})  # all of them, or one of the unnamed sub-queue

    def test_a_truncated_tube_works_on(self, tube: Tube) -> None:
        tube.put_many("abc")
        held = take(tube)
        tube.truncate()
        with pytest.raises(NotTaken):
            tube.ack(held)
        tube.put("x")
        assert take(tube).data == "x"

    def test_a_drop_is_refused_while_tasks_are_taken(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        with pytest.raises(TubeBusy, match=tube.name):
            tube.drop()
        tube.ack(task)
        tube.drop()

    def test_a_dropped_tube_is_gone_with_its_tasks_and_counts(
        self, queue: Queue, make_tube: MakeTube
    ) -> None:
        tube = make_tube()
        tube.put("ready")
        tube.bury(tube.put("buried"))
        tube.drop()
        assert tube.name not in queue.tubes()
        verbs: list[tuple[Callable[..., Any], Any]] = [
            (tube.put, "x"), (tube.take, 0), (tube.peek, 1), (tube.kick, 1), (tube.tasks, "r"), (tube.ack_many, [1]),
            (tube.ack, 1), (tube.release, 1), (tube.bury, 1), (tube.delete, 1), (lambda id: tube.take(0, ack=id), 1),
        ]  # fmt: skip
        for verb, given in verbs:
            assert tube.name in refused(verb, given, error=NoSuchTube)
        for bare in (tube.drop, tube.release_all, tube.truncate, tube.statistics):
            assert tube.name in refused(bare, error=NoSuchTube)
        anew = make_tube()
        assert anew.take(0) is None
        statistics = anew.statistics()
        assert statistics["tasks"] == dict.fromkeys(statistics["tasks"], 0)
        assert statistics["calls"] == dict.fromkeys(statistics["calls"], 0)

    def test_a_tube_that_is_made_anew_gives_no_id_that_another_of_its_name_gave(
        self, make_tube: MakeTube
    ) -> None:
        tube = make_tube()
        old = tube.put_many(range(3))
        tube.drop()
        assert make_tube().put("x").id > old[-1].id

    def test_a_tube_is_found_under_its_name(self, queue: Queue, tube: Tube) -> None:
        assert tube.name in queue.tubes()
        assert queue.tube[tube.name] is tube is getattr(queue.tube, tube.name)
        assert tube.type == self.type

    def test_a_name_is_used_once_unless_the_same_is_meant(self, queue: Queue, tube: Tube) -> None:
        with pytest.raises(TubeExists, match=tube.name):
            queue.create_tube(tube.name, self.type, **self.options)
        assert queue.create_tube(tube.name, self.type, if_not_exists=True, **self.options) is tube

    def test_a_batch_that_is_none_is_refused(self, tube: Tube) -> None:
        for nothing in (None, 5):
            with pytest.raises(BadOption, match=f"must be an iterable, not {nothing}"):
                tube.put_many(nothing)  # type: ignore[arg-type]
            with pytest.raises(BadOption, match=f"must be an iterable, not {nothing}"):
                tube.ack_many(nothing)  # type: ignore[arg-type]

    def test_an_unknown_option_is_refused_by_name(self, queue: Queue, tube: Tube) -> None:
        with pytest.raises(BadOption, match="color"):
            tube.put("x", color="red")  # type: ignore[call-arg]
        with pytest.raises(BadOption, match="color"):
            queue.create_tube("other", self.type, color="red", **self.options)
        with pytest.raises(BadOption, match="'dealy'; did you mean 'delay'"):
            tube.put("x", dealy=1)  # type: ignore[call-arg]
        assert tube.statistics()["tasks"]["total"] == 0
        assert "other" not in queue.tubes()

    def test_an_unknown_option_of_a_release_is_refused_with_the_near_miss(self, tube: Tube) -> None:
        tube.put("x")
        task = take(tube)
        with pytest.raises(BadOption, match="'dely'; did you mean 'delay'"):
            tube.release(task, dely=1)  # type: ignore[call-arg]
        assert tube.peek(task).state is State.TAKEN

    def test_every_option_is_known_or_refused_as_not_supported(self, queue: Queue, tube: Tube) -> None:
        """An option that no feature of the type covers must not be ignored."""
        for option, feature in (("ttl", "timed"), ("ttr", "timed"), ("delay", "timed"), ("pri", "priority"),
                                ("utube", "grouped"), ("timeout", "bounded")):  # fmt: skip
            options: Any = {option: 1}
            if getattr(self.features, feature):
                tube.put("x", **options)
            else:
                assert option in refused(tube.put, "x", error=NotSupported, **options)

    def test_statistics_have_tarantools_keys_and_count_what_was_done(self, tube: Tube) -> None:
        tasks = tube.put_many("abcd")
        tube.ack(tube.release(take(tube)) and take(tube))
        for task in tube.tasks(State.READY)[:2]:
            tube.bury(task)
        tube.kick()
        tube.delete(tube.tasks(State.BURIED)[0])
        statistics = tube.statistics()
        assert statistics["tasks"] == {
            "ready": 2, "taken": 0, "buried": 0, "delayed": 0, "total": 2, "done": 2,
        }  # fmt: skip
        assert statistics["calls"] == {
            "put": len(tasks), "take": 2, "ack": 1, "delete": 1, "release": 1, "touch": 0, "bury": 2, "kick": 1,
            "delay": 0, "ttl": 0, "ttr": 0,
        }  # fmt: skip

    def test_refused_calls_are_not_counted(self, tube: Tube) -> None:
        task = tube.put("x")
        for verb in (tube.ack, tube.release):
            refused(verb, task.id, error=NotTaken)
        for verb in (tube.delete, tube.bury):
            refused(verb, task.id + 1, error=TaskNotFound)
        tube.take_many(3, 0)
        assert tube.take(0) is None
        calls = tube.statistics()["calls"]
        assert {name: count for name, count in calls.items() if count} == {"put": 1, "take": 1}

    def test_two_tubes_of_a_type_do_not_mix(self, make_tube: MakeTube) -> None:
        one, other = make_tube("one"), make_tube("other")
        one.put("in one")
        assert other.take(0) is None
        other.put("in other")
        assert [task.data for task in take_all(one)] == ["in one"]
        assert [task.data for task in take_all(other)] == ["in other"]
        one.release_all()
        assert other.statistics()["tasks"]["taken"] == 1
        assert one.truncate() == 1
        assert other.statistics()["tasks"]["total"] == 1
        with pytest.raises(TaskNotFound):
            one.peek(other.tasks(State.TAKEN)[0].id)

    def test_no_verb_reaches_a_task_of_another_tube(self, make_tube: MakeTube) -> None:
        one, other = make_tube("one"), make_tube("other")
        for n in range(3):
            other.put(n, **self.apart(n))
        held, buried = take(other), other.tasks(State.READY)[0]
        other.bury(buried)
        before = other.statistics()
        for verb in (one.ack, one.release):
            refused(verb, held.id, error=NotTaken)
        for id in (held.id, buried.id):
            for verb in (one.peek, one.bury, one.delete):
                refused(verb, id, error=TaskNotFound)
        if one.features.timed:
            refused(one.touch, held.id, 1, error=NotTaken)
        assert (one.kick(9), one.ack_many([held.id]), one.release_all(), one.truncate()) == (0, [], 0, 0)
        assert [one.tasks(state) for state in STORED] == [[]] * len(STORED)
        assert other.statistics() == before

    def test_no_step_reaches_into_another_tube(
        self, queue: Queue, make_tube: MakeTube, clock: FakeClock
    ) -> None:
        """Nor do those for which there is no verb, such as what is done when a session ends."""
        one, other = make_tube("one"), make_tube("other")
        options: dict[str, Any] = {"ttl": 5} if self.features.timed else {}
        for n in range(2):
            other.put(n, **self.apart(n), **options)
        take(other)
        clock.advance(5)
        before, store, driver, now = other.statistics(), queue.store, one.driver, clock.now_ms()
        assert not store.read(driver.can_take) and store.read(driver.next_due) is None
        assert not store.transact(lambda tx: driver.expire(tx, 9, now=now))
        assert not store.transact(lambda tx: driver.release_owner(tx, store.session, 9, now=now))
        one.drop()
        assert other.statistics() == before

    def test_who_waits_can_tell_whether_a_take_would_find_something(self, queue: Queue, tube: Tube) -> None:
        def can_take() -> bool:
            return bool(queue.store.read(tube.driver.can_take))

        assert tube.take(0) is None and not can_take()
        task = tube.put("x")
        assert can_take()
        tube.take(0)
        assert not can_take()
        tube.release(task.id)
        assert can_take()
        tube.bury(task)
        assert not can_take()
        tube.kick()
        assert can_take()
        tube.delete(task)
        assert not can_take()
        for _ in range(2):
            tube.put("x", **self.apart(0))
        take(tube)
        assert can_take() is not self.features.grouped  # a busy sub-queue has no task to take
        tube.put("x", **self.apart(1))
        assert can_take()

    def test_what_takes_many_steps_is_done_whole(self, queue: Queue, tube: Tube, clock: FakeClock) -> None:
        count = STEP_LIMIT + 50
        grouped, now = self.features.grouped, clock.now_ms()
        items = [NewTask(f"{n}", n, 0, f"{n}" if grouped else None) for n in range(count)]
        assert len(queue.store.transact(lambda tx: tube.driver.put(tx, items, now=now))) == count
        assert len(tube.take_many(count, 0)) == count
        assert tube.release_all() == count
        assert len(tube.ack_many(tube.take_many(count, 0))) == count
        tube.put_many(range(count))
        assert tube.truncate() == count
        assert tube.statistics()["tasks"]["total"] == 0
        tube.put_many(range(count))
        tube.drop()

    def test_a_step_does_no_more_than_it_is_asked_to(
        self, queue: Queue, tube: Tube, clock: FakeClock
    ) -> None:
        """So that its transaction stays short; a caller that wants more asks again."""
        transact, driver, owner = queue.store.transact, tube.driver, queue.store.session
        now = clock.now_ms()
        for n in range(5):
            tube.put(n, **self.apart(n))
        assert len(transact(lambda tx: driver.take(tx, 4, owner=owner, now=now))) == 4
        assert len(transact(lambda tx: driver.release_owner(tx, owner, 2, now=now))) == 2
        assert len(tube.tasks(State.TAKEN)) == 2
        assert len(transact(lambda tx: driver.release_owner(tx, None, 1, now=now))) == 1
        assert len(tube.tasks(State.TAKEN)) == 1
        tube.bury(tube.tasks(State.READY)[0])
        assert transact(lambda tx: driver.truncate(tx, 3)) == 3
        assert tube.statistics()["tasks"]["total"] == 2
        assert [transact(lambda tx: driver.truncate(tx, 3)) for _ in range(2)] == [2, 0]

    @pytest.mark.parametrize("is_owner", [True, False], ids=["owner", "administrator"])
    def test_a_step_does_all_that_it_is_asked_to(
        self, queue: Queue, tube: Tube, clock: FakeClock, is_owner: bool
    ) -> None:
        """For example, a take_many that is cut short gives back all that it has taken in one step."""
        driver, owner = tube.driver, queue.store.session if is_owner else None
        tasks = [tube.put(n, **self.apart(n)) for n in range(6)]

        def done(
            step: Callable[..., Sequence[Change]], of: Sequence[Task], *given: Any, **more: Any
        ) -> list[int]:
            refs, now = [Ref(task.id) for task in of], clock.now_ms()
            changes = queue.store.transact(lambda tx: step(tx, refs, *given, owner=owner, now=now, **more))
            return sorted(driver.normalize_task(change.raw).id for change in changes)

        tube.take_many(6, 0)
        if self.features.timed:
            assert done(driver.touch, [*tasks, tasks[0]], 1_000) == ids(tasks)  # each once
        assert done(driver.ack, tasks[:2]) == ids(tasks[:2])
        assert done(driver.release, tasks[2:4], delay_ms=0) == ids(tasks[2:4])
        delay_ms = 1_000 if self.features.timed else 0
        assert done(driver.release, tasks[4:], delay_ms=delay_ms) == ids(tasks[4:])
        for free in (tasks[2:3], tasks[2:]):  # held by nobody, so refused whoever asks
            assert done(driver.ack, free) == done(driver.release, free, delay_ms=0) == []
            if self.features.timed:
                assert done(driver.touch, free, 1_000) == []
        assert done(driver.bury, tasks[2:]) == ids(tasks[2:])
        assert done(driver.delete, tasks) == ids(tasks[2:])

    def test_a_step_that_is_asked_for_nothing_does_nothing(
        self, queue: Queue, tube: Tube, clock: FakeClock
    ) -> None:
        """A statement that names no task must not apply to all."""
        tasks = [tube.put(n, **self.apart(n)) for n in range(3)]
        tube.bury(tasks[2].id)
        take(tube)
        before, driver, owner = tube.statistics(), tube.driver, queue.store.session
        given: dict[str, Any] = {"owner": owner, "now": clock.now_ms()}
        steps: list[Callable[[Any], Sequence[Any]]] = [
            lambda tx: driver.ack(tx, [], **given),
            lambda tx: driver.release(tx, [], delay_ms=0, **given),
            lambda tx: driver.bury(tx, [], **given),
            lambda tx: driver.delete(tx, [], **given),
            lambda tx: driver.peek(tx, []),
        ]
        if self.features.timed:
            steps.append(lambda tx: driver.touch(tx, [], 1_000, **given))
        assert [[*queue.store.transact(step)] for step in steps] == [[]] * len(steps)
        assert tube.statistics() == before

    def test_a_task_keeps_what_it_was_put_with(self, queue: Queue, tube: Tube, clock: FakeClock) -> None:
        """Whatever happens to it."""
        options: dict[str, Any] = {"pri": 3} if self.features.priority else {}
        if self.features.timed:
            options |= {"ttl": 90, "ttr": 20, "delay": 5}
        put = tube.put({"a": [1]}, **options, **self.apart(1))

        def bury_and_kick(task: Task) -> None:
            tube.bury(task)
            tube.kick()

        def sleep(task: Task) -> None:
            clock.advance(20)

        def kept(task: Task) -> tuple[Any, ...]:
            return task.id, task.data, task.pri, task.utube, task.created_at, task.ttl, task.ttr

        clock.advance(5)
        for give_back in (tube.release, bury_and_kick, lambda task: tube.release_all(), sleep):
            task = take(tube)
            assert kept(task) == kept(put)
            if give_back is not sleep or self.features.timed:
                give_back(task)
                assert kept(take(tube)) == kept(put)
                tube.release(task.id)

    def test_what_begins_a_tube_may_come_again(self, queue: Queue, tube: Tube) -> None:
        tasks, driver = [tube.put(n, **self.apart(n)) for n in range(3)], tube.driver
        tube.bury(tasks[1].id)
        held = take(tube)
        seen = [tube.peek(task.id) for task in tasks]
        queue.store.transact(lambda tx: driver.create_space(tx, tube.record))
        queue.store.transact(driver.start)
        assert [tube.peek(task.id) for task in tasks] == seen
        assert tube.ack(held).state is State.DONE

    def test_a_look_finds_each_task_once(self, queue: Queue, tube: Tube) -> None:
        tasks, driver = tube.put_many("abc"), tube.driver
        asked = ids(tasks[1:])
        raws = queue.store.read(lambda tx: driver.peek(tx, [*asked, UNKNOWN_ID]))
        assert sorted(ids([*map(driver.normalize_task, raws)])) == asked
        raws = queue.store.read(lambda tx: driver.tasks_by_state(tx, State.READY, after=tasks[0].id, limit=9))
        assert ids([*map(driver.normalize_task, raws)]) == asked
