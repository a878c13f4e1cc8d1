"""How connections prove their life, and what they hold, when things fail or coincide. On SQLite files."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from faults.harness import Connect, ended, eventually, join_forgotten, no_new_threads, run, waiting
from interpreter import Process

import tubes
from tubes.driver import Change, Driver, TubeRecord
from tubes.store import Store
from tubes.testing import FakeClock
from tubes.testing.suite import take

FULL = """
import resource, signal, sys, tubes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = sys.argv[1]
queue = tubes.connect("sqlite:///" + path, sweep=False)
import os
size = os.path.getsize(path + "-wal")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
try:
    tubes.connect("sqlite:///" + path, sweep=False)
    print("connected", flush=True)
except tubes.StoreUnavailable:
    print("full", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
sys.stdin.readline()
"""


def test_a_connect_that_finds_the_disk_full_keeps_no_number_from_others(
    db: Path, connect: Connect, process: Callable[..., Any]
) -> None:
    worker = process(FULL, db)
    assert worker.stdout.readline() == "full\n"
    connect().create_tube("jobs", "fifo").put("x")


def test_what_a_queue_held_is_others_when_a_fork_left_it_unusable(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = connect(sweep=False), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    held = take(tube)
    store: Any = queue.store
    with monkeypatch.context() as patch:
        patch.setattr(store, "_connect", lambda: (_ for _ in ()).throw(tubes.StoreUnavailable("no file")))
        store.before_fork()
        with pytest.raises(tubes.StoreUnavailable):
            store.after_fork()
    with pytest.raises(tubes.NotTaken):
        tube.ack(held)  # the queue has a session of its own from now on
    task = other.tube.jobs.take(timeout=10)
    assert task is not None and task.data == "x"


def test_a_queue_that_a_fork_left_unusable_leaves_nothing_open_when_it_is_closed(db: Path) -> None:
    code = """
import os, sys, threading, tubes

def open_now():
    return sum("queue.db" in os.path.realpath(f.path) for f in os.scandir("/proc/self/fd")), threading.active_count()

def fails():
    raise tubes.StoreUnavailable("no file")

queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
queue.create_tube("jobs", "fifo").take(timeout=0.01)
queue.store._connect = fails
queue.store.before_fork()
try:
    queue.store.after_fork()
except tubes.StoreUnavailable:
    before = open_now()
queue.close()
queue.close()
print(min(before) > 0, open_now())
"""
    assert run(code, db) == "True (0, 1)"


RESCUE = """
import sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], sweep=False) as queue:
    queue.sweep()
    print([task.data for task in queue.tube.jobs.tasks("t")])
"""


def test_a_queue_that_cannot_be_opened_again_ends_no_other_s_life(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the queue tries to open it."""
    queue, other = connect(sweep=False), connect(sweep=False)
    queue.create_tube("jobs", "fifo").put("held")
    held = take(other.tube.jobs)
    store: Any = queue.store
    with monkeypatch.context() as patch:
        patch.setattr(store, "_connect", lambda: (_ for _ in ()).throw(tubes.StoreUnavailable("no file")))
        store.before_fork()
        with pytest.raises(tubes.StoreUnavailable):
            store.after_fork()
        for _ in range(3):
            with pytest.raises(tubes.StoreUnavailable, match="no file"):
                queue.tubes()
    assert run(RESCUE, db) == "['held']"
    assert queue.tubes() == ["jobs"]
    other.tube.jobs.ack(held)


def test_a_child_of_who_was_left_unusable_by_a_fork_is_called_where_it_waits(db: Path) -> None:
    """Its own listener calls it: its parent's thread does not exist in the child."""
    code = """
import os, sys, time, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
tube.take(timeout=0.01)
connect = queue.store._connect

def fails():
    raise tubes.StoreUnavailable("no file")

queue.store._connect = fails
queue.store.before_fork()
try:
    queue.store.after_fork()
except tubes.StoreUnavailable:
    queue.store._connect = connect
pid = os.fork()
if pid == 0:
    try:
        print(tube.take(timeout=100).data, flush=True)
    finally:
        os._exit(0)
queue.tubes()
while queue.store._locks.board._memory.find(b"\\1", 0, 1024) < 0:
    time.sleep(0.001)  # real time: until the child waits
tube.put("x")
os.waitpid(pid, 0)
queue.close()
"""
    assert run(code, db) == "x"  # long before its time was over


def test_who_waits_goes_on_waiting_when_a_queue_is_opened_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    waiter, taken = waiting(tube)

    def fails() -> None:
        monkeypatch.undo()
        raise tubes.StoreUnavailable("no file")

    monkeypatch.setattr(store, "_connect", fails)
    store.before_fork()
    looks: list[list[str]] = []
    looker = threading.Thread(target=lambda: looks.append(queue.tubes()))
    looker.start()
    looker.join(0.1)  # it waits for the end of the fork
    with pytest.raises(tubes.StoreUnavailable):
        store.after_fork()
    ended(looker)
    assert looks == [["jobs"]]
    tube.put("x")
    ended(waiter)
    assert taken[0] is not None


def test_who_was_taken_for_dead_can_join_a_session(connect: Connect, db: Path) -> None:
    """It joins with another connection, since nobody knows its own any more."""

    def forget(connection: int) -> None:
        with closing(sqlite3.connect(db)) as theirs, theirs:
            theirs.execute("DELETE FROM tubes_connection WHERE id = ?", [connection])

    join_forgotten(connect, forget)


def test_a_session_whose_grace_ends_while_the_file_is_locked_cannot_be_joined(
    connect: Connect, db: Path
) -> None:
    """Others may have found it over, and be giving back what it held."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False)
    with tubes.connect(f"sqlite:///{db}", clock=clock, sweep=False, session_ttr=10) as left:
        session = left.identify()
    writer: Any = queue.store.writer  # type: ignore[attr-defined]
    insist, waits = writer.insist, threading.Event()

    def insist_after(*given: Any, **named: Any) -> Any:
        waits.set()
        return insist(*given, **named)

    writer.insist = insist_after
    with closing(sqlite3.connect(db, isolation_level=None)) as locked, ThreadPoolExecutor(1) as joiner:
        locked.execute("BEGIN IMMEDIATE")
        joining = joiner.submit(queue.identify, session)
        assert waits.wait(10)
        clock.advance(11)
        locked.rollback()
        with pytest.raises(tubes.NoSuchSession):
            joining.result(10)


def test_a_lost_lease_is_one_also_where_nobody_can_prove_life(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses the ack, and is away when the queue then tries to prove its life."""

    def fails() -> None:
        raise tubes.StoreUnavailable("it is away")

    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    task = take(tube)
    tube.release(task)
    monkeypatch.setattr(queue.store, "prove_life", fails)
    with pytest.raises(tubes.LeaseLost):
        tube.ack(task)


def test_who_is_refused_since_he_was_taken_for_dead_goes_on_in_a_new_session(
    connect: Connect, db: Path
) -> None:
    """At once, not when it next proves its life; and it is told why, in a transaction too."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    held = take(tube)
    with closing(sqlite3.connect(db)) as theirs, theirs:
        theirs.execute("DELETE FROM tubes_connection")
        theirs.execute("UPDATE tubes_session SET ends_ms = 1")
    assert connect(sweep=False).sweep() == 1
    with queue.transaction() as unit, pytest.raises(tubes.LeaseLost):
        tube.ack(held, unit=unit)
    assert queue.identify() == held.owner
    with pytest.raises(tubes.LeaseLost):
        tube.ack(held)
    assert queue.identify() != held.owner


@pytest.mark.timeout(60, method="thread")
def test_a_signal_s_handler_may_call_while_a_session_is_begun_anew(connect: Connect, db: Path) -> None:
    """The interrupted call waits for the file to begin one, and goes on; the handler's call is refused."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    is_refused = False
    with closing(sqlite3.connect(db, isolation_level=None)) as theirs:
        theirs.execute("DELETE FROM tubes_connection")
        theirs.execute("BEGIN IMMEDIATE")

        def handler(number: int, frame: object) -> None:
            nonlocal is_refused
            try:
                tube.take(timeout=0)
            except tubes.StoreBusy:
                is_refused = True
            finally:
                theirs.rollback()

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            task = tube.take(timeout=0)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert is_refused
    assert task is not None and task.owner == queue.identify()
    tube.ack(task)


@pytest.mark.slow
def test_a_queue_that_only_listens_sweeps(connect: Connect) -> None:
    putter = connect(sweep=False)
    tube = putter.create_tube("jobs", "fifottl")
    told: list[str] = []
    listener = connect()
    listener.tube.jobs.on_task_change(lambda task, event: told.append(event.value))
    tube.put("x", ttl=0.2)
    eventually(lambda: told == ["ttl"])


def test_all_who_wait_in_other_processes_hear_that_the_tube_is_dropped(
    deaf: None, connect: Connect, url: str, asleep: Callable[..., Process]
) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    others = [asleep(queue, url, "jobs") for _ in range(2)]
    tube.drop()
    assert [other.wait(20) for other in others] == [
        1,
        1,
    ]  # their takes have raised, and neither looks by itself


def test_a_take_that_cannot_begin_to_wait_keeps_no_place_in_the_line(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = connect(), connect()
    tube = queue.create_tube("jobs", "fifo")
    with no_new_threads(monkeypatch), pytest.raises(tubes.StoreUnavailable, match="new thread"):
        tube.take(timeout=5)
    waiter, got = waiting(tube)
    other.tube.jobs.put("x")
    ended(waiter)
    (task,) = got
    assert task is not None and tube.ack(task).data == "x"
    tube.drop()


@pytest.mark.parametrize("step", ["arm", "disarm"])
def test_a_queue_that_is_closed_where_a_take_begins_or_ends_its_wait_ends_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = {*threading.enumerate()}  # including other queues' listeners
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    locks: Any = queue.store._locks  # type: ignore[attr-defined]
    does, closing = getattr(locks, step), threading.Thread(target=queue.store.close)

    def closed_meanwhile(*given: Any) -> None:
        if closing.ident is None:
            closing.start()
            closing.join(0.1)  # it may be waiting for this step
        does(*given)

    monkeypatch.setattr(locks, step, closed_meanwhile)
    with suppress(tubes.StoreUnavailable):
        assert tube.take(timeout=0.01) is None
    ended(closing)
    left = {*threading.enumerate()} - before
    assert "tubes-listener" not in {thread.name for thread in left}


NO_DESCRIPTORS = """
import os, resource, sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], sweep=False) as queue:
    tube = queue.create_tube("jobs", "fifo")
    assert tube.take(timeout=0) is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    print(tube.put("x").data, tube.ack(tube.take(timeout=0)).data)
    try:
        tube.take(timeout=5)
    except tubes.StoreUnavailable as error:
        print(error.__cause__)
    for descriptor in taken:
        os.close(descriptor)
    print(tube.take(timeout=0.01))
"""


@pytest.mark.slow
@pytest.mark.timeout(60, method="thread")
def test_a_queue_is_closed_while_its_listener_waits_to_begin_a_session(connect: Connect, db: Path) -> None:
    """As a process taken for dead does. Here the listener waits for the closing thread, which waits for it."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    thread, _ = waiting(tube)
    with closing(sqlite3.connect(db, isolation_level=None)) as others:
        others.execute("DELETE FROM tubes_connection")
    with pytest.raises(tubes.StoreUnavailable, match="closed"), queue.transaction():
        eventually(lambda: store.writer._line)
        queue.close()
    ended(thread)


def test_a_queue_is_closed_while_its_listener_comes_to_rest(connect: Connect) -> None:
    """Just before it forgets that it was called, to wait for the next call."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    closing = threading.Thread(target=queue.close, daemon=True)
    store: Any = queue.store
    is_over = threading.Event()

    class Wanted(threading.Event):
        def clear(self) -> None:
            closing.start()
            is_over.set()
            eventually(self.is_set)
            super().clear()

    store._shared.listener._wanted = Wanted()
    tube.take(timeout=0.01)
    assert is_over.wait(10)
    ended(closing)


def test_where_no_descriptor_is_left_only_waiting_is_refused(db: Path) -> None:
    """A put succeeds though the background sweep cannot begin; both begin once there is a descriptor again."""
    said = ["x x", f"[Errno {errno.EMFILE}] {os.strerror(errno.EMFILE)}", "None"]
    assert run(NO_DESCRIPTORS, db).splitlines() == said


def test_who_creates_and_who_is_in_a_transaction_do_not_wait_for_each_other(connect: Connect) -> None:
    connect(sweep=False).create_tube("jobs", "fifo")
    queue = connect(sweep=False)
    queue._open_tubes._tubes.clear()  # as for a tube that another process has just created
    inside, asked = threading.Event(), threading.Event()

    def transact() -> None:
        with queue.transaction():
            inside.set()
            asked.wait(10)
            with pytest.raises(tubes.StoreBusy, match="wait for itself"):
                queue.tube["jobs"]

    threads = [
        threading.Thread(target=transact, daemon=True),
        threading.Thread(target=queue.create_tube, args=("new", "fifo"), daemon=True),
    ]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    asked.set()
    ended(*threads)
    assert queue.tubes() == ["jobs", "new"]


class Breaks:
    """A driver that, if told to, fails at its start or after a take; otherwise it is the one it wraps."""

    features = tubes.Features()
    is_broken = False
    starts_badly = False

    def __init__(self, store: Store, record: TubeRecord) -> None:
        self._driver: Driver = store.realise(tubes.TubeType(self.features), record)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def start(self, tx: Any) -> None:
        if self.starts_badly:
            raise tubes.StoreUnavailable("it does not start")

    def take(self, tx: Any, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        changes = self._driver.take(tx, limit, owner=owner, now=now)
        if type(self).is_broken:
            raise ValueError("it cannot be read")
        return changes


def breaking(store: Store, record: TubeRecord) -> Driver:
    """A factory, unlike a class, is not checked before it makes something."""
    made: Any = Breaks(store, record)
    return made  # type: ignore[no-any-return]


tubes.register_driver("breaks", breaking)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> type[Breaks]:
    monkeypatch.setattr(Breaks, "is_broken", False)
    monkeypatch.setattr(Breaks, "starts_badly", False)
    return Breaks


def test_a_take_that_failed_in_a_driver_of_ones_own_took_nothing(
    connect: Connect, breaks: type[Breaks]
) -> None:
    tube = connect(sweep=False).create_tube("jobs", "breaks")
    tube.put("x")
    breaks.is_broken = True
    with pytest.raises(ValueError, match="cannot be read"):
        tube.take(timeout=0)
    breaks.is_broken = False
    task = tube.take(timeout=0)
    assert task is not None and (task.data, task.attempts) == ("x", 1)


def test_what_a_take_took_before_it_failed_is_given_back(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take's one statement had been committed by itself."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put("x")
    take = tube.driver.take

    def fails(*given: Any, **more: Any) -> Sequence[Change]:
        take(*given, **more)
        raise ValueError("it cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(tube.driver, "take", fails)
        with pytest.raises(ValueError, match="cannot be read"):
            tube.take(timeout=0)
    task = tube.take(timeout=0)
    assert task is not None and (task.data, task.attempts) == ("x", 2)


def test_what_cannot_be_given_back_at_once_is_given_back_by_the_next_take(connect: Connect, db: Path) -> None:
    """As after a cancelled take, while another program has the file's lock."""
    tube = connect(sweep=False, busy_timeout=0.1).create_tube("jobs", "fifo")
    tube.put("x")
    task = take(tube)
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        tube.give_back([task])
    assert take(tube).attempts == 2


def test_what_a_shared_commit_cannot_tell_of_one_it_tells_of_the_others(
    connect: Connect, breaks: type[Breaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads' puts are one commit. Only the put whose change cannot be read for its callback raises."""
    queue = connect(durability="full", sweep=False)
    bad, good = queue.create_tube("bad", "breaks"), queue.create_tube("good", "fifo")
    told: list[str] = []
    for tube in (bad, good):
        tube.on_task_change(lambda task, event: told.append(task.tube))

    put = bad.driver.put

    def put_unreadably(*given: Any, **more: Any) -> Sequence[Change]:
        return [change._replace(raw=()) for change in put(*given, **more)]

    monkeypatch.setattr(bad.driver, "put", put_unreadably)
    with ThreadPoolExecutor(2) as threads:
        with queue.transaction():
            puts = [threads.submit(tube.put, "x") for tube in (bad, good)]
            line: Any = queue.store.writer._line  # type: ignore[attr-defined]
            eventually(lambda: len(line) == 2)
        with pytest.raises(ValueError, match="unpack"):
            puts[0].result(30)
        assert puts[1].result(30).data == "x" and told == ["good"]


def test_a_connect_that_fails_leaves_nothing_open(connect: Connect, breaks: type[Breaks]) -> None:
    connect(sweep=False).create_tube("jobs", "breaks")
    path = connect(sweep=False).store.path  # type: ignore[attr-defined]
    breaks.starts_badly = True
    opened = []
    for _ in range(6):
        with pytest.raises(tubes.StoreUnavailable, match="does not start"):
            tubes.connect(f"sqlite:///{path}")
        opened.append(len(os.listdir("/dev/fd")))
    assert opened[-1] <= opened[1], opened  # SQLite keeps a few while others have the file open
