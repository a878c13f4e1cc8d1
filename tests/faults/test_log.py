"""One connection at a time copies the write-ahead log into the database: docs/decisions/one-copies-the-log.md."""

from __future__ import annotations

import importlib
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults.harness import Connect, eventually, heard, quiet

import tubes

ANOTHER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0x40000200, 1, 0))
print("copies", flush=True)
sys.stdin.readline()
"""
"""A program that keeps all others from copying the log of a database."""


def begun(db: Path) -> int:
    """How often the log has been restarted, as its header says."""
    return int.from_bytes(db.with_name(f"{db.name}-wal").read_bytes()[12:16])


def salt(db: Path) -> bytes:
    """A value that changes each time anybody restarts the log."""
    return db.with_name(f"{db.name}-wal").read_bytes()[16:24]


def copies(queue: tubes.Queue) -> list[int]:
    """The number of pages at which each connection of a queue copies the log by itself; 0: never."""
    store: Any = queue.store
    return [db.execute("PRAGMA wal_autocheckpoint").fetchone()[0] for db in (store.writer.db, store._reader)]


def put_long(tube: tubes.Tube, count: int) -> None:
    for _ in range(count):
        tube.put("x" * 20_000)


@pytest.mark.slow
def test_nobody_copies_the_log_while_another_may(
    connect: Connect, db: Path, process: Callable[..., Any]
) -> None:
    """The log grows meanwhile, and is restarted once the other process is gone, even if it was killed."""
    tube = connect(durability="full", sweep=False).create_tube("jobs", "fifo")
    another = process(ANOTHER, db)
    assert heard(another) == "copies"
    was = begun(db)
    put_long(tube, 200)
    assert begun(db) == was and db.with_name(f"{db.name}-wal").stat().st_size > 4_000_000
    another.send_signal(signal.SIGKILL)
    another.wait()
    put_long(tube, 150)  # it asks again only after 128
    assert begun(db) == was + 1
    assert tube._queue.statistics("jobs")["tasks"]["ready"] == 350


@pytest.mark.slow
def test_what_others_add_meanwhile_is_copied_too(connect: Connect, db: Path) -> None:
    """Else the log would grow for as long as others keep writing: only a fully copied log is restarted."""
    queue = quiet(connect, durability="full")
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint=0")
        put_long(tube, 70)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM tubes_task").fetchone()  # the log may be copied up to here
        store.writer.log._left = 0
        put_long(tube, 1)
        other.execute("COMMIT")
        was = salt(db)
        other.execute("UPDATE tubes_task SET data = 'x' WHERE id = 1")
        assert salt(db) == was
        put_long(tube, 1)
        assert salt(db) == was
        put_long(tube, 1)
        assert salt(db) != was


def test_who_waits_for_the_lock_leaves_the_log_to_others(connect: Connect, db: Path) -> None:
    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    hold, log = store._shared.hold, store.writer.log
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        log._left = 0
        waits = threading.Thread(target=tube.put, args=(1,))
        waits.start()
        eventually(lambda: store.writer._owner == waits.ident)
        eventually(lambda: hold.claim("another"), 5)
        assert copies(queue)[0] == 0
        hold.disclaim("another")
        other.execute("COMMIT")
        waits.join()
    assert copies(queue)[0] == 0
    assert log._left == 0, "the next commit is not due"


def test_who_shortens_the_log_waits_with_the_others_kept_from_it(connect: Connect, db: Path) -> None:
    """Else it might copy when others have already copied what it wrote: there lies the danger."""
    queue = quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    put_long(tube, 10)
    store: Any = queue.store
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store._long_log = 1
        shortens = threading.Thread(target=store.tidy)
        shortens.start()
        eventually(lambda: store.writer.db.in_transaction or store._shared.hold._checkpointer)
        for _ in range(20):
            assert not store._shared.hold.claim("another")
            time.sleep(0.002)  # it tries again meanwhile, in real time
        other.execute("COMMIT")
        shortens.join()
    assert db.with_name(f"{db.name}-wal").stat().st_size == 0


def test_who_shortens_the_log_leaves_a_session_that_it_has_joined_its_ttr(connect: Connect, db: Path) -> None:
    """What it writes in order to shorten the log changes nothing."""
    queue, other = quiet(connect, session_ttr=60), quiet(connect)
    tube = queue.create_tube("jobs", "fifo")
    put_long(tube, 10)
    held = tube.take(0)
    session = other.identify(queue.identify())
    store: Any = other.store
    store._long_log = 1
    store.tidy()
    assert db.with_name(f"{db.name}-wal").stat().st_size == 0
    queue.close()
    other.close()
    later = quiet(connect)
    later.identify(session)
    assert held is not None and later.tube.jobs.ack(held).id == held.id


def by_itself(queue: tubes.Queue, tube: tubes.Tube) -> None:
    put_long(tube, 150)


def in_a_transaction(queue: tubes.Queue, tube: tubes.Tube) -> None:
    for _ in range(150):
        with queue.transaction() as unit:
            tube.put("x" * 20_000, unit=unit)


def with_other_threads(queue: tubes.Queue, tube: tubes.Tube) -> None:
    threads = [threading.Thread(target=put_long, args=(tube, 150)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("put", [by_itself, in_a_transaction, with_other_threads])
def test_every_way_to_commit_copies_the_log(
    connect: Connect, db: Path, put: Callable[[tubes.Queue, tubes.Tube], None]
) -> None:
    """It does so now and then; no other commit of any connection does."""
    queue = quiet(connect, durability="full")
    tube = queue.create_tube("jobs", "fifo")
    assert copies(queue) == [0, 1000]
    was = begun(db)
    put(queue, tube)
    assert begun(db) > was
    assert copies(queue) == [0, 1000]


def test_two_queues_of_one_process_do_not_copy_at_once(connect: Connect, db: Path) -> None:
    """Nor do queues of two namespaces."""
    shared = importlib.import_module("tubes.drivers.sql.sqlite_shared").SharedFile
    connect()
    connect(namespace="other")
    ours, others = shared.open(str(db), "tubes", None, "a"), shared.open(str(db), "other", None, "b")
    try:
        assert ours.hold.claim("a") and ours.hold.claim("a")
        assert not ours.hold.claim("b") and not others.hold.claim("b")
        ours.hold.disclaim("b")  # which does not hold it
        assert not others.hold.claim("b")
        ours.hold.disclaim("a")
        assert others.hold.claim("b") and not ours.hold.claim("a")
        others.hold.disclaim("b")
        assert ours.hold.claim("a")
    finally:
        ours.release("a")
        others.release("b")


def test_a_commit_that_fails_leaves_the_log_to_others(connect: Connect, db: Path) -> None:
    queue = connect(sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    store: Any = queue.store
    store.writer.db.execute(
        "CREATE TRIGGER never BEFORE INSERT ON tubes_task BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(tubes.StoreError), queue.transaction() as unit:
        store.writer.log._left = 0
        tube.put(1, unit=unit)
    with pytest.raises(tubes.StoreError):
        store.writer.log._left = 0
        tube.put(1)
    assert copies(queue)[0] == 0
    assert store.writer.log._left > 0 and store._shared.hold.claim("another")
    store._shared.hold.disclaim("another")
