"""A full disk, a file that cannot be written, or one that is no database: a clear error, nothing half stored."""

from __future__ import annotations

import importlib
import os
import sqlite3
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults.harness import DESCRIPTORS, TYPES, Connect, ended, heard, quiet, run

import tubes
from tubes.testing.suite import take


@pytest.mark.parametrize(
    ("durability", "synchronous"), [(None, 2), ("full", 2), ("normal", 1), ("off", 0)], ids=str
)
def test_a_commit_waits_for_the_disk_as_the_durability_says(
    connect: Connect, durability: str | None, synchronous: int
) -> None:
    """2 is SQLite's FULL, which syncs each commit; it also applies without an option."""
    with connect(durability=durability).transaction() as unit:
        assert unit.connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous


def limit_pages(queue: tubes.Queue, pages: int) -> None:
    """Limit the database to so many pages, as a full disk would."""
    queue.store.writer.db.execute(f"PRAGMA max_page_count={pages}")  # type: ignore[attr-defined]


def fill(tube: tubes.Tube, options: dict[str, Any]) -> int:
    """Put until the disk is full; return how many puts succeeded."""
    stored = 0
    with pytest.raises(tubes.StoreUnavailable, match="the disk is full"):
        while stored < 10_000:
            tube.put("x" * 500, **options)
            stored += 1
    return stored


@pytest.mark.parametrize("type", TYPES)
def test_a_full_disk_is_an_error_and_stores_nothing_by_halves(connect: Connect, type: str) -> None:
    """What was put is there, what was refused is not; takes and acks work, and so do puts once there is room."""
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", type)
    events: list[tuple[tubes.Event, int]] = []
    tube.on_task_change(lambda task, event: events.append((event, task.id)))
    options: Any = {"utube": "a"} if tube.features.grouped else {}
    limit_pages(queue, 150)
    stored = fill(tube, options)
    assert stored > 20
    assert tube.statistics()["tasks"] == {
        "ready": stored, "taken": 0, "buried": 0, "delayed": 0, "total": stored, "done": 0,
    }  # fmt: skip
    assert len(events) == stored
    with pytest.raises(tubes.StoreUnavailable):
        tube.put_many(["y" * 500] * 50, **options)
    with pytest.raises(tubes.StoreUnavailable), queue.transaction() as unit:
        tube.take(timeout=0, unit=unit)
        for _ in range(50):
            tube.put("z" * 500, unit=unit, **options)
    assert tube.statistics()["tasks"]["ready"] == stored and len(events) == stored
    for _ in range(10):
        task = take(tube)
        tube.ack(task)
    tube.put("there is room now", **options)
    limit_pages(queue, 100_000)
    tube.put_many(["y" * 500] * 50, **options)
    assert tube.statistics()["tasks"]["ready"] == stored - 10 + 1 + 50
    assert len([task for task in iter(lambda: tube.take(timeout=0, ack=None), None) if tube.ack(task)])
    assert tube.statistics()["tasks"]["total"] == 0


def test_a_shared_commit_that_finds_the_disk_full_fails_for_all_of_it(connect: Connect) -> None:
    """Eight threads put until the disk is full: each put that returned is stored, and no other."""

    queue = connect(sweep=False, durability="full")
    tube = queue.create_tube("jobs", "fifo")
    limit_pages(queue, 150)
    stored: list[int] = []
    errors: list[tubes.TubeError] = []

    def put() -> None:
        try:
            while True:
                stored.append(tube.put("x" * 500).id)
        except tubes.TubeError as error:
            errors.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert [type(error) for error in errors] == [tubes.StoreUnavailable] * 8
    assert [task.id for task in tube.tasks("r", limit=10_000)] == sorted(stored)


LIMITED = """
import resource, signal, sys, tubes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
queue = tubes.connect("sqlite:///" + sys.argv[1], durability="off", sweep=False)
tube = queue.create_tube("jobs", "fifo")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
stored = []
try:
    while True:
        stored.append(tube.put("x" * 1000).id)
except tubes.StoreUnavailable as error:
    assert "disk" in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert [task.id for task in tube.tasks("r", limit=10_000)] == stored and len(stored) > 20
tube.put("after")
taken = tube.take_many(10_000, timeout=0)
assert len(tube.ack_many(taken)) == len(stored) + 1
print("ok")
"""


UNREADABLE = """
import os, sys, tubes
path = sys.argv[1]
with tubes.connect("sqlite:///" + path, sweep=False) as queue:
    tube = queue.create_tube("jobs", "fifo")
    tube.put_many(["x" * 500] * 200)
queue = tubes.connect("sqlite:///" + path, sweep=False)
tube = queue.tube.jobs
opened = [int(fd) for fd in os.listdir("/dev/fd") if os.path.realpath("/dev/fd/" + fd) == path]
other = os.open(sys.argv[2], os.O_RDONLY)
for fd in opened:
    os.dup2(other, fd)
try:
    tube.tasks("r")
except tubes.StoreUnavailable as error:
    print(error, flush=True)
os._exit(0)  # it could not end in good order
"""


def test_a_disk_that_does_not_read_is_told_where_several_reads_are_one(db: Path) -> None:
    """SQLite has ended their transaction by then: that it cannot be ended again is not the error told."""
    assert "the disk cannot be read or written, or has no room or quota left (disk I/O error)" in run(
        UNREADABLE, db, "/"
    )


def test_a_disk_that_is_gone_is_not_told_as_damage_alone(db: Path) -> None:
    """SQLite calls a file malformed when the kernel says EIO, as for the first bytes of that memory."""
    assert "it is damaged, or its disk cannot be read (database disk" in run(UNREADABLE, db, "/proc/self/mem")


UNTOLD = """
import os, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
os.close(queue.store._shared.hold._fd)
for n in range(1000):
    tube.put(n)
queue.close()
print("closed")
"""


def test_a_disk_that_does_not_tell_about_a_file_is_left_to_sqlite(db: Path) -> None:
    """Where even ``fstat`` fails, calls raise errors of ours, and ``close`` none: the rest is SQLite's to say."""
    assert run(UNTOLD, db) == "closed"


MAPS = """
import re, sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
print(*re.findall(r" (\\S+) .*db-tubes$", open("/proc/self/maps").read(), re.M))
"""


def test_a_disk_that_stops_or_fails_does_not_reach_the_interpreter_by_its_memory(db: Path) -> None:
    """A write to mapped memory waits, with all threads, for a frozen disk, and a disk that is gone kills it."""
    assert run(MAPS, db) == "r--s"


def test_a_log_that_cannot_grow_is_an_error_and_loses_nothing(db: Path) -> None:
    """The kernel refuses to let the write-ahead log grow: the put fails whole, and puts work again when it may."""
    assert run(LIMITED, db) == "ok"


WITHOUT_FURTHER_FILES = """
import sys, tubes
queue = tubes.connect("sqlite:///" + sys.argv[1], sweep=False)
tube = queue.create_tube("jobs", "fifo")
tube.put_many(["x" * 500] * 1000)
with free_descriptors(0):
    try:
        os.dup(0)
        raise SystemExit("a file can be opened still")
    except OSError:
        pass
    print(len(tube.ack_many(tube.take_many(500, timeout=0))))
    with queue.transaction() as unit:
        print(len(tube.ack_many(tube.take_many(500, timeout=0, unit=unit), unit=unit)))
"""


def test_a_batch_needs_no_temporary_file(db: Path) -> None:
    """SQLite would use one to undo a statement. A container with a read-only root has no place for it."""
    assert run(DESCRIPTORS + WITHOUT_FURTHER_FILES, db).split() == ["500", "500"]


POWERLESS = """
import os, sys, tubes
with tubes.connect("sqlite://") as queue:  # so that all modules are loaded while they can be
    queue.create_tube("t", "fifo").put(1)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    tubes.connect("sqlite:///" + sys.argv[1], busy_timeout=1, migrate=len(sys.argv) < 3).tube.jobs.put("never")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("what", ["file", "folder and file", "lock file"])
def test_what_may_not_be_written_is_an_error(public: Path, what: str) -> None:
    """A process that lacks the right to write is told so; the tasks stay, for those who have it."""
    db = public / "queue.db"
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo").put("kept")
    for path in public.iterdir():
        path.chmod(0o444 if (path.name == "queue.db") == (what != "lock file") else 0o666)
    if what == "folder and file":
        public.chmod(0o555)
    said = run(POWERLESS, db)
    assert said.startswith("StoreUnavailable"), said
    assert str(db) in said and ("read-only" in said or "cannot be opened" in said or "denied" in said.lower())
    public.chmod(0o777)
    for path in public.iterdir():
        path.chmod(0o666)
    with tubes.connect(f"sqlite:///{db}") as queue:
        assert [task.data for task in queue.tube.jobs.tasks("r")] == ["kept"]


def test_a_folder_that_may_not_be_written_is_told_from_a_file(public: Path) -> None:
    """SQLite keeps its log there, and calls the database read-only, though all may write it."""
    db = public / "queue.db"
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo")
    for path in public.iterdir():
        path.chmod(0o666)
    public.chmod(0o555)
    assert "its folder is read-only" in run(POWERLESS, db)
    public.chmod(0o777)


def test_a_folder_that_may_not_be_entered_is_not_told_as_a_file_without_tables(public: Path) -> None:
    """``tubes migrate`` would not help: the file is there, or may be, but this user cannot see it."""
    with tubes.connect(f"sqlite:///{public / 'queue.db'}") as queue:
        queue.create_tube("jobs", "fifo")
    public.chmod(0o000)
    assert "its folder is read-only" in run(POWERLESS, public / "queue.db", "looks only")
    public.chmod(0o777)


def test_who_may_not_write_the_database_leaves_nothing_beside_it(public: Path) -> None:
    """A file made beside it gets its permissions, and would keep out those who may write it, now or later."""
    db = public / "queue.db"
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo").put("kept")
    (public / "queue.db-tubes").unlink()
    db.chmod(0o444)
    said = run(POWERLESS, db)
    assert said.startswith("StoreUnavailable") and "read-only" in said
    assert [path.name for path in public.iterdir()] == ["queue.db"]


def test_who_may_write_the_database_may_use_its_lock_file(public: Path) -> None:
    """If root, or a user with another umask, opens it first, it keeps nobody out, like SQLite's own files."""
    db = public / "queue.db"
    db.touch()
    db.chmod(0o660)
    if os.geteuid() == 0:
        os.chown(db, 65534, 65534)
    with tubes.connect(f"sqlite:///{db}"):
        files = sorted(path.name for path in public.iterdir())
        allowed = {
            (status.st_mode, status.st_uid, status.st_gid) for status in map(Path.stat, public.iterdir())
        }
    assert files == ["queue.db", "queue.db-shm", "queue.db-tubes", "queue.db-wal"]
    assert len(allowed) == 1


def test_a_file_that_is_no_database_is_an_error_and_stays_as_it_is(db: Path) -> None:
    """The error names it, and neither it nor its folder is changed."""
    db.write_bytes(b"Dear diary, today I was opened by a queue." * 200)
    before = db.read_bytes()
    with pytest.raises(tubes.StoreUnavailable, match=r"queue\.db.*not a SQLite database"):
        tubes.connect(f"sqlite:///{db}")
    assert db.read_bytes() == before
    assert [path.name for path in db.parent.iterdir()] == ["queue.db"]


def test_a_damaged_database_is_an_error(db: Path) -> None:
    """Overwritten pages raise a StoreError, at the latest when they are read."""
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "fifo").put_many(["x" * 1000] * 100)
    content = bytearray(db.read_bytes())
    content[1024:] = b"\xa5" * (len(content) - 1024)
    db.write_bytes(content)
    with pytest.raises(tubes.StoreError), tubes.connect(f"sqlite:///{db}") as queue:
        queue.tube.jobs.take_many(100, timeout=0)


def test_a_damaged_name_that_is_no_text_is_an_error(db: Path) -> None:
    """SQLite quotes it, and Python cannot decode what SQLite says."""
    with tubes.connect(f"sqlite:///{db}") as queue:
        queue.create_tube("jobs", "utube").put_many([1, 2], utube="a")
    db.write_bytes(db.read_bytes().replace(b"CREATE INDEX", b"CREATE \xffNDEX"))
    with pytest.raises(tubes.StoreUnavailable, match=r"it is damaged \(malformed"):
        tubes.connect(f"sqlite:///{db}")


@pytest.mark.parametrize("name", ["a%00b.db", "a\0b.db", "a\ud800b.db"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(tubes.BadOption, match="no file can have the name") as caught:
        tubes.connect(f"sqlite:///{tmp_path}/{name}")
    assert caught.value.option == "url"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A path that is a folder is refused, and nothing is made in it."""
    with pytest.raises(tubes.StoreUnavailable, match="cannot be opened"):
        tubes.connect(f"sqlite:///{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """The error names the path, and nothing is made."""
    with pytest.raises(tubes.StoreUnavailable, match=r"nowhere/queue\.db.* a folder that exists"):
        tubes.connect(f"sqlite:///{tmp_path}/nowhere/queue.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("folders", "length"), [(0, 247), (2, 504)])
def test_a_name_or_a_path_that_is_too_long_for_sqlite_is_told_so(
    tmp_path: Path, folders: int, length: int
) -> None:
    """The kernel would take 255 bytes and 4095, but SQLite has files beside it, and little room for their paths."""
    folder = tmp_path.joinpath(*["f" * 100] * folders)
    folder.mkdir(parents=True, exist_ok=True)
    name = "n" * (length - (len(f"{folder}/") if folders else 0))
    with tubes.connect(f"sqlite:///{folder}/{name}") as queue:
        assert queue.create_tube("jobs", "fifo").put(1).id == 1
    with pytest.raises(tubes.StoreUnavailable, match="its name shorter than 248 bytes and its path than 505"):
        tubes.connect(f"sqlite:///{folder}/{name}n")


def test_a_current_folder_that_was_removed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is relative to it leads nowhere."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(tubes.StoreUnavailable, match=r"queue\.db cannot be used: no current folder"):
        tubes.connect("sqlite:///queue.db")


def test_a_question_mark_in_a_url_is_refused(tmp_path: Path) -> None:
    """What follows it would be left out of the file's name."""
    with pytest.raises(tubes.BadOption, match="bad SQLite URL"):
        tubes.connect(f"sqlite:///{tmp_path}/jobs?1.db")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "place", ["host", "ann:secret@", "ann:pa@secret@host", "ann@host", ":80", "host/db?password=secret&x="]
)
def test_a_user_or_a_host_in_a_url_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has neither, and the password would protect nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tubes.BadOption, match="bad SQLite URL") as refused:
        tubes.connect(f"sqlite://{place}/jobs.db")
    assert "secret" not in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_what_stands_where_a_port_must_be_is_not_shown() -> None:
    url = "sqlite://ann:s3cret"
    with pytest.raises(tubes.BadOption, match="cannot be read") as refused:
        tubes.connect(url)
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


def test_an_empty_file_is_a_new_queue(db: Path, connect: Connect) -> None:
    """SQLite itself creates a new database as a file of no bytes."""
    db.touch()
    assert connect().create_tube("jobs", "fifo").put(1).id == 1


def test_readers_that_follow_one_another_do_not_let_the_log_grow(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite restarts its log when nobody reads: here somebody always does. A long reader is left alone."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.sql.sqlite"), "LONG_LOG", 1 << 20)
    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    readers = [sqlite3.connect(db, isolation_level=None, check_same_thread=False) for _ in range(2)]
    log = db.with_name(f"{db.name}-wal")
    readers[1].execute("BEGIN")
    for turn in range(6):
        readers[turn % 2].execute("BEGIN")
        readers[turn % 2].execute("SELECT count(*) FROM tubes_task").fetchone()
        readers[1 - turn % 2].execute("COMMIT")
        tube.put("x" * 500_000)
    assert log.stat().st_size > 2 << 20
    queue.store.tidy()
    assert log.stat().st_size > 2 << 20  # one still reads: tidy waited for it, but not for ever
    tube.put_many(["x" * 500_000] * 8)
    timer = threading.Timer(0.1, readers[1].execute, ("COMMIT",))
    timer.start()
    queue.store.tidy()
    timer.join()
    assert log.stat().st_size == 0
    assert [task.data for task in tube.tasks("r")] == ["x" * 500_000] * 14
    for reader in readers:
        reader.close()


def test_a_log_that_grew_while_somebody_read_for_long_is_cut_off_afterwards(
    connect: Connect, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a backup, say. The log need not stay that long for as long as a process has the file open."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.sql.sqlite"), "LONG_LOG", 1 << 20)
    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    log = db.with_name(f"{db.name}-wal")
    with closing(sqlite3.connect(db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tubes_task").fetchone()
        tube.put_many(["x" * 500_000] * 20)
        queue.store.tidy()  # in vain
        assert log.stat().st_size > 8 << 20
    for _ in range(300):  # after some of these SQLite copies the log and restarts it
        tube.put("y")
    queue.store.tidy()
    assert log.stat().st_size <= 1 << 20
    with closing(sqlite3.connect(db, isolation_level=None)) as reader:
        tube.put_many(["x" * 500_000] * 4)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tubes_task").fetchone()
        tube.put("y")
    assert 1 << 20 < log.stat().st_size < 8 << 20
    queue.store.tidy()  # it is tried again, though the log was far longer when it was tried in vain
    assert log.stat().st_size == 0


NO_SYNC = """
import ctypes, os, platform, signal, struct, sys, threading, tubes

def fail_to_sync():
    \"\"\"Have the kernel answer EIO to fsync and fdatasync in this process, from now on; tell whether it can.\"\"\"
    numbers = {"x86_64": (74, 75), "aarch64": (82, 83)}.get(platform.machine(), (118, 148))
    load, equals, answer, errno, allow = 0x20, 0x15, 0x06, 0x00050005, 0x7FFF0000
    steps = [(load, 0, 0, 0), (equals, 1, 0, numbers[0]), (equals, 0, 1, numbers[1])]
    steps += [(answer, 0, 0, errno), (answer, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    given = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(program)))
    system = ctypes.CDLL(None)
    if system.prctl(38, 1, 0, 0, 0) or system.prctl(22, 2, given, 0, 0):
        return False
    try:
        os.fsync(os.open("/", os.O_RDONLY))
    except OSError:
        return True
    return False

queue, other = (tubes.connect("sqlite:///" + sys.argv[1], durability="full", sweep=False) for _ in range(2))
queue._sweeper.stop()
other._sweeper.stop()
tube = queue.create_tube("jobs", "fifo")
tube.put("held")
held = tube.take(timeout=0)
if not fail_to_sync():
    print("no such filter", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def in_a_transaction():
    with queue.transaction() as unit:
        tube.put("late", unit=unit)

def together():
    errors = []
    def put(data):
        try:
            tube.put(data)
        except tubes.TubeError as error:
            errors.append(error)
    with queue.store.writer.held():  # all stand in line meanwhile
        threads = [threading.Thread(target=put, args=(data,)) for data in ("late", "later")]
        for thread in threads:
            thread.start()
        while len(queue.store.writer._line) < 2:
            pass
    for thread in threads:
        thread.join()
    assert len(errors) == 2 and type(errors[0]) is type(errors[1])
    raise errors[0]

def closed():
    other.close()
    if len(queue.store.read(queue.store.known_sessions)) > 1:
        raise tubes.StoreError("its session is still there")

calls = {
    "put": lambda: tube.put("late"),
    "put_many": lambda: tube.put_many(["late", "later"]),
    "ack": lambda: tube.ack(held),
    "transaction": in_a_transaction,
    "shared": together,
    "counts": queue.flush_counts,
    "connect": lambda: tubes.connect("sqlite:///" + sys.argv[1], durability="full", sweep=False),
    "close": closed,
}
try:
    calls[sys.argv[2]]()
except tubes.TubeError as error:
    stored = [task.data for state in "rt" for task in tube.tasks(state)]
    print(type(error).__name__, *stored, flush=True)
else:
    level = queue.store.writer.db.execute("PRAGMA synchronous").fetchone()[0]
    print(f"done, {level}", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def said_without_syncs(process: Callable[..., Any], db: Path, call: str) -> str:
    """What a process says that cannot sync anything while it does that call."""
    unsynced = process(NO_SYNC, db, call)
    said = heard(unsynced)
    unsynced.wait()
    if said == "no such filter":  # it is the kernel that lacks something, which nobody can install
        pytest.skip("this kernel lets no process refuse itself a sync")
    return said


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("put", "held late"),
        ("put_many", "held late later"),
        ("ack", ""),
        ("transaction", "held late"),
        ("shared", "held late later"),
    ],
)
def test_a_commit_that_the_disk_does_not_sync_may_have_been_made(
    db: Path, process: Callable[..., Any], call: str, left: str
) -> None:
    """While the process lives, nobody sees it; but it is in the log, and whoever reads that afresh finds it."""
    assert said_without_syncs(process, db, call) == "OutcomeUnknown held"
    with tubes.connect(f"sqlite:///{db}") as queue:
        assert " ".join(task.data for state in "tr" for task in queue.tube.jobs.tasks(state)) == left


@pytest.mark.parametrize("call", ["counts", "connect", "close"])
def test_counts_and_sessions_wait_for_no_disk(db: Path, process: Callable[..., Any], call: str) -> None:
    """No session outlives a power cut, and the next put or take that is stored makes all before it safe as well."""
    assert said_without_syncs(process, db, call) == "done, 2"  # and what comes next is synced
    if call == "counts":
        with tubes.connect(f"sqlite:///{db}") as queue:
            assert queue.statistics("jobs")["calls"]["put"] == 1
