"""What type checkers tell users: mypy, which reads the tests too, refuses each assert_type that is not exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_type, get_type_hints
from uuid import UUID

import pytest

import tubes
import tubes.aio
from tubes import Event, Task


def test_the_verbs_return_what_they_say() -> None:
    seen: list[Event] = []
    with tubes.connect("sqlite://") as queue:
        jobs = queue.create_tube("jobs", "fifottl", on_task_change=lambda task, event: seen.append(event))
        assert_type(jobs, tubes.Tube)
        assert_type(queue.tube.jobs, tubes.Tube)
        assert_type(queue.tube["jobs"], tubes.Tube)
        assert_type(jobs.put({"n": 1}, ttl=None, delay=0), Task)
        assert_type(jobs.put_many(range(2)), list[Task])
        task = assert_type(jobs.take(timeout=0), Task | None)
        assert task is not None
        assert_type(jobs.touch(task, 1), Task | None)
        assert_type(jobs.release(task), Task)
        with queue.transaction() as unit:
            (task, *_) = assert_type(jobs.take_many(1, 0, unit=unit), list[Task])
        assert_type(jobs.ack(task), Task)  # no checker thinks that the block may have hidden an error
        assert_type(jobs.ack_many([task, task.id]), list[Task])
        assert_type(jobs.statistics(), dict[str, dict[str, int]])
        assert_type(queue.identify(), UUID)
        assert_type(jobs.on_task_change(None), Callable[[Task, Event], object] | None)
    assert seen[0] is Event.PUT


def test_the_awaited_verbs_return_the_same() -> None:
    async def main() -> None:
        async with tubes.aio.connect("sqlite://") as queue:
            jobs = await queue.create_tube("jobs", "fifottl")
            assert_type(jobs, tubes.aio.Tube)
            assert_type(await queue.tube.jobs, tubes.aio.Tube)
            assert_type(await jobs.put({"n": 1}, ttl=None, delay=0), Task)
            assert_type(await jobs.put_many(range(2)), list[Task])
            task = assert_type(await jobs.take(timeout=0), Task | None)
            assert task is not None
            assert_type(await jobs.touch(task, 1), Task | None)
            async with queue.transaction() as unit:
                (task, *_) = assert_type(await jobs.take_many(1, 0, unit=unit), list[Task])
            assert_type(await tubes.aio.Tube.ack(jobs, task), Task)
            assert_type(await jobs.statistics(), dict[str, dict[str, int]])
            assert_type(await queue.identify(), UUID)

    asyncio.run(main())


@pytest.mark.parametrize("make", [tubes.aio._of_tube, tubes.aio._of_queue, tubes.aio._opening])
def test_an_awaited_verb_says_that_it_is_bound_to_its_tube_or_queue(make: Callable[..., Any]) -> None:
    """Type checkers do not agree on whether a Callable that a class holds is a method: to ty it is none."""
    kind = get_type_hints(make)["return"].__origin__
    assert "__get__" in vars(kind)
