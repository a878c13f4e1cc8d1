"""What JSON cannot carry is refused and not stored; what it can comes back as it was, whatever its size."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from faults.harness import Connect

import tubes
from tubes.testing.suite import take


def circular() -> list[Any]:
    """A list that contains itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless


def deep(levels: int) -> list[Any]:
    """A list nested so many levels deep."""
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


REFUSED: dict[str, Any] = {
    "a set": {1, 2},
    "a set inside": {"a": [{1}]},
    "NaN": math.nan,
    "infinity inside": [math.inf],
    "a datetime": datetime.datetime.now(datetime.UTC),
    "a date inside": [datetime.date(2020, 1, 1)],
    "a timedelta": datetime.timedelta(1),
    "bytes inside": {"a": b"x"},
    "int keys": {1: "a"},
    "mixed keys": {"a": 1, None: 2},
    "an object": object(),
    "a class": int,
    "a function": print,
    "a complex number": 1j,
    "a Decimal": Decimal("1.5"),
    "a UUID": uuid4(),
    "a circle": circular(),
    "a circle in a dict": {"a": circular()},
    "far too deep": deep(100_000),
    "a generator": (n for n in range(3)),
    "a number of five thousand digits": 10**5000,
}

CARRIED: dict[str, Any] = {
    "None": None,
    "true": True,
    "zero": 0,
    "a negative zero": -0.0,
    "a huge int": 10**400,
    "a huge negative int": -(2**200),
    "64 bits and one": 2**64,
    "a tiny float": 5e-324,
    "a large float": 1.7976931348623157e308,
    "NUL": "a\0b\0",
    "NUL alone": "\0",
    "a lone surrogate": "\ud800",
    "lone surrogates as key and value": {"\udfff": ["x\udc00y"]},
    "an astral character": "\U0001f600",
    "line separators": "\u2028\u2029\x7f\x80",
    "an empty text": "",
    "an empty list": [],
    "an empty dict": {},
    "no bytes": b"",
    "all bytes": bytes(range(256)),
    "bytes that look like JSON": b'{"a": 1}',
    "text that looks like SQL": "'); DROP TABLE tubes_task; --",
    "nested": {"a": [1, {"b": [None, True, "x"]}], "": {"c": {}}},
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_json_cannot_carry_is_a_type_error_and_nothing_is_stored(connect: Connect, data: Any) -> None:
    """Put alone, among others, or inside a transaction, which goes on without it."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    with pytest.raises(TypeError, match="cannot be carried as JSON"):
        tube.put(data)
    with pytest.raises(TypeError, match="cannot be carried as JSON"):
        tube.put_many(["fine", data])
    with queue.transaction() as unit:
        with pytest.raises(TypeError):
            tube.put(data, unit=unit)
        tube.put("goes on", unit=unit)
    assert [task.data for task in tube.tasks("r")] == ["goes on"]


@pytest.mark.parametrize("data", CARRIED.values(), ids=CARRIED.keys())
def test_what_json_can_carry_comes_back_as_it_was(connect: Connect, data: Any) -> None:
    """Put, take, ack and a peek on another connection all return it, and of the same type."""
    tube = connect().create_tube("jobs", "fifo")
    put = tube.put(data)
    peeked = connect().tube.jobs.peek(put.id)
    taken = take(tube)
    for got in (put.data, peeked.data, taken.data, tube.ack(taken).data):
        assert got == data and type(got) is type(data) and repr(got) == repr(data)


@pytest.mark.parametrize("text", ['{"torn', "[" * 100_000 + "]" * 100_000], ids=["torn", "deep"])
def test_what_is_no_json_is_taken_as_bytes_and_holds_up_nobody(connect: Connect, text: str) -> None:
    """Another client may have put it, or it was damaged."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifottl")
    ids = [task.id for task in tube.put_many(["other's", "next"])]
    with queue.transaction() as unit:
        unit.connection.exec_driver_sql("UPDATE tubes_task SET data = ? WHERE id = ?", (text, ids[0]))
    taken = tube.take(timeout=0)
    assert taken is not None and taken.data == text.encode()
    assert tube.bury(taken).data == tube.peek(ids[0]).data == text.encode()
    following = tube.take(timeout=0)
    assert following is not None and following.data == "next"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("é" * 25_000_000, id="text"),
        pytest.param(b"\xff\0" * 25_000_000, id="bytes", marks=pytest.mark.slow),
    ],
)
def test_fifty_megabytes_make_the_round_trip(connect: Connect, data: Any) -> None:
    """A task of 50 MB is put, taken and acked like any other, among small ones."""
    tube = connect().create_tube("jobs", "fifo")
    tube.put("before")
    tube.put(data)
    tube.put("after")
    got = []
    while task := tube.take(timeout=0):
        got.append(task.data)
        tube.ack(task)
    assert got[0] == "before" and got[2] == "after"
    assert got[1] == data


def test_a_payload_beyond_what_sqlite_stores_is_an_error(connect: Connect) -> None:
    """If the database's own limit is exceeded, the whole put fails and says why."""
    import sqlite3

    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    queue.store.writer.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)  # type: ignore[attr-defined]
    with pytest.raises(tubes.StoreError, match="larger"):
        tube.put("x" * 200_000)
    tube.put("small")
    assert [task.data for task in tube.tasks("r")] == ["small"]


def test_a_task_does_not_share_its_data_with_who_put_it(connect: Connect) -> None:
    """Changing what was put changes neither the stored task nor the one that put returned."""
    tube = connect().create_tube("jobs", "fifo")
    data = {"list": [1]}
    task = tube.put(data)
    data["list"].append(2)
    assert task.data == {"list": [1]} == tube.peek(task).data
