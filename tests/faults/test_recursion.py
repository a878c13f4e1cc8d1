"""A recursion that is about to be too deep calls a queue: each call is whole, or refused before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.harness import run
from slow import slow_but

PROGRAM = """
import sys, threading, tubes
sys.setrecursionlimit(300)
queue = tubes.connect(sys.argv[1], durability=sys.argv[2] or None, migrate=True)
puts, takes, others = (queue.create_tube(name, "fifo") for name in ("puts", "takes", "others"))
takes.put_many(range(400))
stored, seen, taken, refused = [], [], [], []
puts.on_task_change(lambda task, event: seen.append(task.id))

def put(number):
    stored.append(puts.put(number).id)

def put_in_transaction(number):
    with queue.transaction() as unit:
        task = puts.put(number, unit=unit)
    stored.append(task.id)

def take(number):
    taken.append(takes.take(timeout=0).id)

verbs = [put, take] if sys.argv[1].startswith(("redis", "unix")) else [put, put_in_transaction, take]

def go_down(levels, verb):
    if levels:
        go_down(levels - 1, verb)
    else:
        verb(levels)

is_over = threading.Event()

def work():
    while not is_over.is_set():
        others.put("x")
        others.ack(others.take(timeout=0))

worker = threading.Thread(target=work, daemon=True)
worker.start()
for levels in range(150, 300):
    for verb in verbs:
        try:
            go_down(levels, verb)
        except RecursionError as error:
            refused.append(error)
        assert takes.statistics()  # all is well again
is_over.set()
worker.join()
assert [task.id for task in puts.tasks("r", limit=1000)] == sorted(stored) == sorted(seen)
assert [task.id for task in takes.tasks("t", limit=1000)] == sorted(taken)
queue.close()
print(bool(stored and taken), bool(refused))
"""


@pytest.mark.parametrize("durability", slow_but(["full"], ["full", "normal"]))
def test_a_call_on_a_file_that_finds_the_stack_nearly_full_is_whole_or_refused(
    db: Path, durability: str
) -> None:
    """A refused call does not keep the turn to write, and nothing is stored that is not reported."""
    assert run(PROGRAM, f"sqlite:///{db}", durability) == "True True"


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_db", "redis_db"])
def test_a_call_to_a_server_that_finds_the_stack_nearly_full_is_whole_or_refused(
    request: pytest.FixtureRequest, server: str
) -> None:
    """Nor does a call wait for ever for an answer that it has no room to receive."""
    assert run(PROGRAM, request.getfixturevalue(server), "") == "True True"
