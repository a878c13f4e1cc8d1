"""The schema: its versions go up and down with rows in the tables, and keep to themselves."""

from __future__ import annotations

import atexit
import itertools
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from faults.harness import run
from tubes.migrations import HEAD, LABEL, VERSIONS

import tubes
from tubes.testing.suite import take

ROOT = Path(__file__).resolve().parents[2]


def config(namespace: str = "tubes") -> Config:
    made = Config()
    made.set_main_option("script_location", "tubes.migrations:")
    made.attributes["namespace"] = namespace
    return made


def migrate(file: Path, target: str, *, up: bool, namespace: str = "tubes") -> None:
    engine = sa.create_engine(f"sqlite:///{file}")
    settings = config(namespace)
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        (command.upgrade if up else command.downgrade)(settings, target)
    engine.dispose()


def schema(file: Path, namespace: str = "tubes") -> dict[str, str]:
    """The SQL of all tables, indexes and triggers of a namespace, by name."""
    db = sqlite3.connect(file)
    rows = db.execute("SELECT name, sql FROM sqlite_master WHERE name GLOB ?", (f"{namespace}_*",)).fetchall()
    db.close()
    return dict(rows)


@pytest.mark.parametrize("place", ["memory", "file"])
def test_the_schema_of_a_new_database_is_the_same_however_often_it_was_made(
    place: str, tmp_path: Path
) -> None:
    """Alembic writes the statements for the first of a namespace; those after it are made by the same."""
    numbers = itertools.count()

    def made(namespace: str) -> tuple[list[tuple[str, str]], list[tuple[str]]]:
        url = "sqlite://" if place == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"
        with tubes.connect(url, namespace=namespace, sweep=False) as queue:
            assert queue.create_tube("jobs", "utubettl").put("x", utube="a").id == 1
            store: Any = queue.store
            db = store.writer.db
            return (
                db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall(),
                db.execute(f"SELECT version_num FROM {namespace}_version").fetchall(),
            )

    first, *others = [made(namespace) for namespace in ("ours", "ours", "theirs", "ours", "theirs", "theirs")]
    assert first[1] == [(HEAD,)] and len(first[0]) > 10
    assert others[0] == others[2] == first != others[1] == others[3] == others[4]


def fill(file: Path, namespace: str = "tubes") -> None:
    """Leave a tube of every type, and a task in every state."""
    with tubes.connect(f"sqlite:///{file}", namespace=namespace, sweep=False) as queue:
        for type in ("fifo", "fifottl", "limfifottl", "utube", "utubettl"):
            tube = queue.create_tube(type, type)
            tube.put_many(["first", "second", "third"])
            taken = take(tube)
            tube.bury(taken)
        queue.tube["fifottl"].put("later", delay=3600)
        queue.configure(session_ttr=3600)
        assert queue.tube["utube"].take(timeout=0) is not None


def test_the_versions_that_connect_knows_are_alembics() -> None:
    script = ScriptDirectory.from_config(config())
    assert script.get_heads() == [HEAD]
    assert [step.revision for step in script.walk_revisions()] == [*reversed(VERSIONS)]
    head = script.get_revision(HEAD)
    assert head is not None
    assert LABEL in head.branch_labels


def test_a_queue_in_memory_leaves_nothing_behind() -> None:
    tubes.connect("sqlite://", sweep=False).close()
    before = atexit._ncallbacks()
    tubes.connect("sqlite://", sweep=False).close()
    assert atexit._ncallbacks() == before


def test_a_new_file_is_not_locked_while_its_tables_are_thought_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading Alembic takes long on a busy machine, and others that open the file would wait in vain."""
    upgrade, written = command.upgrade, []

    def write_and_upgrade(*given: Any, **named: Any) -> None:
        with closing(sqlite3.connect(tmp_path / "queue.db", timeout=0)) as db, db:
            db.execute("CREATE TABLE theirs (id INTEGER)")
        written.append(True)
        upgrade(*given, **named)

    monkeypatch.setattr(command, "upgrade", write_and_upgrade)
    with tubes.connect(f"sqlite:///{tmp_path / 'queue.db'}", namespace="unhurried", sweep=False) as queue:
        queue.create_tube("jobs", "fifo").put("x")
    assert written == [True]


def test_contributors_find_the_migrations_through_pyproject() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "alembic", "heads"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"{HEAD} (tubes)")


def test_the_schema_goes_down_and_up_again_with_rows_in_it(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    fill(file)
    before = schema(file)
    assert {"tubes_tube", "tubes_task", "tubes_session", "tubes_connection", "tubes_calls"} <= before.keys()
    migrate(file, f"{LABEL}@base", up=False)
    assert schema(file).keys() <= {"tubes_version"}
    migrate(file, f"{LABEL}@head", up=True)
    assert schema(file) == before
    fill(file)


def test_each_step_down_and_up_keeps_the_rows_that_it_can(tmp_path: Path) -> None:
    """A step between two versions must not lose tasks; only the first version makes the tables."""
    file = tmp_path / "jobs.db"
    fill(file)
    script = ScriptDirectory.from_config(config())
    for revision in script.walk_revisions():
        below = revision.down_revision
        if below is None:
            continue
        assert isinstance(below, str)
        before = count_tasks(file)
        migrate(file, below, up=False)
        assert count_tasks(file) == before
        migrate(file, revision.revision, up=True)
        assert count_tasks(file) == before
    assert count_tasks(file) == 16


def count_tasks(file: Path) -> int:
    db = sqlite3.connect(file)
    (count,) = db.execute("SELECT count(*) FROM tubes_task WHERE state <> '-'").fetchone()
    db.close()
    return int(count)


def test_a_users_own_tables_and_migrations_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    db = sqlite3.connect(file)
    db.executescript(
        "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('app42');"
        "CREATE TABLE task (id INTEGER); INSERT INTO task VALUES (7);"
    )
    db.close()
    fill(file)
    migrate(file, f"{LABEL}@base", up=False)
    db = sqlite3.connect(file)
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("app42",)]
    assert db.execute("SELECT id FROM task").fetchall() == [(7,)]
    db.close()


USERS_ENV = """
import tubes, sqlalchemy as sa
from alembic import context

url = context.config.get_main_option("sqlalchemy.url")
tubes.connect(url + ".queue", sweep=False).close()  # as a module of the application's may, when it is imported
with sa.create_engine(url).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""

USERS_MIGRATION = """
import tubes
from alembic import context, op

revision, down_revision = "app1", None

def upgrade():
    tubes.connect(context.config.get_main_option("sqlalchemy.url") + ".more", sweep=False).close()
    op.execute("CREATE TABLE orders (id INTEGER)")
"""


def test_a_queue_may_be_opened_in_the_middle_of_a_users_own_migration(tmp_path: Path) -> None:
    """Alembic makes a new file's tables, too, and there is only one Alembic in a process."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(USERS_ENV)
    (tmp_path / "versions" / "app1.py").write_text(USERS_MIGRATION)
    settings = Config()
    settings.set_main_option("script_location", str(tmp_path))
    settings.set_main_option("sqlalchemy.url", f"sqlite:///{tmp_path / 'app.db'}")
    command.upgrade(settings, "head")
    with closing(sqlite3.connect(tmp_path / "app.db")) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("app1",)]
        assert db.execute("SELECT id FROM orders").fetchall() == []


def test_what_is_done_to_all_connections_of_sqlalchemy_s_is_not_done_to_ours(tmp_path: Path) -> None:
    """SQLAlchemy's documentation shows both: settings for each new connection, and a BEGIN of one's own."""

    def tune(raw: Any, _: object) -> None:
        raw.execute("PRAGMA synchronous=NORMAL")
        raw.execute("PRAGMA locking_mode=EXCLUSIVE")

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    sa.event.listen(sa.Engine, "connect", tune)
    sa.event.listen(sa.Engine, "begin", begin)
    try:
        for _ in range(2):  # another process would wait for the second
            queue = tubes.connect(f"sqlite:///{tmp_path / 'app.db'}", namespace="listened", busy_timeout=0.1)
            with closing(queue):
                queue.create_tube("jobs", "fifo", if_not_exists=True).put("x")
                level = queue.store.writer.db.execute("PRAGMA synchronous").fetchone()  # type: ignore[attr-defined]
                assert level == (2,)
    finally:
        sa.event.remove(sa.Engine, "connect", tune)
        sa.event.remove(sa.Engine, "begin", begin)


def test_namespaces_share_a_file_and_go_their_own_ways(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    fill(file, "red")
    fill(file, "blue")
    migrate(file, f"{LABEL}@base", up=False, namespace="red")
    assert "red_task" not in schema(file, "red")
    with tubes.connect(f"sqlite:///{file}", namespace="blue") as queue:
        assert queue.statistics("fifo")["tasks"]["total"] == 3


def test_namespaces_that_sqlite_does_not_tell_apart_are_not_mixed_up(tmp_path: Path) -> None:
    """They would share tables, but have a lock file each: those alive in one would be dead to the other."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tubes.connect(url, namespace="jobs", sweep=False) as queue:
        jobs = queue.create_tube("jobs", "fifo")
        jobs.put("x")
        task = jobs.take(timeout=0)
        with pytest.raises(tubes.SchemaMismatch, match=r"jobs_.*a namespace other than 'Jobs'"):
            tubes.connect(url, namespace="Jobs")
        assert task is not None and jobs.ack(task).data == "x"


@pytest.mark.parametrize("namespace", ["alembic", "Alembic"])
def test_the_application_s_own_version_table_is_no_namespace_s(tmp_path: Path, namespace: str) -> None:
    """The revision in it is another schema's, and an empty table would get ours."""
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    before = file.read_bytes()
    with pytest.raises(tubes.BadOption, match="the application's own migrations"):
        tubes.connect(f"sqlite:///{file}", namespace=namespace)
    assert file.read_bytes() == before


def set_version(file: Path, version: str) -> None:
    db = sqlite3.connect(file)
    db.execute("UPDATE tubes_version SET version_num = ?", (version,))
    db.commit()
    db.close()


@pytest.mark.parametrize("migrate", [None, False])
@pytest.mark.parametrize("version", ["9999", HEAD[:3]])
def test_a_file_of_a_newer_version_is_refused_and_left_alone(
    tmp_path: Path, version: str, migrate: bool | None
) -> None:
    file = tmp_path / "jobs.db"
    fill(file)
    set_version(file, version)
    with pytest.raises(tubes.SchemaMismatch, match=rf"{version},.*upgrade tubes"):
        tubes.connect(f"sqlite:///{file}", migrate=migrate)
    assert count_tasks(file) == 16
    set_version(file, HEAD)
    with tubes.connect(f"sqlite:///{file}") as queue:
        assert queue.statistics("utube")["tasks"]["total"] == 3


def test_a_process_whose_tables_are_upgraded_while_it_runs_is_told_so(tmp_path: Path) -> None:
    """It should have been ended before. It stores nothing that a newer version would not understand."""
    with tubes.connect(f"sqlite:///{tmp_path}/jobs.db", sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put_many(["first", "second"])
        task = take(tube)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as newer:
            newer.execute("ALTER TABLE tubes_task RENAME COLUMN attempts TO tries")
        with pytest.raises(tubes.SchemaMismatch, match="upgrade tubes"):
            tube.put("x")
        with pytest.raises(tubes.SchemaMismatch, match="upgrade tubes"):
            tube.ack(task)
        assert queue.statistics("jobs")["tasks"]["total"] == 2


@pytest.mark.parametrize(
    "damage",
    ["CREATE TABLE Tubes_Task (what)", "CREATE VIEW tubes_calls AS SELECT 1", "DROP TABLE tubes_version"],
)
def test_tables_that_are_in_the_way_are_left_alone(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "jobs.db"
    if damage.startswith("DROP"):
        fill(file)
    with closing(sqlite3.connect(file)) as db:
        db.execute(damage)
    before = file.read_bytes()  # with the journal's mode
    with pytest.raises(tubes.SchemaMismatch, match=r"already exists.*a namespace other than 'tubes'"):
        tubes.connect(f"sqlite:///{file}")
    assert file.read_bytes() == before and [*tmp_path.glob("*-wal")] == []


def test_a_file_without_the_schema_is_refused_where_migrate_is_false(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    for is_there in (False, True):
        with pytest.raises(tubes.SchemaMismatch, match="tubes migrate"):
            tubes.connect(f"sqlite:///{file}", migrate=False)
        assert [*tmp_path.glob("jobs.db")] == [file] * is_there  # a look has made none
        file.touch()


@pytest.mark.slow
def test_what_is_said_to_be_run_brings_the_file_up(tmp_path: Path) -> None:
    """Wherever it is run, whatever the file's name and the namespace."""
    url = f"sqlite:///{tmp_path}/100%25 mine%3F.db"
    with pytest.raises(tubes.SchemaMismatch) as caught:
        tubes.connect(url, namespace="mine", migrate=False)
    said = re.search("`(.*)`", str(caught.value))
    assert said is not None
    words = said[1].replace("tubes ", f"{sys.executable} -m tubes ", 1)
    assert subprocess.run(["sh", "-c", words], timeout=60).returncode == 0
    tubes.connect(url, namespace="mine", migrate=False).close()


def test_a_refused_file_of_somebody_else_s_keeps_its_journal(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE orders (what)")
    before = file.read_bytes()
    with pytest.raises(tubes.SchemaMismatch, match="tubes migrate"):
        tubes.connect(f"sqlite:///{file}", migrate=False)
    assert file.read_bytes() == before and [*tmp_path.iterdir()] == [file]


@pytest.mark.slow
def test_threads_may_open_new_databases_at_the_same_time(tmp_path: Path) -> None:
    """In a process of its own: two threads that use one SQLite connection may crash it."""
    code = """
import sys, threading, tubes
from concurrent.futures import ThreadPoolExecutor

def open_new(number):
    barrier.wait(20)
    with tubes.connect(f"sqlite:///{sys.argv[1]}/{number}.db", durability="off", sweep=False) as queue:
        return queue.create_tube("jobs", "fifo").put(number).data

barrier = threading.Barrier(4)
with ThreadPoolExecutor(4) as threads:
    print(*threads.map(open_new, range(24)))
"""
    assert run(code, tmp_path) == " ".join(map(str, range(24)))
