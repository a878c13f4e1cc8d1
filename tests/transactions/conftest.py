"""A queue, and the user's own SQLAlchemy engine on the same database: on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """The URL of a database of that kind, where tests may leave nothing but tubes."""

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
    queues: list[tubes.Queue] = []

    def connect(**settings: Any) -> tubes.Queue:
        defaults: dict[str, Any] = {"sweep": False, "durability": "off"}
        queues.append(tubes.connect(url, **(defaults | settings)))
        return queues[-1]

    theirs = sa.make_url(url).difference_update_query(["dead_after"])
    engine = sa.create_engine(theirs)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE mine (what TEXT PRIMARY KEY)"))
    place = Place(theirs.render_as_string(hide_password=False), connect, engine, connect())
    yield place
    for queue in queues:
        queue.close()
    with connect() as queue:
        for name in queue.tubes():
            queue.tube[name].release_all()
            queue.tube[name].drop()
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE mine"))
    engine.dispose()


@pytest.fixture
def process() -> Iterator[Callable[..., Any]]:
    """``process(code, *arguments)`` starts Python code in another process, killed when the test is over."""
    started = []

    def starting(code: str, *arguments: object) -> Any:
        started.append(begin(code, *arguments))
        return started[-1]

    yield starting
    for worker in started:
        finish(worker)
