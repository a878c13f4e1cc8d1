"""Others hold the file's lock for too long, or many come at once."""

from __future__ import annotations

import importlib
import signal
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from faults.harness import HOLDER, Connect, Crew, ended, eventually, heard, tell, waiting

import tubes
from tubes.driver import NewTask
from tubes.testing import FakeClock
from tubes.testing.suite import take

LOCKING = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(sys.argv[2])
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
print("free", flush=True)
sys.stdin.readline()
"""


NEXT = """
INSERT INTO tubes_task (tube, state, front, pri, place, created_ms, updated_ms, attempts, data)
SELECT id, 'r', 1, 0, 0, 0, 0, 0, '"second"' FROM tubes_tube
"""


@pytest.mark.parametrize("how", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_held_beyond_the_timeout_is_an_error(
    connect: Connect, db: Path, process: Callable[..., Any], how: str
) -> None:
    """Every write gives up after the busy timeout with StoreBusy, reads go on, and later all is as it was."""
    queue = connect(busy_timeout=0.2, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    first = tube.put("first")
    tube.put("second")
    held = take(tube)
    other = process(LOCKING, db, how)
    assert heard(other) == "locked"
    writes: list[Callable[[], Any]] = [
        lambda: tube.put("never"),
        lambda: tube.take(timeout=0),
        lambda: tube.ack(held),
        lambda: tube.bury(first),
        lambda: queue.create_tube("more", "fifo"),
        lambda: tube.drop(),
        lambda: queue.transaction().__enter__(),
    ]
    for write in writes:
        began = time.monotonic()
        with pytest.raises(tubes.StoreBusy, match=r"locked by another connection for more than 0\.2 s"):
            write()
        assert 0.15 < time.monotonic() - began < 10
    assert tube.peek(first).data == "first" and queue.tubes() == ["jobs"]
    queue.store.counts.add(tube.record.id, tubes.Event.KICK, 7)
    figures = tube.statistics()
    assert figures["tasks"]["ready"] == 1 and figures["calls"]["kick"] == 7
    tell(other)
    assert heard(other) == "free"
    assert tube.ack(held).data == "first"
    second = tube.take(timeout=0)
    assert second is not None and second.data == "second"


@pytest.mark.parametrize("durability", ["full", "normal"])
@pytest.mark.parametrize(
    "take_one", [lambda tube: tube.take(timeout=0), lambda tube: tube.take_many(1, timeout=0)[0]]
)
def test_a_take_goes_by_the_time_at_which_it_has_the_file(
    connect: Connect,
    db: Path,
    monkeypatch: pytest.MonkeyPatch,
    durability: str,
    take_one: Callable[[tubes.Tube], tubes.Task],
) -> None:
    """Not by that at which it began to wait: what it takes may have expired since, and a ttr be over."""
    clock = FakeClock()
    queue = connect(clock=clock, sweep=False, durability=durability)
    tube = queue.create_tube("jobs", "fifottl", ttr=1)
    tube.put("expires", ttl=1)
    tube.put("stays")
    writer: Any = queue.store.writer  # type: ignore[attr-defined]
    module = importlib.import_module(type(writer).__module__)
    monkeypatch.setattr(module, "PATIENT_FOR", 0)
    try_once, tries, waits = writer._execute_unless_busy, count(), threading.Event()

    def tried(text: str, given: Any) -> Any:
        if next(tries) > module.QUICK_TRIES + 2:
            waits.set()
        return try_once(text, given)

    writer._execute_unless_busy = tried
    with closing(sqlite3.connect(db, isolation_level=None)) as other, ThreadPoolExecutor(1) as taker:
        other.execute("BEGIN IMMEDIATE")
        taking = taker.submit(take_one, tube)
        assert waits.wait(10)
        clock.advance(2)
        other.rollback()
        task = taking.result(10)
    assert task.data == "stays"
    assert task.due_at is not None and task.due_at.timestamp() * 1000 == clock.now_ms() + 1000
    assert tube.ack(task).data == "stays"


def test_statistics_wait_for_no_writer(connect: Connect, db: Path, process: Callable[..., Any]) -> None:
    """They are right all the same, although this process cannot store its counts just now."""
    tube = connect(busy_timeout=60, sweep=False).create_tube("jobs", "fifo")
    tube.put("x")
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    began = time.monotonic()
    assert tube.statistics()["calls"]["put"] == 1
    assert time.monotonic() - began < 30
    tell(other)
    assert heard(other) == "free"


def test_connecting_to_a_locked_file_is_an_error(db: Path, process: Callable[..., Any]) -> None:
    """Making a locked file a queue fails with StoreBusy after the timeout, and works once the lock is gone."""
    with closing(sqlite3.connect(db)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    other = process(LOCKING, db, "BEGIN EXCLUSIVE")
    assert heard(other) == "locked"
    with pytest.raises(tubes.StoreBusy):
        tubes.connect(f"sqlite:///{db}", busy_timeout=0.2)
    tell(other)
    assert heard(other) == "free"
    with tubes.connect(f"sqlite:///{db}", busy_timeout=5) as queue:
        assert queue.tubes() == []


@pytest.mark.parametrize("durability", ["full", "normal"])
@pytest.mark.parametrize("how", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_connecting_waits_for_a_program_that_is_writing(
    connect: Connect, db: Path, process: Callable[..., Any], durability: str, how: str
) -> None:
    """Such as a worker that starts at the same time, and makes the file a queue."""
    with closing(sqlite3.connect(db)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    other = process(LOCKING, db, how)
    assert heard(other) == "locked"
    opened: list[tubes.Queue] = []
    thread = threading.Thread(
        target=lambda: opened.append(connect(busy_timeout=30, durability=durability, sweep=False))
    )
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    tell(other)
    ended(thread)
    assert opened[0].tubes() == []


def test_connecting_outdoes_a_program_that_wants_no_log(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program sets another journal mode whenever it connects, at the one moment when SQLite lets it."""
    writer: Any = importlib.import_module("tubes.drivers.sql.sqlite_writer").SqliteWriter
    execute, tries = writer.execute, 0

    def meanwhile(writer: Any, text: str) -> Any:
        nonlocal tries
        cursor = execute(writer, text)
        if text != "PRAGMA journal_mode=WAL":
            return cursor
        assert cursor.fetchall() == [("wal",)]
        tries += 1
        if tries == 1:
            with closing(sqlite3.connect(db)) as other:
                assert other.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
        return execute(writer, "SELECT 'wal'")

    monkeypatch.setattr(writer, "execute", meanwhile)
    assert connect(sweep=False).create_tube("jobs", "fifo").put("x").id == 1
    assert tries == 2
    with closing(sqlite3.connect(db, timeout=0)) as other:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("PRAGMA journal_mode=DELETE")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_threads_that_wait_for_a_lock_at_once_wait_no_longer_than_one(
    connect: Connect, db: Path, durability: str
) -> None:
    """They do not wait one after the other, which would take forty times as long."""
    queue = connect(durability=durability, busy_timeout=0.5, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    refused: list[str] = []

    def transact() -> None:
        with queue.transaction():
            pass

    def refuse(call: Callable[[], object]) -> None:
        with pytest.raises(tubes.StoreBusy) as caught:
            call()
        refused.append(str(caught.value))

    calls = [lambda: tube.put("x"), transact] * 20
    threads = [threading.Thread(target=refuse, args=(call,)) for call in calls]
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for thread in threads:
            thread.start()
        ended(*threads)
        assert time.monotonic() - began < 10
    assert len(refused) == 40 and all("for more than 0.5 s" in why for why in refused)
    tube.put("later")


def test_a_setting_that_could_not_be_stored_is_not_set(connect: Connect, db: Path) -> None:
    """Otherwise a session that begins later, as in a forked child, would have it."""
    queue = connect(busy_timeout=0.05, session_ttr=7, sweep=False)
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(tubes.StoreBusy):
            queue.configure(session_ttr=60)
    assert queue.store.session_ttr_ms == 7_000
    queue.configure(session_ttr=60)
    assert queue.store.session_ttr_ms == 60_000


def test_any_timeout_is_waited_for(connect: Connect, db: Path, process: Callable[..., Any]) -> None:
    """SQLite treats a timeout of more than 24 days as none, and Python has none of more than 292 years."""
    with closing(sqlite3.connect(db)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    other = process(LOCKING, db, "BEGIN EXCLUSIVE")
    assert heard(other) == "locked"
    opened: list[tubes.Queue] = []
    tubes.connect("sqlite://").close()  # so that all modules are loaded
    thread = threading.Thread(target=lambda: opened.append(connect(busy_timeout=1e10, sweep=False)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    tell(other)
    ended(thread)
    store = opened[0].store
    store.before_fork()
    store.after_fork()


def test_a_lock_that_ends_in_time_is_only_waited_for(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """A waiting take gets its task although the file was locked meanwhile."""
    queue = connect(busy_timeout=20)
    tube = queue.create_tube("jobs", "fifo")
    waiter, got = waiting(tube)
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    putter = threading.Thread(target=lambda: tube.put("at last"))
    putter.start()
    putter.join(0.3)
    assert putter.is_alive() and not got
    tell(other)
    ended(putter)
    ended(waiter)
    assert got[0] is not None and got[0].data == "at last"


def test_a_waiting_take_outlasts_a_lock_that_is_held_for_long(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """Waiting in an empty tube writes nothing, so a lock beyond the timeout does not end it."""
    queue = connect(busy_timeout=0.1)
    tube = queue.create_tube("jobs", "fifo")
    got: list[Any] = []

    def consume() -> None:
        try:
            got.append(tube.take(timeout=60))
        except tubes.TubeError as error:
            got.append(error)

    waiter = threading.Thread(target=consume)
    waiter.start()
    eventually(lambda: queue.store.waiters.count(tube.record.id) == 1)
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    waiter.join(0.5)
    assert waiter.is_alive()
    tell(other)
    assert heard(other) == "free"
    connect(sweep=False).tube.jobs.put("at last")
    ended(waiter)
    assert [task.data for task in got] == ["at last"]


def test_a_queue_that_waits_for_a_lock_to_begin_its_session_disturbs_nobody_who_waits(
    connect: Connect, db: Path, process: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody checks whether it is alive before it has a session."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    waiter, got = waiting(tube)
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    with pytest.raises(tubes.StoreBusy):
        connect(busy_timeout=0.5, sweep=False)
    tell(other)
    assert heard(other) == "free"
    tube.put("at last")
    ended(waiter)
    assert [task.data for task in got if task is not None] == ["at last"]
    assert not caplog.records


@pytest.mark.slow
def test_an_ack_stands_when_the_wait_for_the_next_task_meets_a_lock(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """The ack is committed before the wait: an error would tell the caller that nothing was changed."""
    queue = connect(busy_timeout=0.2, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("first")
    held = take(tube)
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    with pytest.raises(tubes.StoreBusy):  # here the ack itself is refused
        tube.take(timeout=30, ack=held)
    tell(other)
    assert heard(other) == "free"

    locks: list[sqlite3.Connection] = []

    def put_and_lock(task: tubes.Task, event: tubes.Event) -> None:
        locks.append(sqlite3.connect(db, isolation_level=None, check_same_thread=False))
        locks[0].execute(NEXT)
        locks[0].execute("BEGIN IMMEDIATE")

    tube.on_task_change(put_and_lock)
    assert tube.take(timeout=30, ack=held) is None
    tube.on_task_change(None)
    with pytest.raises(tubes.StoreBusy):
        tube.take(timeout=30)
    locks[0].close()
    following = tube.take(timeout=0, ack=None)
    assert following is not None and following.data == "second"
    assert tube.statistics()["calls"]["ack"] == 1


@pytest.mark.slow
def test_a_queue_closes_when_it_has_waited_for_a_lock_once(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """It has counts to store, a session to end and tasks to release: whoever is alive does the rest."""
    queue = connect(busy_timeout=1, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("held")
    assert tube.take(timeout=0) is not None
    other = process(LOCKING, db, "BEGIN IMMEDIATE")
    assert heard(other) == "locked"
    began = time.monotonic()
    queue.close()
    assert time.monotonic() - began < 1.9  # twice is 2
    tell(other)
    assert heard(other) == "free"
    rescued = connect(sweep=False).tube.jobs.take(timeout=0)
    assert rescued is not None and rescued.data == "held"


def test_a_stopped_process_that_holds_a_transaction_hangs_nobody(crew: Crew) -> None:
    """Others get StoreBusy after their timeout, and go on when it is killed."""
    queue, tube = crew.open(busy_timeout=0.3, sweep=False)
    with queue:
        worker = crew.start("transaction")
        eventually(crew.said("inside"))
        worker.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(tubes.StoreBusy):
            tube.put("outside")
        assert time.monotonic() - began < 10
        crew.kill(worker)
        tube.put("after")
        assert [task.data for task in tube.tasks("r")] == ["after"]


def test_a_rescue_waits_for_a_lock_once_and_not_for_each_tube(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    queue = connect(busy_timeout=0.1, sweep=False)
    names = ["a", "b", "c", "d"]
    tubes_ = [queue.create_tube(name, "fifo") for name in names]
    for tube in tubes_:
        tube.put("x")
    holder = process(HOLDER, f"sqlite:///{db}", *names)
    assert heard(holder) == "holds"
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        tubes_[0].on_task_change(lambda task, event: other.execute("BEGIN IMMEDIATE"))
        holder.kill()
        holder.wait()
        with pytest.raises(tubes.StoreBusy):
            queue.sweep()
        assert [len(tube.ended) for tube in tubes_] == [1, 0, 0, 0]  # it came no further
        tubes_[0].on_task_change(None)
        other.execute("ROLLBACK")
    assert queue.sweep() == 3
    for tube in tubes_:
        assert tube.take(timeout=0) is not None


@pytest.mark.slow
def test_a_put_inside_one_s_own_transaction_without_its_unit_is_refused(connect: Connect) -> None:
    """It would wait for itself: the error says what to do, and the transaction goes on."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    with queue.transaction() as unit:
        tube.put("inside", unit=unit)
        with pytest.raises(tubes.StoreBusy, match="pass unit="):
            tube.put("outside")
        with pytest.raises(tubes.StoreBusy, match="pass unit="), queue.transaction():
            pass
    assert [task.data for task in tube.tasks("r")] == ["inside"]


def test_eight_processes_connect_to_a_new_file_at_once(crew: Crew) -> None:
    """All of them succeed, in one schema, and create one tube."""
    workers = [crew.start("connect") for _ in range(8)]
    for worker in workers:
        assert worker.wait(60) == 0
    lines = crew.lines()
    assert sorted(int(line[1]) for line in lines) == list(range(1, 9))
    assert {line[2] for line in lines} == {"1"}
    queue, tube = crew.open()
    with queue:
        assert queue.tubes() == ["jobs"]
        assert tube.statistics()["tasks"]["ready"] == 8


def test_threads_that_create_a_tube_at_once_get_the_same(connect: Connect) -> None:
    """With if_not_exists all succeed and there is one tube; without it exactly one succeeds."""
    queues = [connect() for _ in range(4)]
    start = threading.Barrier(8)
    made: list[int] = []
    only: list[int] = []
    refused: list[Exception] = []

    def create(queue: tubes.Queue) -> None:
        start.wait()
        made.append(queue.create_tube("shared", "fifo", if_not_exists=True).record.id)
        start.wait()
        try:
            only.append(queue.create_tube("mine", "fifo").record.id)
        except tubes.TubeExists as error:
            refused.append(error)

    threads = [threading.Thread(target=create, args=(queues[n % 4],)) for n in range(8)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert len(made) == 8 and len(set(made)) == 1
    assert len(only) == 1 and len(refused) == 7
    assert queues[0].tubes() == ["shared", "mine"]


def test_a_newer_schema_is_refused_and_left_alone(db: Path) -> None:
    """SchemaMismatch names both versions, and the file keeps its bytes."""
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo").put("kept")
    with closing(sqlite3.connect(db)) as raw:
        raw.execute("UPDATE tubes_version SET version_num = '9999'")
        raw.commit()
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = db.read_bytes()
    with pytest.raises(tubes.SchemaMismatch, match="9999"):
        tubes.connect(f"sqlite:///{db}")
    assert db.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [tubes.StoreUnavailable("this queue is closed"), OSError("no locks available")],
    ids=["ours", "other"],
)
def test_who_listens_goes_on_when_a_store_cannot_look(
    error: Exception, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """One queue of the process is being closed, say; takes that wait in the others are still woken."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    looks: list[float] = []

    def cannot(**_: bool) -> bool:
        looks.append(time.monotonic())
        raise error

    store: Any = queue.store
    store._shared.users.append(SimpleNamespace(deaths_suspected=cannot))
    taken: list[tubes.Task | None] = []
    waiter = threading.Thread(target=lambda: taken.append(tube.take(60)))
    waiter.start()
    eventually(lambda: len(looks) >= 3)
    tube.put("x")
    ended(waiter)
    store._shared.users.pop()
    assert taken and taken[0] is not None and taken[0].data == "x"
    assert ("the listener failed, and tries again" in caplog.text) == isinstance(error, OSError)


def test_threads_that_share_commits_are_all_told(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told by another: none finds out only because it looks for itself in the end."""
    monkeypatch.setattr("tubes.drivers.sql.sqlite_writer.LONGEST_WAIT", 3600.0)
    queue = connect(durability="full", sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    threads = [
        threading.Thread(target=lambda: [tube.put("x") for _ in range(50)], daemon=True) for _ in range(16)
    ]
    with queue.transaction() as unit:
        tube.put("first", unit=unit)
        for thread in threads:
            thread.start()
        eventually(lambda: len(store.writer._line) == len(threads))
    ended(*threads)
    assert tube.statistics()["tasks"]["ready"] == 1 + 16 * 50


@pytest.mark.parametrize(("count", "error"), [(2, ValueError), (1, ValueError), (2, KeyboardInterrupt)])
def test_one_that_fails_costs_nothing_of_those_that_share_its_commit(
    connect: Connect, count: int, error: type[BaseException]
) -> None:
    """A failed step of several statements leaves nothing; one of a single statement may have committed that."""
    queue = connect(durability="full", sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    items = [NewTask('"bad"', "bad")] * count

    def fail(tx: Any) -> None:
        tube.driver.put(tx, items, now=queue.clock.now_ms())
        raise error

    with ThreadPoolExecutor(3) as pool:
        with queue.transaction() as unit:
            tube.put("first", unit=unit)
            failing = pool.submit(store.transact, fail)
            eventually(lambda: len(store.writer._line) == 1)
            others = [pool.submit(tube.put, data) for data in "ab"]
            eventually(lambda: len(store.writer._line) == 3)
        assert type(failing.exception(20)) is error
        assert {other.result(20).data for other in others} == {"a", "b"}
    stored = sorted(task.data for task in tube.tasks("r"))
    assert stored == ["a", "b", *["bad"] * (count == 1), "first"]


def test_all_that_share_a_commit_which_fails_are_told_and_nothing_of_theirs_is_stored(
    connect: Connect,
) -> None:
    queue = connect(durability="full", sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    writer = cast("Any", queue.store).writer
    db, commits = writer.db, count()

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

        def execute(self, text: str, *given: Any) -> sqlite3.Cursor:
            if text == "COMMIT" and next(commits) == 1:
                raise sqlite3.OperationalError("database or disk is full")
            return cast("sqlite3.Cursor", db.execute(text, *given))

    with ThreadPoolExecutor(2) as pool:
        with queue.transaction() as unit:
            tube.put("first", unit=unit)
            puts = [pool.submit(tube.put, data) for data in "ab"]
            eventually(lambda: len(writer._line) == 2)
            writer.db = Full()
        assert ["full" in str(put.exception(20)) for put in puts] == [True, True]
    writer.db = db
    assert [task.data for task in tube.tasks("r")] == ["first"]


class Exhausted:
    """A writer's connection, without memory for the end of a transaction."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real

    def execute(self, text: str, given: Any = ()) -> Any:
        if text in ("COMMIT", "ROLLBACK"):
            raise MemoryError
        return self._real.execute(text, given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("durability", ["full", "normal"])
@pytest.mark.parametrize("how", ["a batch", "a transaction", "a count"])
def test_what_could_not_be_rolled_back_takes_nothing_along_that_is_put_later(
    connect: Connect, db: Path, durability: str, how: str
) -> None:
    """Memory runs out in the middle of a batch, and still when it is rolled back; then there is some again.

    A put is one statement: in the transaction that is left it would be lost at the end of the process.
    """
    queue = connect(durability=durability, sweep=False)
    jobs = queue.create_tube("jobs", "fifottl")
    jobs.put("counted")
    writer: Any = queue.store.writer  # type: ignore[attr-defined]
    real = writer.db
    writer.use(Exhausted(real))
    with pytest.raises(MemoryError):
        jobs.put_many(["a", "b"])
    assert real.in_transaction
    writer.use(real)
    if how == "a batch":
        jobs.put("later")
    elif how == "a transaction":
        with queue.transaction() as unit:
            jobs.put("later", unit=unit)
    else:
        queue.flush_counts()
        jobs.put("later")
    with closing(sqlite3.connect(db)) as other:
        found = other.execute("SELECT data FROM tubes_task ORDER BY id").fetchall()
    assert [data for (data,) in found] == ['"counted"', '"later"']


def test_commits_are_synced_again_after_memory_ran_out_in_one_that_need_not_be(connect: Connect) -> None:
    """Within what is left open, SQLite cannot be told to sync."""
    queue = connect(durability="full", sweep=False)
    jobs = queue.create_tube("jobs", "fifo")
    jobs.put("counted")
    writer: Any = queue.store.writer  # type: ignore[attr-defined]
    real = writer.db
    writer.use(Exhausted(real))
    with suppress(MemoryError, tubes.StoreError, sqlite3.Error):
        queue.flush_counts()
    assert real.in_transaction
    writer.use(real)
    jobs.put("later")
    assert real.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_thread_that_always_came_too_late_is_handed_the_file(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a busy thread, which lets go of it only for a moment, could keep others from it for seconds."""
    monkeypatch.setattr("tubes.drivers.sql.sqlite_writer.NAPS_FOR", 0.0)
    queue = connect(durability="normal", sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    late: list[tubes.Task] = []
    thread = threading.Thread(target=lambda: late.append(tube.put("late")))
    store: Any = queue.store
    with queue.transaction() as unit:
        tube.put("busy", unit=unit)
        thread.start()
        eventually(lambda: bool(store.writer._line))
    busy = tube.put("busy")
    thread.join()
    assert late[0].id < busy.id


class Line(deque[Any]):
    """A line whose first member may leave as it is looked at, as one does that a signal's handler interrupts."""

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        first = super().__getitem__(index)
        if first.is_leaving:
            self.remove(first)
        return first


def test_who_gathers_those_in_line_takes_none_who_must_be_alone(connect: Connect) -> None:
    queue: Any = connect()
    writer = queue.store.writer
    leaving = SimpleNamespace(is_leaving=True, alone=False)
    alone = SimpleNamespace(is_leaving=False, alone=True)
    for line, left in ([leaving, alone], [alone]), ([leaving], []), ([], []):
        line_before, writer._line = writer._line, Line(line)
        batch: list[Any] = []
        writer._gather(batch)
        assert (batch, [*writer._line]) == ([], left)
        writer._line = line_before


def test_who_has_waited_in_vain_says_so_to_none_who_came_later(connect: Connect) -> None:
    queue: Any = connect()
    writer = queue.store.writer
    leaving, late = SimpleNamespace(is_leaving=True, since=1.0), SimpleNamespace(is_leaving=False, since=3.0)
    line_before, writer._line = writer._line, Line([leaving, late])
    assert isinstance(writer._in_vain(2.0), tubes.StoreBusy)
    assert [*writer._line] == [late]
    writer._line = line_before


def test_who_reads_while_another_thread_closes_the_queue_uses_nothing_that_is_closed(
    connect: Connect,
) -> None:
    """The read has begun, and waits for its turn."""
    queue: Any = connect()
    store, reading, waits = queue.store, queue.store._reading, threading.Event()
    used: list[object] = []

    class Reading:
        def __enter__(self) -> None:
            waits.set()
            reading.acquire()

        def __exit__(self, *_: object) -> None:
            reading.release()

    with ThreadPoolExecutor(1) as other:
        with reading:
            store._reading = Reading()
            looks = other.submit(store.read, used.append)
            assert waits.wait(10)
            queue.close()
        with pytest.raises(tubes.StoreUnavailable, match="this queue is closed"):
            looks.result(10)
    assert used == []


def test_what_one_look_sees_is_of_one_instant_if_it_says_so(connect: Connect) -> None:
    """Whatever others commit meanwhile."""
    queue, other = connect(sweep=False), connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")

    def look(tx: Any) -> tuple[Any, Any]:
        tx.begin()
        before = tube.driver.count(tx)
        other.tube.jobs.put("x")
        return before, tube.driver.count(tx)

    before, after = queue.store.read(look)
    assert before == after
    assert tube.statistics()["tasks"]["ready"] == 1


PUTTING = """
import sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], sweep=False, busy_timeout=600) as queue:
    print("connected", flush=True)
    sys.stdin.readline()
    queue.tube.jobs.put("waited")
"""


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_who_writes_on_and_on_lets_others_write_who_have_waited_for_long(
    connect: Connect, db: Path, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """For longer than the pause between two of their tries: these hardly ever come just between two commits."""
    queue: Any = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    module = importlib.import_module(type(queue.store.writer).__module__)
    sleep, now, pauses, mine = module.pause, module.real_monotonic() + 1, list[float](), threading.get_ident()
    with closing(sqlite3.connect(db, isolation_level=None)) as blocker:

        def pause(seconds: float) -> None:
            if threading.get_ident() != mine:
                sleep(seconds)
                return
            pauses.append(seconds)
            blocker.close()
            eventually(lambda: tube.tasks("r"))

        if where == "here":
            waiting = connect(sweep=False, busy_timeout=600).tube.jobs
            thread = threading.Thread(target=waiting.put, args=("waited",), daemon=True)
        else:
            putting = process(PUTTING, db)
            assert heard(putting) == "connected"
            thread = threading.Thread(target=tell, args=(putting,))
        blocker.execute("BEGIN IMMEDIATE")
        thread.start()
        eventually(queue.store._shared.hold.is_anybody_in_need)
        monkeypatch.setattr(module, "pause", pause)
        monkeypatch.setattr(module, "real_monotonic", lambda: now)
        tube.put("on")
        tube.put("and on")
    ended(thread)
    assert [task.data for task in tube.tasks("r")] == ["waited", "on", "and on"]
    # It may then have to wait for the lock as usual: that the other's commit is seen does not mean that it is over
    assert pauses[0] == module.LETS_OTHERS_FOR > module.SHORT_PAUSE
    eventually(lambda: not queue.store._shared.hold.is_anybody_in_need())
    now += module.GOES_ON_FOR
    tube.put("and on")
    assert pauses.count(module.LETS_OTHERS_FOR) == 1


def test_who_has_waited_longer_tries_more_often(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among many who wait, each then has its turn: in the order of their tries, some would wait for many turns."""
    queue: Any = connect(sweep=False, busy_timeout=30)
    tube = queue.create_tube("jobs", "fifo")
    module = importlib.import_module(type(queue.store.writer).__module__)
    now, pauses = 1000.0, list[float]()

    def pause(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    with closing(sqlite3.connect(db, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(module, "pause", pause)
        monkeypatch.setattr(module, "real_monotonic", lambda: now)
        with pytest.raises(tubes.StoreBusy, match="more than 30 s"):
            tube.put("never")
    late = pauses[pauses.index(module.SHORT_PAUSE, 5) :]
    assert late == sorted(late, reverse=True)
    assert late[0] == module.SHORT_PAUSE and late[-1] == module.SHORTEST_PAUSE
    assert sum(pauses) == pytest.approx(30, abs=0.1)


def test_a_transaction_on_one_s_own_connection_is_waited_for_like_any_other(
    connect: Connect, db: Path
) -> None:
    """SQLite's own tries are so far apart that a queue which writes on and on would hardly ever let one in."""
    queue: Any = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    timeouts: list[int] = []

    def put(data: str, timeout: float) -> None:
        engine = sa.create_engine(f"sqlite:///{db}", connect_args={"timeout": timeout})
        with closing(engine.connect()) as connection:
            try:
                with connection.begin():
                    tube.put(data, connection=connection)
            finally:
                timeouts.append(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
        engine.dispose()

    with closing(sqlite3.connect(db, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(tubes.StoreBusy):
            put("never", 0.1)
        waiting = threading.Thread(target=put, args=("late", 600), daemon=True)
        waiting.start()
        eventually(queue.store._shared.hold.is_anybody_in_need)
    ended(waiting)
    assert [task.data for task in tube.tasks("r")] == ["late"]
    assert timeouts == [100, 600_000]
