"""Brings a PostgreSQL database to the schema that this version knows, when told to."""

from __future__ import annotations

import sqlalchemy as sa

from tubes.errors import StoreUnavailable

from . import HEAD, running, version_table

SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
"""Options of libpq that must not be shown."""

HIDDEN = """
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname = :table AND NOT has_schema_privilege(pg_namespace.oid, 'USAGE')
    AND nspname = ANY (
        regexp_split_to_array(
            pg_catalog.replace(current_setting('search_path'), '$user', current_user), '[", ]+'
        )
    )
"""
"""The schemas of the search_path that have such a table, but are skipped: this role is denied USAGE."""


def bring_up(
    connection: sa.Connection, namespace: str, what: str, *, migrate: bool = False, lock_timeout: str = "0"
) -> bool:
    """Upgrade an empty or older schema in one transaction; tell whether there was anything to do.

    SchemaMismatch for a newer one, and for an older one or none if ``migrate`` is false; StoreUnavailable if
    this role cannot see it. The tables are made in the first schema of the ``search_path``. The connection
    must not be in a transaction; this one is committed. It waits at most ``lock_timeout`` milliseconds for
    others that migrate; 0: for ever.
    """
    # After waiting for the lock, we must see what its holder did, whatever the database's default is.
    connection = connection.execution_options(isolation_level="READ COMMITTED")
    with connection.begin():
        connection.execute(sa.text("SELECT set_config('lock_timeout', :ms, true)"), {"ms": lock_timeout})
        version = schema_version(connection, namespace)
        if version is None:
            _check_shows_rows(connection, namespace, what)
            if not migrate:
                _check_not_hidden(connection, namespace, what)
        command = running.migrate_command(shown(connection.engine.url), namespace)
        if not running.must_upgrade(version, what, command, migrate=migrate):
            return False
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(pg_catalog.hashtextextended(:lock, 0))"),
            {"lock": f"tubes.migrations {namespace}"},
        )
        version = schema_version(connection, namespace)  # another process may have been faster
        if version == HEAD:
            return False
        running.upgrade(connection, namespace, version, what)
        return True


def _check_not_hidden(connection: sa.Connection, namespace: str, what: str) -> None:
    """Raise StoreUnavailable if the table is in a schema that this role may not use."""
    schema = connection.scalar(sa.text(HIDDEN), {"table": version_table(namespace)})
    if schema is not None:
        raise StoreUnavailable(
            f"{what} cannot be used: access is denied to the schema {schema}, where the tables are: "
            f"GRANT USAGE ON SCHEMA {schema} TO its role"
        )


def _check_shows_rows(connection: sa.Connection, namespace: str, what: str) -> None:
    """Raise StoreUnavailable if row level security hides the table's only row from this role."""
    table = f'"{version_table(namespace)}"'
    is_active = "SELECT pg_catalog.row_security_active(pg_catalog.to_regclass(:table))"
    if connection.scalar(sa.text(is_active), {"table": table}):
        raise StoreUnavailable(
            f"{what} cannot be used: row level security hides what is in {table} from its role: give it a policy "
            "that lets it see and write all rows of the queue's tables, or disable row level security on them"
        )


def schema_version(connection: sa.Connection, namespace: str) -> str | None:
    """Return the revision of a namespace's tables, ``None`` when there are none."""
    # Not by to_regclass: if it says that there is no table, it says so until the end of the transaction
    table = version_table(namespace)
    if not sa.inspect(connection).has_table(table):
        return None
    version = connection.scalar(sa.text(f'SELECT version_num FROM "{table}"'))
    return None if version is None else str(version)


def shown(url: sa.URL) -> str:
    """A URL without its passwords and what is as good as one, including those in its query."""
    return url.difference_update_query(SECRETS).render_as_string(hide_password=True)
