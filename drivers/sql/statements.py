"""Every statement of the SQL driver and its stores, as text: see docs/decisions/statements-as-text.md.

They are made once, and run on the driver's cursor with a plain tuple, since SQLAlchemy's layers cost more per
call than the statements themselves (20,000 single inserts a second through an engine, 50,000 on the cursor).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

Row = tuple[Any, ...]
"""What a statement is given, or a row that it returns."""

RAW = (
    "id", "state", "data", "bytes", "pri", "utube", "created_ms", "updated_ms", "due_ms", "ttl_ms", "ttr_ms",
    "attempts", "owner",
)  # fmt: skip
"""The columns of a raw task, in order: what the driver's steps return, and normalize_task reads."""

ID, STATE, DATA, BYTES, PRI, UTUBE, CREATED, UPDATED, DUE, TTL, TTR, ATTEMPTS, OWNER = range(len(RAW))
"""Their positions."""

NEW = (
    "tube", "state", "front", "utube", "pri", "created_ms", "updated_ms", "due_ms", "ttl_ms", "ttr_ms",
    "data", "bytes",
)  # fmt: skip
"""What is given for a new task, in order. The other columns follow from these."""

NEW_PLAIN = ("tube", "created_ms", "updated_ms", "data")
"""The same of a ready task without options."""

SESSION_ENDED = "TB001"
"""The SQLSTATE with which a server refuses a take by a session that was taken for dead."""

SNAPSHOT_TOO_OLD = "TB002"
"""The SQLSTATE with which a server refuses to change a sub-queue in a transaction with a single snapshot."""

TYPES = {
    **dict.fromkeys(("data", "event", "host", "name", "options", "owner", "session", "state", "type", "utube"), "text"),
    **dict.fromkeys(("busy", "ids", "leases"), r"text\:\:json"),
    **dict.fromkeys(("bytes", "limit", "ms", "near", "temporary"), ""),
    "front": "smallint",
    "token": "integer",
}  # fmt: skip
"""The types of parameters on a server, unless bigint; empty: what the server finds by itself.

It is told the others, so that a text is compared as text: for varchar, which some drivers of users send, they
may have an operator of their own that fits better. JSON is sent as text, which no driver encodes once more.
"""

# Where a task is

OF_TUBE = "tube = :tube"
IN_FRONT = f"{OF_TUBE} AND front = 1"
BEHIND = f"{OF_TUBE} AND front = 0 AND utube IS NOT NULL"
ASIDE = f"{OF_TUBE} AND front IS NULL"
IS_TAKEN = "front = 1 AND state = 't'"
"""A taken task stands in front; without saying so, no index would be used."""
IS_DUE = f"{OF_TUBE} AND state != 't' AND due_ms IS NOT NULL AND due_ms <= :now"
IS_OVERDUE = f"{OF_TUBE} AND {IS_TAKEN} AND place <= :now"


class Statement:
    """Text for one database. Parameters are given once each, in the order in which the text first names them.

    ``bind`` makes of them what the database driver gets.
    """

    __slots__ = ("batch", "bind", "text")

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.batch: Statement | None = None
        """The same for many rows at once, each parameter a list, if the database has such a form."""
        compiled: Any = sa.text(text).compile(dialect=dialect)
        self.text = str(compiled)
        self.bind: Callable[[Row], Row] = tuple  # which gives a tuple back as it is
        used = list(compiled.positiontup)
        names = list(dict.fromkeys(used))
        if used != names:  # SQLite gets one that is named twice a second time
            self.bind = itemgetter(*map(names.index, used))


def json_ids(ids: Sequence[int]) -> str:
    """Ids as the parameter ``ids``: a JSON array."""
    return f"[{','.join(map(str, ids))}]"


class Passing(NamedTuple):
    """One look in three forms. On SQLite, where nobody else writes, they are the same."""

    all: Statement
    """Finds all."""
    free: Statement
    """Finds what nobody else has locked, and locks it."""
    elsewhere: Statement
    """As ``free``, except in some sub-queues: their names, a JSON array, are one more parameter before the limit."""


class Texts:
    """What makes statements for one dialect and namespace; ``temporary``: for the table of temporary tubes' tasks."""

    def __init__(self, dialect: Dialect, namespace: str, temporary: bool = False) -> None:
        self._dialect = dialect
        self._namespace = namespace
        self._is_server = dialect.name == "postgresql"
        self._task = self._named("temporary_task" if temporary else "task")
        self._tube = self._named("tube")
        self._session = self._named("session")
        self._connection = self._named("connection")
        self._calls = self._named("calls")
        self._key = f"{self._named('key')}(tube, utube)"
        """On a server, the key of the advisory lock on a task's sub-queue."""
        self._locked = " FOR UPDATE" if self._is_server else ""
        self._ids = "SELECT value FROM json_each(:ids)"
        """Ids come as one parameter: see json_ids."""
        if self._is_server:
            self._ids = "SELECT CAST(pg_catalog.json_array_elements_text(:ids) AS bigint)"

    def _named(self, name: str) -> str:
        """A name in the namespace, quoted if need be: of a table, a sequence or a function."""
        return self._dialect.identifier_preparer.quote(f"{self._namespace}_{name}")

    def _make(self, text: str) -> Statement:
        if self._is_server:
            text = re.sub(r":(\w+)", _typed, text)
        return Statement(text, self._dialect)

    def _among(self, ids: str) -> str:
        """It is one of these ids. A join might compare each with each, if it was planned for few rows."""
        return f"id = ANY (CAST(ARRAY({ids}) AS bigint[]))" if self._is_server else f"id IN ({ids})"


def _typed(parameter: re.Match[str]) -> str:
    type = TYPES.get(parameter[1], "bigint")
    return rf"{parameter[0]}\:\:{type}" if type else parameter[0]


class Statements(Texts):
    """All statements of the verbs and of the stores.

    Some exist for one database only, since nothing runs them on the other.
    """

    def __init__(self, dialect: Dialect, namespace: str, temporary: bool = False) -> None:
        super().__init__(dialect, namespace, temporary)
        self.is_shared = self._is_server
        """Whether others can write during a step: then it locks what it writes, and looks again."""
        self._raw = f"SELECT {', '.join(RAW)} FROM {self._task}"
        self._write_puts()
        self._write_takes()
        self._write_acks()
        self._write_acks_of_many()
        self._write_changes()
        self._write_looks()
        self._write_listings()
        self._write_tubes()
        self._write_sessions()
        self._write_connections()
        self._write_calls()
        if self._is_server:
            self._write_locks()
            self._write_beats()

    def _passing(self, where: str, by: str) -> Passing:
        """A look that can pass over what others have locked, however much, if others can write meanwhile."""
        look, end = f"{self._raw} WHERE {where}", f" ORDER BY {by} LIMIT :limit"
        every = self._make(look + end)
        if not self._is_server:
            return Passing(every, every, every)
        end += " FOR UPDATE SKIP LOCKED"
        elsewhere = " AND utube NOT IN (SELECT pg_catalog.json_array_elements_text(:busy))"
        return Passing(every, self._make(look + end), self._make(look + elsewhere + end))

    # Put

    def _write_puts(self) -> None:
        values = {name: f":{name}" for name in NEW} | {"place": ":pri", "attempts": "0"}
        plain = {name: f":{name}" for name in NEW_PLAIN}
        plain |= {"pri": "0", "place": "0", "state": "'r'", "front": "1", "attempts": "0"}
        if self._is_server:
            self.put = self.put_grouped = self._put_on_server(values)
            self.put_plain = self._put_on_server(plain)
            return
        # NULL if the tube was dropped, which the table refuses
        values["tube"] = plain["tube"] = f"(SELECT id FROM {self._tube} WHERE id = :tube)"
        in_front = f"SELECT 1 FROM {self._task} WHERE {IN_FRONT} AND utube = :utube"
        grouped = values | {
            "front": f"CASE WHEN :front IS NULL THEN NULL WHEN EXISTS ({in_front}) THEN 0 ELSE 1 END"
        }
        self.put = self._put("INSERT", values)
        self.put_plain = self._put("INSERT", plain)
        self.put_grouped = self._put("INSERT", grouped)

        # With priorities too: nothing is put while a worse task waits in front, which must step back first. A row
        # is ignored if its attempts are NULL. A condition would make it an INSERT … SELECT, whose row SQLite
        # writes twice if it reads the table itself.

        worse = "state = 'r' AND pri > :pri"
        must_step_back = f":front IS NOT NULL AND EXISTS ({in_front} AND {worse})"
        ranked = grouped | {"attempts": f"CASE WHEN {must_step_back} THEN NULL ELSE 0 END"}
        self.put_ranked = self._put("INSERT OR IGNORE", ranked)
        self.step_back = self._make(
            f"UPDATE {self._task} SET front = 0 WHERE {IN_FRONT} AND utube = :utube AND {worse}"
        )

    def _put(self, insert: str, values: dict[str, str]) -> Statement:
        columns, given = ", ".join(values), ", ".join(values.values())
        return self._make(f"{insert} INTO {self._task} ({columns}) VALUES ({given})")

    def _put_on_server(self, values: dict[str, str]) -> Statement:
        """Insert a task if its tube is there; triggers decide what stands in front.

        Its batch is given arrays of columns, and first locks the sub-queues, in one order.
        """
        insert, given = f"INSERT INTO {self._task} ({', '.join(values)})", ", ".join(values.values())
        is_there = f"FROM {self._tube} WHERE id ="
        statement = self._make(f"{insert} SELECT {given} {is_there} :tube RETURNING id")

        names = [name for name, value in values.items() if value == f":{name}"]
        arrays = ", ".join(f"CAST(:{name} AS {TYPES.get(name, 'bigint') or 'bytea'}[])" for name in names)
        items = f"SELECT * FROM unnest({arrays}) WITH ORDINALITY AS i({', '.join(names)}, n)"
        lock = "TRUE"
        if "utube" in names:
            keys = f"SELECT DISTINCT {self._key} AS key FROM item WHERE utube IS NOT NULL ORDER BY key"
            lock = f"(SELECT count(pg_advisory_xact_lock(key)) FROM ({keys}) AS keys) >= 0"
        statement.batch = Statement(
            f"WITH item AS MATERIALIZED ({items}) {insert} SELECT {given.replace(':', 'item.')} FROM item "
            f"WHERE {lock} AND EXISTS (SELECT 1 {is_there} item.tube) ORDER BY n RETURNING id",
            self._dialect,
        )
        return statement

    # Take

    def _write_takes(self) -> None:
        plain = "id, data, bytes, created_ms, attempts"
        self.take_plain = self._take(columns=plain)
        self.takes = {
            (timed, newest, many): self._take(timed=timed, newest=newest, many=many)
            for timed, newest, many in product((False, True), repeat=3)
        }
        """By whether tasks are timed, whether the newest is next, and whether several may be taken."""
        if self._is_server:
            self.take_plain_many = self._take(many=True, columns=plain)
            return
        # Takes of many in two, as nobody writes in between: RETURNING costs SQLite more than a SELECT before it
        take = f"UPDATE {self._task} SET {_LEASE} WHERE"
        self.next_plain = self._make(
            f"SELECT id, data, bytes, created_ms, attempts + 1 FROM {self._task}"
            f" WHERE {IN_FRONT} AND state = 'r' ORDER BY place, id LIMIT :limit"
        )
        self.take_listed = self._make(f"{take} {self._among(self._ids)}")
        self.take_range = self._make(f"{take} id BETWEEN :first AND :last")

    def _take(
        self, *, timed: bool = False, newest: bool = False, many: bool = False, columns: str = ", ".join(RAW)
    ) -> Statement:
        lease, where = _LEASE, self._is_next(timed, newest, many)
        if timed:
            until = (
                "CASE WHEN ttr_ms IS NULL THEN due_ms"
                " WHEN due_ms IS NOT NULL AND due_ms <= :now + ttr_ms THEN due_ms ELSE :now + ttr_ms END"
            )
            lease += f", due_ms = {until}, place = {until}"
        if timed and not many:  # else what is due has been settled
            where += "".join(
                f" AND NOT EXISTS (SELECT 1 FROM {self._task} WHERE {place})"
                for place in (IS_DUE, IS_OVERDUE)
            )
        return self._make(f"UPDATE {self._task} SET {lease} WHERE {where} RETURNING {columns}")

    def _is_next(self, timed: bool, newest: bool, many: bool) -> str:
        """The condition that it is the task to be taken next, or one of those."""
        alive = " AND (due_ms IS NULL OR due_ms > :now)" if timed else ""
        by = "place DESC, id DESC" if newest else "place, id"
        choice = (
            f"SELECT id FROM {self._task} WHERE {IN_FRONT} AND state = 'r'{alive}"
            f" ORDER BY {by} LIMIT {':limit' if many else '1'}"
        )
        if not self._is_server:
            return f"id IN ({choice})" if many else f"id = ({choice})"

        # Uncorrelated scalar subqueries run once. The session check is inside one, or an empty tube would
        # hide that the session has ended.

        live = f"SELECT TRUE FROM {self._session} WHERE id = :owner AND ends_ms IS NULL"
        ended = f"{self._named('refuse')}('{SESSION_ENDED}', 'this session has ended')"
        picked = f"{'ARRAY' if many else ''}({choice} FOR UPDATE SKIP LOCKED)"
        picked = f"(SELECT CASE WHEN coalesce(({live}), {ended}) THEN {picked} END)"
        return f"id = ANY (CAST({picked} AS bigint[]))" if many else f"id = {picked}"

    # Ack

    def _write_acks(self) -> None:
        held = f"DELETE FROM {self._task} WHERE id = :id AND {OF_TUBE} AND state = 't'"
        ack = f"{held} AND owner = :owner AND attempts = :token"
        is_same = "IS NOT DISTINCT FROM" if self._is_server else "IS"
        ack_timed = f"{ack} AND due_ms {is_same} :due"
        ack_any = f"{held} AND (:owner IS NULL OR owner = :owner)"
        raw = f" RETURNING {', '.join(RAW)}"
        self.ack = self._make(ack)
        self.ack_timed = self._make(ack_timed)
        self.ack_any = self._make(ack_any + raw)
        if self._is_server:  # the same, once the task's sub-queue is locked
            lock = f"SELECT count(pg_advisory_xact_lock({self._key})) FROM {self._task} WHERE id = :id"
            locked = f" AND ({lock}) >= 0"
            self.ack_locked = self._make(ack + locked)
            self.ack_timed_locked = self._make(ack_timed + locked)
            self.ack_any_locked = self._make(ack_any + locked + raw)

    def _write_acks_of_many(self) -> None:
        """Leases come as one parameter, a JSON object of tokens by id."""
        task = self._task
        is_held = f"{OF_TUBE} AND state = 't' AND owner = :owner"
        ack = f"DELETE FROM {task}"
        if self._is_server:  # looked up, since a join may be planned that compares each task with each lease
            ids = "SELECT CAST(pg_catalog.json_object_keys(:leases) AS bigint)"
            token = "CAST((SELECT CAST(:leases AS jsonb)) ->> CAST(id AS text) AS integer)"
            ack_leases = f"{ack} WHERE {self._among(ids)} AND attempts = {token} AND {is_held}"
        else:
            is_lease = f"{task}.id = CAST(lease.key AS bigint) AND attempts = CAST(lease.value AS integer)"
            matching = f"SELECT {task}.id FROM json_each(:leases) AS lease JOIN {task} ON {is_lease}"
            ack_leases = f"{ack} WHERE id IN ({matching} WHERE {is_held})"
        in_range = f"{ack} WHERE id BETWEEN :first AND :last AND attempts = :token AND {is_held}"
        times = " RETURNING id, ttl_ms, ttr_ms"
        self.ack_leases = self._make(ack_leases + times)
        self.ack_range = self._make(in_range + times)
        if not self._is_server:
            self.ack_leases_unread = self._make(ack_leases)
            self.ack_range_unread = self._make(in_range)
        self.mark = self._make("SAVEPOINT tubes_mark")
        self.back_to_mark = self._make("ROLLBACK TO SAVEPOINT tubes_mark")
        self.end_mark = self._make("RELEASE SAVEPOINT tubes_mark")

    # Other changes

    def _write_changes(self) -> None:
        task = self._task
        written = ("state", "front", "place", "due_ms", "ttl_ms", "ttr_ms", "owner", "updated_ms")
        values = ", ".join(f"{name} = :{name}" for name in written)
        self.update = self._make(f"UPDATE {task} SET {values} WHERE id = :id")
        # A task from aside stands behind in its sub-queue until a trigger has decided what stands in front there;
        # any other stays where it is. The triggers watch ttr_ms
        front = "coalesce(front, CASE WHEN utube IS NULL THEN 1 ELSE 0 END)"
        self.ready = self._make(
            f"UPDATE {task} SET state = 'r', front = {front}, place = pri, due_ms = created_ms + ttl_ms,"
            f" ttr_ms = ttr_ms, owner = NULL, updated_ms = :now WHERE {self._among(self._ids)}"
        )
        self.remove = self._make(f"DELETE FROM {task} WHERE {self._among(self._ids)}")
        ids = [f"SELECT id FROM {task} WHERE {place} LIMIT :limit" for place in (BEHIND, ASIDE, IN_FRONT)]
        # One statement, so that it misses nothing that is moved from one place to another meanwhile
        self.ids = self._make(
            " UNION ALL ".join(f"SELECT * FROM ({look}) AS a" for look in ids) + " LIMIT :limit"
        )
        if self._is_server:
            self.ids_free = [self._make(f"{look} FOR UPDATE SKIP LOCKED") for look in ids]

        # Fires no trigger, since it does not set ttr_ms
        self.leave_front = self._make(
            f"UPDATE {task} SET front = NULL WHERE {IN_FRONT} AND utube IS NOT NULL"
        )
        self.remove_all = [
            self._make(f"DELETE FROM {task} WHERE {place}") for place in (IN_FRONT, BEHIND, ASIDE)
        ]

    # Locks, which only a server takes

    def _write_locks(self) -> None:
        task = self._task
        asked = f"FROM {task} WHERE {self._among(self._ids)}"

        # Sub-queues are always locked in one order, before the rows of their tasks

        keys = f"SELECT DISTINCT {self._key} AS key {asked} AND utube IS NOT NULL ORDER BY key"
        self.lock_groups = self._make(f"SELECT count(pg_advisory_xact_lock(key)) FROM ({keys}) AS keys")

        # Materialised, or locks of other tasks' sub-queues might be tried too

        self.lock_free_groups = self._make(
            f"WITH asked AS MATERIALIZED (SELECT id, tube, utube {asked})"
            f" SELECT id FROM asked WHERE utube IS NULL OR pg_try_advisory_xact_lock({self._key})"
        )
        self.lock_tasks = self._make(f"LOCK TABLE {task} IN SHARE ROW EXCLUSIVE MODE")
        self.set_lock_timeout = self._make("SELECT set_config('lock_timeout', :ms, true)")
        self.vacuum_ends_after = self._make(
            "SELECT CAST(setting AS bigint) FROM pg_settings WHERE name = 'deadlock_timeout' AND EXISTS ("
            "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
            f"WHERE relation = to_regclass('{task}') AND datname = current_database()"
            " AND mode = 'ShareUpdateExclusiveLock' AND granted)"
        )
        self.lock_ids = self._make(f"SELECT id {asked} ORDER BY id FOR UPDATE")

    # Looks

    def _write_looks(self) -> None:
        one, locked = f"{self._raw} WHERE id = :id AND {OF_TUBE}", self._locked  # on SQLite they only look
        some = f"{self._raw} WHERE {OF_TUBE} AND {self._among(self._ids)} ORDER BY id"
        self.peek = self._make(one)
        self.lock_one = self._make(one + locked)
        self.lock_some = self._make(some + locked)
        self.lock_one_taken = self._make(f"{one} AND state = 't'{locked}")

        self.can_take = self._make(f"SELECT 1 FROM {self._task} WHERE {IN_FRONT} AND state = 'r' LIMIT 1")
        tubes = "json_each(:ids)"
        if self._is_server:
            tubes = f"({self._ids} AS value)"
        ready = f"SELECT 1 FROM {self._task} WHERE tube = each.value AND front = 1 AND state = 'r' LIMIT 1"
        self.with_ready = self._make(  # as a scalar, or a server might join all that are ready
            f"SELECT value FROM {tubes} AS each WHERE ({ready}) IS NOT NULL"
        )
        buried, taken = f"{ASIDE} AND state = '!'", f"{OF_TUBE} AND {IS_TAKEN}"
        self.buried = self._passing(buried, "pri, id")
        self.buried_newest = self._passing(buried, "pri DESC, id DESC")
        self.due = self._passing(IS_DUE, "due_ms")
        self.overdue = self._passing(IS_OVERDUE, "place")
        self.taken = self._passing(taken, "place, id")
        self.taken_by = self._passing(f"{taken} AND owner = :owner", "place, id")

        def first(time: str, where: str) -> str:
            """The earliest, by ORDER BY: min() reads all of them if a server expects few."""
            where = f"{where} AND {time} IS NOT NULL"
            return f"(SELECT {time} FROM {self._task} WHERE {where} ORDER BY {time} LIMIT 1)"

        def dues(tube: str) -> str:
            due = first("due_ms", f"tube = {tube} AND state != 't'")
            return f"{due}, {first('place', f'tube = {tube} AND {IS_TAKEN}')}"

        self.next_due = self._make(f"SELECT {dues(':tube')}")
        front = f"SELECT 1 FROM {self._task} WHERE {IN_FRONT} AND state = 'r' LIMIT 1"
        self.look = self._make(
            f"SELECT ({front}) IS NOT NULL, {dues(':tube')} FROM {self._tube} WHERE id = :tube"
        )
        self.next_dues = self._make(f"SELECT id, {dues('each.id')} FROM {self._tube} AS each")

        # Who holds tasks of which tube: one index search per tube; else all of the index would be read

        held = f"FROM {self._task} WHERE tube = each.id AND {IS_TAKEN}"
        if self._is_server:
            holders = f"SELECT each.id, owner FROM {self._tube} AS each, LATERAL (SELECT DISTINCT owner {held}) AS held"
        else:
            holders = (
                f"SELECT DISTINCT each.id, owner FROM {self._tube} AS each, {self._task}"
                f" WHERE tube = each.id + 0 AND {IS_TAKEN}"
            )
        self.holders = self._make(holders)

    def _write_listings(self) -> None:
        """Looks by state, in the order of ids, and how many there are."""
        in_state = "state = :state"

        # No index of a tube is in id order: + 0 tells the planner so, or it would read what all tubes hold

        def by_state(*places: str) -> Statement:
            found = " UNION ALL ".join(
                f"SELECT id + 0 AS id FROM {self._task} WHERE {place} AND id + 0 > :after" for place in places
            )
            ids = f"SELECT id FROM ({found}) AS found ORDER BY id LIMIT :limit"
            where = f"{self._among(ids)} AND {in_state}"
            return self._make(f"{self._raw} WHERE {where} ORDER BY id")

        self.by_state_front = by_state(f"{IN_FRONT} AND {in_state}")
        self.by_state_aside = by_state(f"{ASIDE} AND {in_state}")
        self.by_state_ready = by_state(f"{IN_FRONT} AND {in_state}", BEHIND)
        near = f"SELECT id FROM {self._task} WHERE id > :after ORDER BY id LIMIT :near"
        self.by_state_near = self._make(
            f"{self._raw} WHERE tube + 0 = :tube AND {in_state} AND id > :after"
            f" AND id <= (SELECT max(id) FROM ({near}) AS near) ORDER BY id LIMIT :limit"
        )
        counts = (
            f"SELECT state, count(*) FROM {self._task} WHERE {place} GROUP BY state"
            for place in (IN_FRONT, BEHIND, ASIDE)
        )
        self.count = self._make(" UNION ALL ".join(counts))

    # The store's: tubes, sessions, connections, calls

    def _write_tubes(self) -> None:
        tube = self._tube
        entry = f"SELECT id, name, type, options, temporary FROM {tube}"
        self.tubes = self._make(f"{entry} ORDER BY id")
        self.tube_named = self._make(f"{entry} WHERE name = :name")
        self.has_tube = self._make(f"SELECT 1 FROM {tube} WHERE id = :id")
        self.add_tube = self._make(
            f"INSERT INTO {tube} (name, type, options, temporary, stored)"
            " VALUES (:name, :type, :options, :temporary, 0)"
        )
        self.remove_tube = self._make(f"DELETE FROM {tube} WHERE id = :id")
        self.make_room = self._make(
            f"UPDATE {tube} SET stored = stored + :wanted WHERE id = :tube AND stored + :wanted <= :capacity"
        )
        self.give_room = self._make(f"UPDATE {tube} SET stored = stored - :gone WHERE id = :tube")

    def _write_sessions(self) -> None:
        session = self._session
        self.add_session = self._make(
            f"INSERT INTO {session} (id, ttr_ms, ends_ms) VALUES (:session, :ttr_ms, NULL)"
        )
        self.sessions = self._make(f"SELECT id, ends_ms FROM {session}")
        self.session = self._make(f"SELECT ends_ms FROM {session} WHERE id = :session")
        self.set_session = self._make(f"UPDATE {session} SET ttr_ms = :ttr_ms WHERE id = :session")
        self.revive_session = self._make(
            f"UPDATE {session} SET ends_ms = NULL"
            " WHERE id = :session AND (ends_ms IS NULL OR ends_ms > :now) RETURNING ttr_ms"
        )
        given = ":session"
        if self._is_server:  # unless it is locked: a dead session may have left an open transaction
            given = f"(SELECT id FROM {session} WHERE id = :session FOR UPDATE SKIP LOCKED)"
        self.remove_session = self._make(f"DELETE FROM {session} WHERE id = {given} AND ends_ms IS NOT NULL")
        is_over = "ends_ms <= :now"
        self.ended = self._make(f"SELECT id FROM {session} WHERE {is_over} ORDER BY ends_ms, id")
        is_lonely = (
            f"ends_ms IS NULL AND NOT EXISTS (SELECT 1 FROM {self._connection} WHERE session = {session}.id)"
        )
        end_lonely = f"UPDATE {session} SET ends_ms = :now + ttr_ms WHERE {is_lonely}"
        if not self._is_server:
            self.over = self._make(f"SELECT id FROM {session} WHERE {is_over}")
            self.end_lonely = self._make(end_lonely)
            return
        # Two connections may leave a session at once, and each still see the other
        self.over = self._make(f"SELECT id FROM {session} WHERE {is_over} OR {is_lonely}")
        self.lonely = self._make(f"SELECT id FROM {session} WHERE {is_lonely} FOR UPDATE SKIP LOCKED")
        self.end_if_lonely = self._make(
            f"{end_lonely} AND id IN (SELECT pg_catalog.json_array_elements_text(:ids))"
        )

    def _write_connections(self) -> None:
        connection = self._connection
        columns, values = "session, host, pid, started_ms", ":session, :host, :pid, :now"
        if not self._is_server:
            self.add_connection = self._make(f"INSERT INTO {connection} ({columns}) VALUES ({values})")
        else:
            # A server may lose its last commits: an id given then, and given again, would belong to two
            # processes
            id = f"CAST(floor(random() * CAST({2**52} AS float8)) AS bigint)"
            self.add_connection = self._make(
                f"INSERT INTO {connection} (id, {columns}, beat_every_ms) OVERRIDING SYSTEM VALUE"
                f" VALUES ({id}, {values}, :beat_every) RETURNING id"
            )
        self.connections = self._make(f"SELECT id, session FROM {connection} ORDER BY id")
        self.has_connection = self._make(f"SELECT 1 FROM {connection} WHERE id = :id")
        self.move_connection = self._make(f"UPDATE {connection} SET session = :session WHERE id = :id")
        self.remove_connection = self._make(f"DELETE FROM {connection} WHERE id = :id")

    def _write_beats(self) -> None:
        connection = self._connection
        self.beats = self._make(f"SELECT id, beat, beat_every_ms FROM {connection} ORDER BY id")
        self.beat = self._make(f"UPDATE {connection} SET beat = beat + 1 WHERE id = :id")
        self.call_roll = self._make(_CALL_ROLL.format(table=connection))
        self.absent = self._make(
            f"SELECT id, beat FROM {connection} WHERE absences >= :beats AND beat = called_beat"
        )

        # Unless it has beaten since its silence was seen, or is locked just now

        silent = f"SELECT id FROM {connection} WHERE id = :id AND beat = :beat FOR UPDATE SKIP LOCKED"
        self.remove_dead = self._make(f"DELETE FROM {connection} WHERE id = ({silent})")

    def _write_calls(self) -> None:
        calls = self._calls
        locked = " FOR KEY SHARE" if self._is_server else ""  # the tube may be dropped now, or gone
        self.add_calls = self._make(
            f"INSERT INTO {calls} (tube, event, count)"
            f" SELECT :tube, :event, :count FROM {self._tube} WHERE id = :tube{locked}"
            f" ON CONFLICT (tube, event) DO UPDATE SET count = {calls}.count + excluded.count"
        )
        self.calls = self._make(f"SELECT event, count FROM {calls} WHERE {OF_TUBE}")
        self.remove_calls = self._make(f"DELETE FROM {calls} WHERE {OF_TUBE}")


statements = lru_cache(maxsize=64)(Statements)
"""All statements of a dialect and a namespace, made once."""

_LEASE = "state = 't', owner = :owner, attempts = attempts + 1, updated_ms = :now"
"""What a take changes in every type."""

_CALL_ROLL = """
UPDATE {table} AS c
SET absences = CASE WHEN beat = called_beat AND called_ms <= now THEN absences + 1 ELSE 0 END,
    called_beat = beat, called_ms = now
FROM (
    SELECT id, now FROM {table}, CAST(extract(epoch FROM clock_timestamp()) * 1000.0 AS bigint) AS now
    WHERE now NOT BETWEEN called_ms - beat_every_ms AND called_ms + beat_every_ms
    ORDER BY id FOR UPDATE OF {table} SKIP LOCKED
) AS due
WHERE c.id = due.id
"""
"""Calls the roll, see ``watch``: all connections not called within the time between two beats of theirs.

Several may call it at once. One may then find a last call that is a moment later than its own time; that does
not count as a clock that was put back.
"""
