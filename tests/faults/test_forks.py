"""A forked child gets a session of its own and never touches its parent's connection."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import TYPES, Connect, Growing, ended, eventually, run
from slow import slow_but

import tubes
from tubes.clock import pause
from tubes.testing.suite import take


def in_child(work: Callable[[], Any]) -> Any:
    """Fork, run ``work`` in the child, and return what it returned; the child leaves without clean-up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


@pytest.mark.parametrize("type", TYPES)
def test_a_child_takes_and_puts_in_a_session_of_its_own(connect: Connect, type: str) -> None:
    """What the child takes is its own, and is ready again when the child is gone. The parent's leases stay."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", type)
    options: Any = {"utube": "b"} if tube.features.grouped else {}
    tube.put("a")
    tube.put("b", **options)
    mine = take(tube)

    def work() -> list[Any]:
        theirs = take(tube)
        tube.put("c", **options)
        with pytest.raises(tubes.NotTaken):
            tube.ack(mine)
        return [theirs.data, str(queue.identify())]

    data, session = in_child(work)
    assert data == "b" and session != str(queue.identify())
    assert tube.ack(mine).data == "a"
    left = {}
    while task := tube.take(timeout=0):
        left[task.data] = task.attempts
        tube.ack(task)
    assert left == {"b": 2, "c": 1}


def test_what_a_child_puts_stays_when_its_parent_closes_first(connect: Connect, db: Path) -> None:
    """The parent's close must not take the write-ahead log away from under the child."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            tube.put("before")
            os.write(from_child, b".")
            os.read(to_child, 1)
            tube.put("after")
            queue.close()
            os._exit(0)
        finally:
            os._exit(1)  # or it would go on with the other tests
    os.close(from_child)
    os.read(to_parent, 1)
    queue.close()
    os.write(from_parent, b".")
    for end in (to_child, from_parent, to_parent):
        os.close(end)
    assert os.waitpid(pid, 0)[1] == 0
    stored = [task.data for task in connect().tube.jobs.tasks("r")]
    assert stored == ["before", "after"]


@pytest.mark.slow
def test_a_child_exits_and_its_parent_keeps_its_tasks_and_counts(db: Path) -> None:
    """sys.exit in the child runs its exit functions: they end the child's session, not the parent's."""
    code = """
import os, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
tube.put("mine"); tube.put("theirs")
mine = tube.take(timeout=0)
for touches_it in (False, True):
    pid = os.fork()
    if pid == 0:
        if touches_it:
            tube.take(timeout=0)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert [task.data for task in tube.tasks("t")] == ["mine"]
assert [task.data for task in tube.tasks("r")] == ["theirs"]
tube.ack(mine)
calls = tube.statistics()["calls"]
print(calls["put"], calls["take"], calls["ack"], calls["release"])
"""
    assert run(code, db) == "2 2 1 1"


def test_multiprocessing_children_work_on_their_own(connect: Connect) -> None:
    """Four forked workers share the parent's tasks out among themselves, each once."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many(range(40))
    context = multiprocessing.get_context("fork")
    done = context.Queue()

    def work() -> None:
        while (task := tube.take(timeout=0)) is not None:
            tube.ack(task)
            done.put(task.data)
        done.put("end")

    workers = [context.Process(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    got: list[Any] = []
    while got.count("end") < 4:
        got.append(done.get(timeout=30))
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert sorted(data for data in got if data != "end") == list(range(40))
    assert tube.statistics()["tasks"]["total"] == 0


def test_a_child_of_a_daemon_that_closed_all_descriptors_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gets in place of a connection to a server is nothing that has since got that number."""
    forks = importlib.import_module("tubes.drivers.forks")
    monkeypatch.setattr(forks, "_ended", [])
    ours, other = socket.socketpair()
    with ours, other:
        ended = os.dup(ours.fileno())  # the lowest number that is free
        os.close(ended)
        forks.keep_from_children(ours)
        os.close(ended)
        reads, writes = os.pipe()  # the daemon goes on to open others
        assert reads == ended
        forks.keep_from_children(ours)

        def write() -> list[Any]:
            with pytest.raises(BrokenPipeError):
                os.write(ours.fileno(), b"x")
            return ["refused"]

        assert in_child(write) == ["refused"]
        os.close(reads)
        os.close(writes)


def test_a_child_that_is_forked_in_a_callback_has_callbacks_of_its_own(connect: Connect) -> None:
    """It reports none of the changes that its parent has yet to report."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    heard: list[Any] = []
    in_children: list[Any] = []

    def work() -> list[Any]:
        heard.clear()
        tube.put("the child's")
        return heard

    def hear(task: tubes.Task, event: tubes.Event) -> None:
        heard.append(task.data)
        if task.data == 1:
            in_children.append(in_child(work))

    tube.on_task_change(hear)
    tube.put_many([1, 2])
    assert in_children == [["the child's"]]
    assert heard == [1, 2]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_a_child_of_multiprocessing_did_is_counted(connect: Connect, db: Path, method: str) -> None:
    """It exits when its work ends, without the interpreter's own exit functions."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put_many(range(5))
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=do_all, args=(f"sqlite:///{db}",))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert tube.statistics()["calls"]["ack"] == 5


CHILD_OF_A_COPY = """
import multiprocess, sys, tubes
assert multiprocess.__file__.startswith(sys.path[0])

def do_all():
    jobs = tubes.connect(sys.argv[1]).tube.jobs
    jobs.ack_many(jobs.take_many(5, timeout=0))

def have_a_child_do_all(context):
    child = context.Process(target=do_all)
    child.start()
    child.join(30)

if sys.argv[2] == "nested":
    import multiprocessing
    parent = multiprocessing.get_context("fork").Process(
        target=have_a_child_do_all, args=(multiprocess.get_context("fork"),)
    )
    parent.start()
    parent.join(60)
else:
    have_a_child_do_all(multiprocess.get_context("fork"))
"""


@pytest.mark.parametrize("place", ["direct", "nested"])
def test_what_a_child_of_multiprocess_did_is_counted(
    connect: Connect, db: Path, tmp_path: Path, place: str
) -> None:
    """That package is a copy of multiprocessing under another name, as one is made here."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put_many(range(5))
    shutil.copytree(Path(multiprocessing.__file__).parent, tmp_path / "copy" / "multiprocess")
    program = tmp_path / "copy" / "program.py"
    program.write_text(CHILD_OF_A_COPY, encoding="utf-8")
    subprocess.run([sys.executable, program, f"sqlite:///{db}", place], timeout=110, check=True)
    statistics = tube.statistics()
    assert (statistics["tasks"]["total"], statistics["calls"]["ack"]) == (0, 5)


def do_all(url: str) -> None:
    """Work in a child, and leave the queue open."""
    jobs = tubes.connect(url).tube.jobs
    jobs.ack_many(jobs.take_many(5, timeout=0))


def do_one_and_leave_the_rest_to_a_child(url: str) -> None:
    jobs = tubes.connect(url).tube.jobs
    jobs.ack_many(jobs.take_many(1, timeout=0))
    child = multiprocessing.get_context("fork").Process(target=do_all, args=(url,))
    child.start()
    child.join(30)


def do_all_when_the_main_thread_has_ended(url: str) -> None:
    jobs = tubes.connect(url).tube.jobs
    tasks = jobs.take_many(5, timeout=0)

    def work() -> None:
        threading.main_thread().join()
        assert jobs.take(timeout=0.1) is None
        jobs.ack_many(tasks)

    threading.Thread(target=work).start()


def do_all_at_the_end(url: str) -> None:
    """Ack in what the program makes multiprocessing do last of all."""
    jobs = tubes.connect(url).tube.jobs
    tasks = jobs.take_many(5, timeout=0)
    multiprocessing.util.Finalize(None, jobs.ack_many, (tasks,), exitpriority=-100)


@pytest.mark.parametrize(
    "work", [do_one_and_leave_the_rest_to_a_child, do_all_when_the_main_thread_has_ended, do_all_at_the_end]
)
def test_a_child_of_multiprocessing_works_and_counts_to_its_very_end(
    connect: Connect, db: Path, work: Callable[[str], None]
) -> None:
    """Its queues are closed after all their users, threads included; so are the queues of its own children."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put_many(range(5))
    child = multiprocessing.get_context("fork").Process(target=work, args=(f"sqlite:///{db}",))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    statistics = tube.statistics()
    assert (statistics["tasks"]["total"], statistics["calls"]["ack"]) == (0, 5)
    assert statistics["calls"]["release"] == 0


def test_a_fork_while_other_threads_write_and_wait_leaves_a_child_that_works(connect: Connect) -> None:
    """The child is not held up by locks that other threads hold at the moment of the fork."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    other = queue.create_tube("idle", "fifo")
    theirs = queue.create_tube("theirs", "fifo")
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            tube.put("x")
            tube.ack(tube.take(timeout=0) or tube.take())  # type: ignore[arg-type]

    def wait() -> None:
        other.take(timeout=60)

    threads = [threading.Thread(target=write) for _ in range(3)] + [threading.Thread(target=wait)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):

            def work(number: int = number) -> Any:
                own = theirs.put(f"child {number}")
                return theirs.delete(own.id).data

            assert in_child(work) == f"child {number}"
    finally:
        over.set()
        other.put("end")
        ended(*threads)
    assert tube.statistics()["tasks"]["total"] == 0


def test_a_fork_inside_a_transaction_does_not_commit_it_in_the_child(db: Path) -> None:
    """A child that leaves its parent's transaction gets an error; the parent's commit is the only one."""
    code = """
import os, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False, busy_timeout=1)
tube = queue.create_tube("jobs", "fifo")
pid = 1
try:
    with queue.transaction() as unit:
        tube.put("once", unit=unit)
        pid = os.fork()
        if pid == 0:
            try:
                tube.put("never", unit=unit)
            except tubes.TubeError as error:
                print(type(error).__name__, flush=True)
except tubes.TubeError as error:
    assert pid == 0
    print(type(error).__name__, flush=True)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print([task.data for task in tube.tasks("r")])
"""
    assert run(code, db).splitlines() == ["BadOption", "StoreUnavailable", "['once']"]


@pytest.mark.parametrize("leaves", ["raise ZeroDivisionError", "tube.put('child')"], ids=["error", "end"])
def test_a_child_that_leaves_a_transaction_on_a_server_does_not_end_it(
    postgres_queue_url: str, leaves: str
) -> None:
    """The connection is the parent's, whose transaction goes on, even if the child has a connection of its own."""
    code = f"""
import os, sys, tubes
queue = tubes.connect(sys.argv[1], sweep=False)
tube = queue.create_tube("forked", "fifo")
pid = 1
try:
    with queue.transaction() as unit:
        tube.put("first", unit=unit)
        pid = os.fork()
        if pid == 0:
            {leaves}
        else:
            os.waitpid(pid, 0)
            print([task.data for task in tube.tasks("r")])
            tube.put("second", unit=unit)
except Exception as error:
    print(type(error).__name__, flush=True)
if pid == 0:
    os._exit(0)
print([task.data for task in tube.tasks("r") if task.data != "child"])
queue.drop_tube(tube)
queue.close()
"""
    lines = run(code, postgres_queue_url).splitlines()
    child, seen = ("ZeroDivisionError", []) if "Error" in leaves else ("StoreUnavailable", ["child"])
    assert lines == [child, str(seen), "['first', 'second']"]


IN_A_CALL = {
    "postgresql": """
from tubes.drivers.sql.postgresql_wire import Lost
queue = tubes.connect(sys.argv[1], sweep=False)
wire = queue.store._pool.borrow()
wire.simple("BEGIN")
ask, hear = lambda: wire._pg.send_query(b"SELECT 7"), lambda: wire._read(wire._answers()[-1]).rows
others = lambda: wire.simple("ROLLBACK"), lambda: wire.execute("SELECT 1", ())
""",
    "redis": """
from tubes.drivers.redis.wire import Lost
queue = tubes.connect(sys.argv[1], sweep=False)
wire = queue.store._hub.nodes._borrow([], None, 5)
ask, hear = lambda: wire.send(("PING", "7")), wire.receive
others = ()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(("store", "url"), [("postgresql", "postgres_queue_url"), ("redis", "redis_db")])
def test_a_child_that_goes_on_in_a_call_on_a_server_does_not_touch_its_connection(
    store: str, url: str, request: pytest.FixtureRequest
) -> None:
    """A signal's handler has forked in the middle of it: requests and answers on the connection are the parent's.

    Neither process waits for an answer that the other has read.
    """
    code = (
        "import os, sys, tubes"
        + IN_A_CALL[store]
        + """
ask()
heard, hears = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(heard, 1)
    for use in (hear, *others):
        try:
            print("went on", use(), flush=True)
        except Lost as error:
            print("lost", flush=True)
    os._exit(0)
print(hear())
os.write(hears, b".")
os.waitpid(pid, 0)
ask()
print(hear())
"""
    )
    answer = {"postgresql": "[(7,)]", "redis": "b'7'"}[store]
    lines = run(code, request.getfixturevalue(url)).splitlines()
    assert [line for line in lines if line != "lost"] == [answer] * 2
    assert lines.count("lost") == {"postgresql": 3, "redis": 1}[store]


@pytest.mark.slow
def test_a_child_that_ends_in_the_middle_of_a_call_does_not_cancel_that_of_its_parent(
    postgres_queue_url: str,
) -> None:
    """A signal's handler forks, and ends the child by sys.exit."""
    code = """
import os, signal, sys, tubes
from tubes.drivers.sql.postgresql import DIALECT
from tubes.drivers.sql.statements import Statement

queue = tubes.connect(sys.argv[1], sweep=False)
slow = Statement("SELECT 7, pg_sleep(0.5)", DIALECT)
children = []

def fork(number, frame):
    children.append(os.fork())
    if children == [0]:
        sys.exit(3)

signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, 0.2)
print(queue.store.transact(lambda tx: tx.rows(slow))[0][0])
_, status = os.waitpid(children[0], 0)
print(os.waitstatus_to_exitcode(status))
queue.close()
"""
    assert run(code, postgres_queue_url).split() == ["7", "3"]


@pytest.mark.parametrize("verb", ["transact", "read"])
def test_a_child_that_goes_on_in_a_call_tries_it_again_in_a_session_of_its_own(
    postgres_queue_url: str, verb: str
) -> None:
    """The parent would hold what the child took in the parent's session."""
    code = f"""
import os, signal, sys, tubes
from tubes.drivers.sql.postgresql import DIALECT
from tubes.drivers.sql.statements import Statement

queue = tubes.connect(sys.argv[1], sweep=False)
slow = Statement("SELECT pg_sleep(0.5)", DIALECT)
parent, children = queue.store.session, []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
signal.setitimer(signal.ITIMER_REAL, 0.2)
session = queue.store.{verb}(lambda tx: tx.rows(slow) and queue.store.session)
if children == [0]:
    print(session == parent, flush=True)
    os._exit(0)
os.waitpid(children[0], 0)
print(session == parent)
queue.close()
"""
    assert run(code, postgres_queue_url).split() == ["False", "True"]


def test_children_that_come_and_go_leave_the_parent_whole(connect: Connect, db: Path) -> None:
    """After 25 forks the parent still works, and the database is in order."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    for number in range(25):
        tube.put(number)
        assert in_child(lambda: tube.ack(tube.take(timeout=0)).id) == number + 1  # type: ignore[arg-type]
    assert tube.take(timeout=0) is None
    queue.close()
    with sqlite3.connect(db) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    raw.close()


def test_a_fork_while_another_thread_connects_leaves_a_child_that_works(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [connect(sweep=False), connect(sweep=False)]
    tube = queues[0].create_tube("jobs", "fifo")
    growing = Growing(lambda: tubes.connect("sqlite://", sweep=False), queues)
    monkeypatch.setattr("tubes.processes._open_queues", growing)
    assert in_child(lambda: tube.put("of the child").data) == "of the child"
    assert tube.put("of the parent").id == 2


def test_a_child_opens_tubes_though_another_thread_was_about_to(connect: Connect) -> None:
    queue = connect(sweep=False)
    lock: Any = queue._open_tubes._lock

    def child() -> Any:
        signal.alarm(30)
        return queue.create_tube("jobs", "fifo").name

    with ThreadPoolExecutor(1) as other:
        other.submit(lock.acquire).result()
        try:
            assert in_child(child) == "jobs"
        finally:
            other.submit(lock.release).result()


def test_a_child_leaves_a_transaction_though_another_thread_was_in_a_call_of_it(connect: Connect) -> None:
    queue = connect(sweep=False, busy_timeout=0.1)
    tube = queue.create_tube("jobs", "fifo")
    error = ValueError()

    def child() -> Any:
        signal.alarm(30)
        with pytest.raises(tubes.BadOption, match="over"):
            _ = unit.connection
        return transaction.__exit__(ValueError, error, None)

    transaction = queue.transaction()
    with ThreadPoolExecutor(1) as other:
        with transaction as unit:
            turn: Any = unit.turn()
            other.submit(turn.acquire).result()
            try:
                assert in_child(child) is False
            finally:
                other.submit(turn.release).result()
            tube.put("x", unit=unit)
    assert [task.data for task in tube.tasks("r")] == ["x"]


def test_a_child_sweeps_though_its_parent_s_thread_is_not_there(connect: Connect) -> None:
    """What is due in the child is done by itself, unless somebody else comes first."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("of the parent", delay=60)
    eventually(lambda: queue._sweeper._scheduler is not None)
    came = threading.Event()

    def hear(task: tubes.Task, event: tubes.Event) -> None:
        if event is tubes.Event.DELAY:
            came.set()

    tube.on_task_change(hear)

    def child() -> Any:
        return any(tube.put("x", delay=0.01) and came.wait(0.1) for _ in range(50))

    assert in_child(child) is True


def test_a_child_s_sweeper_does_not_count_on_that_of_its_parent(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's sweeper would come before the child's task is due."""
    for module, name in (("sweeper", "SWEEP_EVERY"), ("queue", "SWEEP_EVERY"), ("queue", "FLUSH_AFTER")):
        monkeypatch.setattr(f"tubes.{module}.{name}", 3600.0)
    queue = connect()
    tube = queue.create_tube("jobs", "fifottl")
    tube.put("the parent's", delay=60)

    def child() -> float:
        tube.put("the child's", delay=90)
        return queue._sweeper._next - time.monotonic()

    assert 80 < in_child(child) <= 90


def test_a_child_that_only_waits_sweeps_too(connect: Connect) -> None:
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    assert in_child(lambda: tube.take(timeout=0.001) or queue._sweeper._scheduler is not None) is True


def test_a_queue_that_is_closed_while_a_fork_waits_for_it_is_not_opened_again(connect: Connect) -> None:
    store: Any = connect(sweep=False).store
    assert store.writer.park(5)
    with ThreadPoolExecutor() as pool:
        forking = pool.submit(store.before_fork)
        pause(0.05)  # it waits
        closing = pool.submit(store.close)
        eventually(lambda: store.writer._line)
        store.writer.unpark()
        closing.result(10)
        forking.result(10)
    store.after_fork()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.writer.db.execute("SELECT 1")


def test_a_fork_waits_for_a_thread_that_closes_a_queue(connect: Connect) -> None:
    """Else the child would inherit what is not closed yet, and could not use the file."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    store: Any = connect(sweep=False).store
    let_go, park, closes, forks = store._locks.let_go, store.writer.park, threading.Event(), threading.Event()

    def let_go_later(connection: int) -> None:
        closes.set()
        forks.wait(10)
        let_go(connection)

    def wait_for_it(timeout: float) -> Any:
        forks.set()
        return park(timeout)

    store._locks.let_go, store.writer.park = let_go_later, wait_for_it
    closing = threading.Thread(target=store.close)
    closing.start()
    assert closes.wait(10)
    assert in_child(lambda: tube.put("of the child").data) == "of the child"
    forks.set()
    ended(closing)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_fork_waits_for_a_thread_that_opens_a_file(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """A child that has it half open cannot use it, and is told so: it would wait for locks that nobody holds."""
    queue = connect(sweep=False)
    queue.create_tube("jobs", "fifo")
    url, shared = f"sqlite:///{db}", importlib.import_module("tubes.drivers.sql.sqlite_shared")
    held = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    held.execute("BEGIN IMMEDIATE")
    if not is_done:
        monkeypatch.setattr(shared, "FORK_WAITS", 0.05)
    opening = threading.Thread(target=lambda: tubes.connect(url, sweep=False).close())
    opening.start()
    eventually(lambda: shared.SharedFile._opening)
    ending = threading.Timer(0.3, held.close)
    if is_done:
        ending.start()
    said = in_child(lambda: tubes.connect(url, sweep=False, busy_timeout=0.1).tube.jobs.put("x").data)
    held.close()
    ended(opening)
    assert said == "x" if is_done else "forked while" in said


def test_a_child_makes_a_store_though_another_thread_was_about_to(tmp_path: Path) -> None:
    running = importlib.import_module("tubes.migrations.running")
    running.schema_sql.cache_clear()  # by Alembic, whose lock this is
    alone = running._alone

    def child() -> Any:
        signal.alarm(30)
        with tubes.connect(f"sqlite:///{tmp_path}/new.db", sweep=False) as queue:
            return queue.tubes()

    with ThreadPoolExecutor(1) as other:
        other.submit(alone.acquire).result()
        try:
            assert in_child(child) == []
        finally:
            other.submit(alone.release).result()


def test_a_child_joins_a_transaction_though_another_thread_was_about_to(connect: Connect, db: Path) -> None:
    joined = importlib.import_module("tubes.drivers.sql.joined")
    tube = connect(sweep=False).create_tube("jobs", "fifo")

    def child() -> Any:
        signal.alarm(30)
        with sa.create_engine(f"sqlite:///{db}").begin() as connection:
            return tube.put("x", connection=connection).data

    with joined._watching:
        assert in_child(child) == "x"


def test_a_child_connects_though_another_thread_was_about_to(postgres_db: str) -> None:
    """The child uses no queue of its parent's."""
    tubes.connect(postgres_db, migrate=True, sweep=False).close()
    shared = importlib.import_module("tubes.drivers.sql.postgresql_shared").Shared

    def child() -> Any:
        signal.alarm(30)
        with tubes.connect(postgres_db, sweep=False) as queue:
            return queue.tubes()

    with shared._lock:
        assert in_child(child) == []


def run_cold(code: str, url: str | Path) -> list[str]:
    """The lines of a program in a new interpreter: one that is kept warm has imported tubes and its drivers."""
    command = [sys.executable, "-c", code, str(url)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("url", slow_but(["redis_db"], ["postgres_db", "redis_db"]))
def test_a_hook_of_the_program_uses_a_queue_in_the_child(request: pytest.FixtureRequest, url: str) -> None:
    """It was registered before the driver was loaded, so it is called before the driver's own hooks."""
    code = """
import contextlib, os, sys, threading, tubes
unit, stack = None, contextlib.ExitStack()
def put():
    global unit
    if "postgres" in sys.argv[1]:
        unit = stack.enter_context(queue.transaction())
    tube.put("of the child", unit=unit)
os.register_at_fork(after_in_child=put)
queue = tubes.connect(sys.argv[1], migrate=True, sweep=False)
tube = queue.create_tube("jobs", "fifo")
pid = os.fork()
if pid == 0:
    try:
        listens = "tubes-listener" in [thread.name for thread in threading.enumerate()]
        tube.put("again", unit=unit)
        stack.close()
        print(listens, flush=True)
    finally:
        os._exit(0)
os.waitpid(pid, 0)
print([task.data for task in tube.take_many(9, timeout=0)])
queue.close()
"""
    lines = run_cold(code, request.getfixturevalue(url))
    assert lines[-1] == "['of the child', 'again']"
    if url == "redis_db":
        assert lines[0] == "True"


@pytest.mark.slow
def test_a_hook_of_the_program_uses_a_tube_elsewhere_in_the_child(tmp_path: Path, redis_url: str) -> None:
    """It, too, is called before the driver's own hooks. What the parent holds there stays its own."""
    code = f"""
import os, sys, tubes
os.register_at_fork(after_in_child=lambda: tube.take(0))
store = "sqlite:///" + sys.argv[1]
queue = tubes.connect(store, sweep=False)
tube = queue.create_tube("jobs", "redis", url={redis_url!r})
for name in "ab":
    tube.put(name, utube=name)
held = tube.take(0)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
with tubes.connect(store, sweep=False) as other:
    print(other.tube.jobs.take(0))
print(tube.ack(held).data)
queue.close()
"""
    assert run_cold(code, tmp_path / "jobs.db")[-1] == "a"


@pytest.mark.slow
def test_a_hook_of_the_program_that_calls_in_the_middle_of_a_fork_is_refused(db: Path) -> None:
    """It was registered before tubes was imported, so the file is closed when it is called. It does not hang."""
    code = """
import os, sys
def call():
    for verb in (tube.put, tube.take):
        try:
            verb(0)
        except tubes.StoreBusy:
            os.write(1, b"refused\\n")
os.register_at_fork(before=call, after_in_parent=call, after_in_child=call)
import tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
pid = os.fork()
if pid == 0:
    try:
        tube.put("of the child")
    finally:
        os._exit(0)
os.waitpid(pid, 0)
tube.put("of the parent")
print(sorted(task.data for task in tube.take_many(9, timeout=0)))
queue.close()
"""
    assert run_cold(code, db) == ["refused"] * 6 + ["['of the child', 'of the parent']"]


@pytest.mark.slow
def test_a_hook_that_is_called_first_of_all_ends_no_connection_of_its_parent(postgres_db: str) -> None:
    """It was registered before the library was loaded, so nothing there knows of the fork yet."""
    code = """
import os, sys
queue = None
os.register_at_fork(after_in_child=lambda: queue and tube.put("of the child"))
import tubes
queue = tubes.connect(sys.argv[1], migrate=True, sweep=False)
tube = queue.create_tube("jobs", "fifo")
pool = queue.store._pool
wires = [pool.borrow() for _ in range(3)]
for wire in wires:
    pool.give_back(wire)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print([wire.is_connected() for wire in wires], [task.data for task in tube.take_many(9, timeout=0)])
queue.close()
"""
    assert run_cold(code, postgres_db) == ["[True, True, True] ['of the child']"]


@pytest.mark.slow
def test_a_child_keeps_no_connection_of_its_parent_open(postgres_db: str) -> None:
    """Not even one that no call was using: the server would keep it for as long as the child lives.

    This also holds if the queues hear of the fork first, because there was a SQLite one before, and nothing refers to
    the connection any more.
    """
    code = """
import gc, os, sys, tubes
tubes.connect("sqlite://").close()
os.register_at_fork(after_in_child=gc.collect)
queue = tubes.connect(sys.argv[1], migrate=True, sweep=False)
with queue.store._pool.lent() as wire:
    number = wire.fileno()
del wire
socket = os.readlink(f"/proc/self/fd/{number}")
pid = os.fork()
if pid == 0:
    print("kept" if os.readlink(f"/proc/self/fd/{number}") == socket else "let go", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
queue.close()
"""
    assert run_cold(code, postgres_db) == ["let go"]


def test_queues_that_cannot_be_opened_again_after_a_fork_keep_no_other_from_it(db: Path) -> None:
    """Otherwise one of them would hold up its callers for ever."""
    code = """
import os, sys, threading, tubes
sys.unraisablehook = lambda told: print(told.exc_type.__name__)
queues = [tubes.connect(f"sqlite:///{sys.argv[1]}{number}", sweep=False) for number in range(2)]
for queue in queues:
    store, connect = queue.store, queue.store._connect

    def fails(store=store, connect=connect):
        store._connect = connect
        raise tubes.StoreUnavailable("no file")

    store._connect = fails
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
for queue in queues:
    looker = threading.Thread(target=lambda: print(queue.tubes()), daemon=True)
    looker.start()
    looker.join(10)
"""
    assert run(code, db).splitlines() == ["StoreUnavailable", "[]", "[]"]


READ_ONLY_MEANWHILE = """
import os, sys, tubes
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
queue = tubes.connect("sqlite:///" + sys.argv[1], durability="off", sweep=False)
tube = queue.create_tube("jobs", "fifo")
os.chmod(sys.argv[1], 0o444)
if os.fork() == 0:
    os._exit(0)
os.wait()
try:
    tube.put("never")
except tubes.StoreUnavailable as error:
    assert "read-only" in str(error), error
os.chmod(sys.argv[1], 0o666)
tube.put("kept")
queue.close()
with tubes.connect("sqlite:///" + sys.argv[1]) as other:
    print(*(task.data for task in other.tube.jobs.tasks("r")))
print(sum(os.path.realpath("/dev/fd/" + fd) == sys.argv[1] for fd in os.listdir("/dev/fd")))
"""


def test_a_file_that_was_read_only_during_a_fork_is_written_to_when_it_may_be_again(public: Path) -> None:
    """SQLite goes on reading a file that it could not open for writing. Nothing of such a try stays open."""
    assert run(READ_ONLY_MEANWHILE, public / "queue.db").split() == ["kept", "0"]


def test_a_fork_waits_for_no_long_look(connect: Connect) -> None:
    """One such is the doctor's at a large file. The child is told that the file was in use; the parent goes on."""
    queue = connect(busy_timeout=0.1, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    looks, is_over = threading.Event(), threading.Event()

    def look(tx: Any) -> None:
        looks.set()
        is_over.wait(10)

    looker = threading.Thread(target=lambda: queue.store.read(look))
    looker.start()
    looks.wait(10)
    assert in_child(lambda: tube.put("of the child").id).startswith("StoreUnavailable: SQLite file")
    assert not is_over.is_set() and looker.is_alive()
    tube.put("of the parent")
    is_over.set()
    ended(looker)
    assert [task.data for task in tube.tasks("r")] == ["of the parent"]


@pytest.mark.parametrize("strikes", ["queue.store.writer.park", "queue.store._connect"])
def test_ctrl_c_in_the_middle_of_a_fork_leaves_the_queue_usable(db: Path, strikes: str) -> None:
    """It comes as the file is closed before the fork, or as it is opened again afterwards."""
    code = f"""
import os, signal, sys, threading, tubes
sys.unraisablehook = lambda told: print(told.exc_type.__name__)
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
call, parent = {strikes}, os.getpid()

def struck(*args):
    answer = call(*args)
    if os.getpid() == parent:
        os.kill(parent, signal.SIGINT)
    return answer

{strikes} = struck
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
{strikes} = call
putter = threading.Thread(target=lambda: print(tube.put("x").data), daemon=True)
putter.start()
putter.join(10)
"""
    assert run(code, db).splitlines()[-1] == "x"


@pytest.mark.parametrize(
    ("module", "lock"),
    [
        ("tubes.drivers.sql.joined", "_watching"),
        ("tubes.drivers.sql.sqlite_shared", "SharedFile._all_lock"),
    ],
)
def test_what_another_thread_was_at_as_its_process_forked_is_not_waited_for(
    db: Path, module: str, lock: str
) -> None:
    """It was opening a queue, say. In the child nobody finishes that."""
    code = f"""
import importlib, os, signal, sys, threading, tubes
import sqlalchemy as sa
module = importlib.import_module({module!r})
url = "sqlite:///" + sys.argv[1]
holds, is_over = threading.Event(), threading.Event()

def hold():
    with module.{lock}:
        holds.set()
        is_over.wait()

threading.Thread(target=hold).start()
holds.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    tubes.register_driver("lifo", tubes.TubeType(order="newest"))
    with tubes.connect(url, sweep=False) as queue:
        tube = queue.create_tube("jobs", "lifo")
        with sa.create_engine(url).begin() as connection:
            tube.put("x", connection=connection)
        print(tube.take(0).data, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
is_over.set()
"""
    assert run(code, db) == "x"


def test_a_memory_queue_says_that_it_does_not_outlive_a_fork() -> None:
    """Memory is not shared with a child, so the child is told; its exit does not hang."""
    with tubes.connect("sqlite://") as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put(1)
        assert in_child(lambda: tube.put(2).id).startswith("StoreUnavailable: an in-memory queue")
        assert in_child(queue.close) is None
        assert tube.take(timeout=0) is not None


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_threads_that_begin_at_once_in_a_child_are_of_one_session(
    store: str, connect: Connect, request: pytest.FixtureRequest
) -> None:
    """The first of them begins a new session, and the others wait for it."""
    if store == "sqlite":
        queue = connect(sweep=False)
    else:
        queue = tubes.connect(request.getfixturevalue("postgres_db"), migrate=True, sweep=False)
        request.addfinalizer(queue.close)
    tube = queue.create_tube("jobs", "fifo")

    def child() -> Any:
        start = threading.Barrier(8)
        owners: list[str] = []

        def work() -> None:
            start.wait()
            tube.put("x")
            task = tube.take(timeout=10)
            assert task is not None
            tube.ack(task)
            owners.append(str(task.owner))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [len(owners), {*owners} == {str(queue.identify())}]

    for _ in range(3):
        assert in_child(child) == [8, True]


@pytest.mark.slow
def test_the_queues_of_a_child_share_their_counts_as_its_parent_s_do(postgres_db: str) -> None:
    with (
        tubes.connect(postgres_db, migrate=True, sweep=False) as queue,
        tubes.connect(postgres_db, sweep=False) as other,
    ):
        tube = queue.create_tube("jobs", "fifo")

        def child() -> Any:
            tube.put(1)
            return other.tube.jobs.statistics()["calls"]["put"]

        assert in_child(child) == 1


def test_a_child_of_another_thread_hears_signals() -> None:
    """The main thread was inside a verb, where signals are only noted: in the child nobody would end that."""
    code = """
import os, signal, threading
from tubes.interrupts import guarded, interruptible
numbers = signal.SIGINT, signal.SIGTERM
for number in numbers:
    signal.signal(number, signal.default_int_handler)

def fork():
    pid = os.fork()
    if pid == 0:
        caught = 0
        for number in numbers:
            for work in (lambda: os.kill(os.getpid(), number), lambda: guarded(os.kill, os.getpid(), number)):
                try:
                    work()
                except KeyboardInterrupt:
                    caught += 1
        os._exit(caught)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def forking():
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()

guarded(forking)
guarded(interruptible, forking)
print([signal.getsignal(number) is signal.default_int_handler for number in numbers])
"""
    assert run(code).splitlines() == ["4", "4", "[True, True]"]
