"""Programs in which gevent or eventlet runs greenlets as threads, and interrupts them wherever they wait."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from faults.harness import Connect, Struck, ended, run

import tubes

REPLACE = """
import threading

get_ident = threading.get_ident
threading.get_ident = lambda: get_ident()
"""
"""One of the functions that monkey patching replaces."""


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, db: Path) -> str:
    """A queue in each store."""
    if request.param == "sqlite":
        return f"sqlite:///{db}"
    found: str = request.getfixturevalue("postgres_db" if request.param == "postgresql" else "redis_db")
    return found


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Call it in a thread, with an interrupt in its ``at``-th wait; tell whether it got that far.

    A greenlet is interrupted where it waits for a socket, as by a ``gevent.Timeout``. The main thread never is. Just
    before such a wait, another thread may have raised an exception in this one (PyThreadState_SetAsyncExc).
    """
    waits = 0

    def count(frame: FrameType, event: str, what: Any) -> None:
        nonlocal waits
        is_wait = event == "c_call" and what.__name__ in ("poll", "recv", "recv_into")
        if is_wait or (event == "call" and frame.f_code.co_name == "_answers"):
            waits += 1
            if waits == at:
                raise Struck

    def work() -> None:
        sys.setprofile(count)
        try:
            call()
        except Struck:
            pass
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ended(thread)
    return waits >= at


def test_a_take_that_is_interrupted_wherever_it_waits_strands_no_task(connect: Connect) -> None:
    """Even if the server has done it, and its answer is never read."""
    tube = connect(sweep=False, migrate=True).create_tube("jobs", "fifo")
    tube.put("x")
    at = 1
    while interrupted(lambda: tube.take(timeout=0), at):
        task = tube.take(timeout=0)
        assert task is not None, f"it is still taken after an interrupt in wait {at}"
        tube.release(task)
        at += 1


def test_calls_that_are_interrupted_wherever_they_wait_keep_no_connection(connect: Connect) -> None:
    """Otherwise there would be none left after a few of them."""
    tube = connect(sweep=False, migrate=True).create_tube("jobs", "fifo")
    for at in range(1, 5):
        for _ in range(20):
            interrupted(lambda: tube.statistics(), at)
            tube.put("x")
    assert tube.statistics()["tasks"]["ready"] == 80


def test_a_queue_says_so_if_threads_were_replaced_after_its_import(db: Path) -> None:
    """It would work in part, and hang in others: some of its locks know of greenlets, and some do not."""
    said = run(
        f"""import sys
import tubes

url = sys.argv[1]
queue = tubes.connect(url)
tube = queue.create_tube("jobs", "fifo")
tube.put("x")
{REPLACE}
for call in (lambda: tubes.connect(url), lambda: tube.put("y"), lambda: tube.take(0), tube.statistics):
    try:
        call()
    except RuntimeError as error:
        print("patch before that" in str(error))
threading.get_ident = get_ident
print(tube.take(0).data)
""",
        f"sqlite:///{db}",
    )
    assert said.split() == ["True"] * 4 + ["x"]


def test_asyncio_s_queue_says_that_it_needs_threads() -> None:
    code = f"""{REPLACE}
import asyncio
import tubes.aio

async def connect():
    await tubes.aio.connect("sqlite://")

try:
    asyncio.run(connect())
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "needs Python's own threads" in done.stdout, done.stderr


@pytest.mark.parametrize("url", ["postgresql+psycopg://nobody@localhost/none", "redis://localhost:1/0"])
def test_a_queue_on_a_server_says_that_it_needs_poll(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """eventlet removes it. A file needs none."""
    monkeypatch.delattr("select.poll")
    with pytest.raises(RuntimeError, match=r"select\.poll"):
        tubes.connect(url)
    with tubes.connect("sqlite://", sweep=False) as queue:
        queue.create_tube("jobs", "fifo").put("x")
