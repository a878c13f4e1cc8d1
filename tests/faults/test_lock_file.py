"""The lock file (the proof of life) is deleted or its locks are dropped; the database is reached by other paths."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from faults.harness import Connect, Crew, ended, eventually, heard, left_open, quiet, run, tell

import tubes
from tubes.testing.suite import take

TAKE = """
import sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], sweep=False) as queue:
    task = queue.tube.jobs.take(timeout=0)
    print(task and task.data)
"""

WORKER = """
import os, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1])
tube = queue.create_tube("jobs", "fifo", if_not_exists=True)
lost = 0
for line in sys.stdin:
    verb = line.strip()
    if verb == "take":
        task = tube.take(timeout=0)
        print(task and task.data, flush=True)
    elif verb == "ack":
        try:
            print(tube.ack(task).data, flush=True)
        except tubes.TubeError as error:
            print(type(error).__name__, flush=True)
    elif verb == "drop locks":
        open(sys.argv[1] + "-tubes").close()
        print("dropped", flush=True)
"""


IDLER = """
import sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
print("here", flush=True)
sys.stdin.readline()
"""


USES = """
import sys, tubes
tube = tubes.connect("sqlite:///" + sys.argv[1]).create_tube("jobs", "fifo", if_not_exists=True)
for line in sys.stdin:
    verb, *given = line.split()
    if verb == "put":
        task = tube.put(*given)
    elif verb == "take":
        task = tube.take(timeout=float(*given))
    elif verb == "ack":
        task = tube.ack(task)
    print(task and task.data, flush=True)
"""


TRIES = """
import sys, tubes
from tubes.drivers.sql import sqlite
for line in sys.stdin:
    sqlite.BEING_MADE = float(line)
    try:
        print(tubes.connect("sqlite:///" + sys.argv[1], sweep=False).tubes(), flush=True)
    except tubes.StoreUnavailable as error:
        print(error, flush=True)
"""


IN_A_CONTAINER = """
import ctypes, os
NEW_USER, NEW_PID, NEW_NET, DIES_WITH_PARENT, SIGKILL = 0x10000000, 0x20000000, 0x40000000, 1, 9
system = ctypes.CDLL(None)
if system.unshare(NEW_PID | NEW_NET):
    system.unshare(NEW_USER | NEW_PID | NEW_NET)  # as one who is not root; where that is not allowed, it goes without
if os.fork():
    os.wait()
    os._exit(0)
system.prctl(DIES_WITH_PARENT, SIGKILL)
"""
"""Makes a program process 1 of a namespace of its own, in a network of its own."""


AS_ANOTHER_USER = """
import os, sys, tubes
with tubes.connect("sqlite://") as queue:  # so that all modules are loaded while they can be
    queue.create_tube("t", "fifo").put(1)
if os.geteuid() == 0:
    os.setgroups([65534])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
os.umask(int(sys.argv[3], 8))
"""
"""Makes a program run as that user, a member of the group nogroup, with that umask."""


VISITOR = """
import sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], sweep=False) as queue:
    print(*[task.data for task in queue.tube.jobs.tasks("r")])
    print(queue.tube.jobs.put("theirs").id)
"""


def copy_of(db: Path) -> Path:
    """Make a backup, in a way that is allowed while the database is in use."""
    path = db.with_name("copy")
    source, copy = sqlite3.connect(db), sqlite3.connect(path)
    source.backup(copy)
    source.close()
    copy.close()
    return path


def restore(copy: Path, db: Path) -> None:
    """Put a backup in the place of the database, whoever has that open."""
    for name in (db, f"{db}-wal", f"{db}-shm"):
        os.unlink(name)
    copy.rename(db)


def asked(worker: Any, verb: str) -> str:
    """Let a worker do something; return what it says."""
    tell(worker, verb)
    return heard(worker)


@pytest.mark.slow
def test_a_symbolic_link_leads_to_the_same_queue(connect: Connect, db: Path) -> None:
    """A process that opens the file by another name sees which tasks are taken, and takes none of them."""
    tube = connect().create_tube("jobs", "fifo")
    tube.put("held")
    held = take(tube)
    link = db.with_name("link.db")
    link.symlink_to(db)
    folder = db.parent.with_name(f"{db.parent.name}-link")
    folder.symlink_to(db.parent)
    assert run(TAKE, link) == run(TAKE, folder / "queue.db") == "None"
    assert sorted(path.name for path in db.parent.iterdir() if path.name.endswith("-tubes")) == [
        "queue.db-tubes"
    ]
    tube.ack(held)


@pytest.mark.parametrize("precious", [None, b"precious"], ids=["new", "there"])
def test_a_link_in_place_of_the_lock_file_leads_nowhere(db: Path, precious: bytes | None) -> None:
    """Somebody who may write to the folder cannot have a file made or changed elsewhere."""
    victim = db.with_name("victim")
    if precious is not None:
        victim.write_bytes(precious)
    Path(f"{db}-tubes").symlink_to(victim)
    with pytest.raises(tubes.StoreUnavailable, match="-tubes"):
        tubes.connect(f"sqlite:///{db}")
    assert (victim.read_bytes() if victim.exists() else None) == precious


def test_a_second_name_of_another_file_is_no_lock_file(db: Path) -> None:
    """Some systems let users who may not write to a file give it another name, as Linux does when told to."""
    victim = db.with_name("victim")
    victim.write_bytes(b"precious")
    Path(f"{db}-tubes").hardlink_to(victim)
    with pytest.raises(tubes.StoreUnavailable, match=r"hard link.*-tubes"):
        tubes.connect(f"sqlite:///{db}")
    assert victim.read_bytes() == b"precious"


def test_what_is_no_file_is_no_lock_file(connect: Connect, db: Path) -> None:
    """The error names it."""
    os.mkfifo(f"{db}-tubes")
    with pytest.raises(tubes.StoreUnavailable, match="-tubes"):
        connect()
    os.unlink(f"{db}-tubes")
    assert connect().create_tube("jobs", "fifo").put(1).id == 1


@pytest.mark.parametrize("kind", ["wal", "shm", "journal"])
def test_what_would_hold_up_sqlite_or_be_overwritten_by_it_is_refused(
    process: Callable[..., Any], connect: Connect, db: Path, kind: str
) -> None:
    """SQLite opens a FIFO and waits for ever, deaf to signals. The error names the file; without it, all works."""
    connect().close()
    beside, victim = Path(f"{db}-{kind}"), db.with_name("victim")
    victim.write_bytes(b"precious")
    beside.unlink(missing_ok=True)
    other = process(TRIES, db)
    os.mkfifo(beside)
    assert f"{beside} is a FIFO, or has a hard link" in asked(other, "2")
    beside.unlink()
    beside.hardlink_to(victim)
    assert f"{beside} is a FIFO, or has a hard link" in asked(other, "2")
    beside.unlink()
    assert victim.read_bytes() == b"precious"
    assert asked(other, "2") == "[]"


def test_a_hard_link_is_refused(connect: Connect, db: Path) -> None:
    """A process that used the other name would see neither the others' tasks nor their locks."""
    connect().create_tube("jobs", "fifo").put(1)
    link = db.with_name("link.db")
    link.hardlink_to(db)
    for path in (link, db):
        with pytest.raises(tubes.StoreUnavailable, match="2 names"):
            tubes.connect(f"sqlite:///{path}")
    link.unlink()
    task = connect().tube.jobs.take(timeout=0)
    assert task is not None and task.data == 1


def test_containers_on_one_host_may_share_a_file(db: Path, process: Callable[..., Any]) -> None:
    """Each is process 1 to itself, and hears no bell of the other's: only its locks show that a process lives."""
    first, second = process(IN_A_CONTAINER + USES, db), process(IN_A_CONTAINER + USES, db)
    assert asked(first, "take 0") == asked(second, "take 0") == "None"
    tell(first, "take 30")
    time.sleep(0.3)  # real time: it begins to wait
    assert asked(second, "put held") == heard(first) == "held"
    assert asked(second, "take 1") == "None"  # meanwhile, it looks for the dead
    assert asked(first, "ack") == "held"
    assert asked(second, "put left") == asked(first, "take 0") == "left"
    tell(second, "take 30")
    first.kill()
    assert heard(second) == "left"


def test_users_of_one_group_may_share_a_file(public: Path, process: Callable[..., Any]) -> None:
    """The file is the group's, and so are those made beside it, whatever each user's umask forbids."""
    db = public / "queue.db"
    db.touch()
    if os.geteuid() == 0:
        os.chown(public, -1, 65534)
        os.chown(db, 54321, 65534)
    public.chmod(0o2770)
    db.chmod(0o660)
    first, second = (
        process(AS_ANOTHER_USER + USES, db, user, umask) for user, umask in ((54321, "077"), (54322, "022"))
    )
    assert asked(first, "take 0") == "None"
    tell(first, "take 30")
    assert asked(second, "put held") == heard(first) == "held"
    tell(second, "take 30")
    first.kill()
    assert heard(second) == "held"
    assert asked(second, "ack") == "held"


@pytest.mark.parametrize("beside", ["wal", "shm", "tubes"])
def test_what_another_user_is_just_making_beside_the_file_is_waited_for(
    public: Path, process: Callable[..., Any], beside: str
) -> None:
    """It exists for a moment before all its users may open it; one that stays so is named in the error."""
    db, made = public / "queue.db", public / f"queue.db-{beside}"
    tubes.connect(f"sqlite:///{db}").close()
    made.touch()
    for file in public.iterdir():
        file.chmod(0o666)
    made.chmod(0)
    other = process(AS_ANOTHER_USER + TRIES, db, 54321, "022")
    assert str(made) in asked(other, "0.05")
    tell(other, "30")
    time.sleep(0.2)  # it is being made
    made.chmod(0o666)
    assert heard(other) == "[]"


def test_what_cannot_be_opened_although_it_may_be_is_an_error(
    public: Path, process: Callable[..., Any]
) -> None:
    """A folder has the log's name."""
    db, folder = public / "queue.db", public / "queue.db-wal"
    tubes.connect(f"sqlite:///{db}").close()
    for file in public.iterdir():
        file.chmod(0o666)
    folder.mkdir()
    folder.chmod(0o777)
    other = process(AS_ANOTHER_USER + TRIES, db, 54321, "022")
    assert "unable to open database file" in asked(other, "0.05")


@pytest.mark.slow
def test_two_queues_of_one_process_prove_their_lives_apart(connect: Connect, db: Path) -> None:
    """Closing one of them drops its own lock and not the other's."""
    first, second = connect(sweep=False), connect(sweep=False)
    tube = first.create_tube("jobs", "fifo")
    tube.put_many(["first", "second"])
    held = tube.take(timeout=0)
    theirs = second.tube.jobs.take(timeout=0)
    assert held is not None and theirs is not None
    assert run(TAKE, db) == "None"
    second.close()
    assert run(TAKE, db) == "second"
    assert run(TAKE, db) == "second"
    assert tube.ack(held).data == "first"


@pytest.mark.slow
def test_namespaces_share_a_file_and_nothing_else(connect: Connect, db: Path) -> None:
    """Two queues of different tables in one file, from two processes: tasks, sessions and counts are apart."""
    code = """
import sys, tubes
with tubes.connect("sqlite:///" + sys.argv[1], namespace="theirs") as queue:
    tube = queue.create_tube("jobs", "fifo")
    tube.put("theirs")
    with tubes.connect("sqlite:///" + sys.argv[1]) as other:
        print(other.tube.jobs.take(timeout=0), tube.take(timeout=0).data, other.tubes(), queue.tubes())
    print(tube.statistics()["calls"]["put"])
"""
    tube = connect().create_tube("jobs", "fifo")
    tube.put("ours")
    held = take(tube)
    assert run(code, db).splitlines() == ["None theirs ['jobs'] ['jobs']", "1"]
    assert tube.ack(held).data == "ours"
    assert tube.statistics()["calls"]["put"] == 1


@pytest.mark.slow
def test_locks_that_another_library_dropped_are_taken_again(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """Closing any descriptor of the lock file drops a process's locks; it takes them again by itself."""
    tube = connect(sweep=False).create_tube("jobs", "fifo")
    tube.put("held")
    worker = process(WORKER, db)
    assert asked(worker, "take") == "held"
    assert asked(worker, "drop locks") == "dropped"
    time.sleep(1.5)  # meanwhile, only the worker's own background work looks
    assert tube.take(timeout=0) is None
    assert asked(worker, "ack") == "held"


@pytest.mark.slow
def test_who_reads_its_own_database_as_a_file_loses_nothing(connect: Connect, db: Path) -> None:
    """Closing any descriptor of it drops the lock by which SQLite shows that a process has it open.

    A visitor that then came and went would take itself for the last, and remove the log that is still written to:
    others would not see what is put from then on, and would use our ids a second time.
    """
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    tube.put("before")
    shutil.copy(db, db.with_name("copy"))
    assert run(VISITOR, db).splitlines() == ["before", "2"]
    assert tube.put("after").id == 3
    assert run(VISITOR, db).splitlines() == ["before theirs after", "4"]
    assert [task.id for task in tube.tasks("r")] == [1, 2, 3, 4]
    queue.close()
    assert not os.path.exists(f"{db}-wal")


def test_without_a_hold_the_log_would_go(connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would see without the hold. SQLite 3.51 itself checks whether others use the log."""
    hold = importlib.import_module("tubes.drivers.sql.sqlite_hold").Hold
    monkeypatch.setattr(hold, "take", lambda hold: None)
    connect().create_tube("jobs", "fifo").put("before")
    shutil.copy(db, db.with_name("copy"))
    run(VISITOR, db)
    assert os.path.exists(f"{db}-wal") == (sqlite3.sqlite_version_info >= (3, 51))


def test_the_last_of_those_that_close_at_the_same_time_removes_the_log(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = importlib.import_module("tubes.drivers.sql.sqlite_shared").SharedFile
    about_to_close = shared.about_to_close
    queue, others = connect(), [connect()]
    queue.create_tube("jobs", "fifo").put("x")

    def meanwhile(*given: Any) -> None:
        about_to_close(*given)
        if others:
            others.pop().close()

    monkeypatch.setattr(shared, "about_to_close", meanwhile)
    queue.close()
    assert not db.with_name(f"{db.name}-wal").exists()


def test_the_log_is_removed_by_a_queue_on_which_somebody_has_waited(connect: Connect, db: Path) -> None:
    """Its listener has a connection of its own, which is closed last."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    tube.take(timeout=0.01)
    eventually(lambda: queue.store._shared.listener._db is not None)  # type: ignore[attr-defined]
    tube.put("x")
    queue.close()
    assert sorted(path.name for path in db.parent.iterdir()) == ["queue.db", "queue.db-tubes"]


def test_a_connect_that_may_open_no_further_file_keeps_none_open(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One descriptor was left, for the lock file, and none for the hold."""
    connect().close()

    def fails(path: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tubes.drivers.sql.sqlite_shared.Hold", fails)
    with pytest.raises(tubes.StoreUnavailable, match=os.strerror(errno.EMFILE)):
        connect()
    assert left_open(db.parent) == []


@pytest.mark.slow
@pytest.mark.parametrize("namespaces", [("tubes",), ("tubes", "others")])
def test_a_queue_that_closes_takes_no_lock_from_a_user_s_connection(
    db: Path, namespaces: tuple[str, ...]
) -> None:
    """The connection still has the file open: others that come and go do not remove the log under it."""
    user = sqlite3.connect(db, isolation_level=None)
    open_then: list[int] = []
    for _ in range(4):
        queues = [tubes.connect(f"sqlite:///{db}", namespace=name) for name in namespaces]
        queues[0].create_tube("jobs", "fifo", if_not_exists=True)
        user.execute("SELECT count(*) FROM sqlite_master").fetchall()
        for queue in queues:
            queue.close()
        open_then.append(len(os.listdir("/proc/self/fd")))
    assert open_then[-1] <= open_then[1]  # what could not be closed is used again
    run(VISITOR, db)
    user.execute("CREATE TABLE orders (id)")
    code = (
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT * FROM orders').fetchall())"
    )
    assert run(code, db) == "[]"
    user.close()
    with tubes.connect(f"sqlite:///{db}"):
        pass
    assert len(os.listdir("/proc/self/fd")) < open_then[-1]


@pytest.mark.parametrize("how", ["dropped", "deleted", "replaced"])
def test_a_process_that_lost_its_proof_of_life_loses_leases_and_no_tasks(
    crew: Crew, db: Path, process: Callable[..., Any], how: str
) -> None:
    """If its task went to another, its own ack is refused; it goes on, and leaves nothing behind when it dies."""
    lock_file = db.with_name("queue.db-tubes")
    worker = process(WORKER, db)
    assert asked(worker, "take") == "None"
    if how != "dropped":
        if how == "replaced":
            shutil.copy(lock_file, lock_file.with_name("copy"))
        lock_file.unlink()
        if how == "replaced":
            lock_file.with_name("copy").rename(lock_file)
    with tubes.connect(f"sqlite:///{db}", sweep=False) as queue:
        tube = queue.tube.jobs
        tube.put_many(["first", "second", "third"])
        assert asked(worker, "take") == "first"
        if how == "dropped":
            assert asked(worker, "drop locks") == "dropped"
            queue.store.deaths_suspected()
        task = None
        taken = []
        while (task := tube.take(timeout=0)) is not None:
            taken.append(task)
        assert {task.data for task in taken} >= {"second", "third"}
        was_lost = "first" in {task.data for task in taken}
        assert asked(worker, "ack") in ({"LeaseLost", "NotTaken"} if was_lost else {"first"})
        tube.ack_many(taken)
        tube.put("fourth")
        assert asked(worker, "take") == "fourth"
        worker.kill()
        worker.wait()
        again = tube.take(timeout=0)
        assert again is not None and again.data == "fourth"
        tube.ack(again)
        assert tube.statistics()["tasks"]["total"] == 0


def test_a_database_that_is_deleted_under_a_queue_is_an_error(connect: Connect, db: Path) -> None:
    """What is written to a deleted file is lost, so writing soon fails with a StoreUnavailable that says why."""
    queue = connect()
    tube = queue.create_tube("jobs", "fifo")
    tube.put(1)
    for path in db.parent.iterdir():
        path.unlink()

    def refused() -> bool:
        try:
            tube.put("into nowhere")
        except tubes.StoreUnavailable as error:
            assert "deleted or replaced" in str(error)
            return True
        return False

    eventually(refused)
    with pytest.raises(tubes.StoreUnavailable, match="deleted or replaced"):
        tube.take(timeout=0)
    queue.close()
    again = connect().create_tube("jobs", "fifo")
    assert again.put(1).id == 1


OUT_OF_REACH = """
import os, sys, tubes
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
folder = sys.argv[1]
os.mkdir(folder)
queue = tubes.connect(f"sqlite:///{folder}/queue.db", durability="off", sweep=False)
tube = queue.create_tube("jobs", "fifo")
tube.put("x")
task = tube.take(timeout=0)
os.chmod(folder, 0)
queue.sweep()
tube.put("y")
os.chmod(folder, 0o700)
print(tube.ack(task).data, tube.take(timeout=0).data)
"""


def test_a_folder_that_is_out_of_reach_for_a_while_ends_no_session(public: Path) -> None:
    """Open files stay in use: a path that cannot be followed does not mean that the file is gone."""
    assert run(OUT_OF_REACH, public / "away").split() == ["x", "y"]


def test_a_database_whose_folder_was_renamed_is_opened_by_its_new_path(tmp_path: Path) -> None:
    """Even if the process still has it open by the old path, by which it can no longer be used."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with tubes.connect(f"sqlite:///{old}/queue.db", sweep=False) as left:
        jobs = left.create_tube("jobs", "fifo")
        jobs.put("x")
        jobs.take(timeout=0)
        old.rename(new)
        with pytest.raises(tubes.StoreUnavailable, match="deleted or replaced"):
            left.sweep()
        queue = tubes.connect(f"sqlite:///{new}/queue.db")
        task = queue.tube.jobs.take(timeout=0)
        assert task is not None and task.data == "x"
    with queue:
        assert queue.tube.jobs.ack(task).data == "x"
        with tubes.connect(f"sqlite:///{new}/queue.db") as another:
            one, two = cast("Any", queue.store), cast("Any", another.store)
            assert one._shared is two._shared
            assert another.tube.jobs.put("y").id == 2
    assert not (new / "queue.db-wal").exists()


@pytest.mark.parametrize("is_restored", [True, False], ids=["replaced", "deleted"])
def test_a_database_that_is_deleted_while_it_is_opened_is_an_error(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    """A connect may have to wait for the file's lock; unchecked, it would then write to the deleted file for life."""
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo").put("held")
        copy = copy_of(db)
    db.unlink()
    migrations = importlib.import_module("tubes.migrations.sqlite")
    bring_up = migrations.bring_up

    def meanwhile(*given: Any) -> None:
        bring_up(*given)
        restore(copy, db)
        if not is_restored:
            db.unlink()

    monkeypatch.setattr(migrations, "bring_up", meanwhile)
    with pytest.raises(tubes.StoreUnavailable, match="replaced while" if is_restored else "No such file"):
        tubes.connect(f"sqlite:///{db}", sweep=False)
    assert db.exists() is is_restored
    if is_restored:
        assert connect().tube.jobs.put(1).id == 2


def test_a_waiting_take_learns_that_the_database_was_deleted(connect: Connect, db: Path) -> None:
    """It ends with StoreUnavailable instead of waiting for ever for tasks that nobody can put."""
    tube = connect().create_tube("jobs", "fifo")
    failed: list[Exception] = []

    def consume() -> None:
        try:
            tube.take(timeout=60)
        except tubes.StoreUnavailable as error:
            failed.append(error)

    waiter = threading.Thread(target=consume)
    waiter.start()
    eventually(lambda: tube._store.waiters.count(tube.record.id) == 1)
    for path in db.parent.iterdir():
        os.unlink(path)
    ended(waiter)
    assert len(failed) == 1


def test_a_database_that_is_deleted_is_not_made_anew_by_a_fork(connect: Connect, db: Path) -> None:
    """A fork opens the file again; a new one would be empty, without tables, and in the way of a restore."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    for path in db.parent.iterdir():
        path.unlink()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert not db.exists()
    with pytest.raises(tubes.StoreUnavailable, match="deleted or replaced"):
        tube.put("into nowhere")
    with pytest.raises(tubes.StoreUnavailable, match="deleted or replaced"):
        queue.tubes()


def test_who_was_left_with_a_replaced_database_holds_nothing_in_the_new_one(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """The restored copy has the worker as a task's owner: it is alive, but can never ack that task."""
    with connect() as queue:
        queue.create_tube("jobs", "fifo").put("held")
        worker = process(WORKER, db)
        assert asked(worker, "take") == "held"
        copy = copy_of(db)
    restore(copy, db)
    eventually(lambda: asked(worker, "ack") == "StoreUnavailable")
    task = connect().tube.jobs.take(timeout=30)
    assert task is not None and task.data == "held"


def test_who_was_left_with_a_replaced_database_keeps_nobody_out_of_the_new_one(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """The copy is older than the idler's connection, so its number is given out again; it is idle, so unaware."""
    with connect() as queue:
        queue.create_tube("jobs", "fifo").put("x")
        copy = copy_of(db)
        assert heard(process(IDLER, db)) == "here"
    restore(copy, db)
    queues = [connect(), connect()]
    task = queues[0].tube.jobs.take(timeout=0)
    assert task is not None and queues[1].tube.jobs.take(timeout=0.3) is None
    queues[0].close()
    assert queues[1].tube.jobs.take(timeout=30) is not None


def test_a_lock_that_cannot_be_had_or_given_up_is_an_error_of_ours(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the system is out of locks. A queue that has lost its session takes once it can have a new one."""

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    tube.put("x")
    with closing(sqlite3.connect(db)) as other, other:
        other.execute("DELETE FROM tubes_connection")
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", fails)
        for _ in range(2):
            with pytest.raises(tubes.StoreUnavailable, match="No locks available"):
                queue.sweep()
    queue.sweep()
    task = tube.take(timeout=0)
    assert task is not None and tube.ack(task).data == "x"
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", fails)
        queue.close()
    assert str(db) not in [os.path.realpath(f"/dev/fd/{fd}") for fd in os.listdir("/dev/fd")]
