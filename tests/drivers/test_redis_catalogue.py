"""The scripts of the catalogue do what their opening comments say, for clients in any language."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
import redis

import tubes
from tubes.testing import FakeClock

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")
wire: Any = importlib.import_module("tubes.drivers.redis.wire")

ENTRY = '{"type":"fifo","options":{},"temporary":false}'


@pytest.fixture
def ask(redis_db: str) -> Iterator[Callable[..., Any]]:
    """``ask(script, *given)`` runs a script of the catalogue."""
    with tubes.connect(redis_db, clock=FakeClock(), sweep=False) as queue:
        store: Any = queue.store
        yield store.ask


@pytest.fixture
def client(redis_db: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_db, decode_responses=True) as client:
        yield client


def session(client: redis.Redis, id: str) -> Any:
    return client.hget("{tubes}:sessions", id)


def connection(client: redis.Redis, id: str) -> Any:
    return client.hget("{tubes}:connections", id)


def roll(client: redis.Redis, id: str) -> Any:
    return client.hget("{tubes}:roll", id)


def test_a_session_ends_with_its_last_connection(ask: Callable[..., Any], client: redis.Redis) -> None:
    assert ask(scripts.BEGIN_SESSION, "one", "s", 1000, "host/1 a") == 1
    assert ask(scripts.BEGIN_SESSION, "two", "s", 5, "host/2") == 1
    assert [session(client, "s"), connection(client, "one")] == ["1000 -", "s 0 host/1 a"]
    assert ask(scripts.BEAT, "one") == 1
    assert connection(client, "one") == "s 1 host/1 a"
    ask(scripts.BEGIN_SESSION, "other", "t", 1000, "host/3")
    alive = [ask(scripts.IS_ALIVE, *who) for who in (("one", "s"), ("one", "t"), ("three", "s"))]
    assert alive == [1, 0, 0]
    ask(scripts.LEAVE, "one", 5000)
    assert [session(client, "s"), connection(client, "one")] == ["1000 -", None]
    ask(scripts.LEAVE, "two", 6000)
    assert session(client, "s") == "1000 7000"
    ask(scripts.LEAVE, "two", 6500)
    assert session(client, "s") == "1000 7000"
    client.hset("{tubes}:connections", "two", "s 0 ")
    assert ask(scripts.IS_ALIVE, "two", "s") == 0


def test_the_ttr_of_a_session_is_set_whether_it_has_ended_or_not(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    client.hset("{tubes}:sessions", mapping={"lives": "5 -", "ended": "5 70"})
    for id in ("lives", "ended", "unknown"):
        ask(scripts.SET_SESSION_TTR, id, 9)
    assert [session(client, id) for id in ("lives", "ended", "unknown")] == ["9 -", "9 70", None]


def test_a_session_is_joined_until_it_is_over(ask: Callable[..., Any], client: redis.Redis) -> None:
    client.hset("{tubes}:sessions", "s", "1000 7000")
    ask(scripts.BEGIN_SESSION, "one", "own", 50, "host/1")
    assert ask(scripts.JOIN, "one", "unknown", 6000) is None
    assert ask(scripts.JOIN, "nobody", "s", 6000) is None
    assert ask(scripts.JOIN, "one", "s", 7000) is None
    assert [session(client, "s"), session(client, "own")] == ["1000 7000", "50 -"]
    ask(scripts.BEAT, "one")
    assert int(ask(scripts.JOIN, "one", "s", 6999)) == 1000
    assert [session(client, "s"), session(client, "own")] == ["1000 -", "50 7049"]
    assert [connection(client, "one"), connection(client, "nobody")] == ["s 1 host/1", None]


@pytest.mark.parametrize("entry", [None, "x -"])
def test_a_session_is_added_that_is_not_there_and_has_a_connection(
    ask: Callable[..., Any], client: redis.Redis, entry: str | None
) -> None:
    """Until then, a beat does not take it for alive."""
    ask(scripts.BEGIN_SESSION, "one", "s", 1000, "host/1")
    client.hdel("{tubes}:sessions", "s")
    if entry:
        client.hset("{tubes}:sessions", "s", entry)
    assert ask(scripts.BEAT, "one") == 0
    assert ask(scripts.ADD_SESSION, "unknown", 7) == 0
    assert [ask(scripts.ADD_SESSION, "s", 7), session(client, "s")] == [1, "7 -"]
    assert [ask(scripts.ADD_SESSION, "s", 9), session(client, "s")] == [0, "7 -"]
    assert [session(client, "unknown"), ask(scripts.BEAT, "one")] == [None, 1]


def test_who_has_shown_a_sign_of_life_meanwhile_is_not_ended(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    for id in ("one", "two"):
        ask(scripts.BEGIN_SESSION, id, id, 1000, "host/1")
    ask(scripts.BEAT, "one")
    assert ask(scripts.END_SESSIONS, 5000, "one", 0, "two", 0, "three", 0) == []
    assert [session(client, "one"), session(client, "two")] == ["1000 -", "1000 6000"]
    assert ask(scripts.END_SESSIONS, 5999) == []
    assert ask(scripts.END_SESSIONS, 6000) == [b"two"]
    for id in ("one", "two"):
        ask(scripts.FORGET_SESSIONS, id)
    assert [session(client, "one"), session(client, "two")] == ["1000 -", None]


def test_a_connection_is_called_at_its_own_interval_though_another_called_it_first(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    """Else processes in a hurry that come between its first two commands would take it for dead."""
    ask(scripts.BEGIN_SESSION, "slow", "s", 0, "host/1")
    ask(scripts.CALL_ROLL, "hasty", 1000, 3)
    assert roll(client, "slow").endswith(" 1000")
    ask(scripts.CALL_ROLL, "slow", 20_000, 3)
    assert roll(client, "slow").endswith(" 20000")


def test_nobody_is_absent_since_the_server_s_clock_was_put_back(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    ask(scripts.BEGIN_SESSION, "one", "s", 0, "host/1")
    client.hset("{tubes}:roll", "one", f"0 2 {10**15} 1000")
    assert ask(scripts.CALL_ROLL, "two", 1000, 3) == []
    assert roll(client, "one").startswith("0 0 ")


def test_a_tube_is_added_once_and_goes_on_after_those_that_were_dropped(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    def entry(name: str) -> Any:
        stored: Any = client.hget("{tubes}:tubes", name)
        return stored and [json.loads(stored)[word] for word in ("id", "order", "after", "type")]

    assert ask(scripts.ADD_TUBE, "a", 7, ENTRY) == ask(scripts.ADD_TUBE, "a", 7, ENTRY) == b"0"
    assert ask(scripts.ADD_TUBE, "a", 8, ENTRY) == b""
    assert ask(scripts.ADD_TUBE, "b", 9, ENTRY) == b"0"
    assert [entry("a"), entry("b")] == [[7, 1, 0, "fifo"], [9, 2, 0, "fifo"]]
    assert ask(scripts.REMOVE_TUBE, "a", 8, 40) == 0
    assert entry("a")
    assert ask(scripts.REMOVE_TUBE, "a", 7, 30) == 1
    assert ask(scripts.REMOVE_TUBE, "a", 7, 30) == 0
    assert entry("a") is None
    assert ask(scripts.ADD_TUBE, "a", 10, ENTRY) == ask(scripts.ADD_TUBE, "a", 10, ENTRY) == b"40"
    assert entry("a") == [10, 3, 40, "fifo"]


def test_a_session_stays_on_a_tube_s_list_until_nothing_is_left_that_it_held(
    redis_db: str, client: redis.Redis
) -> None:
    """A process that gives its tasks back may die half-way."""
    with tubes.connect(redis_db, sweep=False) as queue:
        tube, session = queue.create_tube("jobs", "fifo"), queue.identify().hex
        tube.put_many([1, 2, 3])
        assert len(tube.take_many(3, timeout=0)) == 3
        listed = []
        for _ in range(2):
            cast("Any", queue.store)._run_on(tube.record.id, scripts.RELEASE_OWNER, session, 2)
            listed.append(client.sismember(f"{{tubes:{tube.record.id}}}:sessions", session))
        assert (listed, len(tube.tasks("r"))) == ([1, 0], 3)


def test_what_comes_too_late_to_a_tube_leaves_nothing_where_it_was(
    redis_db: str, client: redis.Redis
) -> None:
    """Its keys would belong to nobody, and stay."""
    with tubes.connect(redis_db, sweep=False) as queue:
        tube, store = queue.create_tube("jobs", "fifo"), cast("Any", queue.store)
        run = partial(store._run_on, tube.record.id)
        queue.drop_tube(tube)
        left = client.keys(f"{{tubes:{tube.record.id}}}:*")
        assert run(scripts.WAIT, "me", 1000, "t", 0) == run(scripts.ADD_CALLS, "put", 5) == 1
        assert run(scripts.OPEN, 0) == 0
        with pytest.raises(wire.Refused, match="it was dropped"):
            run(scripts.ADMIT, "me")
        assert client.keys(f"{{tubes:{tube.record.id}}}:*") == left


def test_what_comes_after_numbers_that_cannot_be_read_is_the_highest_of_all_tubes(
    ask: Callable[..., Any], client: redis.Redis
) -> None:
    """In whatever order the server lists the tubes."""
    for id, order, after in ((1, 2, 3), (2, 5, 40), (3, 4, 6)):
        client.hset("{tubes}:tubes", f"tube {id}", f'{{"id":{id},"order":{order},"after":{after}}}')
    client.hset("{tubes}:tubes", "damaged", "torn")
    client.hset("{tubes}:last", mapping={"tube": "torn", "task": "9" * 16})
    assert sorted(ask(scripts.LAST, "")) == [b"task", b"tube"]
    ask(scripts.LAST, "task")
    assert ask(scripts.LAST, "") == ask(scripts.LAST, "tube") == [b"tube"]
    assert [ask(scripts.LAST, ""), client.hgetall("{tubes}:last")] == [[], {"tube": "5", "task": "40"}]
    client.delete("{tubes}:last")
    assert ask(scripts.ADD_TUBE, "d", 7, ENTRY) == b"40"
    assert client.hgetall("{tubes}:last") == {"tube": "6", "task": "40"}


def test_an_entry_whose_options_cannot_be_read_is_of_its_tube() -> None:
    """So the dead are looked for there all the same."""
    read_entry = importlib.import_module("tubes.drivers.redis.catalogue").read_entry
    assert read_entry(b"jobs", b'{"type":"fifo","id":7,"order":1,"after":0,"options":5}').tube.id == 7


def test_a_tube_is_made_when_it_is_opened_only_if_it_is_not_there(
    redis_db: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make each of 10,000 again took 3 s at every connect."""
    with tubes.connect(redis_db, sweep=False) as queue:
        made = [queue.create_tube(f"tube{number}", "fifo").record.id for number in range(5)]
    client.delete(f"{{tubes:{made[3]}}}:meta")
    opened: list[Any] = []
    evaluate = wire.Wire.evaluate

    def noted(self: Any, script: Any, keys: Any, *given: Any) -> Any:
        if script is scripts.OPEN:
            opened.append(keys)
        return evaluate(self, script, keys, *given)

    monkeypatch.setattr(wire.Wire, "evaluate", noted)
    with tubes.connect(redis_db, sweep=False) as queue:
        assert len(opened) == 1
        assert [queue.tube[f"tube{number}"].put(number).data for number in range(5)] == [*range(5)]
