"""PostgreSQL's schema: it comes when told to, whole or not at all, and lives beside the user's own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import alembic
import interpreter
import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from docs.blocks import blocks
from faults.harness import ended
from psycopg import sql
from servers import PostgresServer, conninfo
from tubes.drivers.sql import postgresql_url
from tubes.drivers.sql.postgresql_wire import Refused, Wire
from tubes.migrations import HEAD, LABEL, TABLES, include_object, postgresql
from tubes.migrations.running import config, schema_sql

import tubes
from tubes.doctor import Doctor
from tubes.testing.suite import take

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = Path(alembic.__file__).parent / "templates" / "generic"
HOW_TO = ROOT / "docs" / "how-to" / "migrate-postgresql.md"

CATALOGUE = {
    "relations": """
        SELECT c.relname, c.relkind, c.relpersistence, c.reloptions::text FROM pg_class c
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace""",
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               o.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_collation o ON o.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND a.attnum > 0""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = quote_ident(current_schema())::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = quote_ident(current_schema())::regnamespace""",
    "triggers": """
        SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace""",
}


@pytest.fixture
def db(postgres_db: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as connection:
        yield connection


def bring_up(url: str, namespace: str = "tubes", *, migrate: bool = True) -> bool:
    to = sa.make_url(url)
    with closing(Wire(postgresql_url.conninfo(to), "the database", "full")) as wire:
        return bool(postgresql.bring_up(wire, to, namespace, "the database", migrate=migrate))


def run_alembic(go: Callable[[Config, str], None], url: str, target: str, namespace: str = "tubes") -> None:
    """Run Alembic's command on a connection of ours, as a contributor may."""
    settings = config(namespace)
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        settings.attributes["connection"] = connection
        go(settings, f"{LABEL}@{target}")


def bring_down(url: str, namespace: str = "tubes") -> None:
    run_alembic(command.downgrade, url, "base", namespace)


def catalogue(db: psycopg.Connection) -> dict[str, list[Any]]:
    """Everything in the schema that the connection works in."""
    return {kind: sorted(map(repr, db.execute(query).fetchall())) for kind, query in CATALOGUE.items()}


def relations(db: psycopg.Connection, kind: str = "r") -> set[str]:
    here = "relnamespace = quote_ident(current_schema())::regnamespace"
    return {
        name for (name,) in db.execute(f"SELECT relname FROM pg_class WHERE {here} AND relkind = '{kind}'")
    }


def in_schema(url: str, db: psycopg.Connection, schema: str) -> str:
    """Make a schema; return the URL of connections that work in it."""
    quoted = sql.Identifier(schema).as_string()
    db.execute(f"CREATE SCHEMA {quoted}".encode())
    options = "-csearch_path=" + quoted.replace(" ", r"\ ")
    return sa.make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)


PUT = """INSERT INTO {table} (tube, state, front, pri, place, utube, created_ms, updated_ms, attempts)
         VALUES (1, 'r', 1, {pri}, {pri}, 'u', 0, 0, 0) RETURNING id"""


def put(db: psycopg.Connection, pri: int = 0, table: str = "tubes_task") -> int:
    row = db.execute(PUT.format(table=table, pri=pri)).fetchone()
    assert row is not None
    return int(row[0])


def fronts(db: psycopg.Connection, table: str = "tubes_task") -> dict[int, int | None]:
    return dict(db.execute(f"SELECT id, front FROM {table}").fetchall())


# Up


def test_an_empty_database_gets_every_table(postgres_db: str, db: psycopg.Connection) -> None:
    assert bring_up(postgres_db)
    assert relations(db) == {f"tubes_{table}" for table in TABLES}
    assert relations(db, "S") == {"tubes_task_id", "tubes_tube_id_seq", "tubes_connection_id_seq"}
    found = db.execute("SELECT version_num FROM tubes_version").fetchall()
    assert found == [(HEAD,)]


def test_the_second_time_there_is_nothing_to_do(postgres_db: str, db: psycopg.Connection) -> None:
    bring_up(postgres_db)
    put(db)
    before = catalogue(db)
    assert not bring_up(postgres_db)
    assert not bring_up(postgres_db, migrate=False)
    assert catalogue(db) == before
    assert len(fronts(db)) == 1


def test_four_at_once_make_one_schema(postgres_db: str, db: psycopg.Connection) -> None:
    barrier = threading.Barrier(4)
    outcomes: list[bool | Exception] = []

    def run() -> None:
        barrier.wait()
        try:
            outcomes.append(bring_up(postgres_db))
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(repr, outcomes)) == ["False", "False", "False", "True"]
    assert db.execute("SELECT count(*) FROM tubes_server").fetchall() == [(1,)]


def test_who_waited_for_another_sees_what_it_did_in_any_isolation(
    postgres_db: str, db: psycopg.Connection
) -> None:
    """Two clients whose role works in REPEATABLE READ, the second held up until the first is through."""
    url = sa.make_url(postgres_db).update_query_dict(
        {"options": r"-cdefault_transaction_isolation=repeatable\ read"}
    )
    strict = url.render_as_string(hide_password=False)
    outcome: list[bool | Exception] = []

    def run() -> None:
        try:
            outcome.append(bring_up(strict))
        except Exception as error:
            outcome.append(error)

    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tubes.migrations tubes', 0))")
        thread = threading.Thread(target=run)
        thread.start()
        waiting = """SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
            WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""
        while not db.execute(waiting).fetchall():
            assert thread.is_alive(), outcome
        script = schema_sql("tubes", "postgresql")
        db.execute(script.replace("BEGIN;", "", 1).replace("COMMIT;", "").encode())
    thread.join()
    assert outcome == [False]


@pytest.mark.slow
def test_who_migrates_for_too_long_is_not_waited_for(postgres_db: str, db: psycopg.Connection) -> None:
    """It was stopped half-way, say: StoreBusy after the timeout. Once it is gone, the next one migrates."""
    refused: list[Exception] = []

    def run() -> None:
        try:
            tubes.connect(postgres_db, migrate=True, busy_timeout=0.2).close()
        except Exception as error:
            refused.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tubes.migrations tubes', 0))")
        thread.start()
        ended(thread)
    assert [type(error) for error in refused] == [tubes.StoreBusy]
    assert relations(db) == set()
    tubes.connect(postgres_db, migrate=True, busy_timeout=0.2).close()


def test_what_fails_half_way_leaves_nothing(postgres_db: str, db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE tubes_temporary_task (mine integer)")
    with pytest.raises(Refused, match="already exists"):
        bring_up(postgres_db)
    assert relations(db) == {"tubes_temporary_task"}
    db.execute("DROP TABLE tubes_temporary_task")
    assert bring_up(postgres_db)


# Refused


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "TABLE tubes_task (id bigint)",
        "FUNCTION tubes_key(bigint, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
        "TYPE tubes_task AS ENUM ('home', 'work')",
        "DOMAIN tubes_session AS text",
        "TABLE tubes_version (number integer)",
        "VIEW tubes_version AS SELECT 1 AS number",
    ],
)
def test_what_is_in_the_way_asks_for_another_namespace(
    postgres_db: str, db: psycopg.Connection, kind: str
) -> None:
    db.execute(f"CREATE {kind}".encode())
    before = relations(db)
    with pytest.raises(tubes.SchemaMismatch, match=r"exist.*a namespace other than 'tubes'"):
        tubes.connect(postgres_db, migrate=True)
    assert relations(db) == before
    tubes.connect(postgres_db, namespace="mine", migrate=True, sweep=False).close()


def test_the_application_s_own_version_table_is_no_namespace_s(
    postgres_db: str, db: psycopg.Connection
) -> None:
    db.execute("CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
    for migrate in (False, True):
        with pytest.raises(tubes.BadOption, match="the application's own migrations"):
            tubes.connect(postgres_db, namespace="alembic", migrate=migrate)
    assert relations(db) == {"alembic_version"}


def test_without_migrate_it_says_what_to_run(postgres_db: str, db: psycopg.Connection) -> None:
    with pytest.raises(tubes.SchemaMismatch) as caught:
        bring_up(postgres_db, "mine", migrate=False)
    assert relations(db) == set()
    said = re.search("`(.*)`", str(caught.value))
    assert said is not None
    words = said[1].replace("tubes ", f"{sys.executable} -m tubes ", 1)
    assert subprocess.run(["sh", "-c", words], timeout=60).returncode == 0
    assert not bring_up(postgres_db, "mine", migrate=False)


@pytest.mark.slow
def test_connect_migrates_only_when_told(postgres_db: str, db: psycopg.Connection) -> None:
    with pytest.raises(tubes.SchemaMismatch, match=r"no schema.*tubes migrate --url .*migrate=True"):
        tubes.connect(postgres_db)
    assert relations(db) == set()
    tubes.connect(postgres_db, migrate=True).close()
    tubes.connect(postgres_db).close()


@pytest.mark.parametrize("migrate", [False, True])
def test_a_newer_schema_is_refused_and_left_alone(
    postgres_db: str, db: psycopg.Connection, migrate: bool
) -> None:
    bring_up(postgres_db)
    db.execute("UPDATE tubes_version SET version_num = '9999'")
    before = catalogue(db)
    with pytest.raises(tubes.SchemaMismatch, match=r"9999.*upgrade tubes"):
        bring_up(postgres_db, migrate=migrate)
    assert catalogue(db) == before


@pytest.mark.parametrize("place", ["user", "password", "sslpassword"])
def test_a_password_is_not_in_the_message(postgres_db: str, place: str) -> None:
    """Wherever the URL has it."""
    url = sa.make_url(postgres_db)
    url = url.set(password="hunter2") if place == "user" else url.update_query_dict({place: "hunter2"})
    given = url.render_as_string(hide_password=False)
    for call in (lambda: bring_up(given, migrate=False), lambda: tubes.connect(given)):
        with pytest.raises(tubes.SchemaMismatch, match="tubes migrate --url") as caught:
            call()
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


# Down


@pytest.mark.slow
def test_down_leaves_nothing_but_an_empty_version_table(postgres_db: str, db: psycopg.Connection) -> None:
    bring_up(postgres_db)
    put(db)
    before = catalogue(db)
    bring_down(postgres_db)
    assert relations(db) == {"tubes_version"}
    assert [catalogue(db)[kind] for kind in ("functions", "triggers")] == [[], []]
    assert relations(db, "S") == set()
    assert db.execute("SELECT * FROM tubes_version").fetchall() == []
    with pytest.raises(tubes.SchemaMismatch, match="no schema"):
        bring_up(postgres_db, migrate=False)
    assert bring_up(postgres_db)
    assert catalogue(db) == before


def test_what_the_how_to_drops_is_everything(postgres_db: str, db: psycopg.Connection) -> None:
    bring_up(postgres_db)
    (drop,) = (block.text for block in blocks(HOW_TO, "sql") if block.text.startswith("DROP"))
    db.execute(drop.encode())
    assert {kind: found for kind, found in catalogue(db).items() if found} == {}


def rights_of(role: str) -> list[str]:
    """What the how-to grants to a role."""
    grants = (block.text for block in blocks(HOW_TO, "sql") if block.text.startswith("GRANT"))
    return [grant for grant in grants if f"TO {role};" in grant]


def test_the_how_tos_rights_are_enough_to_look_and_not_to_put(
    own_postgres_db: str, postgres_server: PostgresServer
) -> None:
    server = sa.make_url(own_postgres_db).set(username="postgres").render_as_string(hide_password=False)
    bring_up(own_postgres_db)
    with psycopg.connect(conninfo(server), autocommit=True) as db:
        db.execute("CREATE ROLE monitor LOGIN")
        try:
            (grants,) = rights_of("monitor")
            db.execute(grants.encode())
            with tubes.connect(own_postgres_db) as queue:
                queue.create_tube("jobs", "utubettl").put("x", utube="a")
            with tubes.connect(
                sa.make_url(own_postgres_db).set(username="monitor").render_as_string()
            ) as queue:
                jobs = queue.tube.jobs
                assert [task.data for task in (*jobs.tasks("r"), jobs.peek(1))] == ["x", "x"]
                assert jobs.statistics()["tasks"]["ready"] == 1
                assert [*Doctor(queue, deep=True).examine()] == []
                for change in (lambda: jobs.put("y", utube="a"), lambda: jobs.take(timeout=0), jobs.truncate):
                    with pytest.raises(tubes.StoreUnavailable, match="access is denied"):
                        change()
        finally:
            db.execute("DROP OWNED BY monitor; DROP ROLE monitor")


@pytest.mark.parametrize("is_for_public", [True, False], ids=["as it comes", "nothing is for PUBLIC"])
def test_the_how_tos_rights_are_enough_to_work_and_not_to_migrate(
    own_postgres_db: str, postgres_server: PostgresServer, is_for_public: bool
) -> None:
    grants = rights_of("application")
    server = sa.make_url(own_postgres_db).set(username="postgres").render_as_string(hide_password=False)
    application = sa.make_url(own_postgres_db).set(username="application").render_as_string()
    bring_up(own_postgres_db)
    with psycopg.connect(conninfo(server), autocommit=True) as db:
        db.execute("CREATE ROLE application LOGIN")
        try:
            db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as it is from PostgreSQL 15 on
            if not is_for_public:
                for what in ("USAGE ON SCHEMA", "EXECUTE ON ALL FUNCTIONS IN SCHEMA"):
                    db.execute(f"REVOKE {what} public FROM PUBLIC".encode())
                with pytest.raises(tubes.StoreUnavailable, match="GRANT USAGE ON SCHEMA public"):
                    bring_up(application, migrate=False)  # migrating what is hidden from it would not help
            for grant in grants[:1] if is_for_public else grants:
                db.execute(grant.encode())
            assert not bring_up(application, migrate=False)
            with tubes.connect(application) as queue:
                for temporary in (False, True):
                    tube = queue.create_tube(f"t{temporary}", "utubettl", temporary=temporary)
                    tube.put_many(["first", "second"])
                    task = take(tube)
                    tube.bury(task)
                    tube.drop()
                queue.create_tube("jobs", "fifo").put("third")
                db.execute("SELECT setval('tubes_task_id', 1, false), setval('tubes_tube_id_seq', 1, false)")
                assert [finding.rule for finding in Doctor(queue, deep=True).repair()] == ["task", "tube"]
                assert [*Doctor(queue, deep=True).examine()] == []
            is_kept_out = "NOT has_function_privilege('application', oid, 'EXECUTE')"
            ours = "pronamespace = 'public'::regnamespace"
            assert db.execute(f"SELECT proname FROM pg_proc WHERE {ours} AND {is_kept_out}").fetchall() == []
            with pytest.raises(Refused, match="permission denied"):
                bring_up(application, "other")
        finally:
            db.execute("DROP OWNED BY application; DROP ROLE application")


def test_tables_that_row_level_security_hides_are_not_said_to_be_missing(
    own_postgres_db: str, postgres_server: PostgresServer
) -> None:
    """Migrating would not help."""
    bring_up(own_postgres_db)
    application = sa.make_url(own_postgres_db).set(username="application").render_as_string()
    server = sa.make_url(own_postgres_db).set(username="postgres").render_as_string()
    with psycopg.connect(conninfo(server), autocommit=True) as db:
        db.execute("CREATE ROLE application LOGIN")
        try:
            db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO application")
            db.execute("ALTER TABLE tubes_version ENABLE ROW LEVEL SECURITY")
            with pytest.raises(tubes.StoreUnavailable, match="row level security"):
                tubes.connect(application)
        finally:
            db.execute("DROP OWNED BY application; DROP ROLE application")


# The SQL


def test_the_printed_sql_makes_the_same(postgres_db: str, db: psycopg.Connection) -> None:
    """As what Alembic itself does on a connection."""
    run_alembic(command.upgrade, postgres_db, "head")
    before = catalogue(db)
    bring_down(postgres_db)
    db.execute("DROP TABLE tubes_version")
    tubes_migrate = ["-c", "from tubes.cli import main; main()", "migrate"]
    shown = interpreter.run([*tubes_migrate, "--sql", "--url", "postgresql+psycopg://"], text=True)
    assert shown.returncode == 0, shown.stderr
    db.execute(shown.stdout.encode())
    assert catalogue(db) == before
    assert not bring_up(postgres_db, migrate=False)


def test_the_printed_sql_makes_everything_or_nothing(postgres_db: str, db: psycopg.Connection) -> None:
    """Even in a client that runs it statement by statement: it has its own BEGIN and COMMIT."""
    script = schema_sql("tubes", "postgresql")
    assert script.startswith("BEGIN;") and script.rstrip().endswith("COMMIT;")
    db.execute("CREATE TABLE tubes_temporary_task (mine integer)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        db.execute(script.encode())
    db.execute("ROLLBACK")
    assert relations(db) == {"tubes_temporary_task"}


# Neighbours


@pytest.mark.slow
@pytest.mark.parametrize("blue", ["blue", "Blue", "select", "b" * 32])
def test_two_namespaces_share_a_database_and_go_their_own_ways(
    postgres_db: str, db: psycopg.Connection, blue: str
) -> None:
    bring_up(postgres_db, "red")
    assert bring_up(postgres_db, blue)
    first, second = put(db, table="red_task"), put(db, table=f'"{blue}_task"')
    assert fronts(db, "red_task") == {first: 1}
    assert fronts(db, f'"{blue}_task"') == {second: 1}
    bring_down(postgres_db, "red")
    assert relations(db) == {f"{blue}_{table}" for table in TABLES} | {"red_version"}
    third = put(db, table=f'"{blue}_task"')
    assert fronts(db, f'"{blue}_task"') == {second: 1, third: 0}


@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["_", "__jobs", "Select", "b" * 32])
def test_a_queue_works_in_a_namespace_of_any_name(postgres_db: str, namespace: str) -> None:
    with tubes.connect(postgres_db, namespace=namespace, migrate=True) as queue:
        tube = queue.create_tube("jobs", "utube")
        tube.put_many(["first", "second"])
        assert tube.take(timeout=0) is not None
        assert tube.release_all() == 1  # which locks its sub-queue by the namespace's own function


def test_namespaces_lock_different_sub_queues(postgres_db: str, db: psycopg.Connection) -> None:
    """Otherwise, they would wait for each other for nothing."""
    bring_up(postgres_db, "red")
    bring_up(postgres_db, "blue")
    keys = db.execute("SELECT red_key(1, 'u'), blue_key(1, 'u'), red_key(2, 'u'), red_key(1, 'v')").fetchone()
    assert keys is not None
    assert len(set(keys)) == 4


@pytest.mark.parametrize("temporary", [False, True])
def test_queues_in_two_schemas_do_not_wait_for_each_other(
    postgres_db: str, db: psycopg.Connection, temporary: bool
) -> None:
    """Each has a tube of the same number, with a sub-queue of the same name."""
    urls = [in_schema(postgres_db, db, schema) for schema in ("red", 'Blue"s $own')]
    with ExitStack() as open:
        queues = [open.enter_context(tubes.connect(url, migrate=True, busy_timeout=0.1)) for url in urls]
        red, blue = (queue.create_tube("jobs", "utube", temporary=temporary) for queue in queues)
        with queues[0].transaction() as unit:
            red.put("first", utube="u", unit=unit)
            assert blue.put("second", utube="u").id == 1


@pytest.mark.parametrize("schema", ['App"s $own', "of$$money", "@number@"])
def test_a_schema_of_its_own_holds_everything(postgres_db: str, db: psycopg.Connection, schema: str) -> None:
    """Whatever is in its name, even what is in the SQL that makes our functions."""
    url = in_schema(postgres_db, db, schema)
    assert bring_up(url)
    assert not bring_up(url)
    assert relations(db) == set()
    db.execute("SELECT set_config('search_path', quote_ident(%s), false)", [schema])
    assert relations(db) == {f"tubes_{table}" for table in TABLES}
    assert {put(db): 1, put(db): 0} == fronts(db)
    bring_down(url)
    assert relations(db) == {"tubes_version"}


@pytest.mark.parametrize("table", ["tubes_task", "tubes_temporary_task"])
def test_sub_queues_keep_their_order_whatever_the_search_path_is(
    postgres_db: str, db: psycopg.Connection, table: str
) -> None:
    """A replica's worker has an empty one, and a caller's may lead to other tables of the same names."""
    bring_up(in_schema(postgres_db, db, "app"))
    bring_up(in_schema(postgres_db, db, "other"))
    for path in ("''", "other"):
        db.execute(f"SET search_path = {path}")
        worse, better = put(db, 7, f"app.{table}"), put(db, 3, f"app.{table}")
        assert fronts(db, f"app.{table}") == {worse: 0, better: 1}
        db.execute(f"UPDATE app.{table} SET front = NULL, ttr_ms = NULL, state = '!' WHERE id = {better}")
        assert fronts(db, f"app.{table}") == {worse: 1, better: None}
        db.execute(f"UPDATE app.{table} SET front = 0, ttr_ms = NULL, state = 'r' WHERE id = {better}")
        assert fronts(db, f"app.{table}") == {worse: 0, better: 1}
        db.execute(f"UPDATE app.{table} SET state = 't' WHERE id = {better}")
        best = put(db, 1, f"app.{table}")
        assert fronts(db, f"app.{table}") == {worse: 0, better: 1, best: 0}
        db.execute(f"UPDATE app.{table} SET state = 'r', ttr_ms = NULL WHERE id = {better}")
        assert fronts(db, f"app.{table}") == {worse: 0, better: 0, best: 1}
        db.execute(f"DELETE FROM app.{table} WHERE id = {best}")
        assert fronts(db, f"app.{table}") == {worse: 0, better: 1}
        db.execute(f"DELETE FROM app.{table}")
    assert fronts(db, f"other.{table}") == {}


def test_no_two_of_a_sub_queue_can_stand_in_front(postgres_db: str, db: psycopg.Connection) -> None:
    """Even if a statement bypasses the triggers."""
    bring_up(postgres_db)
    put(db)
    second = put(db)
    with pytest.raises(psycopg.errors.UniqueViolation, match="tubes_task_first"):
        db.execute(f"UPDATE tubes_task SET front = 1 WHERE id = {second}")


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_one_snapshot_for_a_whole_transaction_changes_no_sub_queue(
    postgres_db: str, db: psycopg.Connection, isolation: str
) -> None:
    """It would not see what was put behind the task that it removes, and would leave that there for ever."""
    bring_up(postgres_db)
    first = put(db)
    with psycopg.connect(conninfo(postgres_db), autocommit=True) as theirs:
        for change in (f"DELETE FROM tubes_task WHERE id = {first}", PUT.format(table="tubes_task", pri=0)):
            theirs.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
            theirs.execute("SELECT 1 FROM tubes_tube")
            put(db)
            with pytest.raises(psycopg.errors.Error, match="must be READ COMMITTED") as caught:
                theirs.execute(change.encode())
            assert caught.value.sqlstate == "TB002"
            theirs.execute("ROLLBACK")
        with theirs.transaction():
            theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
            theirs.execute(PUT.format(table="tubes_task", pri=0).replace("'u'", "NULL").encode())
    assert sorted(map(str, fronts(db).values())) == ["0", "0", "1", "1"]


def test_a_publication_of_all_tables_is_in_nobody_s_way(postgres_db: str, db: psycopg.Connection) -> None:
    """As for logical replication: a row that nothing identifies could not be changed any more."""
    bring_up(postgres_db)
    logged = ", ".join(relations(db) - {"tubes_temporary_task"})
    db.execute(f"CREATE PUBLICATION everything FOR TABLE {logged}".encode())
    try:
        with tubes.connect(postgres_db, sweep=False) as queue:  # which says when the server was started
            tube = queue.create_tube("jobs", "utube")
            tube.put("x")
            tube.ack_many(tube.take_many(1, 0))
            tube.drop()
    finally:
        db.execute("DROP PUBLICATION everything")


def test_both_task_tables_count_on_one_sequence(postgres_db: str, db: psycopg.Connection) -> None:
    bring_up(postgres_db)
    ids = [put(db), put(db, table="tubes_temporary_task"), put(db)]
    assert ids == sorted(set(ids))


@pytest.mark.slow
def test_a_crash_empties_the_temporary_table_and_sets_no_id_back(
    own_postgres_db: str, postgres_server: PostgresServer
) -> None:
    bring_up(own_postgres_db)
    with psycopg.connect(conninfo(own_postgres_db), autocommit=True) as db:
        kept, lost = put(db), put(db, table="tubes_temporary_task")
    postgres_server.stop("immediate")
    postgres_server.start()
    with psycopg.connect(conninfo(own_postgres_db), autocommit=True) as db:
        assert fronts(db) == {kept: 1}
        assert fronts(db, "tubes_temporary_task") == {}
        assert put(db, table="tubes_temporary_task") > lost


# The user's own Alembic


def differences(url: str, leave_out: Callable[..., bool] | None) -> set[tuple[str, str]]:
    """What autogenerate would do to a database for an application that has one table."""
    models = sa.MetaData()
    order = sa.Table("tubes_order", models, sa.Column("id", sa.BigInteger, primary_key=True))
    sa.Index("tubes_task", order.c.id)  # named like a table of ours
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": leave_out})
        found = compare_metadata(context, models)
    return {(difference[0], difference[1].name) for difference in found}


def test_autogenerate_leaves_our_tables_alone(postgres_db: str, db: psycopg.Connection) -> None:
    """And only ours: the application's may begin with the same word."""
    bring_up(postgres_db)
    bring_up(postgres_db, "mine")
    db.execute("CREATE TABLE tubes_left_over (id integer)")
    asked = {
        ("add_table", "tubes_order"),
        ("add_index", "tubes_task"),
        ("remove_table", "tubes_left_over"),
    }
    mine = {("remove_table", f"mine_{table}") for table in TABLES}
    ours, theirs = include_object(), include_object("mine")
    assert differences(postgres_db, lambda *of: ours(*of) and theirs(*of)) == asked
    assert {found for found in differences(postgres_db, ours) if found[0] != "remove_index"} == asked | mine
    assert ("remove_table", "tubes_task") in differences(postgres_db, None)


def test_an_applications_own_migrations_go_on_beside_ours(
    postgres_db: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    """With the env.py that the how-to shows, run by Alembic's own command."""
    (env,) = (block.text for block in blocks(HOW_TO, "python") if block.file == "env.py")
    (tmp_path / "env.py").write_text(env, encoding="utf-8")
    (tmp_path / "script.py.mako").write_bytes((TEMPLATES / "script.py.mako").read_bytes())
    (tmp_path / "versions").mkdir()
    (tmp_path / "shop.py").write_text(
        "import sqlalchemy as sa\n\nmetadata = sa.MetaData()\n"
        "sa.Table('shop_order', metadata, sa.Column('id', sa.BigInteger, primary_key=True))\n"
    )
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = %(here)s\nprepend_sys_path = %(here)s\nsqlalchemy.url = {postgres_db}\n".replace(
            "%2F", "%%2F"
        )
    )

    def run(*arguments: str) -> None:
        command = ["-c", "from alembic.config import main; main()", *arguments]
        done = interpreter.run(command, cwd=tmp_path, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    bring_up(postgres_db)
    ours = catalogue(db)
    run("revision", "--autogenerate", "-m", "orders")
    run("upgrade", "head")
    run("check")
    assert relations(db) == {f"tubes_{table}" for table in TABLES} | {"shop_order", "alembic_version"}
    assert not bring_up(postgres_db, migrate=False)
    run("downgrade", "base")
    db.execute("DROP TABLE alembic_version")
    assert catalogue(db) == ours


def test_an_applications_tables_and_version_stay_as_they_are(
    postgres_db: str, db: psycopg.Connection
) -> None:
    db.execute(
        "CREATE TABLE alembic_version (version_num text); INSERT INTO alembic_version VALUES ('app42');"
        "CREATE TABLE task (id integer); INSERT INTO task VALUES (7)"
    )
    bring_up(postgres_db)
    bring_down(postgres_db)
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("app42",)]
    assert db.execute("SELECT id FROM task").fetchall() == [(7,)]
