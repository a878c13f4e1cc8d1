"""Text survives PostgreSQL, singly and in batches, whatever the database's encoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa
from servers import conninfo, drop_database

import tubes

TEXTS = ["plain", "Zürich", 'a "quoted" \\ text', "tab\tline\n", "\x1f", "\x1f,\x1f", "{1,NULL}", "😀", ""]


@contextmanager
def queue_in(postgres_url: str, encoding: str) -> Iterator[tubes.Queue]:
    """A queue in a database with this encoding."""
    name = f"tubes_test_{encoding.lower()}"
    with psycopg.connect(conninfo(postgres_url), autocommit=True) as db:
        drop_database(db, name)
        db.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        try:
            url = sa.make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
            with tubes.connect(url, migrate=True, sweep=False) as queue:
                yield queue
        finally:
            drop_database(db, name)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_text_comes_back_as_it_was(postgres_url: str, encoding: str) -> None:
    with queue_in(postgres_url, encoding) as queue:
        tube = queue.create_tube("texts", "utube")
        for sub_queue in filter(None, TEXTS):
            one = tube.put(sub_queue, utube=sub_queue)
            some = tube.put_many(TEXTS, utube=sub_queue)
            assert [tube.peek(task).data for task in (one, *some)] == [sub_queue, *TEXTS]
            assert {tube.peek(task).utube for task in (one, *some)} == {sub_queue}
        taken = tube.take_many(100, 0)
        assert {task.utube for task in taken} == set(filter(None, TEXTS))
        assert {task.data for task in tube.ack_many(taken)} == set(filter(None, TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_locked_sub_queue_of_any_name_is_passed_over(postgres_url: str, encoding: str) -> None:
    """Its name goes to the server as JSON, and not every encoding accepts a letter written as \\u00fc."""
    with queue_in(postgres_url, encoding) as queue:
        tube = queue.create_tube("texts", "utube")
        for name in ("Zürich", "free"):
            tube.bury(tube.put(name, utube=name))
        with queue.transaction() as unit:
            tube.put("first", utube="Zürich", unit=unit)
            assert tube.kick(1) == 1
        assert {task.data for task in tube.tasks("r")} == {"first", "free"}


@pytest.mark.slow
def test_text_that_the_encoding_has_not_is_an_error(postgres_url: str) -> None:
    """Text that it has comes back; of a batch with one bad character, nothing is stored."""
    with queue_in(postgres_url, "LATIN1") as queue:
        tube = queue.create_tube("texts", "utube")
        tube.put("Zürich", utube="ü")
        for put in (
            lambda: tube.put("😀"),
            lambda: tube.put("x", utube="😀"),
            lambda: tube.put_many(["é", "😀"]),
        ):
            with pytest.raises(tubes.StoreError, match="encoding cannot represent all characters"):
                put()
        assert [(task.data, task.utube) for task in tube.take_many(9, 0)] == [("Zürich", "ü")]
        assert tube.statistics()["tasks"]["total"] == 1


@pytest.mark.slow
def test_a_statement_that_the_server_ends_was_not_done(postgres_db: str) -> None:
    """Its statement_timeout ends a put while another transaction has locked the table."""
    slow = sa.make_url(postgres_db).update_query_dict({"options": "-cstatement_timeout=100"})
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        tube = queue.create_tube("jobs", "fifo")
        with tubes.connect(slow.render_as_string(hide_password=False), sweep=False) as other:
            with psycopg.connect(conninfo(postgres_db)) as db:
                db.execute("LOCK TABLE tubes_task")
                with pytest.raises(tubes.StoreBusy, match="the server ended the statement") as caught:
                    other.tube.jobs.put("never")
                assert getattr(caught.value.__cause__, "code", None) == "57014"
            assert other.tube.jobs.put("later").data == "later"
        assert [task.data for task in tube.take_many(9, 0)] == ["later"]


@pytest.mark.slow
@pytest.mark.parametrize("pooled", ["no", "yes"])
@pytest.mark.parametrize("setting", ["array_nulls", "standard_conforming_strings"])
def test_a_batch_comes_back_as_it_was_whatever_the_role_is_set_to(
    postgres_db: str, setting: str, pooled: str
) -> None:
    """With ``array_nulls`` off, a NULL in an array is read as the text NULL.

    With ``standard_conforming_strings`` off, psycopg doubles the backslashes of bytes.
    """
    url = sa.make_url(postgres_db).update_query_dict({"pooled": pooled})
    batch = [b"one", {"two": 2}, b"three"]
    shown = url.render_as_string(hide_password=False)
    engine = sa.create_engine(postgres_db)
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as db:
        here = f"ALTER ROLE CURRENT_USER IN DATABASE {url.database}"
        db.execute(f"{here} SET {setting} = off")
        try:
            with tubes.connect(shown, migrate=True, sweep=False) as queue:
                for tube in (
                    queue.create_tube("plain", "fifo"),
                    queue.create_tube("timed", "fifottl", ttl=60, ttr=60),  # only payloads are NULL
                ):
                    tube.put_many(batch)
                    with engine.begin() as connection:
                        tube.put_many(batch, connection=connection)
                    with queue.transaction() as unit:
                        tube.put_many(batch, unit=unit)
                    assert [task.data for task in tube.take_many(9, 0)] == batch * 3
        finally:
            db.execute(f"{here} RESET {setting}")
            engine.dispose()
