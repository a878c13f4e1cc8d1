"""Calls with ``connection=`` are part of the user's own transaction, and share its end."""

from __future__ import annotations

import gc
import importlib
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import ended, eventually, heard, waiting
from interpreter import Process
from sqlalchemy import orm
from transactions.conftest import INSERT, Place

import tubes

TYPES = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")


def take(tube: tubes.Tube, **options: Any) -> tubes.Task:
    task = tube.take(0, **options)
    assert task is not None
    return task


@pytest.mark.parametrize("type", TYPES)
def test_every_verb_takes_part(place: Place, type: str) -> None:
    """Its effect shows inside at once, outside at the commit, which also brings the events, in order."""
    limits: dict[str, Any] = {"capacity": 9} if type == "limfifottl" else {}
    tube = place.tube(type, **limits)
    timed = tube.features.timed
    later: dict[str, Any] = {"delay": 100} if timed else {}
    options: dict[str, Any] = {"ttl": 50, "ttr": 5, "pri": 3} if timed else {}
    apart: Callable[[str], Any] = lambda name: {"utube": name} if tube.features.grouped else {}  # noqa: E731
    with place.engine.connect() as connection:
        a = tube.put("a", connection=connection, **apart("x"))
        b, c = tube.put_many(["b", b"c\0"], connection=connection, **options, **apart("y"))
        d = tube.put("d", connection=connection, **options, **apart("z"))
        assert tube.peek(c, connection=connection).data == b"c\0"
        taken = take(tube, connection=connection)
        assert taken.id == a.id and taken.attempts == 1
        taken = take(tube, ack=taken, connection=connection)
        assert taken.id == b.id and taken.ttl == (50 if timed else None)
        if timed:
            assert tube.touch(taken, 5, connection=connection)
        tube.release(taken, connection=connection, **later)
        tube.bury(d, connection=connection)
        assert tube.kick(5, connection=connection) == 1
        tube.delete(d.id, connection=connection)
        held = tube.take_many(5, 0, connection=connection)
        acked = tube.ack_many(held[:1], connection=connection)
        assert place.changes == [] and tube.statistics()["tasks"]["total"] == 0
        connection.commit()
    assert [task.id for task in acked] == [held[0].id]
    names = [event for event, _ in place.changes]
    assert names[:6] == ["put", "put", "put", "put", "take", "ack"]
    assert names[-2:] == ["take", "ack"] and "delete" in names
    figures = tube.statistics()
    assert {event: figures["calls"][event] for event in set(names)} == {
        event: names.count(event) for event in names
    }
    assert figures["tasks"]["done"] == 3


def test_a_commit_brings_the_task_and_the_row_and_one_event(place: Place) -> None:
    tube = place.tube()
    with place.engine.begin() as connection:
        connection.execute(INSERT, {"what": "order 1"})
        tube.put("mail", connection=connection)
        assert place.changes == []
    assert place.changes == [("put", "mail")] and place.rows() == ["order 1"]
    assert take(tube).data == "mail"


def test_a_rollback_leaves_neither_task_nor_event(place: Place) -> None:
    """Neither of a put, nor of a take, which may be repeated, nor of an ack, whose task is still held."""
    tube = place.tube()
    tube.put_many(["held", "ready"])
    held = take(tube)
    place.changes.clear()
    before = tube.statistics()
    with place.engine.connect() as connection:
        connection.execute(INSERT, {"what": "row"})
        tube.put("new", connection=connection)
        assert take(tube, connection=connection).data == "ready"
        tube.ack(held, connection=connection)
        connection.rollback()
        assert place.changes == []
        connection.commit()
    assert place.changes == [] and place.rows() == [] and tube.statistics() == before
    assert tube.ack(held).data == "held"
    assert take(tube).attempts == 1


def test_a_connection_that_is_closed_or_forgotten_rolls_back(place: Place) -> None:
    tube = place.tube()
    with place.engine.connect() as connection:
        tube.put("closed", connection=connection)
    forgotten = place.engine.connect()
    tube.put("forgotten", connection=forgotten)
    del forgotten
    gc.collect()
    tube.put("later")
    assert place.changes == [("put", "later")]
    assert [task.data for task in tube.tasks("r")] == ["later"]


def test_an_interrupt_in_a_call_is_told_and_ends_the_transaction(place: Place) -> None:
    """SQLAlchemy then closes the connection: nobody waits for what was in it, or goes on in it."""
    tube = place.tube()

    def interrupt(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "tubes_task" in statement:
            signal.raise_signal(signal.SIGINT)

    with place.engine.connect() as connection:
        unit = place.queue.join_transaction(connection)
        tube.put("before", connection=connection)
        sa.event.listen(connection, "after_cursor_execute", interrupt)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            tube.take(timeout=0, connection=connection)
        with pytest.raises(tubes.BadOption, match="over"):
            tube.put("in nothing", unit=unit)
    with place.engine.begin() as connection:
        tube.put("after", connection=connection)
    assert place.changes == [("put", "after")]
    assert [task.data for task in tube.tasks("r")] == ["after"]
    assert interrupted.traceback  # it holds a result that was not read


@pytest.mark.timeout(30)
def test_a_signal_s_handler_may_join_while_another_call_is_joining(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the middle of what is done once for each engine."""
    tube = place.tube()
    joined = importlib.import_module("tubes.drivers.sql.joined")
    watch_savepoints = joined.watch_savepoints

    def put(data: Any, engine: sa.Engine = place.engine) -> None:
        with engine.begin() as connection:
            tube.put(data, connection=connection)

    def strike(dialect: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        watch_savepoints(dialect)

    put("before")
    monkeypatch.setattr(joined, "watch_savepoints", strike)
    before = signal.signal(signal.SIGUSR1, lambda *_: put("by the handler"))
    try:
        put("by a new engine", sa.create_engine(place.url, poolclass=sa.NullPool))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(data for _, data in place.changes) == ["before", "by a new engine", "by the handler"]


class Interrupted(sqlite3.Connection):
    """Ctrl-C comes while SQLite commits; Python hears of it when the commit is done."""

    def commit(self) -> None:
        super().commit()
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_sqlite_s_commit_hides_nothing_of_it(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    engine = sa.create_engine(sqlite_place.url, connect_args={"factory": Interrupted})
    with engine.connect() as connection:
        tube.put("x", connection=connection)
        with pytest.raises(KeyboardInterrupt):
            connection.commit()
    engine.dispose()
    assert tube.statistics()["calls"]["put"] == 1
    tube.put("y")  # it calls the callbacks still to be called
    assert sqlite_place.changes == [("put", "x"), ("put", "y")]


def test_an_interrupt_after_a_commit_hides_nothing_of_it(place: Place) -> None:
    tube = place.tube()
    line_up = tube.line_up

    def interrupt(changes: Any) -> None:
        tube.line_up = line_up  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGINT)
        line_up(changes)

    tube.line_up = interrupt  # type: ignore[method-assign]
    with place.engine.connect() as connection:
        tube.put("x", connection=connection)
        with pytest.raises(KeyboardInterrupt):
            connection.commit()
    assert tube.statistics()["calls"]["put"] == 1
    tube.put("y")  # it calls the callbacks still to be called
    assert place.changes == [("put", "x"), ("put", "y")]


@pytest.mark.parametrize("verb", ["bury", "delete", "ack", "release"])
def test_a_task_whose_take_was_rolled_back_is_not_that_of_another_session(place: Place, verb: str) -> None:
    """Even though both takes have the same number."""
    tube, other = place.tube(), place.connect().tube.jobs
    tube.put("x")
    with place.engine.connect() as connection:
        rolled_back = take(tube, connection=connection)
    task = take(other)
    with pytest.raises(tubes.LeaseLost):
        getattr(tube, verb)(rolled_back)
    other.ack(task)


def test_each_transaction_on_a_connection_is_one_of_its_own(place: Place) -> None:
    tube = place.tube()
    with place.engine.connect() as connection:
        for name in "abcd":
            tube.put(name, connection=connection)
            if name in "bd":
                connection.rollback()
            else:
                connection.commit()
                assert place.changes[-1] == ("put", name)
    assert place.changes == [("put", "a"), ("put", "c")]


def test_a_waiting_take_is_woken_by_the_commit_and_not_before(deaf: None, place: Place) -> None:
    tube = place.tube()
    waiter, got = waiting(tube)
    waiters = place.queue.store.waiters
    with place.engine.connect() as connection:
        tube.put("rolled back", connection=connection)
        connection.rollback()
        tube.put("committed", connection=connection)
        waiter.join(0.05)
        assert waiters.count(tube.record.id) == 1 and not got
        connection.commit()
    ended(waiter)
    assert [task and task.data for task in got] == ["committed"]


def test_a_take_in_another_process_is_called_by_the_commit(
    place: Place, asleep: Callable[..., Process]
) -> None:
    tube = place.tube()
    other = asleep(place.queue, place.url, "jobs")
    with place.engine.begin() as connection:
        tube.put("committed", connection=connection)
    assert other.communicate(timeout=20)[0] == "committed\n"


def test_a_callback_cannot_use_the_connection_that_is_being_committed(place: Place) -> None:
    """What it put would be rolled back with the next transaction that SQLAlchemy knows nothing of."""
    tube, refusals = place.tube(), list[tubes.BadOption]()
    with place.engine.connect() as connection:

        def follow_up(task: tubes.Task, event: tubes.Event) -> None:
            with pytest.raises(tubes.BadOption, match="whose commit calls it") as caught:
                tube.put("never", connection=connection)
            refusals.append(caught.value)

        remove = tube.add_listener(follow_up)
        tube.put("one", connection=connection)
        connection.commit()
        remove()
        tube.put("two", connection=connection)
        connection.commit()
    assert len(refusals) == 1 and [task.data for task in tube.tasks("r")] == ["one", "two"]


def test_callbacks_come_when_the_transaction_is_over(place: Place) -> None:
    """They may call the tube even if it had to wait for the transaction; one that fails harms nothing."""
    tube = place.tube()
    seen: list[str] = []

    def callback(task: tubes.Task, event: tubes.Event) -> None:
        seen.append(f"{event} {task.data}")
        if task.data == "first":
            tube.put("second")
            raise ValueError("a callback that fails")

    tube.add_listener(callback)
    with place.engine.connect() as connection:
        tube.put("first", connection=connection)
        connection.commit()
        assert seen == ["put first", "put second"]
        connection.execute(INSERT, {"what": "the connection works"})
        connection.commit()


# Sessions


def test_a_session_s_commit_and_rollback_are_the_tasks(place: Place) -> None:
    tube = place.tube()
    with orm.Session(place.engine) as session:
        session.execute(INSERT, {"what": "a"})
        tube.put("a", connection=session)
        assert place.changes == []
        session.commit()
        assert place.changes == [("put", "a")]
        tube.put("b", connection=session)
        session.rollback()
        tube.ack(take(tube, connection=session), connection=session)
        session.commit()
    assert place.changes == [("put", "a"), ("take", "a"), ("ack", "a")] and place.rows() == ["a"]


class Proxy:
    """As werkzeug's LocalProxy, which Flask's documentation keeps a connection in."""

    __slots__ = ("_real",)  # no weak reference can be made to it

    def __init__(self, real: object) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._real)


def test_a_proxy_is_what_it_stands_for(place: Place) -> None:
    tube = place.tube()
    with place.engine.begin() as connection:
        tube.put("one", connection=Proxy(connection))
        tube.put("two", connection=connection)
        with orm.Session(connection) as session:
            tube.put("three", connection=Proxy(session))
        assert place.changes == []
    assert [data for _, data in place.changes] == ["one", "two", "three"]


def test_a_scoped_session_is_its_session(place: Place) -> None:
    tube = place.tube()
    session = orm.scoped_session(orm.sessionmaker(place.engine))
    tube.put("a", connection=session)
    tube.put("b", connection=session())
    session.commit()
    session.remove()
    assert place.changes == [("put", "a"), ("put", "b")]


@pytest.mark.parametrize(
    ("mode", "commits"),
    [("conditional_savepoint", False), ("rollback_only", False), ("create_savepoint", False), ("control_fully", True)],
)  # fmt: skip
def test_two_sessions_on_one_connection_share_its_transaction(place: Place, mode: Any, commits: bool) -> None:
    """Only the real commit publishes, whatever a Session on the connection calls a commit."""
    tube = place.tube()
    with place.engine.connect() as connection:
        transaction = connection.begin()
        with orm.Session(connection, join_transaction_mode=mode) as first:
            tube.put("first", connection=first)
            with orm.Session(connection, join_transaction_mode="create_savepoint") as second:
                tube.put("second", connection=second)
                second.commit()
                tube.put("undone", connection=second)
                second.rollback()
            assert place.changes == []
            first.commit()
        assert bool(place.changes) == commits
        if not commits:
            transaction.commit()
    assert place.changes == [("put", "first"), ("put", "second")]
    assert [task.data for task in tube.tasks("r")] == ["first", "second"]


def test_sessions_on_one_connection_fall_with_its_rollback(place: Place) -> None:
    tube = place.tube()
    with place.engine.connect() as connection, connection.begin() as transaction:
        for name in ("first", "second"):
            with orm.Session(connection, join_transaction_mode="create_savepoint") as session:
                tube.put(name, connection=session)
                session.commit()
        transaction.rollback()
    assert place.changes == [] and tube.tasks("r") == []


def test_two_queues_take_part_in_one_transaction(place: Place) -> None:
    """Each tells its own callbacks, once."""
    tube = place.tube()
    other = place.connect().tube.jobs
    seen: list[str] = []
    other.on_task_change(lambda task, event: seen.append(task.data))
    with place.engine.connect() as connection:
        tube.put("a", connection=connection)
        other.put("b", connection=connection)
        connection.commit()
    assert place.changes == [("put", "a")] and seen == ["b"]


# Savepoints


def test_a_savepoint_that_is_rolled_back_takes_its_tasks_with_it(place: Place) -> None:
    tube = place.tube()
    with place.engine.begin() as connection:
        tube.put("a", connection=connection)
        savepoint = connection.begin_nested()
        tube.put("b", connection=connection)
        savepoint.rollback()
        with connection.begin_nested():
            tube.put("c", connection=connection)
    assert place.changes == [("put", "a"), ("put", "c")]
    assert [task.data for task in tube.tasks("r")] == ["a", "c"]


def test_savepoints_inside_savepoints_fall_with_the_outer_one(place: Place) -> None:
    """Even released ones, and ones in which nothing of ours happened."""
    tube = place.tube()
    with place.engine.begin() as connection:
        tube.put("a", connection=connection)
        outer = connection.begin_nested()
        tube.put("b", connection=connection)
        with connection.begin_nested():
            tube.put("c", connection=connection)
            with connection.begin_nested():
                tube.put("d", connection=connection)
        with connection.begin_nested() as empty:
            empty.rollback()
        outer.rollback()
        tube.put("e", connection=connection)
    assert place.changes == [("put", "a"), ("put", "e")]
    assert [task.data for task in tube.tasks("r")] == ["a", "e"]


def test_a_released_savepoint_falls_with_its_transaction(place: Place) -> None:
    """Even if the savepoint was its first statement, which pysqlite takes for a transaction."""
    tube = place.tube()
    with place.engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(INSERT, {"what": "row"})
            tube.put("a", connection=connection)
        connection.rollback()
        with connection.begin_nested():
            connection.execute(INSERT, {"what": "row"})
            tube.put("b", connection=connection)
        assert place.changes == []
        connection.commit()
    assert place.changes == [("put", "b")]
    assert [task.data for task in tube.tasks("r")] == ["b"]


def test_a_savepoint_older_than_the_first_call_takes_all_with_it(place: Place) -> None:
    tube = place.tube()
    with place.engine.begin() as connection:
        connection.execute(INSERT, {"what": "before"})
        older = connection.begin_nested()
        inner = connection.begin_nested()
        tube.put("a", connection=connection)
        inner.commit()
        tube.put("b", connection=connection)
        older.rollback()
        tube.put("c", connection=connection)
    assert place.changes == [("put", "c")] and place.rows() == ["before"]
    assert [task.data for task in tube.tasks("r")] == ["c"]


@pytest.mark.parametrize("begins", ["a savepoint", "BEGIN"])
def test_a_call_before_which_nothing_was_read_does_not_mind_what_others_commit(
    sqlite_place: Place, begins: str
) -> None:
    """Its first statement writes: nothing that others commit before it is a conflict."""
    tube = sqlite_place.tube()
    path = sa.make_url(sqlite_place.url).database
    others: list[str] = []

    def commit_meanwhile(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.startswith("INSERT INTO tubes_task") and not others:
            others.append(text)
            with sqlite3.connect(str(path)) as other:
                other.execute("INSERT INTO mine (what) VALUES ('other')")
            other.close()

    sa.event.listen(sqlite_place.engine, "before_cursor_execute", commit_meanwhile)
    with sqlite_place.engine.begin() as connection:
        if begins == "BEGIN":
            connection.exec_driver_sql("BEGIN")
            tube.put("a", connection=connection)
        else:
            with connection.begin_nested():
                tube.put("a", connection=connection)
    assert others and sqlite_place.changes == [("put", "a")] and sqlite_place.rows() == ["other"]


READING_FIRST: dict[str, Callable[[tubes.Tube, tubes.Task, Any], object]] = {
    "take_many": lambda tube, _, connection: tube.take_many(2, timeout=0, connection=connection),
    "take and ack": lambda tube, task, connection: tube.take(0, ack=task, connection=connection),
    "ack by id": lambda tube, task, connection: tube.ack(task.id, connection=connection),
    "ack_many": lambda tube, task, connection: tube.ack_many([task], connection=connection),
    "release": lambda tube, task, connection: tube.release(task, connection=connection),
    "touch": lambda tube, task, connection: tube.touch(task, 1, connection=connection),
    "bury": lambda tube, task, connection: tube.bury(task, connection=connection),
    "delete": lambda tube, task, connection: tube.delete(task, connection=connection),
    "kick": lambda tube, _, connection: tube.kick(connection=connection),
    "kick of nothing, and put": lambda tube, _, connection: (
        tube.kick(9, connection=connection),
        tube.put("x", connection=connection),
    ),
}
"""Verbs that look at tasks before they change them."""


@pytest.mark.parametrize("type", ["limfifottl", "utubettl"])
@pytest.mark.parametrize("verb", READING_FIRST)
def test_a_first_call_that_reads_before_it_writes_lets_nobody_write_in_between(
    sqlite_place: Place, verb: str, type: str
) -> None:
    room: dict[str, Any] = {"capacity": 9} if type == "limfifottl" else {}
    tube = sqlite_place.tube(type, ttr=60, **room)
    for data in "abc":
        group: dict[str, Any] = {"utube": data} if type == "utubettl" else {}
        tube.put(data, **group)
    tube.bury(1)
    task = take(tube)
    sqlite_place.changes.clear()
    path = str(sa.make_url(sqlite_place.url).database)
    texts: list[str] = []

    def write_in_between(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        texts.append(text)
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=0)) as other, other:
            other.execute("INSERT INTO mine (what) VALUES (?)", [str(len(texts))])

    sa.event.listen(sqlite_place.engine, "before_cursor_execute", write_in_between)
    with sqlite_place.engine.begin() as connection, connection.begin_nested():
        READING_FIRST[verb](tube, task, connection)
    assert sqlite_place.changes and sqlite_place.rows()


class Autocommitting(sqlite3.Connection):
    """Like one with ``autocommit=True``, since Python 3.12."""

    autocommit = True

    def commit(self) -> None:
        pass

    rollback = commit


def test_a_savepoint_is_all_that_is_committed_where_a_commit_does_nothing(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    engine = sa.create_engine(sqlite_place.url, connect_args={"factory": Autocommitting})
    with engine.connect() as connection, connection.begin_nested():
        connection.execute(INSERT, {"what": "row"})
    assert sqlite_place.rows() == ["row"]
    tube.put("x")
    engine.dispose()


def test_a_savepoint_of_an_autocommit_connection_is_a_transaction(sqlite_place: Place) -> None:
    tube = sqlite_place.tube()
    engine = sqlite_place.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        with connection.begin_nested():
            with connection.begin_nested() as inner:
                tube.put("undone", connection=connection)
                inner.rollback()
            with connection.begin_nested():
                tube.put("a", connection=connection)
            assert sqlite_place.changes == []
        assert sqlite_place.changes == [("put", "a")] and not connection.info
        with suppress(KeyError), connection.begin_nested():
            tube.put("undone", connection=connection)
            raise KeyError
    with orm.Session(engine) as session, session.begin(), session.begin_nested():
        tube.put("b", connection=session)
    assert sqlite_place.changes == [("put", "a"), ("put", "b")]
    assert [task.data for task in tube.tasks("r")] == ["a", "b"]


def test_a_session_s_savepoints_are_followed(place: Place) -> None:
    tube = place.tube()
    with orm.Session(place.engine) as session, session.begin():
        with session.begin_nested():
            tube.put("a", connection=session)
        with session.begin_nested() as nested:
            tube.put("b", connection=session)
            nested.rollback()
    assert place.changes == [("put", "a")]


# Commits that do not come about


def test_a_commit_that_fails_publishes_nothing(place: Place) -> None:
    """A constraint is checked at the commit. What the same connection commits next is on its own."""
    tube = place.tube()
    with place.engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE child (parent TEXT REFERENCES mine (what) DEFERRABLE INITIALLY DEFERRED)")
        )
    engine = sa.create_engine(place.url, pool_size=1, max_overflow=0)
    if place.is_sqlite:
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys=ON"))
    for leave in ("rollback", "close"):
        with engine.connect() as connection:
            connection.execute(sa.text("INSERT INTO child VALUES ('nobody')"))
            tube.put("never", connection=connection)
            with pytest.raises(sa.exc.IntegrityError):
                connection.commit()
            getattr(connection, leave)()
        with engine.begin() as connection:
            tube.put(f"after {leave}", connection=connection)
    engine.dispose()
    assert place.changes == [("put", "after rollback"), ("put", "after close")]
    assert [task.data for task in tube.tasks("r")] == ["after rollback", "after close"]
    with place.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE child"))


def test_two_connections_want_the_same_task(place: Place) -> None:
    """It goes to one of them, and to the other only after a rollback; whoever has it may ack it."""
    tube = place.tube()
    tube.put("one")
    place.changes.clear()
    theirs = sa.create_engine(place.url, connect_args={"timeout": 0.1} if place.is_sqlite else {})
    with place.engine.connect() as first, theirs.connect() as second:
        mine = take(tube, connection=first)
        if place.is_sqlite:
            with pytest.raises(tubes.StoreBusy):
                tube.take(0, connection=second)
            second.rollback()
        else:
            assert tube.take(0, connection=second) is None
        first.rollback()
        again = take(tube, connection=second)
        assert (again.id, again.attempts) == (mine.id, 1)
        tube.ack(again, connection=second)
        second.commit()
        assert tube.take(0, connection=first) is None
        first.rollback()
    theirs.dispose()
    assert place.changes == [("take", "one"), ("ack", "one")]


CRASHING = """
import sys, sqlalchemy as sa, tubes
queue = tubes.connect(sys.argv[1], sweep=False)
tube = queue.tube.jobs
held = tube.take(0)
connection = sa.create_engine(sys.argv[2]).connect()
connection.execute(sa.text("INSERT INTO mine VALUES ('row')"))
tube.ack(held, connection=connection)
tube.put("new", connection=connection)
assert tube.take(0, connection=connection).data == "second"
print("inside", flush=True)
sys.stdin.readline()
"""


def test_a_process_killed_in_the_transaction_leaves_nothing_of_it(
    place: Place, process: Callable[..., Any]
) -> None:
    """What it had taken before comes back; what it acked and put inside never happened."""
    tube = place.tube()
    tube.put_many(["first", "second"])
    worker = process(CRASHING, place.queue_url, place.url)
    assert heard(worker) == "inside"
    worker.kill()
    worker.wait()
    eventually(lambda: place.queue.sweep() or tube.statistics()["tasks"]["taken"] == 0)
    assert [(task.data, task.attempts) for task in tube.tasks("r")] == [("first", 1), ("second", 0)]
    assert place.rows() == []
