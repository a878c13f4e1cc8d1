"""Every statement of the SQL driver and its stores: written in SQLAlchemy Core, compiled once per dialect.

Core's per-call layers cost more than the statements themselves (20,000 single inserts a second through an
engine, 50,000 on the driver's cursor), so what runs is the compiled text, on the cursor, with a plain tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

from .tables import tables

Row = tuple[Any, ...]
"""What a statement is given, or answers with."""

RAW = (
    "id",
    "state",
    "data",
    "bytes",
    "pri",
    "utube",
    "created_ms",
    "updated_ms",
    "due_ms",
    "ttl_ms",
    "ttr_ms",
    "attempts",
    "owner",
)
"""The columns of a raw task, in order: what the driver's steps return, and normalize_task reads."""

SESSION_ENDED = "TB001"
"""The SQLSTATE with which a server refuses a take by a session that was taken for dead."""

SNAPSHOT_TOO_OLD = "TB002"
"""The SQLSTATE with which a server refuses to change a sub-queue in a transaction that has one snapshot for all."""

ONE: sa.ColumnElement[int] = sa.literal_column("1")
ZERO: sa.ColumnElement[int] = sa.literal_column("0")
READY: sa.ColumnElement[str] = sa.literal_column("'r'")
TAKEN: sa.ColumnElement[str] = sa.literal_column("'t'")
BURIED: sa.ColumnElement[str] = sa.literal_column("'!'")


class Statement:
    """Compiled text, and how to order its parameters: they are given in the order of ``names``."""

    __slots__ = ("batch", "order", "text")

    def __init__(self, clause: ClauseElement, dialect: Dialect, *names: str) -> None:
        self.batch: Statement | None = None
        """The same for many rows at once, each parameter a list, where the database has such a form."""
        compiled = clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        used = list(getattr(compiled, "positiontup", None) or [])
        if set(used) != set(names):
            raise AssertionError(f"parameters {names} do not match {used} of {compiled}")
        self.text = str(compiled)
        self.order: Callable[[Row], Row] | None = None
        if used != list(names):
            places = [names.index(name) for name in used]
            self.order = itemgetter(*places) if len(places) > 1 else lambda given: (given[places[0]],)

    def bind(self, given: Row) -> Row:
        """Put the parameters in the order of the text."""
        return given if self.order is None else self.order(given)


@dataclass(frozen=True)
class Statements:
    """All statements for one dialect and namespace."""

    is_shared: bool
    """Whether others write while a step is under way: then it locks what it writes, and looks again."""

    lock_tasks: Statement
    lock_groups: Statement
    put: Statement
    put_plain: Statement
    put_grouped: Statement
    put_ranked: Statement
    step_back: Statement
    take: Statement
    take_plain: Statement
    take_plain_many: Statement
    take_many: Statement
    take_timed: Statement
    take_undue: Statement
    take_newest: Statement
    take_newest_many: Statement
    take_newest_timed: Statement
    take_newest_timed_many: Statement
    ack: Statement
    ack_timed: Statement
    ack_any: Statement
    ack_grouped: Statement
    ack_timed_grouped: Statement
    ack_any_grouped: Statement
    remove: Statement
    peek: Statement
    hold_one: Statement
    hold: Statement
    hold_free: Statement
    ack_leases: Statement
    ack_leases_unread: Statement
    mark: Statement
    back_to_mark: Statement
    end_mark: Statement
    update: Statement
    ready: Statement
    buried: Statement
    buried_newest: Statement
    due: Statement
    overdue: Statement
    taken: Statement
    taken_by: Statement
    orphans: Statement
    next_due: Statement
    count: Statement
    by_state_front: Statement
    by_state_aside: Statement
    ready_by_id: Statement
    can_take: Statement
    truncate_behind: Statement
    truncate_aside: Statement
    truncate_front: Statement
    make_room: Statement
    give_room: Statement
    tubes: Statement
    tube_named: Statement
    has_tube: Statement
    add_tube: Statement
    remove_tube: Statement
    remove_calls: Statement
    add_session: Statement
    session: Statement
    set_session: Statement
    end_session: Statement
    revive_session: Statement
    remove_session: Statement
    ended: Statement
    add_connection: Statement
    connections: Statement
    beats: Statement
    beat: Statement
    move_connection: Statement
    remove_connection: Statement
    lonely: Statement
    end_if_lonely: Statement
    end_lonely: Statement
    add_calls: Statement
    calls: Statement


@lru_cache(maxsize=64)
def statements(dialect: Dialect, namespace: str, temporary: bool = False) -> Statements:
    """Build and compile all statements; ``temporary``: for the table of the temporary tubes' tasks."""
    t = tables(namespace)
    is_server = dialect.name == "postgresql"
    task, tube, session, connection = t.task, t.tube, t.session, t.connection
    if temporary:
        task = t.temporary_task
    c = task.c
    raw = [c[name] for name in RAW]
    bind = sa.bindparam

    def make(clause: ClauseElement, *names: str) -> Statement:
        return Statement(clause, dialect, *names)

    def limited(query: sa.Select[Any], limit: sa.ColumnElement[int]) -> sa.Select[Any]:
        """Without an offset that is written down, SQLAlchemy makes it one more parameter on SQLite."""
        return query.limit(limit).offset(ZERO)

    def first(*names: str, where: sa.ColumnElement[bool], by: Sequence[Any]) -> Statement:
        """Raw tasks in an order, up to a limit."""
        return make(limited(sa.select(*raw).where(where).order_by(*by), bind("limit")), *names, "limit")

    def of_tube(table: sa.FromClause) -> sa.ColumnElement[bool]:
        return table.c.tube == bind("tube")

    def due(table: sa.FromClause) -> sa.ColumnElement[bool]:
        not_taken = table.c.state != TAKEN
        return sa.and_(of_tube(table), not_taken, table.c.due_ms.is_not(None), table.c.due_ms <= bind("now"))

    def overdue(table: sa.FromClause) -> sa.ColumnElement[bool]:
        is_taken = sa.and_(table.c.front == ONE, table.c.state == TAKEN)
        return sa.and_(of_tube(table), is_taken, table.c.place <= bind("now"))

    # Put

    columns = (
        "tube",
        "state",
        "pri",
        "created_ms",
        "updated_ms",
        "due_ms",
        "ttl_ms",
        "ttr_ms",
        "data",
        "bytes",
    )
    values: dict[str, Any] = {name: bind(name) for name in columns}
    values["place"] = bind("pri")
    values |= {"front": bind("front"), "utube": bind("utube"), "attempts": ZERO}
    front = sa.alias(task, "front")
    behind_another = sa.exists(
        sa.select(ONE).where(of_tube(front), front.c.utube == bind("utube"), front.c.front == ONE)
    )
    insert_names = (
        "tube", "state", "front", "pri", "utube", "created_ms", "updated_ms", "due_ms", "ttl_ms", "ttr_ms",
        "data", "bytes",
    )  # fmt: skip
    plain_names = ("tube", "created_ms", "updated_ms", "data")
    plain: dict[str, Any] = {name: bind(name) for name in plain_names}
    plain |= {"pri": ZERO, "place": ZERO, "state": READY, "front": ONE, "attempts": ZERO}
    grouped = values | {
        "front": sa.case((bind("front").is_(None), sa.null()), (behind_another, ZERO), else_=ONE)
    }

    # With priorities too: nothing is put where a worse task waits in front, which must step back first

    ahead = sa.alias(task, "ahead")
    worse_in_front = sa.select(ONE).where(
        of_tube(ahead),
        ahead.c.utube == bind("utube"),
        ahead.c.front == ONE,
        ahead.c.state == READY,
        ahead.c.pri > bind("pri"),
        bind("front").is_not(None),
    )
    ranked = {name: sa.type_coerce(value, c[name].type) for name, value in grouped.items()}

    # A server decides by triggers who stands in front, and sees here that the tube is there

    def put(values: dict[str, Any], names: tuple[str, ...]) -> Statement:
        if not is_server:
            return make(sa.insert(task).values(values), *names)
        typed = {name: sa.type_coerce(value, c[name].type) for name, value in values.items()}
        there = sa.exists(sa.select(ONE).where(tube.c.id == bind("tube")))
        insert = sa.insert(task).from_select(list(typed), sa.select(*typed.values()).where(there))
        statement = make(insert.returning(c.id), *names)
        statement.batch = make(_batch(namespace, task.name, values, names), *names)
        return statement

    def key(table: sa.FromClause) -> sa.ColumnElement[int]:
        name = sa.quoted_name(f"{namespace}_key", True)
        return sa.Function(name, table.c.tube, table.c.utube)

    def locking(chosen: sa.ColumnElement[bool], table: sa.FromClause) -> sa.Select[Any]:
        """Lock the sub-queues of tasks, always in one order, before their rows are locked."""
        grouped = sa.and_(chosen, table.c.utube.is_not(None))
        keys = sa.select(key(table).label("key")).distinct().where(grouped).order_by("key").subquery()
        return sa.select(sa.func.count(sa.func.pg_advisory_xact_lock(keys.c.key)))

    # Take

    def take(*, timed: bool, many: bool, newest: bool = False, columns: Any = raw) -> Statement:
        next_ = sa.alias(task, "next")
        choice = sa.select(next_.c.id).where(of_tube(next_), next_.c.front == ONE, next_.c.state == READY)
        if timed:
            choice = choice.where(sa.or_(next_.c.due_ms.is_(None), next_.c.due_ms > bind("now")))
        if newest:
            choice = choice.order_by(next_.c.place.desc(), next_.c.id.desc())
        else:
            choice = choice.order_by(next_.c.place, next_.c.id)
        names = ["owner", "now", "tube"]
        choice = limited(choice, bind("limit") if many else ONE)
        if many:
            names.append("limit")
        chosen = c.id.in_(choice) if many else c.id == choice.scalar_subquery()
        if is_server:
            # Uncorrelated scalars are run once. The guard stands inside, or an empty tube would hide a dead session.
            choice = choice.with_for_update(skip_locked=True)
            picked: Any = sa.func.array(choice.scalar_subquery()) if many else choice.scalar_subquery()
            live: sa.Select[Any] = sa.select(sa.literal_column("TRUE")).where(
                session.c.id == bind("owner"), session.c.ends_ms.is_(None)
            )
            ended: sa.ColumnElement[Any] = sa.literal_column(
                f"\"{namespace}_refuse\"('{SESSION_ENDED}', 'this session has ended')"
            )
            lives = sa.func.coalesce(live.scalar_subquery(), ended)
            guarded_choice = sa.select(sa.case((lives, picked))).scalar_subquery()
            if many:
                chosen = c.id == sa.any_(sa.cast(guarded_choice, sa.ARRAY(sa.BigInteger)))
            else:
                chosen = c.id == guarded_choice
        set_: dict[str, Any] = {
            "state": TAKEN,
            "owner": bind("owner"),
            "attempts": c.attempts + ONE,
            "updated_ms": bind("now"),
        }
        if timed:
            until: sa.ColumnElement[int] = bind("now") + c.ttr_ms
            set_["due_ms"] = sa.case(
                (c.ttr_ms.is_(None), c.due_ms),
                (sa.and_(c.due_ms.is_not(None), c.due_ms <= until), c.due_ms),
                else_=until,
            )
            set_["place"] = set_["due_ms"]
        update = sa.update(task).where(chosen).values(set_)
        if timed and not many:  # else what is due has been settled
            over, late = sa.alias(task, "over"), sa.alias(task, "late")
            update = update.where(~sa.exists(sa.select(ONE).where(due(over))))
            update = update.where(~sa.exists(sa.select(ONE).where(overdue(late))))
        return make(update.returning(*columns), *names)

    plain_columns = [c[name] for name in ("id", "data", "bytes", "created_ms", "attempts")]

    # Ack and other guarded writes

    held = sa.and_(c.id == bind("id"), of_tube(task), c.state == TAKEN)
    mine = sa.or_(bind("owner", type_=sa.Text).is_(None), c.owner == bind("owner"))
    ours = sa.and_(c.id == bind("id"), of_tube(task))
    ack = sa.delete(task).where(held, c.owner == bind("owner"), c.attempts == bind("token"))
    ack_any = sa.delete(task).where(held, mine).returning(*raw)
    update = (
        sa.update(task)
        .where(c.id == bind("id_"))
        .values(
            {
                name: bind(name)
                for name in ("state", "front", "place", "due_ms", "ttl_ms", "ttr_ms", "owner", "updated_ms")
            }
        )
    )

    def locked(statement: Any) -> Any:
        """The same, after the task's sub-queue was locked."""
        if not is_server:
            return statement
        known = sa.alias(task, "known")
        lock = sa.func.count(sa.func.pg_advisory_xact_lock(key(known)))
        return statement.where(sa.select(lock).where(known.c.id == bind("id")).scalar_subquery() >= ZERO)

    # Ids come as one parameter, a JSON array; leases as a JSON object of tokens by id

    ids: Any
    if is_server:
        ids = sa.select(sa.cast(sa.func.json_array_elements_text(bind("ids")), sa.BigInteger))
        lease = sa.func.json_each_text(bind("leases")).table_valued("key", "value")
    else:
        ids = sa.select(sa.column("value")).select_from(sa.func.json_each(bind("ids")))
        lease = sa.func.json_each(bind("leases")).table_valued("key", "value")

    def among(id: sa.ColumnElement[int], chosen: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """One of these ids. A join could become one of each with each, where the plan was made for few rows."""
        if not is_server:
            return id.in_(chosen)
        return id == sa.any_(sa.cast(sa.func.array(chosen.scalar_subquery()), sa.ARRAY(sa.BigInteger)))

    leased = sa.alias(task, "leased")
    matching = (
        sa.select(leased.c.id)
        .select_from(lease)
        .join(
            leased,
            sa.and_(
                leased.c.id == sa.cast(lease.c.key, sa.BigInteger),
                leased.c.attempts == sa.cast(lease.c.value, sa.Integer),
            ),
        )
        .where(of_tube(leased), leased.c.state == TAKEN, leased.c.owner == bind("owner"))
    )
    ack_leases = sa.delete(task).where(c.id.in_(matching))
    if is_server:  # joined straight to its leases, so that no plan can begin with all tasks or all taken ones
        leased_ids = sa.select(sa.cast(sa.func.json_object_keys(bind("leases")), sa.BigInteger))
        ack_leases = sa.delete(task).where(
            among(c.id, leased_ids),
            c.id == sa.cast(lease.c.key, sa.BigInteger),
            c.attempts == sa.cast(lease.c.value, sa.Integer),
            of_tube(task),
            c.state == TAKEN,
            c.owner == bind("owner"),
        )

    # Looking

    in_front = sa.and_(of_tube(task), c.front == ONE)
    behind = sa.and_(of_tube(task), c.front == ZERO, c.utube.is_not(None))
    aside = sa.and_(of_tube(task), c.front.is_(None))
    taken = sa.and_(in_front, c.state == TAKEN)
    buried = sa.and_(aside, c.state == BURIED)

    def by_state(place: sa.ColumnElement[bool]) -> Statement:
        where = sa.and_(place, c.state == bind("state"), c.id > bind("after"))
        return first("tube", "state", "after", where=where, by=(c.id,))

    def count(place: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(c.state, sa.func.count()).where(place).group_by(c.state)

    def truncate(place: sa.ColumnElement[bool]) -> Statement:
        some = limited(sa.select(c.id).where(place), bind("limit"))
        return make(sa.delete(task).where(among(c.id, some)), "tube", "limit")

    lonely = ~sa.exists(sa.select(ONE).where(connection.c.session == session.c.id))
    end_lonely = (
        sa.update(session)
        .where(session.c.ends_ms.is_(None), lonely)
        .values(ends_ms=bind("now") + session.c.ttr_ms)
    )
    upsert: Any
    if is_server:
        from sqlalchemy.dialects.postgresql import insert as upserting
    else:
        from sqlalchemy.dialects.sqlite import insert as upserting  # type: ignore[assignment]
    counted = {name: sa.type_coerce(bind(name), t.calls.c[name].type) for name in ("tube", "event", "count")}
    there = sa.exists(sa.select(ONE).where(tube.c.id == bind("tube")))  # else it was dropped meanwhile
    upsert = upserting(t.calls).from_select(list(counted), sa.select(*counted.values()).where(there))
    upsert = upsert.on_conflict_do_update(
        index_elements=["tube", "event"], set_={"count": t.calls.c.count + upsert.excluded.count}
    )

    members = sa.alias(task, "members")
    free: Any = ids
    if is_server:  # materialised, or the locks of tasks that nobody asked for might be tried too
        asked = sa.select(members.c.id, members.c.tube, members.c.utube).where(among(members.c.id, ids))
        asked_for = asked.cte("asked").prefix_with("MATERIALIZED", dialect="postgresql")
        is_free = sa.func.pg_try_advisory_xact_lock(key(asked_for))
        free = sa.select(asked_for.c.id).where(sa.or_(asked_for.c.utube.is_(None), is_free))
    ack_timed = ack.where(c.due_ms.is_not_distinct_from(bind("due")))

    # A server may lose its last moments: a number that it gave then, and gives again, would be two processes'

    connecting: ClauseElement = sa.insert(connection).values(
        session=bind("session"), host=bind("host"), pid=bind("pid"), started_ms=bind("now")
    )
    if is_server:
        connecting = sa.text(
            f'INSERT INTO "{connection.name}" (id, session, host, pid, started_ms) OVERRIDING SYSTEM VALUE'
            f" VALUES (CAST(floor(random() * {2**52}) AS bigint), :session, :host, :pid, :now) RETURNING id"
        )

    return Statements(
        is_shared=is_server,
        lock_tasks=make(sa.text(f'LOCK TABLE "{task.name}" IN SHARE ROW EXCLUSIVE MODE')),  # a server's only
        lock_groups=make(locking(among(members.c.id, ids), members), "ids"),
        put=put(values, insert_names),
        put_plain=put(plain, plain_names),
        put_ranked=make(
            sa.insert(task).from_select(
                list(ranked), sa.select(*ranked.values()).where(~sa.exists(worse_in_front))
            ),
            *insert_names,
        ),
        put_grouped=put(values if is_server else grouped, insert_names),
        step_back=make(
            sa.update(task)
            .where(
                of_tube(task),
                c.utube == bind("utube_"),
                c.front == ONE,
                c.state == READY,
                c.pri > bind("pri_"),
            )
            .values(front=ZERO),
            "tube",
            "utube_",
            "pri_",
        ),
        take=take(timed=False, many=False),
        take_plain=take(timed=False, many=False, columns=plain_columns),
        take_plain_many=take(timed=False, many=True, columns=plain_columns),
        take_many=take(timed=False, many=True),
        take_timed=take(timed=True, many=False),
        take_undue=take(timed=True, many=True),
        take_newest=take(timed=False, many=False, newest=True),
        take_newest_many=take(timed=False, many=True, newest=True),
        take_newest_timed=take(timed=True, many=False, newest=True),
        take_newest_timed_many=take(timed=True, many=True, newest=True),
        ack=make(ack, "id", "tube", "owner", "token"),
        ack_timed=make(ack_timed, "id", "tube", "owner", "token", "due"),
        ack_any=make(ack_any, "id", "tube", "owner"),
        ack_grouped=make(locked(ack), "id", "tube", "owner", "token"),
        ack_timed_grouped=make(locked(ack_timed), "id", "tube", "owner", "token", "due"),
        ack_any_grouped=make(locked(ack_any), "id", "tube", "owner"),
        remove=make(sa.delete(task).where(among(c.id, ids)), "ids"),
        peek=make(sa.select(*raw).where(ours), "id", "tube"),
        hold_one=make(sa.select(*raw).where(ours).with_for_update(), "id", "tube"),
        hold=make(
            sa.select(*raw).where(of_tube(task), among(c.id, ids)).order_by(c.id).with_for_update(),
            "tube",
            "ids",
        ),
        hold_free=make(
            sa.select(*raw)
            .where(of_tube(task), among(c.id, free))
            .order_by(c.id)
            .with_for_update(skip_locked=True),
            "tube",
            "ids",
        ),
        ack_leases=make(ack_leases.returning(c.id, c.ttl_ms, c.ttr_ms), "leases", "tube", "owner"),
        ack_leases_unread=make(ack_leases, "leases", "tube", "owner"),
        mark=make(sa.text("SAVEPOINT tubes_mark")),
        back_to_mark=make(sa.text("ROLLBACK TO SAVEPOINT tubes_mark")),
        end_mark=make(sa.text("RELEASE SAVEPOINT tubes_mark")),
        update=make(
            update, "state", "front", "place", "due_ms", "ttl_ms", "ttr_ms", "owner", "updated_ms", "id_"
        ),
        ready=make(
            sa.update(task)
            .where(among(c.id, ids))
            .values(
                state=READY,
                front=bind("front_"),
                place=c.pri,
                due_ms=c.created_ms + c.ttl_ms,
                ttr_ms=c.ttr_ms,  # the triggers watch it
                owner=sa.null(),
                updated_ms=bind("now"),
            ),
            "front_",
            "now",
            "ids",
        ),
        buried=first("tube", where=buried, by=(c.pri, c.id)),
        buried_newest=first("tube", where=buried, by=(c.pri.desc(), c.id.desc())),
        due=first("tube", "now", where=due(task), by=(c.due_ms,)),
        overdue=first("tube", "now", where=overdue(task), by=(c.place,)),
        taken=first("tube", where=taken, by=(c.pri, c.id)),
        taken_by=first("tube", "owner", where=sa.and_(taken, c.owner == bind("owner")), by=(c.id,)),
        orphans=make(
            sa.select(c.owner).distinct().where(taken, c.owner.not_in(sa.select(session.c.id))), "tube"
        ),
        next_due=make(
            sa.select(
                sa.select(sa.func.min(c.due_ms))
                .where(of_tube(task), c.state != TAKEN, c.due_ms.is_not(None))
                .scalar_subquery(),
                sa.select(sa.func.min(c.place)).where(taken).scalar_subquery(),
            ),
            "tube",
        ),
        count=make(sa.union_all(count(in_front), count(behind), count(aside)), "tube"),
        by_state_front=by_state(in_front),
        by_state_aside=by_state(aside),
        # Along the primary key: + 0 keeps the planner from sorting all ready tasks
        ready_by_id=first(
            "tube",
            "after",
            where=sa.and_(c.tube + ZERO == bind("tube"), c.state == READY, c.id > bind("after")),
            by=(c.id,),
        ),
        can_take=make(limited(sa.select(ONE).where(in_front, c.state == READY), ONE), "tube"),
        truncate_behind=truncate(behind),
        truncate_aside=truncate(aside),
        truncate_front=truncate(in_front),
        make_room=make(
            sa.update(tube)
            .where(tube.c.id == bind("tube"), tube.c.stored + bind("wanted") <= bind("capacity"))
            .values(stored=tube.c.stored + bind("wanted")),
            "tube",
            "wanted",
            "capacity",
        ),
        give_room=make(
            sa.update(tube).where(tube.c.id == bind("tube")).values(stored=tube.c.stored - bind("gone")),
            "tube",
            "gone",
        ),
        tubes=make(
            sa.select(tube.c.id, tube.c.name, tube.c.type, tube.c.options, tube.c.temporary).order_by(
                tube.c.id
            )
        ),
        tube_named=make(sa.select(tube.c.id).where(tube.c.name == bind("name")), "name"),
        has_tube=make(sa.select(ONE).where(tube.c.id == bind("id")), "id"),
        add_tube=make(
            sa.insert(tube).values(
                name=bind("name"),
                type=bind("type"),
                options=bind("options"),
                temporary=bind("temporary"),
                stored=ZERO,
            ),
            "name",
            "type",
            "options",
            "temporary",
        ),
        remove_tube=make(sa.delete(tube).where(tube.c.id == bind("id")), "id"),
        remove_calls=make(sa.delete(t.calls).where(t.calls.c.tube == bind("tube")), "tube"),
        add_session=make(
            sa.insert(session).values(id=bind("id"), ttr_ms=bind("ttr_ms"), ends_ms=sa.null()), "id", "ttr_ms"
        ),
        session=make(sa.select(session.c.ends_ms).where(session.c.id == bind("id")), "id"),
        set_session=make(
            sa.update(session).where(session.c.id == bind("id_")).values(ttr_ms=bind("ttr_ms")),
            "ttr_ms",
            "id_",
        ),
        end_session=make(
            sa.update(session).where(session.c.id == bind("id_")).values(ends_ms=bind("ends_ms")),
            "ends_ms",
            "id_",
        ),
        revive_session=make(
            sa.update(session)
            .where(
                session.c.id == bind("id_"),
                sa.or_(session.c.ends_ms.is_(None), session.c.ends_ms > bind("now")),
            )
            .values(ends_ms=sa.null()),
            "id_",
            "now",
        ),
        remove_session=make(
            sa.delete(session).where(session.c.id == bind("id"), session.c.ends_ms.is_not(None)), "id"
        ),
        ended=make(
            sa.select(session.c.id)
            .where(session.c.ends_ms <= bind("now"))
            .order_by(session.c.ends_ms, session.c.id),
            "now",
        ),
        add_connection=make(
            connecting,
            "session",
            "host",
            "pid",
            "now",
        ),
        connections=make(sa.select(connection.c.id, connection.c.session).order_by(connection.c.id)),
        beats=make(sa.select(connection.c.id, sa.literal_column("beat")).order_by(connection.c.id)),
        beat=make(sa.text(f'UPDATE "{connection.name}" SET beat = beat + 1 WHERE id = :id'), "id"),
        move_connection=make(
            sa.update(connection).where(connection.c.id == bind("id_")).values(session=bind("session")),
            "session",
            "id_",
        ),
        remove_connection=make(sa.delete(connection).where(connection.c.id == bind("id")), "id"),
        lonely=make(
            sa.select(session.c.id)
            .where(session.c.ends_ms.is_(None), lonely)
            .order_by(session.c.id)
            .with_for_update()
        ),
        end_if_lonely=make(
            end_lonely.where(session.c.id == bind("id_")),
            "now",
            "id_",
        ),
        end_lonely=make(end_lonely, "now"),
        add_calls=make(upsert, "tube", "event", "count"),
        calls=make(sa.select(t.calls.c.event, t.calls.c.count).where(t.calls.c.tube == bind("tube")), "tube"),
    )


_BATCH_TYPES = {
    "state": "text", "utube": "text", "data": "text", "bytes": "bytea", "front": "smallint",
}  # fmt: skip


def _batch(namespace: str, table: str, values: dict[str, Any], names: tuple[str, ...]) -> sa.TextClause:
    """Put many rows, whose columns come as arrays, on PostgreSQL. Their sub-queues are locked first, in one order."""
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
