"""Joining the user's own transaction in a queue's PostgreSQL database, whichever driver it uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from tubes.errors import BadOption

from .joined import JoinedTx, autocommits, driver_connection, read_only
from .postgresql_errors import translated
from .postgresql_wire import (
    FAILED_BEFORE,
    FAILING,
    HAS_TRIGGERS,
    LOST_CODES,
    Refused,
    array,
    without_triggers,
)
from .statements import Row, Statement
from .tx import inserted_ids

Identity = tuple[str, int, int | None]

IS_READ_ONLY = "current_setting('transaction_read_only')"
TAKES_ARRAYS = "current_setting('array_nulls') = 'on'"
"""Else a NULL in an array is read as the text NULL. The setting is the user's, and is left as it is."""

A_BYTE = "CAST('a' AS bytea)"
"""With ``bytea_output = escape`` pg8000 silently reads other bytes than were stored."""

HAS_SNAPSHOT = "current_setting('transaction_isolation') IN ('repeatable read', 'serializable')"
"""Then a tube that was dropped since can still be seen, and what is put there would be lost."""

IN_TRANSACTION = 2
"""libpq's number for a transaction that is open and has not failed."""


def identity_query(namespace: str) -> str:
    """What is the same on two connections only if they see the same table: server, database, and the table in it."""
    return (
        "SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text),"
        " (SELECT CAST(oid AS bigint) FROM pg_database WHERE datname = current_database()),"
        f" CAST(CAST(to_regclass('\"{namespace}_task\"') AS oid) AS bigint)"
    )


class PostgresJoinedTx(JoinedTx):
    """Rewrites the parameters of our statements, libpq's ``$1``, in the style of the user's driver."""

    def __init__(
        self, connection: sa.Connection, namespace: str, *, takes_arrays: bool, has_snapshot: bool
    ) -> None:
        super().__init__(connection)
        self.is_halfway = False
        """Whether the step under way has executed a statement."""
        self._takes_arrays = takes_arrays
        self._tubes = f'"{namespace}_tube"'
        self._has_snapshot = has_snapshot
        dialect: Any = type(connection.dialect)  # an instance may be told to compile in another style
        self._style: str = dialect.default_paramstyle

    def execute(self, text: str, given: Any = None) -> sa.CursorResult[Any]:
        result = super().execute(text, given)
        self.is_halfway = True
        return result

    def spoil(self) -> None:
        """Make sure that this can only be rolled back."""
        with suppress(sa.exc.SQLAlchemyError, BadOption):  # it is lost, or spoilt by the user
            self.execute(FAILING)

    def _run(self, statement: Statement, given: Row) -> sa.CursorResult[Any]:
        text, places = _in_style(statement.text, self._style)
        bound = statement.bind(given)
        if self._style == "pyformat":
            return self.execute(text, {f"p{place}": value for place, value in enumerate(bound, 1)})
        return self.execute(text, bound if places is None else tuple([bound[place] for place in places]))

    def insert(self, statement: Statement, given: Sequence[Row]) -> Sequence[int]:
        batch = statement.batch
        if len(given) == 1 or batch is None or not self._takes_arrays:
            return super().insert(statement, given)
        self._keep(given[0][0])
        columns: list[Any] = [[*column] for column in zip(*given, strict=True)]
        if self._style in ("pyformat", "format"):  # applications may have such drivers send lists as JSON
            columns = [array(column).decode() for column in columns]
        return inserted_ids(self.rows(batch, *columns), len(given))

    def only_insert(self, statement: Statement, given: Row) -> int:
        self._keep(given[0])
        return inserted_ids(self.rows(statement, *given), 1)[0]

    def _keep(self, tube: int) -> None:
        """Make sure that a row's tube was not dropped since the snapshot, nor will be before the commit."""
        if self._has_snapshot:
            self.execute(f"SELECT 1 FROM {self._tubes} WHERE id = {int(tube)} FOR KEY SHARE")


@lru_cache(maxsize=1024)
def _in_style(text: str, style: str) -> tuple[str, list[int] | None]:
    """A statement in another parameter style; for ``format``, also which parameter is at each place."""
    if style == "pyformat":
        return re.sub(r"\$(\d+)", r"%(p\1)s", text.replace("%", "%%")), None
    if style == "format":
        places = [int(place) - 1 for place in re.findall(r"\$(\d+)", text)]
        return re.sub(r"\$\d+", "%s", text.replace("%", "%%")), places
    return text, None


def begin(connection: sa.Connection, namespace: str, what: str) -> tuple[PostgresJoinedTx, Identity]:
    """Join the transaction on a connection, or raise BadOption; return what it is connected to, too."""
    if connection.dialect.detect_autocommit_setting(connection.connection.dbapi_connection):  # type: ignore[arg-type]
        raise autocommits()
    try:
        asked = f"{IS_READ_ONLY}, {A_BYTE}, {HAS_TRIGGERS}, {TAKES_ARRAYS}, {HAS_SNAPSHOT}"
        row = connection.exec_driver_sql(f"{identity_query(namespace)}, {asked}").one()
    except sa.exc.DBAPIError as error:
        raise translated(refused_to_user(error), what) from error
    started, database, table, is_read_only, byte, has_triggers, takes_arrays, has_snapshot = row
    if is_read_only == "on":
        raise read_only(what)
    if type(database) is not int:  # an application may have it read numbers or bytes as something else
        raise BadOption(
            f"this connection reads bigint as {type(database).__name__}, not int", option="connection"
        )
    if not isinstance(byte, (bytes, bytearray, memoryview)) or bytes(byte) != b"a":
        raise BadOption(
            "this connection's driver reads bytes only if its bytea_output is hex", option="connection"
        )
    if not has_triggers:
        raise without_triggers("connection")
    tx = PostgresJoinedTx(connection, namespace, takes_arrays=takes_arrays, has_snapshot=has_snapshot)
    return tx, (started, database, table)


def stands(dialect: Any, connection: Any) -> bool:
    """Whether no statement has failed: after a failure, the server silently takes COMMIT for ROLLBACK.

    If the connection is lost, its error is raised: after it, some drivers take the transaction for over, and
    their commit silently does nothing.
    """
    info = getattr(driver_connection(dialect, connection), "info", None)
    status = getattr(info, "transaction_status", None)
    if status is not None:
        return int(status) == IN_TRANSACTION
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT 1")
    except Exception as error:
        if code_of(error) == FAILED_BEFORE:
            return False
        raise
    finally:
        cursor.close()
    return True


def refused_to_user(error: sa.exc.DBAPIError) -> Refused:
    """What the server said to a statement on the user's connection."""
    original: Any = error.orig
    code = code_of(original)
    is_lost = error.connection_invalidated or (not code and isinstance(error, sa.exc.OperationalError))
    if is_lost and code not in LOST_CODES:  # a refusal by the server always has a code
        code = LOST_CODES[-1]
    return Refused(code, str(_fields(original).get("M", original)).strip())


def code_of(original: Any) -> str:
    """The SQLSTATE in a driver's error, empty if it has none."""
    code = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return str(code or _fields(original).get("C", ""))


def _fields(original: Any) -> dict[str, Any]:
    """The fields of the server's message, as pg8000 has them."""
    return next((each for each in original.args if isinstance(each, dict)), {})
