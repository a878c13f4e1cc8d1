"""PgBouncer in transaction mode, for tests that run only on request: ``python -m pytest tests/pgbouncer``."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from servers import PostgresServer, as_nobody, conninfo, new_database

import tubes

HERE = Path(__file__).parent

MISSING = "PgBouncer is needed and was not found: install your system's pgbouncer package."

SETTINGS = """\
[databases]
* = host={server}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
pidfile = {folder}/pid
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
server_login_retry = 1
"""
"""Few connections for many clients, so that a transaction seldom gets the one that the last had."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless the command line names it, or a file in it."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


class PgBouncer:
    """A PgBouncer in front of a server, in a folder inside the server's."""

    def __init__(self, server: PostgresServer) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise RuntimeError(MISSING)
        self.folder = server.folder / "pgbouncer"
        self.folder.mkdir()
        self.folder.chmod(0o777)
        (self.folder / "users").write_text('"tubes" ""\n')
        (self.folder / "settings").write_text(SETTINGS.format(server=server.folder, folder=self.folder))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, self.folder / "settings"], stdout=log, stderr=log, **as_nobody()
            )
        try:
            self._wait(server)
        except BaseException:
            self.close()
            raise

    def through(self, url: str) -> str:
        """Return the URL of the same database through PgBouncer."""
        there = sa.make_url(url).update_query_dict({"host": str(self.folder), "port": "6432"})
        return there.render_as_string(hide_password=False)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _wait(self, server: PostgresServer) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(conninfo(self.through(server.url))).close()
                return
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text()
                assert self._process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.05)


@pytest.fixture(scope="session")
def pgbouncer(_shared_postgres: PostgresServer) -> Iterator[PgBouncer]:
    """One for the whole run."""
    made = PgBouncer(_shared_postgres)
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres_queue_url(_shared_postgres: PostgresServer, pgbouncer: PgBouncer) -> Iterator[str]:
    """Here it leads through PgBouncer."""
    with new_database(_shared_postgres.url) as direct:
        url = pgbouncer.through(direct)
        tubes.connect(url, migrate=True, sweep=False).close()
        yield sa.make_url(url).update_query_dict({"dead_after": "2.5"}).render_as_string(hide_password=False)


@pytest.fixture
def pooled_db(own_postgres_db: str, pgbouncer: PgBouncer) -> str:
    """A database of its own with our tables, through PgBouncer; a process is dead after a second."""
    url = pgbouncer.through(own_postgres_db)
    tubes.connect(url, migrate=True, sweep=False).close()
    return sa.make_url(url).update_query_dict({"dead_after": "1"}).render_as_string(hide_password=False)
