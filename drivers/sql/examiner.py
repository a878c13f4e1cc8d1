"""Where a SQL store can be wrong, and what makes it right: the checks that ``tubes doctor`` runs.

A look is one snapshot, so what it finds was true at that instant. A mend takes the locks that everybody takes
to change the same data (on a server first the sub-queue's, then the rows'), looks again, and writes without
firing a trigger.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect

from tubes.doctor import Check, Finding, Kind, Look
from tubes.driver import TubeRecord
from tubes.options import described_sub_queue, sub_queue_name
from tubes.payload import why_unreadable
from tubes.store import Known

from ..examining import (
    CatalogueCheck,
    DeadOwners,
    FeaturesOf,
    IsAlive,
    LonelySessions,
    StoreCheck,
    UnknownSessions,
    name_of_lost,
    portions,
)
from .examiner_statements import Looks, looks, rebuilding
from .rules import LAST_ID, Facts, Wrong, no_numbers, wrongs
from .sqlite_errors import base_code
from .statements import Statement, Statements, statements
from .tx import SqlTx

MOST_FRONTS = 1000
"""The most tasks in front of one sub-queue that one transaction repairs."""


@dataclass(frozen=True)
class Examined:
    """The store as the checks see it."""

    dialect: Dialect
    namespace: str
    features: FeaturesOf
    tubes: Callable[[Any], Sequence[TubeRecord]]
    sessions: Callable[[Any], Mapping[str, Known]]

    @property
    def is_server(self) -> bool:
        return self.dialect.name == "postgresql"

    def looks(self, temporary: bool = False) -> Looks:
        """The statements for a table of tasks. On SQLite there is only one."""
        return looks(self.dialect, self.namespace, temporary and self.is_server)

    def steps(self, temporary: bool) -> Statements:
        """The statements of the verbs."""
        return statements(self.dialect, self.namespace, temporary and self.is_server)

    def kinds(self) -> Sequence[bool]:
        """The values that ``temporary`` has, one for each table of tasks."""
        return (False, True) if self.is_server else (False,)

    def known_sessions(self, tx: SqlTx) -> Mapping[str, Known]:
        tx.begin()  # so that no session begins between two of its statements
        return self.sessions(tx)

    def unknown_sessions(self, tx: SqlTx) -> Sequence[str]:
        return [session for (session,) in tx.rows(self.looks().unknown)]

    def add_session(self, tx: SqlTx, session: str) -> bool:
        return bool(tx.run(self.looks().add_session, session))


SqlCheck = StoreCheck[Examined]


def sql_checks(
    store: Examined,
    read: Callable[[Callable[[Any], Any]], Any],
    *,
    deep: bool,
    sql: str,
    is_alive: IsAlive,
    watch: Callable[[], float],
) -> Iterator[Check]:
    """The checks of a store whose tables ``sql`` makes. ``watch``: when it is known who lives.

    Sessions come first, or what they hold would seem to be a dead session's. Then comes what is stored, and
    the ids after that, which task stands in front of each sub-queue, and what is counted. Once all that is
    right, the tasks of dead sessions go back.
    """
    looks = store.looks()
    if deep and not store.is_server:
        yield File(store)
    yield Schema(store, sql)
    yield UnknownSessions(store)
    yield CatalogueCheck(store.tubes)
    for temporary in store.kinds():
        yield Tasks(store, temporary) if deep else StrayTubes(store, temporary)
    if store.is_server:
        yield Rows(store, "ids", looks.behind, sequence_behind, looks.catch_up)
    tubes: Sequence[TubeRecord] = read(store.tubes)
    for tube in tubes:
        yield Lines(store, tube)
    for tube in tubes:
        if (features := store.features(tube)) and features.bounded and tube.options.get("capacity"):
            yield Count(store, tube)
    for tube in tubes:
        yield Owners(store, tube, is_alive, watch)
    yield LonelySessions(store)
    yield Rows(store, "calls", looks.calls, calls_of_no_tube, looks.remove_calls)
    if not store.is_server:
        yield Rows(store, "calls", looks.uncounted, uncounted_calls, looks.count_anew)


# Who holds tasks


class Owners(DeadOwners[Examined]):
    """Looks at who holds tasks of a tube."""

    def __init__(
        self, store: Examined, tube: TubeRecord, is_alive: IsAlive, watch: Callable[[], float]
    ) -> None:
        super().__init__(store, is_alive, watch)
        self._tube = tube

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        tube, findings = self._tube, list[Finding]()
        holders = tx.rows(self._store.looks(tube.temporary).holders, tube.id)
        known = self._store.known_sessions(tx) if holders else {}
        for owner, count in holders:
            findings += self._held(tx, tube, owner, count, known.get(owner), now)
        return Look(findings)


# Tubes


class StrayTubes(SqlCheck):
    """Tasks of tubes that are not in the catalogue, so that no verb reaches them. A deep look finds them in passing."""

    name = "tubes"

    def __init__(self, store: Examined, temporary: bool) -> None:
        super().__init__(store)
        self._temporary = temporary
        self._looks = store.looks(temporary)

    def _numbers(self, tx: SqlTx) -> list[Any]:
        numbers = {number for corner in self._looks.strays for (number,) in tx.rows(corner)}
        return sorted(numbers, key=lambda number: (str(type(number)), number))  # on SQLite it may be anything

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        numbers = self._numbers(tx)
        return Look([stray_tube(number) for number in numbers], seen=len(numbers))

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        is_so = finding.key in self._numbers(tx)
        return is_so and adopt(tx, self._store, finding.key, temporary=self._temporary)


def stray_tube(number: object) -> Finding:
    """Tasks of a tube that is not in the catalogue."""
    what = f"there are tasks of tube number {number!r}, which"
    if not isinstance(number, int):
        return Finding(Kind.ORPHAN, f"{what} is not a number", None, key=number)
    if number > LAST_ID:
        return Finding(Kind.ORPHAN, f"{what} leaves none to later tubes", None, key=number)
    what += " is not in the catalogue"
    return Finding(Kind.ORPHAN, what, f"add it, as lost_{number}", key=number)


def adopt(tx: SqlTx, store: Examined, number: int, *, temporary: bool) -> bool:
    """Add a tube for tasks without one, of a type with all they may use; tell whether that was needed."""
    tubes = store.tubes(tx)
    if number in {tube.id for tube in tubes}:
        return False
    looks, names = store.looks(temporary), {tube.name for tube in tubes}
    type = "utubettl" if tx.rows(looks.has_utubes, number) else "fifottl"
    tx.run(looks.adopt, number, name_of_lost(number, names), type, temporary)
    return True


class Count(SqlCheck):
    """How many tasks a bounded tube holds, as counted with every put."""

    name = "counts"

    def __init__(self, store: Examined, tube: TubeRecord) -> None:
        super().__init__(store)
        self._tube = tube

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        stored, counted = self._counted(tx, self._store.looks().stored)
        if stored == counted:
            return Look(())
        what = f"its count says {stored} tasks, but it holds {counted}"
        return Look([Finding(Kind.COUNT, what, "count them", tube=self._tube.name)])

    def _counted(self, tx: SqlTx, look: Statement) -> tuple[int, int]:
        """The noted count and the real one. Puts and removals write the first, too, so it can be locked."""
        noted = tx.rows(look, self._tube.id)
        count = self._store.steps(self._tube.temporary).count
        counted = sum(number for _, number in tx.rows(count, self._tube.id))
        return (noted[0][0], counted) if noted else (counted, counted)

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        stored, counted = self._counted(tx, self._store.looks().lock_stored)
        if stored == counted:
            return False
        tx.run(self._store.looks().set_stored, counted, self._tube.id)
        return True


class Rows(SqlCheck):
    """What one statement finds, a finding a row. Another looks again and mends one, given the finding's key."""

    def __init__(
        self, store: Examined, name: str, look: Statement, finding: Callable[..., Finding], mend: Statement
    ) -> None:
        super().__init__(store)
        self.name = name
        self._look = look
        self._finding = finding
        self._mend = mend

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        rows = tx.rows(self._look)
        return Look([self._finding(*row) for row in rows], seen=len(rows))

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        return bool(tx.run(self._mend, *finding.key))


def calls_of_no_tube(tube: int) -> Finding:
    """Counted calls of a tube that is not there."""
    what = f"calls were counted for tube number {tube}, which does not exist"
    return Finding(Kind.ORPHAN, what, "remove the counts", rule="calls", key=(tube,))


def uncounted_calls(tube: int, event: str, name: object) -> Finding:
    """A count of calls that is no number: SQLite stores what it is given."""
    what = f"the count of {event!r} calls is not a number"
    of = None if name is None else str(name)
    return Finding(Kind.COUNT, what, "count from 0 again", tube=of, rule=event, key=(tube, event))


def sequence_behind(name: str, highest: int) -> Finding:
    """An id given last that is too low, after a restore say: puts or new tubes fail."""
    what = f"{name} {highest} exists, but new ones would get lower ids"
    return Finding(Kind.COUNT, what, "go on after it", rule=name, key=(name,))


# Sub-queues


class Lines(SqlCheck):
    """Which task stands in front of each sub-queue of a tube. It costs the same whatever stands behind.

    On a server, a put leaves a task alone that is just being taken. So a worse task seems to stand in front
    until the take is committed, and really does if it is rolled back.
    """

    def __init__(self, store: Examined, tube: TubeRecord) -> None:
        super().__init__(store)
        self.doubtful = store.is_server
        self._tube = tube
        self._looks = store.looks(tube.temporary)
        self.name = f"sub-queues of {tube.name}"

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        if after is None:
            rows = tx.rows(self._looks.first_lines, self._tube.id, limit)
        else:
            rows = tx.rows(self._looks.next_lines, self._tube.id, after, limit)
        findings = []
        for utube, heads, follows, is_worse in rows:
            if heads > 1:
                findings.append(self._finding(utube, "more than one task stands in front"))
            elif follows and not heads:
                findings.append(self._finding(utube, "no task stands in front, so it is stuck"))
            elif is_worse:
                findings.append(self._finding(utube, "a task stands in front of a better one"))
        return Look(findings, rows[-1][0] if len(rows) == limit else None, seen=len(rows))

    def _finding(self, stored: str, what: str) -> Finding:
        what = f"in {described_sub_queue(stored)} {what}"
        name = sub_queue_name(stored)
        return Finding(
            Kind.LINE, what, "put the right one there", tube=self._tube.name, utube=name, key=stored
        )

    def confirm(self, tx: SqlTx, finding: Finding) -> bool:
        return self._put_in_line(tx, finding, dry=True)

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        return self._put_in_line(tx, finding)

    def _put_in_line(self, tx: SqlTx, finding: Finding, *, dry: bool = False) -> bool:
        lock_line(tx, self._looks, self._tube.id, finding.key)
        return put_in_line(tx, self._looks, self._tube.id, finding.key, dry=dry)


def lock_line(tx: SqlTx, looks: Looks, tube: int, utube: str) -> None:
    """Keep everybody else from changing which task stands in front of a sub-queue."""
    if looks.lock_line is not None:
        tx.rows(looks.lock_line, tube, utube)


def put_in_line(
    tx: SqlTx, looks: Looks, tube: int, utube: str, *, dry: bool = False, also: Facts | None = None
) -> bool:
    """Put the right task in front of a locked sub-queue, and no other; tell whether anything was wrong.

    The right one is the taken one, or else the best. Of several taken ones it is the one taken first; the
    others are given back. ``dry``: only look. ``also``: a task of that sub-queue that may not be where tasks
    are looked for.
    """
    members = _members(tx, looks, tube, utube)
    if also is not None:
        members[also.id] = also
    sound = [row for row in members.values() if row.state in ("r", "t") and not no_numbers(row)]
    best = min(sound, key=_precedence, default=None)
    others = [row for row in members.values() if row is not best]
    given_back = [row for row in others if row.state == "t"]
    step_back = [row for row in others if row.state != "t" and row.front == 1]
    step_up = [best] if best is not None and best.front != 1 else []
    if not dry:
        for row in given_back:
            set_row(tx, looks, row, state="r", front=0, place=row.pri, due_ms=row.end_ms, owner=None)
        for row in step_back:
            tx.run(looks.set_front, 0 if row.state == "r" else None, row.id)
        for row in step_up:
            tx.run(looks.set_front, 1, row.id)
    return bool(given_back or step_back or step_up)


def _members(tx: SqlTx, looks: Looks, tube: int, utube: str) -> dict[int, Facts]:
    """The tasks in front of a sub-queue, and the best one behind."""
    fronts = tx.rows(looks.fronts, tube, utube, MOST_FRONTS)
    members = [Facts(*row) for row in (*fronts, *tx.rows(looks.best_behind, tube, utube))]
    return {row.id: row for row in members}


def _precedence(row: Facts) -> tuple[int, ...]:
    return (0, row.updated_ms, row.id) if row.state == "t" else (1, row.pri, row.id)


def set_row(tx: SqlTx, looks: Looks, row: Facts, **columns: Any) -> Facts:
    """Write some columns of a row; return the new row."""
    new = row._replace(**columns)
    times, were = ((at.created_ms, at.updated_ms, at.ttl_ms, at.ttr_ms) for at in (new, row))
    if times != were:
        tx.run(looks.set_times, *times, row.id)
    tx.run(
        looks.set_row,
        new.state, new.front, new.place, new.utube, new.due_ms, new.attempts, new.owner, row.id,
    )  # fmt: skip
    return new


# Tasks


class Tasks(SqlCheck):
    """Each task by itself: its tube, its state, its place, its times, and its payload, which is read."""

    def __init__(self, store: Examined, temporary: bool) -> None:
        super().__init__(store)
        self._temporary = temporary
        self._looks = store.looks(temporary)
        self._told: set[int] = set()
        self.name = "temporary tasks" if temporary else "tasks"

    def size(self, tx: SqlTx) -> int:
        size: int = tx.rows(self._looks.size)[0][0]
        return size

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        rows = [Facts(*row) for row in tx.rows(self._looks.rows, -(2**63) if after is None else after, limit)]
        tubes = {tube.id: tube for tube in self._store.tubes(tx)}
        unreadable = self._unreadable(tx, rows)
        findings: list[Finding] = []
        for row in rows:
            if row.keeps_an_id:
                continue
            tube = None if row.tube is None else tubes.get(row.tube)
            if tube is None:
                findings += self._stray(row)
                continue
            found = wrongs(row, self._store.features(tube), now)
            findings += [self._finding(row, tube, wrong) for wrong in found or unreadable.get(row.id, [])]
        return Look(findings, rows[-1].id if len(rows) == limit else None, seen=len(rows))

    def _finding(self, row: Facts, tube: TubeRecord, wrong: Wrong) -> Finding:
        return Finding(
            wrong.kind,
            f"task {row.id} {wrong.what}",
            wrong.remedy,
            tube=tube.name,
            task=row.id,
            utube=sub_queue_name(row.utube),
            rule=wrong.rule,
        )

    def _stray(self, row: Facts) -> Iterator[Finding]:
        """The finding for a task without a tube, or once for each tube that is not in the catalogue."""
        if row.tube is None:
            yield Finding(Kind.ORPHAN, f"task {row.id} belongs to no tube", None, task=row.id)
        elif row.tube not in self._told:
            self._told.add(row.tube)
            yield stray_tube(row.tube)

    def _unreadable(self, tx: SqlTx, rows: Sequence[Facts]) -> dict[int, list[Wrong]]:
        found = {}
        for ids in portions((row.id, row.text_size) for row in rows if row.text_size is not None):
            for id, text in tx.rows(self._looks.payloads, json.dumps(ids)):
                why = why_unreadable(text)
                if why:
                    remedy = "keep it as bytes, and bury the task"
                    found[id] = [
                        Wrong("unreadable", Kind.PAYLOAD, f"has a payload that is not JSON: {why}", remedy)
                    ]
        return found

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        if finding.task is None:
            return adopt(tx, self._store, finding.key, temporary=self._temporary)
        locked = self._locked(tx, finding.task)
        if locked is None:
            return False
        row, tube = locked
        found = wrongs(row, self._store.features(tube), now) or self._unreadable(tx, [row]).get(row.id, [])
        wrong = next((wrong for wrong in found if wrong.rule == finding.rule and wrong.remedy), None)
        if wrong is not None:
            self._make_right(tx, row, tube, wrong, now)
        return wrong is not None

    def _locked(self, tx: SqlTx, id: int) -> tuple[Facts, TubeRecord] | None:
        """Lock a task's sub-queue, then its row; return the row and its tube."""
        for row in map(Facts._make, tx.rows(self._looks.rows, id - 1, 1)):
            tube = next((tube for tube in self._store.tubes(tx) if tube.id == row.tube), None)
            if row.id == id and tube is not None:
                if row.utube is not None or self._is_grouped(tube):
                    lock_line(tx, self._looks, tube.id, row.utube or "")
                return next(((Facts(*row), tube) for row in tx.rows(self._looks.row, id)), None)
        return None

    def _is_grouped(self, tube: TubeRecord) -> bool:
        features = self._store.features(tube)
        return features is not None and features.grouped

    def _make_right(self, tx: SqlTx, row: Facts, tube: TubeRecord, wrong: Wrong, now: int) -> None:
        looks = self._looks
        if wrong.is_empty:
            tx.run(looks.remove, row.id)
            if tube.options.get("capacity"):
                tx.run(looks.give_room, tube.id)
            new = None
        elif wrong.rule == "unreadable":
            tx.run(looks.as_bytes, row.id)
            new = set_row(tx, looks, row, state="!", front=None, place=row.pri, due_ms=row.end_ms, owner=None)
        else:
            new = row._replace(**wrong.columns)
            if new.utube is not None and new.front == 1 and (row.utube, row.front) != (new.utube, 1):
                new = new._replace(front=0)  # until it is known what else stands there
            new = set_row(tx, looks, row, **new._asdict())
        utube = row.utube if new is None else new.utube
        if utube is not None:
            also = new if new is not None and new.state in ("r", "t") else None
            put_in_line(tx, looks, tube.id, utube, also=also)


# What everything else rests on


OF_INDEX = re.compile(r"\bindex (.+)$")
"""What SQLite says of an index: ``row 7 missing from index NAME``, ``wrong # of entries in index NAME``, and others."""


class Schema(SqlCheck):
    """The indexes, triggers and functions, without which no order is kept, and the sequence of tasks' ids.

    ``sql`` makes them.
    """

    name = "schema"

    def __init__(self, store: Examined, sql: str) -> None:
        super().__init__(store)
        self._wanted = re.findall(
            r'CREATE (?:UNIQUE )?(INDEX|TRIGGER|FUNCTION|SEQUENCE) (?:@schema@\.)?"?(\w+)', sql
        )

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        there = set(tx.rows(self._store.looks().made))
        missing = [made for made in self._wanted if made not in there]
        return Look([self._finding(kind, name) for kind, name in missing])

    def _finding(self, kind: str, name: str) -> Finding:
        what = (
            f"{kind.lower()} {name} is missing, or does not work; `tubes migrate --sql` shows what makes it"
        )
        return Finding(Kind.DAMAGE, what, None, rule=f"{kind} {name}")


class File(SqlCheck):
    """A SQLite file by itself: all of its pages are read, in one step, and if they are sound, our indexes.

    If somebody made a table with a function or a collation of their own, the file cannot be read as a whole:
    then only our tables are. An index that does not match its table is rebuilt, since verbs that use it miss
    a task, or find one too many.
    """

    name = "file"

    def look(self, tx: SqlTx, after: Any, limit: int, *, now: int) -> Look:
        looks = self._store.looks()
        try:
            told = self._told(tx, [looks.check_file])
        except sqlite3.OperationalError as error:
            if base_code(error) != sqlite3.SQLITE_ERROR:
                raise
            told = self._told(tx, looks.check_tables)
        told = told or self._told(tx, looks.check_indexes)
        return Look([*dict.fromkeys(_of_file(text) for text in told)])

    def mend(self, tx: SqlTx, finding: Finding, *, now: int) -> bool:
        is_so = finding in self.look(tx, None, 0, now=now).findings
        if is_so:
            tx.run(rebuilding(self._store.dialect, finding.rule))
        return is_so

    def _told(self, tx: SqlTx, checks: Sequence[Statement]) -> list[str]:
        """What SQLite finds wrong, except a task without a tube: the check of all tasks says which it is."""
        fine = "ok", f"CHECK constraint failed in {self._store.namespace}_task"
        return [text for check in checks for (text,) in tx.rows(check) if text not in fine]


def _of_file(text: str) -> Finding:
    """The finding for what SQLite has said of its file."""
    if found := OF_INDEX.search(text):
        what = f"the index {found[1]} does not match its table"
        return Finding(Kind.DAMAGE, what, "rebuild it", rule=found[1])
    return Finding(Kind.DAMAGE, f"SQLite says: {text}", None, rule=text)
