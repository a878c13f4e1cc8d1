"""Brings a PostgreSQL database to the schema that this version knows, when told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubes.errors import StoreUnavailable

from . import running, version_table

if TYPE_CHECKING:
    import sqlalchemy as sa
    from tubes.drivers.sql.postgresql_wire import Wire

SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
"""Options of libpq that must not be shown."""

HIDDEN = """
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname = '{table}' AND NOT has_schema_privilege(pg_namespace.oid, 'USAGE')
    AND nspname = ANY (
        regexp_split_to_array(
            pg_catalog.replace(current_setting('search_path'), '$user', current_user), '[", ]+'
        )
    )
"""
"""The schemas of the search_path that have such a table, but are skipped: this role is denied USAGE."""


def bring_up(wire: Wire, url: sa.URL, namespace: str, what: str, *, migrate: bool = False) -> bool:
    """Upgrade an empty or older schema in one transaction; tell whether there was anything to do.

    SchemaMismatch for a newer one, and for an older one or none if ``migrate`` is false; StoreUnavailable if
    this role cannot see it. The tables are made in the first schema of the ``search_path``. The connection
    must not be in a transaction; if there was nothing to do, it is left in one, which has changed nothing.
    """
    # After waiting for the lock, we must see what its holder did, whatever the database's default is
    wire.begin("BEGIN ISOLATION LEVEL READ COMMITTED")
    version = schema_version(wire, namespace)
    if version is None:
        _check_shows_rows(wire, namespace, what)
        if not migrate:
            _check_not_hidden(wire, namespace, what)
    command = running.migrate_command(shown(url), namespace)
    if not running.must_upgrade(version, what, command, migrate=migrate):
        return False
    lock = f"tubes.migrations {namespace}"
    wire.simple(f"SELECT pg_advisory_xact_lock(pg_catalog.hashtextextended('{lock}', 0))")
    version = schema_version(wire, namespace)
    if not running.must_upgrade(version, what, command, migrate=True):  # another process was faster
        return False
    if version is None:  # Alembic leaves it, empty, when it takes the schema down
        wire.simple(f'DROP TABLE IF EXISTS "{version_table(namespace)}"')
    script = running.schema_sql(namespace, "postgresql", version)
    wire.simple(script.removeprefix("BEGIN;"))  # it has begun; the script's own COMMIT ends it
    return True


def _check_not_hidden(wire: Wire, namespace: str, what: str) -> None:
    """Raise StoreUnavailable if the table is in a schema that this role may not use."""
    for (schema,) in wire.simple(HIDDEN.format(table=version_table(namespace))).rows:
        raise StoreUnavailable(
            f"{what} cannot be used: access is denied to the schema {schema}, where the tables are: "
            f"GRANT USAGE ON SCHEMA {schema} TO its role"
        )


def _check_shows_rows(wire: Wire, namespace: str, what: str) -> None:
    """Raise StoreUnavailable if row level security hides the table's only row from this role."""
    table = f'"{version_table(namespace)}"'
    is_active = f"SELECT pg_catalog.row_security_active(pg_catalog.to_regclass('{table}'))"
    if wire.simple(is_active).rows == [(True,)]:
        raise StoreUnavailable(
            f"{what} cannot be used: row level security hides what is in {table} from its role: give it a policy "
            "that lets it see and write all rows of the queue's tables, or disable row level security on them"
        )


def schema_version(wire: Wire, namespace: str) -> str | None:
    """Return the revision of a namespace's tables, ``None`` when there are none."""
    # Not by to_regclass: if it says that there is no table, it says so until the end of the transaction
    table = version_table(namespace)
    is_visible = "relkind IN ('r', 'p', 'f', 'v', 'm') AND pg_catalog.pg_table_is_visible(oid)"
    if not wire.simple(f"SELECT 1 FROM pg_class WHERE relname = '{table}' AND {is_visible}").rows:
        return None
    rows = wire.simple(f'SELECT version_num FROM "{table}"').rows
    return str(rows[0][0]) if rows else None


def shown(url: sa.URL) -> str:
    """A URL without its passwords and what is as good as one, including those in its query."""
    return url.difference_update_query(SECRETS).render_as_string(hide_password=True)
