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


DEEP = """
import asyncio, ctypes, sys, threading, tubes, tubes.aio
from tubes.payload import decode

system = ctypes.CDLL(None)
attributes = ctypes.create_string_buffer(128)
system.pthread_attr_init(attributes)
system.pthread_attr_setstacksize(attributes, ctypes.c_size_t(160 << 10))
assert system.pthread_setattr_default_np(attributes) == 0

data = 1
for _ in range(900):
    data = {"deeper": data}

def text_too_deep_for_python():
    return type(decode("[" * 100_000 + "]" * 100_000)) is bytes

def a_call_of_asyncio():
    async def main():
        async with tubes.aio.connect("sqlite://") as queue:
            jobs = await queue.create_tube("jobs", "fifo")
            await jobs.put(data)
            return (await jobs.take(timeout=0)).data == data
    return asyncio.run(main())

def a_callback_of_the_sweeper():
    seen = []
    called = threading.Event()
    def callback(task, event):
        if event == "ttr":
            seen.append(task.data)
            called.set()
    with tubes.connect("sqlite://") as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=0.01)
        jobs.on_task_change(callback)
        jobs.put(data)
        jobs.take(timeout=0)
        return called.wait(30) and seen == [data]

print(globals()[sys.argv[1]](), threading.stack_size())
"""


@pytest.mark.parametrize(
    "what", ["text_too_deep_for_python", "a_call_of_asyncio", "a_callback_of_the_sweeper"]
)
def test_our_own_threads_have_room_for_deep_data_where_threads_have_little(what: str) -> None:
    """As with musl. The crash of one would be that of each process that takes the task."""
    assert run(DEEP, what) == "True 0"


SIZE = """
import asyncio, resource, sys, threading, tubes, tubes.aio

def of_a_megabyte():
    threading.stack_size(1 << 20)

def without_limit():
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))

async def main():
    async with tubes.aio.connect("sqlite://") as queue:
        await queue.create_tube("jobs", "fifottl", ttr=1)

globals()[sys.argv[1]]()
asyncio.run(main())
print(threading.stack_size())
"""


def test_the_size_of_stacks_that_a_program_has_chosen_stays() -> None:
    assert run(SIZE, "of_a_megabyte") == str(1 << 20)


def test_our_own_threads_start_where_stacks_have_no_limit() -> None:
    """As with ``ulimit -s unlimited``, which is a size of 2**64 - 1 from Python 3.15 on."""
    assert run(SIZE, "without_limit") == "0"
