"""docs/reference/redis.md says of keys and scripts what the .lua files say, and these say what they do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis
from redis_servers import RedisServer

import tubes
from tubes.doctor import Doctor

from . import redis_page as page


def source(name: str) -> str:
    return (page.LUA / f"{name}.lua").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", page.parts())
def test_the_page_has_what_the_scripts_say(part: str) -> None:
    """If not, ``python tests/docs/redis_page.py`` writes it there."""
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.marked(text, part)[1] == page.parts()[part]


def test_a_change_of_a_script_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.parts()
    monkeypatch.setattr(page, "head", lambda name, head=page.head: [*head(name), "Cost: O(n)."])
    after = page.parts()
    assert [part for part in after if after[part] != before[part]] == [
        "scripts of a tube",
        "scripts of a queue",
    ]


@pytest.mark.parametrize("name", page.names())
def test_a_script_says_what_it_does_what_it_answers_and_what_it_costs(name: str) -> None:
    described = page.described(name)
    assert described[""].endswith(".") and described["Reply"] and described["Cost"].startswith("O(")
    fewer = "; of one without features the first eight do" if "-- include plain" in source(name) else ""
    assert described["KEYS"] == f"those of a {page.included(name)}, see {page.included(name)}.lua{fewer}."
    assert described["ARGV"]


@pytest.mark.parametrize("name", page.names())
def test_a_script_says_what_each_of_its_arguments_is(name: str) -> None:
    """It uses only the numbers that it names, or those after them if any number may follow."""
    said = page.described(name).get("ARGV", "")
    own = 3 if page.included(name) == "tube" else 0
    numbers = [int(number) for number in re.findall(r"(?:^| · )(\d+) ", said)]
    last = own + len(numbers)
    assert numbers == [*range(own + 1, last + 1)]
    used = {
        int(number)
        for pair in re.findall(r"ARGV\[(\d+)|n = (\d+), #ARGV", source(name))
        for number in pair
        if number
    }
    if not re.search(r"(^|· )then ", said):
        assert max(used, default=0) <= last
    else:
        assert f"n = {last + 1}, #ARGV" in source(name) or "(#ARGV - 4) / 2" in source(name)


def test_all_that_lies_in_redis_is_in_the_tables(redis_db: str) -> None:
    """Each key, under its name and of its type."""
    kinds = {
        whose: dict(re.findall(r"\| `(\w+)` \| (\w+) \|", page.keys(whose))) for whose in ("tube", "queue")
    }
    found = set()
    with tubes.connect(redis_db) as queue, redis.Redis.from_url(redis_db, decode_responses=True) as client:
        jobs = queue.create_tube("jobs", "utubettl", ttr=60)
        jobs.put_many(["a", "b", "c"], utube="x")
        jobs.put("d", delay=60)
        jobs.bury(jobs.put("e"))
        jobs.take(0)
        jobs.take(0.05)
        queue.flush_counts()
        for key in client.keys():
            tag, _, name = key.rpartition(":")
            whose = "queue" if tag == "{tubes}" else "tube"
            assert whose == "queue" or tag == f"{{tubes:{jobs.record.id}}}"
            assert client.type(key) == kinds[whose][name], key
            found.add(name)
    assert found >= {
        "meta",
        "tasks",
        "states",
        "line",
        "busy",
        "held",
        "buried",
        "due",
        "calls",
        "connections",
    }


def test_the_how_to_names_all_commands_that_a_user_needs(
    own_redis_server: Callable[..., RedisServer],
) -> None:
    """A user who may run only those and the scripts' own, on our keys alone, can do all there is."""
    how_to = (page.PAGE.parents[1] / "how-to" / "redis.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^The user needs all commands that the scripts call(.*?):$", how_to, re.M | re.S)
    lua = "".join(map(source, [*page.names(), *page.INCLUDED]))
    words = {*re.findall(r"`([A-Z]+)`", named), *re.findall(r"'([A-Z]+)'", lua)}
    server = own_redis_server()
    commands = {name.upper() for name in server.command("COMMAND")}
    server.command(
        "ACL SETUSER", "worker", "on", ">x", "~{tubes*", *(f"+{word}" for word in words & commands)
    )
    with tubes.connect(f"unix://worker:x@{server.folder}/redis.sock") as queue:
        jobs = queue.create_tube("jobs", "utubettl")
        jobs.put("x", utube="a", ttl=60)
        assert jobs.take(0) and jobs.take(0.05) is None
        assert [*Doctor(queue, deep=True).examine()] == []
        queue.flush_counts()
    refused = {entry["object"] for entry in server.command("ACL LOG")}
    assert refused <= {"client|setinfo", "client"}  # what redis-py tells about itself
