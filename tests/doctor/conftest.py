"""Stores that a test damages by hand, behind the back of whoever has them open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import eventually
from interpreter import PIPE, Process
from servers import conninfo, new_database

import tubes
from tubes.cli import run
from tubes.doctor import Doctor, Finding
from tubes.driver import Ref
from tubes.options import LONGEST_MS
from tubes.testing.suite import take

TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")
WORKER = Path(__file__).with_name("worker.py")


def plain(url: str) -> str:
    """A server's URL in the form that its own tools read."""
    ours = sa.make_url(url).difference_update_query(["dead_after"])
    return conninfo(ours.render_as_string(hide_password=False))


def called(damage: Any) -> str:
    """The name of a damage, as pytest shows it."""
    return str(damage.name).replace(" ", "-")


@dataclass
class Said:
    """How the command ended."""

    status: int
    out: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def kinds(self) -> set[str]:
        return {finding["kind"] for finding in self.findings}


@dataclass
class AnyPatient:
    """A store that is examined, of whatever kind."""

    url: str
    capture: Callable[[], Any]
    opened: list[tubes.Queue] = field(default_factory=list, kw_only=True)

    def connect(self, **settings: Any) -> tubes.Queue:
        """A queue in this process that does nothing by itself."""
        queue = tubes.connect(self.url, migrate=True, sweep=False, durability="off", **settings)
        self.opened.append(queue)
        return queue

    def examine(self, *, deep: bool = False) -> list[Finding]:
        """What is wrong, as a queue that is open already sees it."""
        return [*Doctor(self.opened[0], deep=deep).examine()]

    def doctor(self, *options: str) -> Said:
        """``tubes doctor --json``."""
        status = run(["doctor", self.url, "--json", *options])
        out, err = self.capture()
        assert not err, err
        return Said(status, out)


@dataclass
class Patient(AnyPatient):
    """A SQL store, and what can be done to it."""

    path: Path | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    def sql(self, text: str, *given: Any) -> list[tuple[Any, ...]]:
        """Run one statement as no driver would."""
        if self.path is None:
            with psycopg.connect(plain(self.url), autocommit=True) as server:
                cursor = server.execute(text.replace("?", "%s").encode(), given)
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("PRAGMA foreign_keys=OFF")  # the default, unless SQLite was built otherwise
            db.execute("PRAGMA ignore_check_constraints=ON")
            return db.execute(text, given).fetchall()

    def add_connection(self, session: str) -> None:
        """Add one such as a killed process leaves behind."""
        columns, values = "session, host, pid, started_ms", "?, 'here', 1, 1"
        if not self.is_sqlite:
            columns, values = f"{columns}, beat_every_ms", f"{values}, 500"
        self.sql(f"INSERT INTO tubes_connection ({columns}) VALUES ({values})", session)

    def behind(self, index: str, text: str) -> None:
        """Run one statement that an index does not hear of. Nobody may have the file open."""
        (row,) = self.sql("SELECT * FROM sqlite_master WHERE name = ?", index)
        assert self.path is not None
        for statement, given in (
            ("DELETE FROM sqlite_master WHERE name = ?", (index,)),
            (text, ()),
            ("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row),
        ):
            with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
                db.execute("PRAGMA writable_schema = ON")
                db.execute(statement, given)

    def overwrite(self, index: str) -> None:
        """Damage the first page of an index. Nobody may have the file open."""
        (root,) = self.sql("SELECT rootpage FROM sqlite_master WHERE name = ?", index)[0]
        (size,) = self.sql("PRAGMA page_size")[0]
        assert self.path is not None
        with self.path.open("r+b") as raw:
            raw.seek((root - 1) * size)
            raw.write(b"\xff" * 12)

    def rows(self, *tables: str) -> list[list[tuple[Any, ...]]]:
        """All that is in these tables, except the beats of living sessions."""
        columns = {"connection": "id, session, host, pid, started_ms"}
        return [
            sorted(self.sql(f"SELECT {columns.get(table, '*')} FROM tubes_{table}"), key=repr)
            for table in tables or ("tube", "task", "session", "connection", "calls")
        ]


@pytest.fixture(scope="session")
def _doctors_database(postgres_url: str) -> Iterator[str]:
    with new_database(postgres_url) as url:
        hasty = sa.make_url(url).update_query_dict({"dead_after": "2.5"})  # the dead are noticed soon
        yield hasty.render_as_string(hide_password=False)


@pytest.fixture
def doctors_url(_doctors_database: str) -> str:
    """A database with our tables, all empty, as when they were made."""
    with tubes.connect(_doctors_database, migrate=True, sweep=False):
        pass
    with psycopg.connect(plain(_doctors_database), autocommit=True) as server:
        server.execute(
            "TRUNCATE tubes_tube, tubes_task, tubes_temporary_task, tubes_session, tubes_connection, tubes_calls"
            " RESTART IDENTITY"
        )
    return _doctors_database


P = TypeVar("P", bound=AnyPatient)


@contextmanager
def opened(patient: P) -> Iterator[P]:
    patient.connect()
    yield patient
    for queue in patient.opened:
        queue.close()


@pytest.fixture
def file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Patient]:
    """A SQLite file, for what cannot happen on a server."""
    with opened(Patient(f"sqlite:///{tmp_path}/q.db", capfd.readouterr, tmp_path / "q.db")) as patient:
        yield patient


@pytest.fixture
def database(doctors_url: str, capfd: pytest.CaptureFixture[str]) -> Iterator[Patient]:
    """A database on a server, for what cannot happen in a file."""
    with opened(Patient(doctors_url, capfd.readouterr)) as patient:
        yield patient


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def patient(request: pytest.FixtureRequest) -> Iterator[Patient]:
    """A patient on each store."""
    if request.param == "sqlite":
        yield request.getfixturevalue("file")
    else:
        yield request.getfixturevalue("database")


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Iterator[Patient]:
    """A patient on each store, for tests that leave more behind than rows in our tables."""
    if request.param == "sqlite":
        yield request.getfixturevalue("file")
        return
    with opened(Patient(request.getfixturevalue("postgres_db"), capfd.readouterr)) as patient:
        yield patient


def fill(queue: tubes.Queue, type: str, name: str = "jobs", **options: Any) -> tubes.Tube:
    """A tube with nine tasks, numbered from 0, in three sub-queues if its type has them."""
    if type == "limfifottl":
        options["capacity"] = 20
    tube = queue.create_tube(name, type, **options)
    for number in range(9):
        settings: dict[str, Any] = {}
        if tube.features.grouped:
            settings["utube"] = "abc"[number % 3]
        if tube.features.priority:
            settings["pri"] = 1
        if tube.features.timed:
            settings |= {"ttl": 3600, "ttr": 600}
        tube.put(number, **settings)
    return tube


def drain(tube: tubes.Tube) -> list[Any]:
    """Take and ack all that is there, buried tasks too."""
    tube.kick(100)
    data = []
    while task := tube.take(timeout=0):
        tube.ack(task)
        data.append(task.data)
    assert tube.statistics()["tasks"]["total"] == 0
    return data


def touch_often(tube: tubes.Tube, task: tubes.Task) -> None:
    """Touch as two thousand touches by the longest duration would."""
    queue, refs = tube._queue, [Ref(task.id, task.token)]
    for _ in range(10):
        queue.store.transact(
            lambda tx: tube.driver.touch(tx, refs, 200 * LONGEST_MS, owner=None, now=queue.clock.now_ms())
        )


def do_everything(queue: tubes.Queue) -> None:
    """Every verb and state, payloads of both kinds, a temporary and a dropped tube, odd names and numbers."""
    for type in TYPES:
        tube = fill(queue, type, type)
        tube.put(b"\xff\x00")
        tube.put({"\ud800": "\u0000"})
        for verb in ("ack", "release", "bury", "delete"):
            task = take(tube)
            getattr(tube, verb)(task)
        if tube.features.timed:
            tube.put("later", delay=60, ttl=3600)
            tube.touch(tube.take(timeout=0) or 0, 30)
            tube.release(tube.take(timeout=0) or 0, delay=90)
            tube.put("without", ttl=3600)
            tube.put("long", ttl=2**40, ttr=2**40)
        if tube.features.priority:
            tube.put("first", pri=0)
            tube.put("last", pri=2**53)
        if tube.features.grouped:
            tube.put("odd", utube="a \x01 b\n ")
            tube.put("odd", utube="\U0010ffff")
        assert tube.take(timeout=0) is not None
        tube.bury(tube.put("aside"))
        assert tube.kick(1) == 1
    fill(queue, "utubettl", "gone")
    queue.drop_tube("gone")
    queue.create_tube("fleeting", "utubettl", temporary=True).put("x", utube="a")


def find_nothing(patient: AnyPatient, stored: Callable[[], Any]) -> None:
    """Neither the doctor nor its command finds or writes anything."""
    queue = patient.opened[0]
    queue.flush_counts()
    before = stored()
    for deep in (False, True):
        doctor = Doctor(queue, deep=deep)
        assert [*doctor.examine()] == []
        assert [*doctor.repair()] == []
    for options in ((), ("--deep",), ("--deep", "--fix")):
        said = patient.doctor(*options)
        assert (said.status, said.out) == (0, "")
    assert stored() == before


def make_all_types(queue: tubes.Queue) -> None:
    """A tube of each type, of the same name."""
    for type in TYPES:
        bound: dict[str, Any] = {"capacity": 30} if type == "limfifottl" else {}
        queue.create_tube(type, type, **bound)


def find_nothing_while_others_work(
    patient: AnyPatient, make: Callable[[tubes.Queue], object] = make_all_types
) -> None:
    """Find nothing while two processes do everything at random to all the tubes that are made."""
    queue = patient.opened[0]
    make(queue)
    workers = [Process([WORKER, patient.url, *queue.tubes()], stdin=PIPE) for _ in range(2)]
    try:
        eventually(lambda: all(stats["calls"]["take"] for stats in queue.statistics().values()))
        doctor = Doctor(queue, deep=True)
        for look in (doctor.examine, doctor.repair, Doctor(queue).examine):
            assert [*look()] == []
        assert [worker.poll() for worker in workers] == [None] * 2
    finally:
        for worker in workers:
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0] * 2


def use_beside_unreadable_jobs(url: str, type: str) -> None:
    """The tube ``others`` works as ever; ``jobs``, whose entry cannot be read, does not work at all."""
    with tubes.connect(url) as queue:
        assert queue.tubes() == ["others", "jobs"] and queue.sweep() == 0
        assert len(drain(queue.tube.others)) == 9
        for use in (
            queue.get_tube,
            queue.drop_tube,
            partial(queue.create_tube, type=type, if_not_exists=True),
        ):
            with pytest.raises(tubes.StoreError, match="entry of tube 'jobs' cannot be read: "):
                use("jobs")
