"""Every statement of the examiner, for one table of tasks. They run rarely, and are written as text."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy.engine import Dialect

from .rules import COLUMNS, LAST_ID
from .statements import IS_TAKEN, OF_TUBE, Statement, Texts

WORKS = "state IN ('r', 't')"
"""A task that takes part in the order of its sub-queue."""


class Looks(Texts):
    """The statements of the examiner. Some exist for one database only, since nothing runs them on the other."""

    def __init__(self, dialect: Dialect, namespace: str, temporary: bool = False) -> None:
        super().__init__(dialect, namespace, temporary)
        if self._is_server:
            sizes = "octet_length(data), octet_length(bytes)"
        else:
            sizes = "length(CAST(data AS BLOB)), length(bytes)"
        self._facts = f"SELECT {', '.join(COLUMNS)}, {sizes} FROM {self._task}"
        self._write_tasks()
        self._write_lines()
        self._write_tubes()
        self._write_sessions()
        self._write_calls()
        if self._is_server:
            self._write_schema()
        else:
            self._write_file()

    def _write_tasks(self) -> None:
        tube, task = self._tube, self._task
        facts, locked = self._facts, self._locked
        if self._is_server:
            # In a database without an encoding, a text may be invalid: it is sent as bytes, unconverted
            as_bytes = (
                "CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN convert_to(data, 'SQL_ASCII')"
                " ELSE convert_to(data, 'UTF8') END"
            )
        else:
            as_bytes = "CAST(data AS BLOB)"  # as text it might not be readable
        self.size = self._make(f"SELECT count(*) FROM {task}")
        self.rows = self._make(f"{facts} WHERE id > :after ORDER BY id LIMIT :limit")
        self.row = self._make(f"{facts} WHERE id = :id{locked}")
        self.payloads = self._make(
            f"SELECT id, {as_bytes} FROM {task} WHERE {self._among(self._ids)} AND data IS NOT NULL"
        )
        self.set_row = self._make(
            f"UPDATE {task} SET state = :state, front = :front, place = :place, utube = :utube, due_ms = :due_ms,"
            " attempts = :attempts, owner = :owner WHERE id = :id"
        )
        self.set_times = self._make(  # by itself: with a new front or state, ttr_ms would fire a trigger
            f"UPDATE {task} SET created_ms = :created_ms, updated_ms = :updated_ms, ttl_ms = :ttl_ms, ttr_ms = :ttr_ms"
            " WHERE id = :id"
        )
        self.set_front = self._make(f"UPDATE {task} SET front = :front WHERE id = :id")
        self.as_bytes = self._make(f"UPDATE {task} SET bytes = {as_bytes}, data = NULL WHERE id = :id")
        self.remove = self._make(f"DELETE FROM {task} WHERE id = :id")
        self.give_room = self._make(f"UPDATE {tube} SET stored = stored - 1 WHERE id = :tube AND stored > 0")

    def _write_lines(self) -> None:
        """Sub-queues: which tasks stand in front, and which follow."""
        facts, locked = self._facts, self._locked
        self.first_lines = self._lines(">= ''")
        self.next_lines = self._lines("> :utube")
        self.lock_line: Statement | None = None
        if self._is_server:
            key = f"{self._named('key')}(:tube, :utube)"
            self.lock_line = self._make(f"SELECT count(pg_advisory_xact_lock({key}))")
        self.fronts = self._make(
            f"{facts} WHERE tube = :tube AND utube = :utube AND front = 1 ORDER BY pri, id LIMIT :limit{locked}"
        )
        self.best_behind = self._make(
            f"{facts} WHERE tube = :tube AND utube = :utube AND front = 0 AND {WORKS} ORDER BY pri, id LIMIT 1{locked}"
        )

    def _lines(self, first: str) -> Statement:
        """Walk from sub-queue to sub-queue, past all that is in them."""
        task = self._task
        # On a server a unique index takes care of sub-queues with nothing behind
        in_lines = "front = 0" if self._is_server else "front IS NOT NULL"
        there = f"FROM {task} AS t WHERE t.tube = :tube AND t.{in_lines}"
        of = f"FROM {task} AS m WHERE m.tube = :tube AND m.utube = walk.utube AND m.{WORKS}"
        # With EXISTS, PostgreSQL would read all that are behind; with a search by (pri, id), all of one pri
        better = (
            f"SELECT CASE WHEN (b.pri, b.id) < (h.pri, h.id) THEN 1 ELSE 0 END FROM {task} AS b"
            " WHERE b.tube = :tube AND b.utube = h.utube AND b.front = 0 ORDER BY b.pri, b.id LIMIT 1"
        )
        worse = (
            f"SELECT 1 FROM {task} AS h WHERE h.tube = :tube AND h.utube = walk.utube AND h.front = 1"
            f" AND h.state = 'r' AND ({better}) = 1 LIMIT 1"
        )
        return self._make(
            f"WITH RECURSIVE walk(utube, n) AS ("
            f"SELECT * FROM (SELECT t.utube, 1 {there} AND t.utube {first} ORDER BY t.utube LIMIT 1) AS first "
            f"UNION ALL SELECT (SELECT t.utube {there} AND t.utube > walk.utube ORDER BY t.utube LIMIT 1), n + 1"
            f" FROM walk WHERE walk.utube IS NOT NULL AND n < :limit) "
            f"SELECT utube, (SELECT count(*) FROM (SELECT 1 {of} AND m.front = 1 LIMIT 2) AS heads), "
            f"CASE WHEN (SELECT 1 {of} AND m.front = 0 LIMIT 1) = 1 THEN 1 ELSE 0 END, "
            f"CASE WHEN ({worse}) = 1 THEN 1 ELSE 0 END "
            f"FROM walk WHERE utube IS NOT NULL"
        )

    def _write_tubes(self) -> None:
        tube, task = self._tube, self._task
        if self._is_server:
            corners = ("front = 1", "front = 0", "front IS NULL")
        else:
            behind, aside = "front IS NOT NULL AND utube IS NOT NULL", "front IS NULL AND tube IS NOT NULL"
            corners = ("front = 1", behind, aside)
        self.strays = [self._strays(corner) for corner in corners]
        self.has_utubes = self._make(f"SELECT 1 FROM {task} WHERE tube = :tube AND utube IS NOT NULL LIMIT 1")
        self.adopt = self._make(
            f"INSERT INTO {tube} (id, name, type, options, temporary, stored) "
            f"{'OVERRIDING SYSTEM VALUE ' if self._is_server else ''}VALUES (:id, :name, :type, '{{}}', :temporary, 0)"
        )
        self.stored = self._make(f"SELECT stored FROM {tube} WHERE id = :tube")
        self.lock_stored = self._make(f"SELECT stored FROM {tube} WHERE id = :tube{self._locked}")
        self.set_stored = self._make(f"UPDATE {tube} SET stored = :stored WHERE id = :tube")

    def _strays(self, corner: str) -> Statement:
        """The ids of tubes that are not in the catalogue, by a walk from tube to tube."""
        tube, task = self._tube, self._task
        return self._make(
            f"WITH RECURSIVE walk(tube) AS (SELECT min(tube) FROM {task} WHERE {corner} "
            f"UNION ALL SELECT (SELECT min(t.tube) FROM {task} AS t WHERE {corner} AND t.tube > walk.tube)"
            f" FROM walk WHERE walk.tube IS NOT NULL) "
            f"SELECT tube FROM walk WHERE tube IS NOT NULL AND tube NOT IN (SELECT id FROM {tube})"
        )

    def _write_sessions(self) -> None:
        session, connection = self._session, self._connection
        self.holders = self._make(
            f"SELECT owner, count(*) FROM {self._task} WHERE {OF_TUBE} AND {IS_TAKEN} AND owner IS NOT NULL"
            " GROUP BY owner ORDER BY owner"
        )
        self.unknown = self._make(
            f"SELECT DISTINCT session FROM {connection}"
            f" WHERE session NOT IN (SELECT id FROM {session}) ORDER BY session"
        )
        self.add_session = self._make(
            f"INSERT INTO {session} (id, ttr_ms, ends_ms)"
            f" SELECT DISTINCT session, 0, CAST(NULL AS bigint) FROM {connection}"
            f" WHERE session = :session AND session NOT IN (SELECT id FROM {session})"
        )

    def _write_calls(self) -> None:
        tube, calls = self._tube, self._calls
        self.calls = self._make(
            f"SELECT DISTINCT tube FROM {calls} WHERE tube NOT IN (SELECT id FROM {tube}) ORDER BY tube"
        )
        self.remove_calls = self._make(
            f"DELETE FROM {calls} WHERE tube = :tube AND tube NOT IN (SELECT id FROM {tube})"
        )
        if not self._is_server:
            is_uncounted = "typeof(count) <> 'integer'"
            self.uncounted = self._make(
                f"SELECT tube, event, name FROM {calls} LEFT JOIN {tube} ON id = tube WHERE {is_uncounted}"
            )
            self.count_anew = self._make(
                f"DELETE FROM {calls} WHERE tube = :tube AND event = :event AND {is_uncounted}"
            )

    def _write_schema(self) -> None:
        """What there must be on a server, and the sequences that give its ids."""
        tube = self._tube
        names = [self._named(name) for name in ("task", "temporary_task")]
        tables = ", ".join(f"to_regclass('{name}')" for name in names)
        task_id = f"to_regclass('{self._named('task_id')}')"
        self.made = self._make(
            f"SELECT 'INDEX', CAST(c.relname AS text) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            f" WHERE i.indrelid IN ({tables}) AND i.indisvalid"
            " UNION ALL SELECT 'TRIGGER', CAST(tgname AS text) FROM pg_trigger"
            f" WHERE tgrelid IN ({tables}) AND tgenabled IN ('O', 'A')"
            " UNION ALL SELECT 'FUNCTION', CAST(p.proname AS text) FROM pg_proc AS p JOIN pg_class AS c"
            f" ON c.relnamespace = p.pronamespace WHERE c.oid IN ({tables})"
            f" UNION ALL SELECT 'SEQUENCE', CAST(relname AS text) FROM pg_class WHERE oid = {task_id}"
        )
        usable = f"WHERE id <= {LAST_ID}"
        tasks = (f"(SELECT max(id) FROM {name} {usable})" for name in names)
        sequences = (
            f"SELECT 'task' AS name, {task_id} AS sequence,"
            f" greatest({', '.join(tasks)}) AS highest"
            f" UNION ALL SELECT 'tube', CAST(pg_get_serial_sequence('{tube}', 'id') AS regclass),"
            f" (SELECT max(id) FROM {tube} {usable})"
        )
        behind = (
            f"FROM ({sequences}) AS s WHERE highest > coalesce(pg_sequence_last_value(sequence), 0)"
            " AND sequence IS NOT NULL"
        )
        self.behind = self._make(f"SELECT name, highest {behind} ORDER BY name")
        self.catch_up = self._make(f"SELECT setval(sequence, highest) {behind} AND name = :name")

    def _write_file(self) -> None:
        """What there must be in a SQLite file, and whether the file is sound."""
        self.made = self._make(
            "SELECT upper(type), name FROM sqlite_master WHERE type IN ('index', 'trigger')"
        )
        self.check_file = self._make("PRAGMA quick_check(100)")
        tables = self._tube, self._task, self._session, self._connection, self._calls
        self.check_tables = [self._make(f"PRAGMA quick_check({table})") for table in tables]
        self.check_indexes = [self._make(f"PRAGMA integrity_check({table})") for table in tables]


looks = lru_cache(maxsize=64)(Looks)
"""All statements of the examiner for a dialect and a namespace, made once."""


def rebuilding(dialect: Dialect, index: str) -> Statement:
    """Rebuild an index, whatever its name. Without the schema, a collation of that name would be meant."""
    name = dialect.identifier_preparer.quote_identifier(index)
    name = name.replace(":", r"\:")  # so that no parameter begins there
    return Statement(f"REINDEX main.{name}", dialect)
