"""SqlDriver realises a TubeType on SQL tables. It never commits, and knows the database only through ``tx``.

A step finds its tasks, writes, and returns the changes. How it keeps others from changing what it has found
is in ``locks``; on SQLite nobody can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from tubes.driver import (
    STEP_LIMIT,
    Change,
    NewTask,
    Ref,
    TasksLocked,
    TubeRecord,
    TubeType,
    first_due,
    new_change,
    put_change,
)
from tubes.errors import BadOption, NotSupported, StoreError
from tubes.options import LARGEST_ID, LONGEST_SUM_MS, sub_queue_name
from tubes.payload import decode, decode_many
from tubes.task import (
    ACK,
    STATES,
    STORED,
    TAKE,
    TAKEN,
    Event,
    State,
    Task,
    done,
    make_task,
    milliseconds,
    session_id,
    with_times,
)

from .locks import Locks
from .statements import (
    ATTEMPTS,
    CREATED,
    DATA,
    DUE,
    ID,
    OWNER,
    PRI,
    STATE,
    TTL,
    TTR,
    UPDATED,
    Row,
    Statement,
    Statements,
    json_ids,
)
from .tx import SqlTx

UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What Python raises for a row that no verb has written."""

LONGEST_UTUBE = 2500
"""The most bytes of a sub-queue's name in PostgreSQL: an index entry holds 2704, with the other columns."""


class SqlDriver:
    """All five types, and others of their kind: what differs is which statements a step uses."""

    def __init__(self, type: TubeType, tube: TubeRecord, statements: Statements) -> None:
        features, newest = type.features, type.order == "newest"
        grouped = features.grouped
        if newest and (features.priority or grouped):
            raise NotSupported("a type whose order is newest can have neither priority nor sub-queues")
        self.features = features
        self._tube = tube.id
        self._name = tube.name
        self._capacity: int = tube.options.get("capacity", 0) if features.bounded else 0
        self._sql = statements
        self._is_timed = features.timed
        self._is_plain = not (features.timed or grouped or features.priority)
        """Whether its tasks have no options, so that nearly all columns of a new one are always the same."""
        self._takes_plain = self._is_plain and not newest
        self._is_ranked = grouped and features.priority and not statements.is_shared
        """Whether a put must make a worse task in front step back; on a server a trigger does that."""
        self._locks = Locks(statements, tube.id, grouped=grouped, bounded=self._capacity > 0)
        self._locks_groups = self._locks.with_groups
        self._reads_acks = features.timed or statements.is_shared
        """Whether a batch ack reads what it has acked: the tasks' times, and on a server which they were."""
        self._choose_statements(newest)

    def _choose_statements(self, newest: bool) -> None:
        """Choose the statements in which the types differ."""
        s, timed = self._sql, self._is_timed
        self._insert = s.put_grouped if self.features.grouped else s.put
        if self._locks_groups:
            self._ack, self._ack_timed, self._ack_any = s.ack_locked, s.ack_timed_locked, s.ack_any_locked
        else:
            self._ack, self._ack_timed, self._ack_any = s.ack, s.ack_timed, s.ack_any
        self._take_one, self._take_some = (s.takes[timed, newest, many] for many in (False, True))
        self._buried = s.buried_newest if newest else s.buried
        self._order: Callable[[Row], Any] = (lambda row: -row[ID]) if newest else _by_pri

    # Life

    def create_space(self, tx: SqlTx, tube: TubeRecord) -> None:
        """The tables are there: migrations made them."""

    def start(self, tx: SqlTx) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def drop(self, tx: SqlTx) -> None:
        # Nobody else is there, see lock_tube. Others wait, so remove all at once: steps of limited size first
        # walk over what earlier ones removed, and took a server 6 s, not 0.3, for 200,000 tasks in 1,000
        # sub-queues. None is in front then: else, as each leaves its sub-queue, the next would be brought up
        if self.features.grouped:
            tx.run(self._sql.leave_front, self._tube)
        self._give_room(tx, sum(tx.run(remove, self._tube) for remove in self._sql.remove_all))

    # Steps

    def put(self, tx: SqlTx, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        if self._locks_groups:
            for item in items:
                _check_utube(item.utube)
        if self._capacity and not tx.run(self._sql.make_room, len(items), self._tube, self._capacity):
            return []
        if len(items) == 1:
            return (self._put_one(tx, items[0], now),)
        if self._is_ranked and len({(item.utube, item.pri) for item in items}) > 1:
            return [self._put_one(tx, item, now) for item in items]
        return self._put_together(tx, items, now)

    def _put_one(self, tx: SqlTx, item: NewTask, now: int) -> Change:
        if self._is_plain and type(item.payload) is str:
            id = tx.only_insert(self._sql.put_plain, (self._tube, now, now, item.payload))
        elif self._is_ranked:
            row = self._new_row(item, now)
            id = tx.only_insert(self._sql.put_ranked, row)
            if not id:
                tx.run(self._sql.step_back, self._tube, item.utube, item.pri)
                id = tx.only_insert(self._insert, row)
        else:
            id = tx.only_insert(self._insert, self._new_row(item, now))
        return put_change(self._name, id, item, now, self._is_timed)

    def _put_together(self, tx: SqlTx, items: Sequence[NewTask], now: int) -> Sequence[Change]:
        """Put them in one statement. Ranked tasks must all have the same sub-queue and priority."""
        if self._is_plain and {type(item[0]) for item in items} == {str}:
            tube = self._tube
            ids = tx.insert(self._sql.put_plain, [(tube, now, now, payload) for payload, *_ in items])
        else:
            if self._is_ranked and not all(item.delay_ms for item in items):
                tx.run(self._sql.step_back, self._tube, items[0].utube, items[0].pri)
            ids = tx.insert(self._insert, [self._new_row(item, now) for item in items])
        name, timed = self._name, self._is_timed
        return [put_change(name, id, item, now, timed) for id, item in zip(ids, items, strict=True)]

    def _new_row(self, item: NewTask, now: int) -> Row:
        """The values of the columns that ``NEW`` in ``statements`` names."""
        payload = item.payload
        data, raw_bytes = (payload, None) if isinstance(payload, str) else (None, payload)
        state, front = ("~", None) if item.delay_ms else ("r", 1)
        return (
            self._tube, state, front, item.utube, item.pri, now, now, first_due(item, now), item.ttl_ms, item.ttr_ms,
            data, raw_bytes,
        )  # fmt: skip

    def take(self, tx: SqlTx, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        if self._takes_plain:
            if limit == 1:
                return self._take_plain_one(tx, owner, now)
            return self._take_plain(tx, limit, owner, now)
        if limit == 1:
            rows = tx.only_rows(self._take_one, owner, now, self._tube)
            if rows or not self._is_timed:
                return [Change(TAKE, row, row[DUE]) for row in rows]
        settled = self.expire(tx, STEP_LIMIT, now=now)
        if len(settled) >= STEP_LIMIT:  # more may be due, and may make better tasks ready
            return settled
        if not self._sql.is_shared:  # so that nothing is taken if one of the rows cannot be read
            tx.begin()
        rows = tx.only_rows(self._take_some, owner, now, self._tube, limit)
        rows.sort(key=self._order)  # RETURNING promises no order
        return [*settled, *(Change(TAKE, row, row[DUE]) for row in rows)]

    def _take_plain_one(self, tx: SqlTx, owner: str | None, now: int) -> Sequence[Change]:
        """Take from a tube whose tasks have no options."""
        rows = tx.only_rows(self._sql.take_plain, owner, now, self._tube)
        if not rows:
            return ()
        _, text, blob, *_ = rows[0]
        return (self._taken_plain(rows[0], blob if text is None else decode(text), owner, now),)

    def _take_plain(self, tx: SqlTx, limit: int, owner: str | None, now: int) -> Sequence[Change]:
        """Take several from a tube whose tasks have no options."""
        if self._sql.is_shared:
            rows = tx.only_rows(self._sql.take_plain_many, owner, now, self._tube, limit)
            rows.sort()  # RETURNING promises no order
        else:
            rows = tx.rows(self._sql.next_plain, self._tube, limit)
            ids = [row[ID] for row in rows]
            if span := _span(ids):
                tx.run(self._sql.take_range, owner, now, *span)
            elif ids:
                tx.run(self._sql.take_listed, owner, now, json_ids(ids))
        texts = [row[1] for row in rows]
        if None in texts:
            datas = [blob if text is None else decode(text) for _, text, blob, *_ in rows]
        else:
            datas = decode_many(texts)
        return [self._taken_plain(row, data, owner, now) for row, data in zip(rows, datas, strict=True)]

    def _taken_plain(self, row: Row, data: Any, owner: str | None, now: int) -> Change:
        """The change of such a take. What all tasks of such a tube have in common need not be read."""
        id, _, _, created, attempts = row
        name = self._name
        try:
            task = make_task(id, name, TAKEN, data, 0, None, created, now, None, None, None, attempts, owner)
        except UNREADABLE as error:
            raise self._damaged(id, error) from error
        return new_change((TAKE, task, None))

    def ack(self, tx: SqlTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        if len(refs) == 1 and not self._capacity:
            return self._ack_one(tx, refs[0], owner, now)
        if owner is not None:
            mine = session_id(owner)
            known = {id for id, token, task in refs if token and task is not None and task.owner is mine}
            if len(known) == len(refs):  # all are known, and no two are leases of one task
                return self._ack_known(tx, refs, owner, now)
        tx.begin()
        return self._remove(tx, Event.ACK, self._held(tx, refs, owner), now)

    def _ack_known(self, tx: SqlTx, refs: Sequence[Ref], owner: str, now: int) -> Sequence[Change]:
        """Ack what the caller holds as Tasks: only their leases are checked, they need not be read again."""
        if self._capacity:
            tx.begin()
        self._locks.lock_groups(tx, [ref.id for ref in refs])
        if not self._reads_acks and self._ack_all(tx, refs, owner):
            return _all_done(refs, now)
        sql = self._sql
        statement, leases = _of_leases(refs, sql.ack_range, sql.ack_leases)
        rows = tx.only_rows(statement, *leases, self._tube, owner)
        self._give_room(tx, len(rows))
        if not self._is_timed and len(rows) == len(refs):
            return _all_done(refs, now)
        acked = {id: times for id, *times in rows}
        return [
            Change(ACK, done(with_times(task, *acked[id]), now))
            for id, _, task in refs
            if task is not None and id in acked
        ]

    def _ack_all(self, tx: SqlTx, refs: Sequence[Ref], owner: str) -> bool:
        """Ack them all, or none if any is refused. Not reading them saves a third of SQLite's work."""
        sql = self._sql
        statement, leases = _of_leases(refs, sql.ack_range_unread, sql.ack_leases_unread)
        tx.run(sql.mark)
        are_acked = tx.run(statement, *leases, self._tube, owner) == len(refs)
        if are_acked:
            self._give_room(tx, len(refs))
        else:
            tx.run(sql.back_to_mark)
        tx.run(sql.end_mark)
        return are_acked

    def _ack_one(self, tx: SqlTx, ref: Ref, owner: str | None, now: int) -> Sequence[Change]:
        """Ack in one statement; what is known of the task need not be read again."""
        known = ref.task
        if known is not None and ref.token and owner is not None and known.owner is session_id(owner):
            if not self._is_timed:
                acked = tx.only_run(self._ack, ref.id, self._tube, owner, ref.token)
                return (new_change((ACK, done(known, now), None)),) if acked else ()
            due = None if known.due_at is None else milliseconds(known.due_at)
            if tx.only_run(self._ack_timed, ref.id, self._tube, owner, ref.token, due):
                return (Change(ACK, done(known, now)),)  # else it was touched since, or it is not ours
        if ref.token is not None:
            tx.begin()
            if not self._held(tx, (ref,), owner):
                return []
        rows = tx.only_rows(self._ack_any, ref.id, self._tube, owner)
        return [Change(ACK, _moved(row, "-", None, now)) for row in rows]

    def touch(
        self, tx: SqlTx, refs: Sequence[Ref], delta_ms: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        tx.begin()
        moved = []
        for row in self._held(tx, refs, owner):
            delta = min(delta_ms, _headroom(row[TTL]), _headroom(row[TTR]))
            due, ttl, ttr = (None if ms is None else ms + delta for ms in (row[DUE], row[TTL], row[TTR]))
            moved.append((*row[:UPDATED], now, due, ttl, ttr, *row[ATTEMPTS:]))
        return self._write(tx, Event.TOUCH, moved)

    def release(
        self, tx: SqlTx, refs: Sequence[Ref], *, delay_ms: int, owner: str | None, now: int
    ) -> Sequence[Change]:
        tx.begin()
        rows = self._held(tx, refs, owner)
        if not delay_ms:
            return self._make_ready(tx, Event.RELEASE, rows, now)
        moved = []
        for row in rows:
            ttl = None if row[TTL] is None else row[TTL] + min(delay_ms, _headroom(row[TTL]))
            moved.append(_moved((*row[:TTL], ttl, *row[TTR:]), "~", now + delay_ms, now))
        return self._write(tx, Event.RELEASE, moved)

    def bury(self, tx: SqlTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        tx.begin()
        moved = [
            _moved(row, "!", _end_of_life(row), now) for row in self._stored(tx, refs) if row[STATE] != "!"
        ]
        return self._write(tx, Event.BURY, moved)

    def delete(self, tx: SqlTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        tx.begin()
        rows = self._stored(tx, refs)
        return self._remove(tx, Event.DELETE, rows, now)

    def kick(self, tx: SqlTx, limit: int, *, now: int) -> Sequence[Change]:
        tx.begin()
        locked = self._locks.lock_free(tx, (self._buried,), limit=limit, by=self._order)
        return self._make_ready(tx, Event.KICK, locked, now)

    def expire(self, tx: SqlTx, limit: int, *, now: int) -> Sequence[Change]:
        if not self._is_timed:
            return []
        tx.begin()
        looks = self._sql.due, self._sql.overdue  # others may be settling the same
        if self._locks.with_room and any(tx.rows(look.all, self._tube, now, 1) for look in looks):
            self._locks.lock_room(tx)
        rows = self._locks.lock_free(tx, looks, now, limit=limit, by=_by_due)
        over: list[Row] = []
        late: list[Row] = []
        delayed: list[Row] = []
        found: list[tuple[float, int, Change]] = []
        at = {id: due for due, id in map(_by_due, rows)}
        for row in rows:
            end = _end_of_life(row)
            if end is None or end > now:
                (late if row[STATE] == "t" else delayed).append(row)
                continue
            over.append(row)
            due = at[row[ID]]
            at[row[ID]] = end
            if due < end:  # nobody looked when its ttr or its delay ended: report that, too
                event = Event.TTR if row[STATE] == "t" else Event.DELAY
                ready = _moved(row, "r", end, now)
                found.append((due, row[ID], Change(event, ready, end)))
        changes = [
            *self._remove(tx, Event.TTL, over, now),
            *self._make_ready(tx, Event.TTR, late, now),
            *self._make_ready(tx, Event.DELAY, delayed, now),
        ]
        found += [(at[change.raw[ID]], change.raw[ID], change) for change in changes]
        return [change for _, _, change in sorted(found, key=itemgetter(0, 1))]

    def release_owner(self, tx: SqlTx, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        tx.begin()
        if owner is None:
            locked = self._locks.lock_taken(tx, limit, by=_by_pri)
        else:
            look = self._sql.taken_by  # a dead session's transaction may have locked some
            locked = self._locks.lock_free(tx, (look,), owner, limit=limit, by=itemgetter(ID))
            if not locked and self._sql.is_shared and tx.rows(look.all, self._tube, owner, 1):
                raise TasksLocked(f"others have locked tasks of tube {self._name!r} whose session is over")
        return self._make_ready(tx, Event.RELEASE, locked, now)

    def truncate(self, tx: SqlTx, limit: int) -> int:
        tx.begin()
        ids = self._locks.lock_any(tx, limit)
        gone = tx.run(self._sql.remove, json_ids(ids))
        self._give_room(tx, gone)
        return gone

    # Looking

    def peek(self, tx: SqlTx, ids: Sequence[int]) -> Sequence[Row]:
        return [row for id in ids for row in tx.only_rows(self._sql.peek, id, self._tube)]

    def tasks_by_state(self, tx: SqlTx, state: State, *, after: int, limit: int) -> Sequence[Row]:
        """Walk the ids of all tubes as far as that is cheap; then look at all of this tube in that state."""
        sql, near = self._sql, min(1_000 + 2 * limit, LARGEST_ID)
        rows = tx.rows(sql.by_state_near, self._tube, state.value, after, near, limit)
        if len(rows) == limit:
            return rows
        far = {State.READY: sql.by_state_ready, State.TAKEN: sql.by_state_front}.get(
            state, sql.by_state_aside
        )
        return tx.rows(far, self._tube, state.value, after, limit)

    def can_take(self, tx: SqlTx) -> bool:
        """On a server this also finds what the looks after it ask for, to save their round trips."""
        looked = getattr(tx, "looked", None)
        if looked is None:
            return bool(tx.only_rows(self._sql.can_take, self._tube))
        for is_ready, *dues in tx.only_rows(self._sql.look, self._tube):
            looked[self._tube] = earliest(dues)
            return bool(is_ready)
        return False

    def count(self, tx: SqlTx) -> Mapping[State, int]:
        return totals(tx.only_rows(self._sql.count, self._tube))

    def next_due(self, tx: SqlTx) -> int | None:
        if not self._is_timed:
            return None
        looked: Mapping[int, int | None] = getattr(tx, "looked", None) or {}
        if self._tube in looked:
            return looked[self._tube]
        return earliest(tx.only_rows(self._sql.next_due, self._tube)[0])

    def normalize_task(self, raw: Any) -> Task:
        if isinstance(raw, Task):
            return raw
        id, state, data, blob, pri, utube, created, updated, due, ttl, ttr, attempts, owner = raw
        data = blob if data is None else decode(data)
        try:
            return make_task(
                id, self._name, STATES[state], data, pri, sub_queue_name(utube), created, updated, due, ttl, ttr,
                attempts, owner,
            )  # fmt: skip
        except UNREADABLE as error:
            raise self._damaged(id, error) from error

    # Within

    def _damaged(self, id: int, error: Exception) -> StoreError:
        return StoreError(
            f"task {id} of tube {self._name!r} cannot be read, see `tubes doctor --deep`: {error}"
        )

    def _held(self, tx: SqlTx, refs: Sequence[Ref], owner: str | None) -> list[Row]:
        """The rows of refs that ``owner`` holds, by that very lease if the ref has a token."""
        return [
            row
            for row in self._stored(tx, refs, taken=True)
            if row[STATE] == "t" and (owner is None or row[OWNER] == owner)
        ]

    def _stored(self, tx: SqlTx, refs: Sequence[Ref], *, taken: bool = False) -> list[Row]:
        """The rows of refs that are stored, each once; with a token, only while that lease lasts."""
        taken = taken or all(ref.token is not None for ref in refs)
        rows = {row[ID]: row for row in self._locks.lock_stored(tx, [ref.id for ref in refs], taken=taken)}
        chosen = {}
        for id, token, task in refs:
            row = rows.get(id)
            if row is not None and (token is None or _is_lease(row, token, task)):
                chosen[id] = row
        return list(chosen.values())

    def _write(self, tx: SqlTx, event: Event, moved: Sequence[Row]) -> Sequence[Change]:
        """Write rows of tasks that are taken still, or aside now."""
        if moved:
            tx.many(
                self._sql.update,
                [
                    (row[STATE], *_place(row), *row[DUE:ATTEMPTS], row[OWNER], row[UPDATED], row[ID])
                    for row in moved
                ],
            )
        return [Change(event, row, row[DUE]) for row in moved]

    def _make_ready(self, tx: SqlTx, event: Event, rows: Sequence[Row], now: int) -> Sequence[Change]:
        if rows:
            tx.run(self._sql.ready, now, json_ids([row[ID] for row in rows]))
        moved = [_moved(row, "r", _end_of_life(row), now) for row in rows]
        return [Change(event, row, row[DUE]) for row in moved]

    def _remove(self, tx: SqlTx, event: Event, rows: Sequence[Row], now: int) -> Sequence[Change]:
        if rows:
            self._give_room(tx, tx.run(self._sql.remove, json_ids([row[ID] for row in rows])))
        return [Change(event, _moved(row, "-", None, now)) for row in rows]

    def _give_room(self, tx: SqlTx, gone: int) -> None:
        if gone and self._capacity:
            tx.run(self._sql.give_room, gone, self._tube)


def _of_leases(refs: Sequence[Ref], of_range: Statement, of_any: Statement) -> tuple[Statement, Row]:
    """Which of two statements is for these leases, and its parameters.

    A batch is mostly acked as it was taken: one span of ids, with one token. That is the cheapest.
    """
    span, tokens = _span([ref.id for ref in refs]), {ref.token for ref in refs}
    if span and len(tokens) == 1:
        return of_range, (*span, *tokens)
    leases = ",".join([f'"{id}":{token}' for id, token, _ in sorted(refs)])
    return of_any, (f"{{{leases}}}",)


def _all_done(refs: Sequence[Ref], now: int) -> Sequence[Change]:
    return [new_change((ACK, done(task, now), None)) for _, _, task in refs if task is not None]


def _span(ids: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of distinct ids, if these are all the ids in between."""
    if not ids:
        return None
    first, last = min(ids), max(ids)
    return (first, last) if last - first == len(ids) - 1 else None


def _headroom(duration: int | None) -> int:
    """How much may be added to a ttl or a ttr."""
    return LONGEST_SUM_MS if duration is None else max(LONGEST_SUM_MS - duration, 0)


_NUMBER: Any = (int, float)  # SQLite stores a float if a sum exceeds 64 bits


def _end_of_life(row: Row) -> int | None:
    """When its ttl ends; never if damaged, or it would keep other tasks in a dead session's hands."""
    ttl, created = row[TTL], row[CREATED]
    return ttl + created if isinstance(ttl, _NUMBER) and isinstance(created, _NUMBER) else None


def totals(rows: Iterable[Row]) -> Mapping[State, int]:
    """How many tasks are in each state, by what ``count`` in ``statements`` finds."""
    totals = dict.fromkeys(STORED, 0)
    for code, count in rows:
        state = STATES.get(code)
        if state in totals:  # else it is damaged, and counts in none
            totals[state] += count
    return totals


def earliest(dues: Iterable[Any]) -> int | None:
    """The first of these times. SQLite may hold some that are no numbers: those are never due."""
    return min((due for due in dues if isinstance(due, _NUMBER)), default=None)


def _check_utube(name: str | None) -> None:
    """Refuse now what no index holds: a delayed task is in none yet, and could never be made ready."""
    size = len((name or "").encode())
    if size > LONGEST_UTUBE:
        raise BadOption(
            f"utube must be at most {LONGEST_UTUBE} bytes in PostgreSQL, not {size}",
            option="utube",
            value=name,
        )


def _moved(row: Row, state: str, due: int | None, now: int) -> Row:
    """The row in another state, held by nobody."""
    return (*row[:STATE], state, *row[DATA:UPDATED], now, due, *row[TTL:OWNER], None)


def _by_pri(row: Row) -> tuple[float, int]:
    """The order by priority. A damaged one that is no number comes last, and does the others no harm."""
    pri = row[PRI]
    return (pri if isinstance(pri, int) else math.inf, row[ID])


def _by_due(row: Row) -> tuple[float, int]:
    """The order in which tasks fall due. A damaged one that is overdue by its place alone comes last, too."""
    due = row[DUE]
    return (due if isinstance(due, _NUMBER) else math.inf, row[ID])


def _place(row: Row) -> Row:
    """``front`` and ``place`` of a task: in front by the end of its time if it is taken, else aside."""
    return (1, row[DUE]) if row[STATE] == "t" else (None, row[PRI])


def _is_lease(row: Row, token: int, task: Task | None) -> bool:
    """Whether it is held by that very take. A rolled-back take leaves its number to the next, by anybody."""
    if row[STATE] != "t" or row[ATTEMPTS] != token:
        return False
    return task is None or task.owner is None or row[OWNER] == task.owner.hex
