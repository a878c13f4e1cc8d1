"""Every statement of the SQL driver and its stores: written in SQLAlchemy Core, compiled once per dialect.

Core's per-call layers cost more than the statements themselves (20,000 single inserts a second through an
engine, 50,000 on the driver's cursor), so what runs is the compiled text, on the cursor, with a plain tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam as bind
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

from .tables import tables

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
    "tube", "state", "front", "pri", "utube", "created_ms", "updated_ms", "due_ms", "ttl_ms", "ttr_ms",
    "data", "bytes",
)  # fmt: skip
"""What is given for a new task, in order. The other columns follow from these."""

NEW_PLAIN = ("tube", "created_ms", "updated_ms", "data")
"""The same of a ready task without options."""

SESSION_ENDED = "TB001"
"""The SQLSTATE with which a server refuses a take by a session that was taken for dead."""

SNAPSHOT_TOO_OLD = "TB002"
"""The SQLSTATE with which a server refuses to change a sub-queue in a transaction with a single snapshot."""

Condition = sa.ColumnElement[bool]

ONE: sa.ColumnElement[int] = sa.literal_column("1")
ZERO: sa.ColumnElement[int] = sa.literal_column("0")
READY: sa.ColumnElement[str] = sa.literal_column("'r'")
TAKEN: sa.ColumnElement[str] = sa.literal_column("'t'")
BURIED: sa.ColumnElement[str] = sa.literal_column("'!'")


class Statement:
    """Compiled text. Its parameters are given in the order of ``names``, and ``bind`` puts them in that of the text."""

    __slots__ = ("batch", "bind", "text")

    def __init__(self, clause: ClauseElement, dialect: Dialect, *names: str) -> None:
        self.batch: Statement | None = None
        """The same for many rows at once, each parameter a list, if the database has such a form."""
        compiled: Any = clause.compile(dialect=dialect)
        used = list(compiled.positiontup)
        if set(used) != set(names):
            raise AssertionError(f"parameters {names} do not match {used} of {compiled}")
        self.text = str(compiled)
        self.bind: Callable[[Row], Row] = tuple  # which gives a tuple back as it is
        if used != list(names):
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
    """As ``free``, except in some sub-queues, whose names are one more parameter, a JSON array."""


@lru_cache(maxsize=64)
def statements(dialect: Dialect, namespace: str, temporary: bool = False) -> Statements:
    """All statements, built and compiled once."""
    return Statements(dialect, namespace, temporary)


class Statements:
    """All statements for one dialect and namespace; ``temporary``: for the table of the temporary tubes' tasks.

    Some exist for one database only, since nothing runs them on the other.
    """

    def __init__(self, dialect: Dialect, namespace: str, temporary: bool) -> None:
        self._dialect = dialect
        self._namespace = namespace
        self._is_server = dialect.name == "postgresql"
        self.is_shared = self._is_server
        """Whether others can write during a step: then it locks what it writes, and looks again."""
        known = tables(namespace)
        self._tube, self._session, self._connection = known.tube, known.session, known.connection
        self._calls = known.calls
        self._task = known.temporary_task if temporary else known.task
        self._raw = [self._task.c[name] for name in RAW]

        # Ids come as one parameter: see json_ids
        if self._is_server:
            each = sa.func.pg_catalog.json_array_elements_text(bind("ids"))
            self._ids: sa.Select[Any] = sa.select(sa.cast(each, sa.BigInteger))
        else:
            self._ids = sa.select(sa.column("value")).select_from(sa.func.json_each(bind("ids")))

        self._write_puts()
        self._write_takes()
        self._write_acks()
        self._write_acks_of_many()
        self._write_changes()
        self._write_looks_by_id()
        self._write_looks()
        self._write_tubes()
        self._write_sessions()
        self._write_connections()
        self._write_calls()
        if self._is_server:
            self._write_locks()
            self._write_beats()

    # What they are made of

    def _make(self, clause: ClauseElement, *names: str) -> Statement:
        return Statement(clause, self._dialect, *names)

    def _in_order(self, where: Condition, by: Sequence[Any]) -> sa.Select[Any]:
        """Raw tasks in an order, up to a limit."""
        return _limited(sa.select(*self._raw).where(where).order_by(*by), bind("limit"))

    def _passing(self, *names: str, where: Condition, by: Sequence[Any]) -> Passing:
        """A look that can pass over what others have locked, however much, if others can write meanwhile."""
        query, names = self._in_order(where, by), (*names, "limit")
        look = self._make(query, *names)
        if not self._is_server:
            return Passing(look, look, look)
        free = query.with_for_update(skip_locked=True)
        busy = sa.select(sa.func.pg_catalog.json_array_elements_text(bind("busy")))
        elsewhere = free.where(self._task.c.utube.not_in(busy))
        return Passing(look, self._make(free, *names), self._make(elsewhere, *names, "busy"))

    def _among(self, id: sa.ColumnElement[int], chosen: sa.Select[Any]) -> Condition:
        """It is one of these ids. A join might compare each with each, if it was planned for few rows."""
        if not self._is_server:
            return id.in_(chosen)
        return id == sa.any_(sa.cast(sa.func.array(chosen.scalar_subquery()), sa.ARRAY(sa.BigInteger)))

    def _key(self, table: sa.FromClause) -> sa.ColumnElement[int]:
        """The key of the advisory lock on a task's sub-queue."""
        name = sa.quoted_name(f"{self._namespace}_key", True)
        return sa.Function(name, table.c.tube, table.c.utube)

    # Put

    def _write_puts(self) -> None:
        task = self._task
        values: dict[str, Any] = {name: bind(name) for name in NEW}
        values |= {"place": bind("pri"), "attempts": ZERO}
        plain: dict[str, Any] = {name: bind(name) for name in NEW_PLAIN}
        plain |= {"pri": ZERO, "place": ZERO, "state": READY, "front": ONE, "attempts": ZERO}
        if not self._is_server:  # NULL if the tube was dropped, which SQLite's table refuses
            known = sa.select(self._tube.c.id).where(self._tube.c.id == bind("tube")).scalar_subquery()
            values["tube"] = plain["tube"] = known

        front = sa.alias(task, "front")
        behind_another = sa.exists(
            sa.select(ONE).where(_of_tube(front), front.c.utube == bind("utube"), front.c.front == ONE)
        )
        grouped = values | {
            "front": sa.case((bind("front").is_(None), sa.null()), (behind_another, ZERO), else_=ONE)
        }
        self.put = self._put(values, NEW)
        self.put_plain = self._put(plain, NEW_PLAIN)
        self.put_grouped = self._put(values if self._is_server else grouped, NEW)
        if not self._is_server:
            self._write_ranked_puts(grouped)

    def _write_ranked_puts(self, grouped: dict[str, Any]) -> None:
        """With priorities too: nothing is put while a worse task waits in front, which must step back first.

        A row is ignored if its attempts are NULL. A condition would make it an INSERT … SELECT, whose row
        SQLite writes twice if it reads the table itself.
        """
        task, ahead = self._task, sa.alias(self._task, "ahead")

        def worse_in_front(table: sa.FromClause) -> tuple[Condition, ...]:
            of_sub_queue = _of_tube(table), table.c.utube == bind("utube"), table.c.front == ONE
            return *of_sub_queue, table.c.state == READY, table.c.pri > bind("pri")

        is_any_worse = sa.exists(sa.select(ONE).where(*worse_in_front(ahead)))
        must_step_back = sa.and_(bind("front").is_not(None), is_any_worse)
        ranked = grouped | {"attempts": sa.case((must_step_back, sa.null()), else_=ZERO)}
        self.put_ranked = self._make(sa.insert(task).prefix_with("OR IGNORE").values(ranked), *NEW)
        step_back = sa.update(task).where(*worse_in_front(task)).values(front=ZERO)
        self.step_back = self._make(step_back, "tube", "utube", "pri")

    def _put(self, values: dict[str, Any], names: tuple[str, ...]) -> Statement:
        """Insert a task if its tube is there. On a server, triggers decide what stands in front."""
        task = self._task
        if not self._is_server:
            return self._make(sa.insert(task).values(values), *names)
        typed = {name: sa.type_coerce(value, task.c[name].type) for name, value in values.items()}
        chosen = sa.select(*typed.values()).where(self._tube.c.id == bind("tube"))
        insert = sa.insert(task).from_select(list(typed), chosen)
        statement = self._make(insert.returning(task.c.id), *names)
        statement.batch = self._make(_batch(self._namespace, task.name, values, names), *names)
        return statement

    # Take

    def _write_takes(self) -> None:
        plain = [self._task.c[name] for name in ("id", "data", "bytes", "created_ms", "attempts")]
        self.take_plain = self._take(columns=plain)
        self.takes = {
            (timed, newest, many): self._take(timed=timed, newest=newest, many=many)
            for timed, newest, many in product((False, True), repeat=3)
        }
        """By whether tasks are timed, whether the newest is next, and whether several may be taken."""
        if self._is_server:
            self.take_plain_many = self._take(many=True, columns=plain)
        else:
            self._write_takes_in_two()

    def _write_takes_in_two(self) -> None:
        """Takes of many, as nobody writes in between: RETURNING costs SQLite more than a SELECT before it."""
        task, c = self._task, self._task.c
        next_ = sa.select(c.id, c.data, c.bytes, c.created_ms, c.attempts + ONE)
        next_ = next_.where(_in_front(task), c.state == READY).order_by(c.place, c.id)
        take = sa.update(task).values(self._lease())
        self.next_plain = self._make(_limited(next_, bind("limit")), "tube", "limit")
        self.take_listed = self._make(take.where(self._among(c.id, self._ids)), "owner", "now", "ids")
        self.take_range = self._make(take.where(_in_range(task)), "owner", "now", "first", "last")

    def _lease(self) -> dict[str, Any]:
        """What a take changes in every type."""
        return {
            "state": TAKEN,
            "owner": bind("owner"),
            "attempts": self._task.c.attempts + ONE,
            "updated_ms": bind("now"),
        }

    def _take(
        self, *, timed: bool = False, newest: bool = False, many: bool = False, columns: Sequence[Any] = ()
    ) -> Statement:
        task, c = self._task, self._task.c
        set_ = self._lease()
        if timed:
            until: sa.ColumnElement[int] = bind("now") + c.ttr_ms
            set_["due_ms"] = sa.case(
                (c.ttr_ms.is_(None), c.due_ms),
                (sa.and_(c.due_ms.is_not(None), c.due_ms <= until), c.due_ms),
                else_=until,
            )
            set_["place"] = set_["due_ms"]
        update = sa.update(task).where(self._next(timed, newest, many)).values(set_)
        if timed and not many:  # else what is due has been settled
            over, late = sa.alias(task, "over"), sa.alias(task, "late")
            update = update.where(~sa.exists(sa.select(ONE).where(_due(over))))
            update = update.where(~sa.exists(sa.select(ONE).where(_overdue(late))))
        names = ("owner", "now", "tube", "limit") if many else ("owner", "now", "tube")
        return self._make(update.returning(*(columns or self._raw)), *names)

    def _next(self, timed: bool, newest: bool, many: bool) -> Condition:
        """It is the task to be taken next, or one of those."""
        c, next_ = self._task.c, sa.alias(self._task, "next")
        choice = sa.select(next_.c.id).where(_of_tube(next_), next_.c.front == ONE, next_.c.state == READY)
        if timed:
            choice = choice.where(sa.or_(next_.c.due_ms.is_(None), next_.c.due_ms > bind("now")))
        if newest:
            choice = choice.order_by(next_.c.place.desc(), next_.c.id.desc())
        else:
            choice = choice.order_by(next_.c.place, next_.c.id)
        choice = _limited(choice, bind("limit") if many else ONE)
        if not self._is_server:
            return c.id.in_(choice) if many else c.id == choice.scalar_subquery()

        # Uncorrelated scalar subqueries run once. The session check is inside one, or an empty tube would
        # hide that the session has ended.

        choice = choice.with_for_update(skip_locked=True)
        picked: Any = sa.func.array(choice.scalar_subquery()) if many else choice.scalar_subquery()
        live: sa.Select[Any] = sa.select(sa.literal_column("TRUE")).where(
            self._session.c.id == bind("owner"), self._session.c.ends_ms.is_(None)
        )
        ended: sa.ColumnElement[Any] = sa.literal_column(
            f"\"{self._namespace}_refuse\"('{SESSION_ENDED}', 'this session has ended')"
        )
        lives = sa.func.coalesce(live.scalar_subquery(), ended)
        guarded_choice = sa.select(sa.case((lives, picked))).scalar_subquery()
        if many:
            return c.id == sa.any_(sa.cast(guarded_choice, sa.ARRAY(sa.BigInteger)))
        return c.id == guarded_choice

    # Ack

    def _write_acks(self) -> None:
        task, c = self._task, self._task.c
        held = sa.and_(c.id == bind("id"), _of_tube(task), c.state == TAKEN)
        mine = sa.or_(bind("owner", type_=sa.Text).is_(None), c.owner == bind("owner"))
        ack = sa.delete(task).where(held, c.owner == bind("owner"), c.attempts == bind("token"))
        ack_timed = ack.where(c.due_ms.is_not_distinct_from(bind("due")))
        ack_any = sa.delete(task).where(held, mine).returning(*self._raw)
        self.ack = self._make(ack, "id", "tube", "owner", "token")
        self.ack_timed = self._make(ack_timed, "id", "tube", "owner", "token", "due")
        self.ack_any = self._make(ack_any, "id", "tube", "owner")
        if self._is_server:  # the same, once the task's sub-queue is locked
            known = sa.alias(task, "known")
            lock = sa.func.count(sa.func.pg_advisory_xact_lock(self._key(known)))
            locked = sa.select(lock).where(known.c.id == bind("id")).scalar_subquery() >= ZERO
            self.ack_locked = self._make(ack.where(locked), "id", "tube", "owner", "token")
            self.ack_timed_locked = self._make(ack_timed.where(locked), "id", "tube", "owner", "token", "due")
            self.ack_any_locked = self._make(ack_any.where(locked), "id", "tube", "owner")

    def _write_acks_of_many(self) -> None:
        """Leases come as one parameter, a JSON object of tokens by id."""
        task, c = self._task, self._task.c
        each: Any = sa.func.pg_catalog.json_each_text if self._is_server else sa.func.json_each
        lease = each(bind("leases")).table_valued("key", "value")

        def is_lease(table: sa.FromClause) -> tuple[Condition, Condition]:
            return (
                table.c.id == sa.cast(lease.c.key, sa.BigInteger),
                table.c.attempts == sa.cast(lease.c.value, sa.Integer),
            )

        def is_held(table: sa.FromClause) -> tuple[Condition, Condition, Condition]:
            return _of_tube(table), table.c.state == TAKEN, table.c.owner == bind("owner")

        if self._is_server:  # joined straight to its leases: no plan begins with all tasks, or all taken ones
            ids = sa.select(sa.cast(sa.func.pg_catalog.json_object_keys(bind("leases")), sa.BigInteger))
            ack = sa.delete(task).where(self._among(c.id, ids), *is_lease(task), *is_held(task))
        else:
            leased = sa.alias(task, "leased")
            matching = sa.select(leased.c.id).select_from(lease).join(leased, sa.and_(*is_lease(leased)))
            ack = sa.delete(task).where(c.id.in_(matching.where(*is_held(leased))))

        in_range = sa.delete(task).where(_in_range(task), *is_held(task), c.attempts == bind("token"))
        span = ("first", "last", "token", "tube", "owner")
        self.ack_leases = self._make(ack.returning(c.id, c.ttl_ms, c.ttr_ms), "leases", "tube", "owner")
        self.ack_range = self._make(in_range.returning(c.id, c.ttl_ms, c.ttr_ms), *span)
        if not self._is_server:
            self.ack_leases_unread = self._make(ack, "leases", "tube", "owner")
            self.ack_range_unread = self._make(in_range, *span)
        self.mark = self._make(sa.text("SAVEPOINT tubes_mark"))
        self.back_to_mark = self._make(sa.text("ROLLBACK TO SAVEPOINT tubes_mark"))
        self.end_mark = self._make(sa.text("RELEASE SAVEPOINT tubes_mark"))

    # Other changes

    def _write_changes(self) -> None:
        task, c = self._task, self._task.c
        written = ("state", "front", "place", "due_ms", "ttl_ms", "ttr_ms", "owner", "updated_ms")
        self.update = self._make(
            sa.update(task).where(c.id == bind("id")).values({name: bind(name) for name in written}),
            *written,
            "id",
        )
        self.ready = self._make(
            sa.update(task)
            .where(self._among(c.id, self._ids))
            .values(
                state=READY,
                front=bind("front"),
                place=c.pri,
                due_ms=c.created_ms + c.ttl_ms,
                ttr_ms=c.ttr_ms,  # the triggers watch it
                owner=sa.null(),
                updated_ms=bind("now"),
            ),
            "front",
            "now",
            "ids",
        )

        def ids(place: Condition, *, free: bool) -> Statement:
            look = _limited(sa.select(c.id).where(place), bind("limit"))
            return self._make(look.with_for_update(skip_locked=True) if free else look, "tube", "limit")

        self.remove = self._make(sa.delete(task).where(self._among(c.id, self._ids)), "ids")
        places = _behind(task), _aside(task), _in_front(task)
        self.ids = [ids(place, free=False) for place in places]
        if not self._is_server:
            self.ids_free = self.ids
            return
        self.ids_free = [ids(place, free=True) for place in places]

        # Fires no trigger, since it does not set ttr_ms
        leave_front = sa.update(task).where(_in_front(task), c.utube.is_not(None)).values(front=sa.null())
        self.leave_front = self._make(leave_front, "tube")
        self.remove_all = [
            self._make(sa.delete(task).where(place), "tube")
            for place in (_in_front(task), _behind(task), _aside(task))
        ]

    # Locks, which only a server takes

    def _write_locks(self) -> None:
        task, c = self._task, self._task.c
        members = sa.alias(task, "members")
        is_asked_for = self._among(members.c.id, self._ids)

        # Sub-queues are always locked in one order, before the rows of their tasks

        key = self._key(members).label("key")
        keys = sa.select(key).distinct().where(is_asked_for, members.c.utube.is_not(None)).order_by("key")
        lock_groups = sa.select(sa.func.count(sa.func.pg_advisory_xact_lock(keys.subquery().c.key)))

        # Materialised, or locks of other tasks' sub-queues might be tried too

        asked = sa.select(members.c.id, members.c.tube, members.c.utube).where(is_asked_for)
        asked_for = asked.cte("asked").prefix_with("MATERIALIZED", dialect="postgresql")
        is_free = sa.func.pg_try_advisory_xact_lock(self._key(asked_for))
        free = sa.select(asked_for.c.id).where(sa.or_(asked_for.c.utube.is_(None), is_free))

        self.lock_tasks = self._make(sa.text(f'LOCK TABLE "{task.name}" IN SHARE ROW EXCLUSIVE MODE'))
        self.set_lock_timeout = self._make(sa.text("SELECT set_config('lock_timeout', :ms, true)"), "ms")
        self.vacuum_ends_after = self._make(
            sa.text(
                "SELECT CAST(setting AS bigint) FROM pg_settings WHERE name = 'deadlock_timeout' AND EXISTS ("
                "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
                f"WHERE relation = to_regclass('\"{task.name}\"') AND datname = current_database()"
                " AND mode = 'ShareUpdateExclusiveLock' AND granted)"
            )
        )
        self.lock_groups = self._make(lock_groups, "ids")
        self.lock_free_groups = self._make(free, "ids")
        stored = sa.select(c.id).where(self._among(c.id, self._ids)).order_by(c.id)
        self.lock_ids = self._make(stored.with_for_update(), "ids")

    # Looks

    def _write_looks_by_id(self) -> None:
        """On SQLite the locking ones only look."""
        task, c = self._task, self._task.c
        one = sa.select(*self._raw).where(c.id == bind("id"), _of_tube(task))
        some = sa.select(*self._raw).where(_of_tube(task), self._among(c.id, self._ids)).order_by(c.id)
        self.peek = self._make(one, "id", "tube")
        self.lock_one = self._make(one.with_for_update(), "id", "tube")
        self.lock_some = self._make(some.with_for_update(), "tube", "ids")
        self.lock_one_taken = self._make(one.where(c.state == TAKEN).with_for_update(), "id", "tube")

    def _write_looks(self) -> None:
        task, c = self._task, self._task.c
        in_front, aside = _in_front(task), _aside(task)
        taken = sa.and_(_of_tube(task), _is_taken(task))
        buried = sa.and_(aside, c.state == BURIED)

        # No index of a tube is in id order: + 0 tells the planner so, or it would read what all tubes hold

        in_state, id_ = c.state == bind("state"), c.id + ZERO

        def by_state(*places: Condition) -> Statement:
            found = [sa.select(id_.label("id")).where(place, id_ > bind("after")) for place in places]
            all_of_them = sa.union_all(*found).subquery()
            ids = _limited(sa.select(all_of_them.c.id).order_by(all_of_them.c.id), bind("limit"))
            query = sa.select(*self._raw).where(self._among(c.id, ids), in_state).order_by(c.id)
            return self._make(query, "tube", "state", "after", "limit")

        nearest = _limited(
            sa.select(c.id).where(c.id > bind("after")).order_by(c.id), bind("near")
        ).subquery()
        until = sa.select(sa.func.max(nearest.c.id)).scalar_subquery()
        of_tube = c.tube + ZERO == bind("tube")
        near = self._in_order(sa.and_(of_tube, in_state, c.id > bind("after"), c.id <= until), (c.id,))

        def count(place: Condition) -> sa.Select[Any]:
            return sa.select(c.state, sa.func.count()).where(place).group_by(c.state)

        self.can_take = self._make(_limited(sa.select(ONE).where(in_front, c.state == READY), ONE), "tube")
        self.count = self._make(sa.union_all(count(in_front), count(_behind(task)), count(aside)), "tube")
        self.by_state_front = by_state(sa.and_(in_front, in_state))
        self.by_state_aside = by_state(sa.and_(aside, in_state))
        self.by_state_ready = by_state(sa.and_(in_front, in_state), _behind(task))
        self.by_state_near = self._make(near, "tube", "state", "after", "near", "limit")
        self.buried = self._passing("tube", where=buried, by=(c.pri, c.id))
        self.buried_newest = self._passing("tube", where=buried, by=(c.pri.desc(), c.id.desc()))
        self.due = self._passing("tube", "now", where=_due(task), by=(c.due_ms,))
        self.overdue = self._passing("tube", "now", where=_overdue(task), by=(c.place,))

        def first(time: sa.ColumnElement[int], where: Condition) -> sa.ScalarSelect[int]:
            """The earliest, by ORDER BY: min() reads all of them if a server expects few."""
            look = sa.select(time).where(where, time.is_not(None)).order_by(time)
            return _limited(look, ONE).correlate(self._tube).scalar_subquery()

        def dues(tube: sa.ColumnElement[int]) -> list[sa.ScalarSelect[int]]:
            return [
                first(c.due_ms, sa.and_(c.tube == tube, c.state != TAKEN)),
                first(c.place, sa.and_(c.tube == tube, _is_taken(self._task))),
            ]

        self.next_due = self._make(sa.select(*dues(bind("tube"))), "tube")
        self.next_dues = self._make(sa.select(self._tube.c.id, *dues(self._tube.c.id)))
        self.taken = self._passing("tube", where=taken, by=(c.place, c.id))
        self.taken_by = self._passing(
            "tube", "owner", where=sa.and_(taken, c.owner == bind("owner")), by=(c.place, c.id)
        )
        self.holders = self._make(self._holders())

    def _holders(self) -> sa.Select[Any]:
        """Who holds tasks of which tube: one index search per tube; else all of the index would be read."""
        tube, c = self._tube, self._task.c

        def held(of: sa.ColumnElement[int], *columns: Any) -> sa.Select[Any]:
            return sa.select(*columns, c.owner).distinct().where(c.tube == of, _is_taken(self._task))

        if not self._is_server:
            return held(tube.c.id + ZERO, tube.c.id)
        of_each = held(tube.c.id).correlate(tube).lateral("held")
        return sa.select(tube.c.id, of_each.c.owner).select_from(tube.join(of_each, sa.true()))

    # The store's: tubes, sessions, connections, calls

    def _write_tubes(self) -> None:
        tube, c = self._tube, self._tube.c
        entry = sa.select(c.id, c.name, c.type, c.options, c.temporary)
        self.tubes = self._make(entry.order_by(c.id))
        self.tube_named = self._make(entry.where(c.name == bind("name")), "name")
        self.has_tube = self._make(sa.select(ONE).where(c.id == bind("id")), "id")
        given = ("name", "type", "options", "temporary")
        self.add_tube = self._make(
            sa.insert(tube).values({name: bind(name) for name in given} | {"stored": ZERO}), *given
        )
        self.remove_tube = self._make(sa.delete(tube).where(c.id == bind("id")), "id")
        self.make_room = self._make(
            sa.update(tube)
            .where(c.id == bind("tube"), c.stored + bind("wanted") <= bind("capacity"))
            .values(stored=c.stored + bind("wanted")),
            "tube",
            "wanted",
            "capacity",
        )
        self.give_room = self._make(
            sa.update(tube).where(c.id == bind("tube")).values(stored=c.stored - bind("gone")), "tube", "gone"
        )

    def _write_sessions(self) -> None:
        session, c = self._session, self._session.c
        self.add_session = self._make(
            sa.insert(session).values(id=bind("id"), ttr_ms=bind("ttr_ms"), ends_ms=sa.null()), "id", "ttr_ms"
        )
        self.sessions = self._make(sa.select(c.id))
        self.set_session = self._make(
            sa.update(session).where(c.id == bind("id")).values(ttr_ms=bind("ttr_ms")), "ttr_ms", "id"
        )
        self.revive_session = self._make(
            sa.update(session)
            .where(c.id == bind("id"), sa.or_(c.ends_ms.is_(None), c.ends_ms > bind("now")))
            .values(ends_ms=sa.null())
            .returning(c.ttr_ms),
            "id",
            "now",
        )
        given: sa.ColumnElement[Any] = bind("id")
        if self._is_server:  # unless it is locked: a dead session may have left an open transaction
            free = sa.alias(session, "free")
            choice = sa.select(free.c.id).where(free.c.id == given).with_for_update(skip_locked=True)
            given = choice.scalar_subquery()
        self.remove_session = self._make(
            sa.delete(session).where(c.id == given, c.ends_ms.is_not(None)), "id"
        )
        self.ended = self._make(
            sa.select(c.id).where(c.ends_ms <= bind("now")).order_by(c.ends_ms, c.id), "now"
        )
        has_connection = sa.exists(sa.select(ONE).where(self._connection.c.session == c.id))
        is_lonely = sa.and_(c.ends_ms.is_(None), ~has_connection)
        end_lonely = sa.update(session).where(is_lonely).values(ends_ms=bind("now") + c.ttr_ms)
        is_over = c.ends_ms <= bind("now")
        if self._is_server:  # two connections may leave one at once, and each still see the other
            is_over = sa.or_(is_over, is_lonely)
        self.over = self._make(sa.select(c.id).where(is_over), "now")
        if not self._is_server:
            self.end_lonely = self._make(end_lonely, "now")
            return
        self.session = self._make(sa.select(c.ends_ms).where(c.id == bind("id")), "id")
        self.lonely = self._make(sa.select(c.id).where(is_lonely).with_for_update(skip_locked=True))
        among = c.id.in_(sa.select(sa.func.pg_catalog.json_array_elements_text(bind("ids"))))
        self.end_if_lonely = self._make(end_lonely.where(among), "now", "ids")

    def _write_connections(self) -> None:
        connection, c = self._connection, self._connection.c
        add: ClauseElement = sa.insert(connection).values(
            session=bind("session"), host=bind("host"), pid=bind("pid"), started_ms=bind("now")
        )
        given = ["session", "host", "pid", "now"]
        if self._is_server:
            # A server may lose its last commits: an id given then, and given again, would belong to two
            # processes
            add = sa.text(
                f'INSERT INTO "{connection.name}" (id, session, host, pid, started_ms, beat_every_ms)'
                f" OVERRIDING SYSTEM VALUE VALUES (CAST(floor(random() * CAST({2**52} AS float8)) AS bigint),"
                " :session, :host, :pid, :now, :beat_every) RETURNING id"
            )
            given.append("beat_every")
        self.add_connection = self._make(add, *given)
        self.connections = self._make(sa.select(c.id, c.session).order_by(c.id))
        self.has_connection = self._make(sa.select(ONE).where(c.id == bind("id")), "id")
        self.move_connection = self._make(
            sa.update(connection).where(c.id == bind("id")).values(session=bind("session")), "session", "id"
        )
        self.remove_connection = self._make(sa.delete(connection).where(c.id == bind("id")), "id")

    def _write_beats(self) -> None:
        connection, c = self._connection, self._connection.c
        beats: list[sa.ColumnElement[int]] = [sa.literal_column("beat"), sa.literal_column("beat_every_ms")]
        self.beats = self._make(sa.select(c.id, *beats).order_by(c.id))
        self.beat = self._make(
            sa.text(f'UPDATE "{connection.name}" SET beat = beat + 1 WHERE id = :id'), "id"
        )
        self.call_roll = self._make(sa.text(_CALL_ROLL.format(table=connection.name)))
        self.absent = self._make(
            sa.text(
                f'SELECT id, beat FROM "{connection.name}" WHERE absences >= :beats AND beat = called_beat'
            ),
            "beats",
        )
        self.remove_dead = self._make(sa.text(_REMOVE_DEAD.format(table=connection.name)), "id", "beat")

    def _write_calls(self) -> None:
        calls, c = self._calls, self._calls.c
        upserting: Any
        if self._is_server:
            from sqlalchemy.dialects.postgresql import insert as upserting
        else:
            from sqlalchemy.dialects.sqlite import insert as upserting
        given = {name: sa.type_coerce(bind(name), c[name].type) for name in ("tube", "event", "count")}
        tube = self._tube
        there = sa.select(*given.values()).select_from(tube).where(tube.c.id == bind("tube"))
        there = there.with_for_update(read=True, key_share=True)  # the tube may be dropped now, or gone
        upsert: Any = upserting(calls).from_select(list(given), there)
        upsert = upsert.on_conflict_do_update(
            index_elements=["tube", "event"], set_={"count": c.count + upsert.excluded.count}
        )
        self.add_calls = self._make(upsert, *given)
        self.calls = self._make(sa.select(c.event, c.count).where(c.tube == bind("tube")), "tube")
        self.remove_calls = self._make(sa.delete(calls).where(c.tube == bind("tube")), "tube")


# Where a task is


def _of_tube(table: sa.FromClause) -> Condition:
    return table.c.tube == bind("tube")


def _in_front(table: sa.FromClause) -> Condition:
    return sa.and_(_of_tube(table), table.c.front == ONE)


def _behind(table: sa.FromClause) -> Condition:
    return sa.and_(_of_tube(table), table.c.front == ZERO, table.c.utube.is_not(None))


def _aside(table: sa.FromClause) -> Condition:
    return sa.and_(_of_tube(table), table.c.front.is_(None))


def _due(table: sa.FromClause) -> Condition:
    not_taken = table.c.state != TAKEN
    return sa.and_(_of_tube(table), not_taken, table.c.due_ms.is_not(None), table.c.due_ms <= bind("now"))


def _overdue(table: sa.FromClause) -> Condition:
    return sa.and_(_of_tube(table), _is_taken(table), table.c.place <= bind("now"))


def _is_taken(table: sa.FromClause) -> Condition:
    """A taken task stands in front; without saying so, no index would be used."""
    return sa.and_(table.c.front == ONE, table.c.state == TAKEN)


def _in_range(table: sa.FromClause) -> Condition:
    return table.c.id.between(bind("first"), bind("last"))


def _limited(query: sa.Select[Any], limit: sa.ColumnElement[int]) -> sa.Select[Any]:
    """With a literal offset: otherwise SQLAlchemy makes it one more parameter on SQLite."""
    return query.limit(limit).offset(ZERO)


_REMOVE_DEAD = """
DELETE FROM "{table}" WHERE id = (SELECT id FROM "{table}" WHERE id = :id AND beat = :beat FOR UPDATE SKIP LOCKED)
"""
"""Removes a dead connection, unless it has beaten since its silence was seen, or is locked just now."""

_CALL_ROLL = """
UPDATE "{table}" AS c
SET absences = CASE WHEN beat = called_beat AND called_ms <= now THEN absences + 1 ELSE 0 END,
    called_beat = beat, called_ms = now
FROM (
    SELECT id, now FROM "{table}", CAST(extract(epoch FROM clock_timestamp()) * 1000.0 AS bigint) AS now
    WHERE now NOT BETWEEN called_ms - beat_every_ms AND called_ms + beat_every_ms
    ORDER BY id FOR UPDATE OF "{table}" SKIP LOCKED
) AS due
WHERE c.id = due.id
"""
"""Calls the roll, see ``watch``: all connections not called within the time between two beats of theirs.

Several may call it at once. One may then find a last call that is a moment later than its own time; that does
not count as a clock that was put back.
"""

_BATCH_TYPES = {
    "state": "text", "utube": "text", "data": "text", "bytes": "bytea", "front": "smallint",
}  # fmt: skip


def _batch(namespace: str, table: str, values: dict[str, Any], names: tuple[str, ...]) -> sa.TextClause:
    """Put many rows on PostgreSQL, given as arrays of columns; first lock their sub-queues, in one order."""
    arrays = ", ".join(f"CAST(:{name} AS {_BATCH_TYPES.get(name, 'bigint')}[])" for name in names)
    columns, chosen = [], []
    for column, value in values.items():
        columns.append(column)
        chosen.append(f"item.{value.key}" if isinstance(value, sa.BindParameter) else str(value))
    lock = "TRUE"
    if "utube" in names:
        lock = (
            f'(SELECT count(pg_advisory_xact_lock(key)) FROM (SELECT DISTINCT "{namespace}_key"(tube, utube) AS key'
            " FROM item WHERE utube IS NOT NULL ORDER BY key) AS keys) >= 0"
        )
    return sa.text(
        f"WITH item AS MATERIALIZED (SELECT * FROM unnest({arrays}) WITH ORDINALITY AS i({', '.join(names)}, n)) "
        f'INSERT INTO "{table}" ({", ".join(columns)}) SELECT {", ".join(chosen)} FROM item WHERE {lock} '
        f'AND EXISTS (SELECT 1 FROM "{namespace}_tube" WHERE id = item.tube) ORDER BY n RETURNING id'
    )
