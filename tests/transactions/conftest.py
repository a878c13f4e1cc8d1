"""A queue, and the user's own SQLAlchemy engine on the same database: on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import begin, finish

import tubes


@dataclass
class Place:
    """Where a test happens: a queue with tubes, whose changes are noted, and the user's engine."""

    url: str
    queue_url: str
    """The same; on PostgreSQL, for a queue that is soon found dead."""

    connect: Callable[..., tubes.Queue]
    engine: sa.Engine
    queue: tubes.Queue
    changes: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def tube(self, type: str = "fifo", name: str = "jobs", **options: Any) -> tubes.Tube:
        """Create a tube whose changes are noted from now on."""
        tube = self.queue.create_tube(name, type, **options)
        tube.on_task_change(lambda task, event: self.changes.append((str(event), task.data)))
        return tube

    def rows(self) -> list[Any]:
        """What the user's own table holds."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text("SELECT what FROM mine ORDER BY what")).scalars())


INSERT = sa.text("INSERT INTO mine (what) VALUES (:what)")


@pytest.fixture
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """``databases(kind)`` is the URL of such a database, where tests may leave nothing but tubes."""

    def url(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'queue.db'}"
        return str(request.getfixturevalue("postgres_queue_url"))

    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, databases: Callable[[str], str]) -> Iterator[Place]:
    yield from places(databases(request.param))


@pytest.fixture
def sqlite_place(databases: Callable[[str], str]) -> Iterator[Place]:
    yield from places(databases("sqlite"))


@pytest.fixture
def postgres_place(databases: Callable[[str], str]) -> Iterator[Place]:
    yield from places(databases("postgresql"))


def places(url: str) -> Iterator[Place]:
    theirs = sa.make_url(url).difference_update_query(["dead_after"])
    with ExitStack() as ending:  # every step of it, whatever a failed test has left
        engine = sa.create_engine(theirs)
        ending.callback(engine.dispose)

        def connect(**settings: Any) -> tubes.Queue:
            defaults: dict[str, Any] = {"sweep": False, "durability": "off"}
            return ending.enter_context(tubes.connect(url, **(defaults | settings)))

        def execute(text: str) -> None:
            with engine.begin() as connection:
                connection.execute(sa.text(text))

        def drop_tubes() -> None:
            with tubes.connect(url, sweep=False) as queue:
                for name in queue.tubes():
                    queue.tube[name].release_all()
                    queue.tube[name].drop()

        execute("CREATE TABLE mine (what TEXT PRIMARY KEY)")
        ending.callback(execute, f"DROP TABLE mine{'' if engine.dialect.name == 'sqlite' else ' CASCADE'}")
        ending.callback(drop_tubes)
        yield Place(theirs.render_as_string(hide_password=False), url, connect, engine, connect())


@pytest.fixture
def process() -> Iterator[Callable[..., Any]]:
    """``process(code, *arguments)`` starts Python code in another process, killed when the test is over."""
    with ExitStack() as started:

        def starting(code: str, *arguments: object) -> Any:
            worker = begin(code, *arguments)
            started.callback(finish, worker)
            return worker

        yield starting
