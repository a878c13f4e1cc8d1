"""Somebody who may make functions and operators beside the tables cannot have a queue's users run them.

PostgreSQL calls the best match in the whole ``search_path``: if its own function takes a json and is given a
text, it calls a function of the same name that takes a text, with the caller's rights. Here, each of these
raises.
"""

from __future__ import annotations

import psycopg
import pytest
from doctor.conftest import do_everything
from psycopg import sql
from servers import conninfo

import tubes
from tubes.doctor import Doctor

FUNCTIONS = [
    "current_setting", "hashtextextended", "json_array_elements_text", "json_object_keys", "nextval",
    "pg_get_serial_sequence", "pg_notify", "quote_ident", "replace", "row_security_active", "set_config", "setval",
    "to_regclass",
]  # fmt: skip
"""Functions that our statements call: those that take no type of their own, or were given another."""

OPERATORS = ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*"]

MAKE_FUNCTIONS = """
DO $$ DECLARE
    types text[] := ARRAY['text', 'varchar', 'name', 'integer', 'bigint', 'boolean', 'regclass'];
    called text; x text; y text; given text;
BEGIN
    FOREACH called IN ARRAY CAST({names} AS text[]) LOOP
    FOREACH x IN ARRAY types LOOP FOREACH y IN ARRAY types || ''::text LOOP
        given := concat_ws(', ', x, nullif(y, ''));
        FOREACH given IN ARRAY ARRAY[given, given || ', name', given || ', boolean'] LOOP
            CONTINUE WHEN EXISTS (
                SELECT FROM pg_proc WHERE proname = called AND oidvectortypes(proargtypes)
                = replace(given, 'varchar', 'character varying')
            );
            EXECUTE format(
                'CREATE FUNCTION %I(%s) RETURNS text LANGUAGE plpgsql AS '
                '''BEGIN RAISE EXCEPTION ''''overloaded: %s(%s)''''; END''',
                called, given, called, given
            );
        END LOOP;
    END LOOP; END LOOP; END LOOP;
END $$
"""

MAKE_OPERATORS = """
DO $$ DECLARE
    types text[] := ARRAY['text', 'varchar', 'name', 'integer', 'smallint', 'bigint', 'numeric', 'float8', 'boolean'];
    called text; x text; y text; number integer := 0;
BEGIN
    FOREACH called IN ARRAY CAST({names} AS text[]) LOOP
    FOREACH x IN ARRAY types LOOP FOREACH y IN ARRAY types LOOP
        number := number + 1;
        EXECUTE format(
            'CREATE FUNCTION operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS '
            '''BEGIN RAISE EXCEPTION ''''overloaded: %s %s %s''''; END''',
            number, x, y, CASE WHEN called ~ '[<>=]' THEN 'boolean' ELSE 'bigint' END, x, called, y
        );
        EXECUTE format(
            'CREATE OPERATOR %s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = operator_%s)', called, x, y, number
        );
    END LOOP; END LOOP; END LOOP;
END $$
"""


def overload(url: str, make: str, names: list[str]) -> None:
    """Make functions or operators with these names, for all types for which the server has none."""
    with psycopg.connect(conninfo(url)) as db:
        db.execute(sql.SQL(make).format(names=names))


@pytest.mark.parametrize(
    ("make", "names"),
    [(MAKE_FUNCTIONS, FUNCTIONS), (MAKE_OPERATORS, OPERATORS)],
    ids=["functions", "operators"],
)
def test_a_queue_calls_the_servers_own(make: str, names: list[str], postgres_db: str) -> None:
    tubes.connect(postgres_db, migrate=True, sweep=False).close()
    overload(postgres_db, make, names)
    with tubes.connect(postgres_db, sweep=False) as queue:
        do_everything(queue)
        with tubes.connect(postgres_db, sweep=False) as other:
            other.identify(queue.identify())
        queue.flush_counts()
        queue.sweep()
        queue.rescuer.rescue()
        for tube in map(queue.get_tube, queue.tubes()):
            tube.release_all()
            tube.ack_many(tube.take_many(9, 0))
            tube.truncate()
        queue.store.transact(lambda tx: tx.only_run(queue.store._sql.call_roll))  # type: ignore[attr-defined]
        assert [*Doctor(queue, deep=True).repair()] == []


def test_a_migration_calls_the_servers_own_functions(postgres_db: str) -> None:
    overload(postgres_db, MAKE_FUNCTIONS, FUNCTIONS)
    with tubes.connect(postgres_db, migrate=True, sweep=False) as queue:
        do_everything(queue)


@pytest.mark.parametrize(
    ("make", "names", "call"),
    [
        (MAKE_FUNCTIONS, FUNCTIONS, "SELECT json_array_elements_text('[]'::text)"),
        (MAKE_OPERATORS, OPERATORS, "SELECT 1.5 * 2"),
    ],
    ids=["functions", "operators"],
)
def test_who_does_not_say_which_is_meant_calls_another(
    make: str, names: list[str], call: str, postgres_db: str
) -> None:
    """So the tests above would fail if our statements did not say it."""
    overload(postgres_db, make, names)
    with psycopg.connect(conninfo(postgres_db)) as db, pytest.raises(psycopg.Error, match="overloaded"):
        db.execute(call.encode())
