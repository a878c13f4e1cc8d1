"""The type fifottl on Redis."""

from collections.abc import Callable
from functools import partial

import pytest
from redis_kit import RedisKit

import tubes
from tubes import Queue


class TestRedisFifottl(RedisKit):
    type = "fifottl"
    topics = ("agreement", "ordering", "timing")

    def test_a_task_of_another_store_is_not_taken_for_one_of_ours_with_its_number(
        self, make_queue: Callable[..., Queue]
    ) -> None:
        queues = [make_queue(), *(make_queue(namespace=name) for name in ("one", "other"))]
        ours, theirs = (each.create_tube("twin", "fifottl") for each in queues[1:])
        mine, foreign = ([*map(tube.put, "ab")] and tube.take_many(2, timeout=0) for tube in (ours, theirs))
        assert (mine[0].id, mine[0].token) == (foreign[0].id, foreign[0].token)
        for verb in (ours.ack, ours.release, partial(ours.touch, delta=1), ours.bury, ours.delete):
            with pytest.raises(tubes.NotTaken):
                verb(foreign[0])
        with pytest.raises(tubes.NotTaken):
            ours.take(timeout=0, ack=foreign[0])
        assert ours.ack_many(foreign) == []
        assert [task.data for task in ours.ack_many(mine)] == ["a", "b"]
        for tube in (ours, theirs):
            tube.truncate()
            tube.drop()
