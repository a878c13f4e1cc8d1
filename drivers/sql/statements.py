"""Every statement of the SQL driver and its stores: written in SQLAlchemy Core, compiled once per dialect.

Core's per-call layers cost more than the statements themselves (20,000 single inserts a second through an
engine, 50,000 on the driver's cursor), so what runs is the compiled text, on the cursor, with a plain tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

from .tables import tables

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

ONE: sa.ColumnElement[int] = sa.literal_column("1")
ZERO: sa.ColumnElement[int] = sa.literal_column("0")


class Statement:
    """Compiled text, and how to order its parameters: they are given in the order of ``names``."""

    __slots__ = ("order", "text")

    def __init__(self, clause: ClauseElement, dialect: Dialect, *names: str) -> None:
        compiled = clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        used = list(getattr(compiled, "positiontup", None) or [])
        if set(used) != set(names):
            raise AssertionError(f"parameters {names} do not match {used} of {compiled}")
        self.text = str(compiled)
        self.order: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
        if used != list(names):
            places = [names.index(name) for name in used]
            self.order = itemgetter(*places) if len(places) > 1 else lambda given: (given[places[0]],)

    def bind(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put the parameters in the order of the text."""
        return given if self.order is None else self.order(given)


@dataclass(frozen=True)
class Statements:
    """All statements for one dialect and namespace."""

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
    remove: Statement
    peek: Statement
    stored: Statement
    ack_leases: Statement
    update: Statement
    buried: Statement
    buried_newest: Statement
    due: Statement
    overdue: Statement
    taken: Statement
    taken_by: Statement
    orphans: Statement
    next_due: Statement
    count_front: Statement
    count_behind: Statement
    count_aside: Statement
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
    move_connection: Statement
    remove_connection: Statement
    end_lonely: Statement
    add_calls: Statement
    calls: Statement


@lru_cache(maxsize=64)
def statements(dialect: Dialect, namespace: str) -> Statements:
    """Build and compile all statements."""
    t = tables(namespace)
    task, tube, session, connection = t.task, t.tube, t.session, t.connection
    c = task.c
    raw = [c[name] for name in RAW]
    bind = sa.bindparam

    def make(clause: ClauseElement, *names: str) -> Statement:
        return Statement(clause, dialect, *names)

    def of_tube(table: sa.FromClause) -> sa.ColumnElement[bool]:
        return table.c.tube == bind("tube")

    def due(table: sa.FromClause, until: Any) -> sa.ColumnElement[bool]:
        not_taken = table.c.state != sa.literal_column("'t'")
        return sa.and_(of_tube(table), not_taken, table.c.due_ms.is_not(None), table.c.due_ms <= until)

    def overdue(table: sa.FromClause, until: Any) -> sa.ColumnElement[bool]:
        is_taken = sa.and_(table.c.front == ONE, table.c.state == sa.literal_column("'t'"))
        return sa.and_(of_tube(table), is_taken, table.c.place <= until)

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
    plain |= {"pri": ZERO, "place": ZERO, "state": sa.literal_column("'r'"), "front": ONE, "attempts": ZERO}
    grouped = values | {
        "front": sa.case((bind("front").is_(None), sa.null()), (behind_another, ZERO), else_=ONE)
    }

    # With priorities too: nothing is put where a worse task waits in front, which must step back first

    ahead = sa.alias(task, "ahead")
    worse_in_front = sa.select(ONE).where(
        of_tube(ahead),
        ahead.c.utube == bind("utube"),
        ahead.c.front == ONE,
        ahead.c.state == sa.literal_column("'r'"),
        ahead.c.pri > bind("pri"),
        bind("front").is_not(None),
    )
    ranked = {name: sa.type_coerce(value, c[name].type) for name, value in grouped.items()}

    # Take

    def take(
        *, timed: bool, many: bool, undue: bool = False, newest: bool = False, columns: Any = raw
    ) -> Statement:
        next_ = sa.alias(task, "next")
        choice = sa.select(next_.c.id).where(
            of_tube(next_), next_.c.front == ONE, next_.c.state == sa.literal_column("'r'")
        )
        if timed:
            choice = choice.where(sa.or_(next_.c.due_ms.is_(None), next_.c.due_ms > bind("now")))
        if newest:
            choice = choice.order_by(next_.c.place.desc(), next_.c.id.desc())
        else:
            choice = choice.order_by(next_.c.place, next_.c.id)
        names = ["owner", "now", "tube"]
        if many:
            choice = choice.limit(bind("limit")).offset(ZERO)
            names.append("limit")
        else:
            choice = choice.limit(ONE).offset(ZERO)
        chosen = c.id.in_(choice) if many else c.id == choice.scalar_subquery()
        set_: dict[str, Any] = {
            "state": sa.literal_column("'t'"),
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
        if timed and not undue:
            over, late = sa.alias(task, "over"), sa.alias(task, "late")
            update = update.where(~sa.exists(sa.select(ONE).where(due(over, bind("now")))))
            update = update.where(~sa.exists(sa.select(ONE).where(overdue(late, bind("now")))))
        return make(update.returning(*columns), *names)

    plain_columns = [c[name] for name in ("id", "data", "bytes", "created_ms", "attempts")]

    # Ack and other guarded writes

    held = sa.and_(c.id == bind("id"), of_tube(task), c.state == sa.literal_column("'t'"))
    mine = sa.or_(bind("owner").is_(None), c.owner == bind("owner"))
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

    # Ids come as one parameter, a JSON array; leases as a JSON object of tokens by id

    ids: Any
    if dialect.name == "postgresql":
        ids = sa.select(sa.cast(sa.func.json_array_elements_text(bind("ids")), sa.BigInteger))
        lease = sa.func.json_each_text(bind("leases")).table_valued("key", "value")
    else:
        ids = sa.select(sa.column("value")).select_from(sa.func.json_each(bind("ids")))
        lease = sa.func.json_each(bind("leases")).table_valued("key", "value")
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
        .where(of_tube(leased), leased.c.state == sa.literal_column("'t'"), leased.c.owner == bind("owner"))
    )

    # Looking

    in_front = sa.and_(of_tube(task), c.front == ONE)
    behind = sa.and_(of_tube(task), c.front == ZERO, c.utube.is_not(None))
    aside = sa.and_(of_tube(task), c.front.is_(None))
    taken = sa.and_(in_front, c.state == sa.literal_column("'t'"))

    def by_state(place: sa.ColumnElement[bool]) -> Statement:
        query = sa.select(*raw).where(place, c.state == bind("state"), c.id > bind("after"))
        return make(query.order_by(c.id).limit(bind("limit")).offset(ZERO), "tube", "state", "after", "limit")

    def count(place: sa.ColumnElement[bool]) -> Statement:
        return make(sa.select(c.state, sa.func.count()).where(place).group_by(c.state), "tube")

    def truncate(place: sa.ColumnElement[bool]) -> Statement:
        some = sa.select(c.id).where(place).limit(bind("limit")).offset(ZERO)
        return make(sa.delete(task).where(c.id.in_(some)), "tube", "limit")

    lonely = ~sa.exists(sa.select(ONE).where(connection.c.session == session.c.id))
    upsert: Any
    if dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as upserting
    else:
        from sqlalchemy.dialects.sqlite import insert as upserting  # type: ignore[assignment]
    upsert = upserting(t.calls).values(tube=bind("tube"), event=bind("event"), count=bind("count"))
    upsert = upsert.on_conflict_do_update(
        index_elements=["tube", "event"], set_={"count": t.calls.c.count + upsert.excluded.count}
    )

    return Statements(
        put=make(sa.insert(task).values(values), *insert_names),
        put_plain=make(sa.insert(task).values(plain), *plain_names),
        put_ranked=make(
            sa.insert(task).from_select(
                list(ranked), sa.select(*ranked.values()).where(~sa.exists(worse_in_front))
            ),
            *insert_names,
        ),
        put_grouped=make(sa.insert(task).values(grouped), *insert_names),
        step_back=make(
            sa.update(task)
            .where(
                of_tube(task),
                c.utube == bind("utube_"),
                c.front == ONE,
                c.state == sa.literal_column("'r'"),
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
        take_undue=take(timed=True, many=True, undue=True),
        take_newest=take(timed=False, many=False, newest=True),
        take_newest_many=take(timed=False, many=True, newest=True),
        take_newest_timed=take(timed=True, many=False, newest=True),
        take_newest_timed_many=take(timed=True, many=True, undue=True, newest=True),
        ack=make(ack, "id", "tube", "owner", "token"),
        ack_timed=make(
            ack.where(c.due_ms.is_not_distinct_from(bind("due"))), "id", "tube", "owner", "token", "due"
        ),
        ack_any=make(ack_any, "id", "tube", "owner"),
        remove=make(sa.delete(task).where(c.id == bind("id")), "id"),
        peek=make(sa.select(*raw).where(ours), "id", "tube"),
        stored=make(sa.select(*raw).where(of_tube(task), c.id.in_(ids)).order_by(c.id), "tube", "ids"),
        ack_leases=make(
            sa.delete(task).where(c.id.in_(matching)).returning(c.id, c.ttl_ms, c.ttr_ms),
            "leases",
            "tube",
            "owner",
        ),
        update=make(
            update, "state", "front", "place", "due_ms", "ttl_ms", "ttr_ms", "owner", "updated_ms", "id_"
        ),
        buried=make(
            sa.select(*raw)
            .where(aside, c.state == sa.literal_column("'!'"))
            .order_by(c.pri, c.id)
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "limit",
        ),
        buried_newest=make(
            sa.select(*raw)
            .where(aside, c.state == sa.literal_column("'!'"))
            .order_by(c.pri.desc(), c.id.desc())
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "limit",
        ),
        due=make(
            sa.select(*raw)
            .where(due(task, bind("now")))
            .order_by(c.due_ms)
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "now",
            "limit",
        ),
        overdue=make(
            sa.select(*raw)
            .where(overdue(task, bind("now")))
            .order_by(c.place)
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "now",
            "limit",
        ),
        taken=make(
            sa.select(*raw).where(taken).order_by(c.pri, c.id).limit(bind("limit")).offset(ZERO),
            "tube",
            "limit",
        ),
        orphans=make(
            sa.select(c.owner).distinct().where(taken, c.owner.not_in(sa.select(session.c.id))), "tube"
        ),
        taken_by=make(
            sa.select(*raw)
            .where(taken, c.owner == bind("owner"))
            .order_by(c.id)
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "owner",
            "limit",
        ),
        next_due=make(
            sa.select(
                sa.select(sa.func.min(c.due_ms))
                .where(of_tube(task), c.state != sa.literal_column("'t'"), c.due_ms.is_not(None))
                .scalar_subquery(),
                sa.select(sa.func.min(c.place)).where(taken).scalar_subquery(),
            ),
            "tube",
        ),
        count_front=count(in_front),
        count_behind=count(behind),
        count_aside=count(aside),
        by_state_front=by_state(in_front),
        by_state_aside=by_state(aside),
        ready_by_id=make(
            sa.select(*raw)
            .where(c.tube + ZERO == bind("tube"), c.state == sa.literal_column("'r'"), c.id > bind("after"))
            .order_by(c.id)  # along the primary key: + 0 keeps the planner from sorting all ready tasks
            .limit(bind("limit"))
            .offset(ZERO),
            "tube",
            "after",
            "limit",
        ),
        can_take=make(
            sa.select(ONE).where(in_front, c.state == sa.literal_column("'r'")).limit(ONE).offset(ZERO),
            "tube",
        ),
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
            sa.update(session).where(session.c.id == bind("id_")).values(ends_ms=sa.null()), "id_"
        ),
        remove_session=make(sa.delete(session).where(session.c.id == bind("id")), "id"),
        ended=make(
            sa.select(session.c.id)
            .where(session.c.ends_ms <= bind("now"))
            .order_by(session.c.ends_ms, session.c.id),
            "now",
        ),
        add_connection=make(
            sa.insert(connection).values(
                session=bind("session"), host=bind("host"), pid=bind("pid"), started_ms=bind("now")
            ),
            "session",
            "host",
            "pid",
            "now",
        ),
        connections=make(sa.select(connection.c.id, connection.c.session).order_by(connection.c.id)),
        move_connection=make(
            sa.update(connection).where(connection.c.id == bind("id_")).values(session=bind("session")),
            "session",
            "id_",
        ),
        remove_connection=make(sa.delete(connection).where(connection.c.id == bind("id")), "id"),
        end_lonely=make(
            sa.update(session)
            .where(session.c.ends_ms.is_(None), lonely)
            .values(ends_ms=bind("now") + session.c.ttr_ms),
            "now",
        ),
        add_calls=make(upsert, "tube", "event", "count"),
        calls=make(sa.select(t.calls.c.event, t.calls.c.count).where(t.calls.c.tube == bind("tube")), "tube"),
    )
