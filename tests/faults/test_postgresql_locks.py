"""PostgreSQL's locks: a server has only so many, and whoever waits for a table's holds up later callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from faults.harness import ended, eventually
from servers import PostgresServer, conninfo, new_database

import tubes

MANY = 4000
"""Sub-queues: more than that server can lock at once."""


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    """A server that can lock few things at once."""
    server = PostgresServer(settings="max_connections = 10\nmax_locks_per_transaction = 10")
    yield server
    server.close()


@pytest.fixture
def small_db(small: PostgresServer) -> Iterator[str]:
    with new_database(small.url) as url:
        yield url


def fill(url: str, table: str, *, count: int) -> None:
    """Put two tasks into each of many sub-queues of tube 1, without a trigger locking any of them."""
    with psycopg.connect(conninfo(url)) as db:
        put = (
            f"INSERT INTO tubes_{table} (tube, state, pri, place, utube, created_ms, updated_ms, attempts, data, front)"
            " SELECT 1, 'r', 0, 0, 's' || number, 0, 0, 0, '0', {front} FROM generate_series(1, %s) AS number"
        )
        db.execute(put.format(front="NULL").encode(), [count])
        db.execute(f"UPDATE tubes_{table} SET front = 1".encode())
        db.execute(put.format(front="0").encode(), [count])


@pytest.mark.slow
def test_a_restart_empties_a_temporary_tube_of_more_sub_queues_than_there_are_locks(
    small: PostgresServer, small_db: str
) -> None:
    with tubes.connect(small_db, migrate=True, sweep=False) as queue:
        queue.create_tube("brief", "utube", temporary=True)
        kept = queue.create_tube("kept", "fifo")
        fill(small_db, "temporary_task", count=MANY)
        small.stop()
        small.start()
        kept.put("x")
        assert queue.tube.brief.statistics()["tasks"]["total"] == 0
        queue.tube.brief.put("y", utube="s1")
        assert queue.tube.brief.take(timeout=0)


@pytest.mark.slow
def test_a_tube_of_more_sub_queues_than_there_are_locks_can_be_dropped(small_db: str) -> None:
    """Its tasks go, whatever their state. Another tube's tasks stay."""
    with tubes.connect(small_db, migrate=True, sweep=False) as queue:
        tube, other = queue.create_tube("jobs", "utube"), queue.create_tube("other", "utube")
        fill(small_db, "task", count=MANY)
        tube.bury(tube.put("buried", utube="apart"))
        kept = other.put("kept", utube="s1")
        tube.drop()
        with psycopg.connect(conninfo(small_db)) as db:
            assert db.execute("SELECT id FROM tubes_task").fetchall() == [(kept.id,)]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ack_many", "put"])
def test_a_transaction_of_more_sub_queues_than_there_are_locks_is_told_of_the_limit(
    small_db: str, verb: str
) -> None:
    """Nothing was done, and smaller batches succeed. The put is in the user's own transaction."""
    with tubes.connect(small_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "utube")
        fill(small_db, "task", count=MANY)
        taken = tube.take_many(MANY, timeout=0)
        engine = sa.create_engine(small_db)
        with pytest.raises(tubes.StoreUnavailable, match=r"sub-queues.* smaller batches"):
            if verb == "ack_many":
                tube.ack_many(taken)
            else:
                with engine.begin() as connection:
                    for task in taken:
                        tube.put("x", utube=f"new {task.id}", connection=connection)
        engine.dispose()
        assert tube.statistics()["tasks"]["total"] == 2 * MANY
        assert len(tube.ack_many(taken[:100])) == 100


LONG_WAITS = """
    SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
    AND clock_timestamp() - query_start > make_interval(secs => %s)
"""


def a_wait_lasts(url: str, seconds: float) -> bool:
    """Whether a statement that waits for a lock began more than ``seconds`` ago."""
    with psycopg.connect(conninfo(url)) as db:
        return bool(db.execute(LONG_WAITS, [seconds]).fetchall())


@pytest.mark.slow
def test_a_drop_that_waits_holds_up_nobody_for_long(small_db: str) -> None:
    """It waits for a transaction on another tube, which it cannot tell from one on its own."""
    with (
        tubes.connect(small_db, migrate=True, sweep=False, busy_timeout=1) as queue,
        tubes.connect(small_db, sweep=False, busy_timeout=60) as other,
    ):
        held, brief, busy = (queue.create_tube(name, "utube") for name in ("held", "brief", "busy"))
        dropping = threading.Thread(target=other.tube.brief.drop)
        with queue.transaction() as unit:
            held.put("x", unit=unit)
            dropping.start()
            eventually(lambda: a_wait_lasts(small_db, 0))
            for number in range(3):
                busy.put(number)
                task = busy.take(timeout=0)
                assert task is not None and busy.ack(task).data == number
            assert dropping.is_alive()
        ended(dropping)
        assert queue.tubes() == ["held", "busy"]
        with pytest.raises(tubes.NoSuchTube):
            brief.put("y")


@pytest.mark.slow
def test_a_drop_that_waits_too_long_is_refused(small_db: str) -> None:
    with (
        tubes.connect(small_db, migrate=True, sweep=False) as queue,
        tubes.connect(small_db, sweep=False, busy_timeout=0.2) as other,
    ):
        tube = queue.create_tube("jobs", "fifo")
        with queue.transaction() as unit:
            tube.put("x", unit=unit)
            with pytest.raises(tubes.StoreBusy):
                other.tube.jobs.drop()
        other.tube.jobs.drop()


@pytest.mark.slow
def test_a_drop_waits_for_a_vacuum_until_the_server_ends_that(small_db: str) -> None:
    """The server ends an autovacuum when something has waited for it for deadlock_timeout."""
    with tubes.connect(small_db, migrate=True, sweep=False, busy_timeout=60) as queue:
        tube = queue.create_tube("jobs", "fifo")
        dropping = threading.Thread(target=tube.drop)
        with psycopg.connect(conninfo(small_db)) as db:
            db.execute("LOCK TABLE tubes_task IN SHARE UPDATE EXCLUSIVE MODE")  # as a vacuum does
            dropping.start()
            eventually(lambda: a_wait_lasts(small_db, 0.5))
        ended(dropping)
        assert queue.tubes() == []


@pytest.mark.slow
def test_a_drop_beside_a_user_s_vacuum_holds_up_nobody_for_long(small_db: str) -> None:
    """The server never ends a user's vacuum, whoever waits for it."""
    with (
        tubes.connect(small_db, migrate=True, sweep=False) as queue,
        tubes.connect(small_db, sweep=False, busy_timeout=60) as other,
    ):
        tube, brief = queue.create_tube("jobs", "fifo"), queue.create_tube("brief", "fifo")
        dropping = threading.Thread(target=other.tube.brief.drop)
        with psycopg.connect(conninfo(small_db)) as db:
            db.execute("LOCK TABLE tubes_task IN SHARE UPDATE EXCLUSIVE MODE")
            dropping.start()
            eventually(lambda: a_wait_lasts(small_db, 0.5))
            assert tube.put("in time").data == "in time" and dropping.is_alive()
        ended(dropping)
        assert queue.tubes() == ["jobs"]
        with pytest.raises(tubes.NoSuchTube):
            brief.put("late")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["drop", "count"])
def test_calls_that_are_counted_while_their_tube_is_dropped_are_not_kept(
    postgres_db: str, first: str
) -> None:
    """Either may come first; the other begins before the first has committed."""
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        tube.put("x")
        with psycopg.connect(conninfo(postgres_db)) as db:
            if first == "drop":
                db.execute("DELETE FROM tubes_task")
                db.execute("DELETE FROM tubes_tube")
                second = threading.Thread(target=queue.flush_counts)
            else:
                db.execute("SELECT FROM tubes_tube FOR KEY SHARE")
                db.execute("INSERT INTO tubes_calls SELECT id, 'put', 1 FROM tubes_tube")
                second = threading.Thread(target=tube.drop)
            second.start()
            with psycopg.connect(conninfo(postgres_db), autocommit=True) as observer:
                # Longer than a drop waits for the table at a stretch
                eventually(lambda: a_wait_lasts(postgres_db, 0.3) or not second.is_alive())
                db.commit()
                ended(second)
                assert observer.execute("SELECT FROM tubes_tube").fetchall() == []
                assert observer.execute("SELECT FROM tubes_calls").fetchall() == []


def test_calls_are_counted_in_one_order(postgres_db: str) -> None:
    """The order of the tubes, not of the calls: otherwise two processes would wait for each other."""
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        first, second = (queue.create_tube(name, "fifo") for name in ("first", "second"))

        def call() -> None:
            second.put("x")
            first.put("x")

        call()
        queue.flush_counts()
        call()
        counting = threading.Thread(target=queue.flush_counts)
        lock = "SELECT FROM tubes_calls JOIN tubes_tube ON id = tube WHERE name = %s FOR UPDATE OF tubes_calls NOWAIT"
        with psycopg.connect(conninfo(postgres_db)) as db:
            db.execute(lock, ["first"])
            counting.start()
            eventually(lambda: a_wait_lasts(postgres_db, 0))
            assert len(db.execute(lock, ["second"]).fetchall()) == 1
        ended(counting)
        assert first.statistics()["calls"]["put"] == second.statistics()["calls"]["put"] == 2


def test_calls_are_counted_beside_a_transaction_that_takes_room(postgres_db: str) -> None:
    """It has locked the tube's row; counting only needs the row to stay there."""
    with tubes.connect(postgres_db, migrate=True, sweep=False, busy_timeout=0.1) as queue:
        tube = queue.create_tube("jobs", "limfifottl", capacity=9)
        tube.put("x")
        with queue.transaction() as unit, psycopg.connect(conninfo(postgres_db)) as db:
            tube.put("y", unit=unit)
            queue.flush_counts()
            assert db.execute("SELECT count FROM tubes_calls WHERE event = 'put'").fetchall() == [(1,)]
