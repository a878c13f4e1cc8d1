"""RedisDriver realises a TubeType with Lua scripts: each step is one script."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from math import isinf
from typing import Any
from uuid import UUID

from tubes.driver import (
    Change,
    NewTask,
    Ref,
    TubeRecord,
    TubeType,
    first_due,
    new_change,
    put_change,
)
from tubes.errors import BadOption, NotSupported, StoreError, TubeBusy
from tubes.options import sub_queue_name
from tubes.payload import decode_json
from tubes.task import ACK, STATES, Event, State, Task, done, make_task, session_id, with_times

from . import scripts
from .scripts import OF_PLAIN, PLAIN_KEYS, Argument, Keys, Script
from .tx import RedisTx
from .wire import NoTube, Refused, Wire

HIGHEST_PRI = 2**53
"""Redis sorts by floating-point numbers, which are exact up to here."""

SETTLE_LIMIT = 100
"""Due tasks that one script settles at most. The server serves nobody else meanwhile, for 5 ms or so."""

EVENTS = {event.value.encode(): event for event in Event}

STATES_OF_BYTES = {code.encode(): state for code, state in STATES.items()}

UNREADABLE = (ValueError, LookupError)
"""What Python raises when a record cannot be read."""

Leases = Mapping[tuple[int, int], Task]
"""What the caller knows of tasks, by id and token."""

NO_LEASES: Leases = {}

Raw = tuple[bytes, bytes, bytes]
"""A task as scripts answer it: id, record (see tube.lua), payload."""


class RedisDriver:
    """The driver of all five types, and of others with such features.

    ``waiting`` tells how many consumers wait here that nobody has called yet; the tube's ids begin after
    ``after``.
    """

    transactional = False

    def __init__(
        self,
        type: TubeType,
        tube: TubeRecord,
        namespace: str,
        waiting: Callable[[], int],
        after: int,
    ) -> None:
        features = type.features
        if type.order == "newest" and (features.priority or features.grouped):
            raise NotSupported("a type whose order is newest can have neither priority nor sub-queues")
        self.features = features
        self.keys = Keys.of_tube(namespace, tube.id)
        self.is_temporary = tube.temporary
        self._run_id = ""
        """Of a temporary tube: the server's start before which nothing is left in it."""
        self.flags = (
            "t" * features.timed
            + "p" * features.priority
            + "g" * features.grouped
            + "b" * features.bounded
            + "n" * (type.order == "newest")
        )
        self._is_plain = not self.flags
        self._plain_keys = Keys.of_tube(namespace, tube.id, *PLAIN_KEYS)
        self.number = tube.id
        self.name = tube.name
        self.capacity: int = tube.options.get("capacity", 0) if features.bounded else 0
        self.check_reachable: Callable[[], None] | None = None
        """Set by a store on a Cluster: raises StoreUnavailable if this tube's node is away."""
        self.waits_for: Callable[[], Hashable] = lambda: None
        """Set by such a store too: returns this tube's node."""
        self.after = after
        self.is_unmade = False
        """Whether the tube's node was away when the tube was opened: then the next call makes sure of it."""
        self._waiting = waiting
        self._is_timed = features.timed

    def keys_of(self, script: Script) -> Keys:
        """The keys that a script needs for this tube."""
        return self._plain_keys if self._is_plain and script in OF_PLAIN else self.keys

    # Life

    def create_space(self, tx: RedisTx, tube: TubeRecord) -> None:
        """Nothing to do: the store has made it."""

    def make(self, tx: RedisTx, *, anew: bool = False) -> None:
        """Make the tube if it is not there. ``anew``: it was there before, and must not give an id again."""
        self.do(tx, scripts.OPEN, self.after, int(anew))
        self.is_unmade = False

    def start(self, tx: RedisTx) -> None:
        if self.check_reachable is None:
            self.make(tx)
        else:
            self.is_unmade = True
            with suppress(StoreError):  # a queue opens all the same; the tube's verbs say what is wrong
                self.check_reachable()
                self.make(tx)

    def stop(self) -> None:
        """Nothing to stop."""

    def empty_after_restart(self, wire: Wire) -> None:
        """Empty a temporary tube of what it held before its server was last started."""
        if self._run_id != wire.run_id:
            wire.evaluate(scripts.EMPTY, self.keys, ("", 0, 0, wire.run_id))
            self._run_id = wire.run_id

    def drop(self, tx: RedisTx) -> None:
        taken, _ = self.do(tx, scripts.DROP)
        if taken:
            raise TubeBusy(self.name, f"{taken} of its tasks are taken")

    # Steps

    def put(self, tx: RedisTx, items: Sequence[NewTask], *, now: int) -> Sequence[Change]:
        given: list[Argument] = [self.capacity]
        if self._is_plain:
            beginning = f"r 0 {now} {now} - - - 0 - "
            for payload, *_ in items:
                given.append(beginning + ("j " if type(payload) is str else "b "))
                given.append(payload)
        else:
            for item in items:
                given.append(_record(item, now))
                given.append(item.payload)
        last: int = self._write(tx, scripts.PUT, now, given)
        if not last:
            return ()
        name, timed, first = self.name, self._is_timed, last - len(items) + 1
        return [put_change(name, first + n, item, now, timed) for n, item in enumerate(items)]

    def take(self, tx: RedisTx, limit: int, *, owner: str | None, now: int) -> Sequence[Change]:
        return self.ack_and_take(tx, (), limit, owner=owner, now=now)

    def ack_and_take(
        self, tx: RedisTx, refs: Sequence[Ref], limit: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        """Ack, and take in the same step; do neither if the ack is refused. See ``Driver.take``."""
        given: list[Argument] = [owner or "-", limit, SETTLE_LIMIT]
        known = self._add_acks(given, refs, owner)
        flat = self._write(tx, scripts.TAKE, now, given, limit)
        try:
            return self._changes(flat, known, now)
        except StoreError:
            self._give_back(tx, flat, owner, now)
            raise

    def ack(self, tx: RedisTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        given: list[Argument] = [owner or "-"]
        known = self._add_acks(given, refs, owner)
        return self._changes(self._write(tx, scripts.ACK, now, given), known, now)

    def touch(
        self, tx: RedisTx, refs: Sequence[Ref], delta_ms: int, *, owner: str | None, now: int
    ) -> Sequence[Change]:
        given = (owner or "-", delta_ms, *_pointers(refs, owner))
        return self._changes(self._write(tx, scripts.TOUCH, now, given))

    def release(
        self, tx: RedisTx, refs: Sequence[Ref], *, delay_ms: int, owner: str | None, now: int
    ) -> Sequence[Change]:
        given = (owner or "-", delay_ms, *_pointers(refs, owner))
        return self._changes(self._write(tx, scripts.RELEASE, now, given))

    def bury(self, tx: RedisTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        return self._changes(self._write(tx, scripts.BURY, now, _takes(refs)))

    def delete(self, tx: RedisTx, refs: Sequence[Ref], *, owner: str | None, now: int) -> Sequence[Change]:
        return self._changes(self._write(tx, scripts.DELETE, now, _takes(refs)))

    def kick(self, tx: RedisTx, limit: int, *, now: int) -> Sequence[Change]:
        return self._changes(self._write(tx, scripts.KICK, now, (limit,)))

    def expire(self, tx: RedisTx, limit: int, *, now: int) -> Sequence[Change]:
        return self._changes(self._write(tx, scripts.EXPIRE, now, (min(limit, SETTLE_LIMIT),)))

    def release_owner(self, tx: RedisTx, owner: str | None, limit: int, *, now: int) -> Sequence[Change]:
        return self._changes(self._write(tx, scripts.RELEASE_OWNER, now, (owner or "-", limit)))

    def truncate(self, tx: RedisTx, limit: int) -> int:
        removed: int = self.do(tx, scripts.TRUNCATE, limit)
        return removed

    # Looking

    def peek(self, tx: RedisTx, ids: Sequence[int]) -> Sequence[Raw]:
        return _raws(self.look(tx, scripts.PEEK, *map(_text, ids)))

    def tasks_by_state(self, tx: RedisTx, state: State, *, after: int, limit: int) -> Sequence[Raw]:
        begin = "" if after < 0 else _text(after)
        return _raws(self.look(tx, scripts.LIST, state.value, begin, limit, most=limit))

    def can_take(self, tx: RedisTx) -> bool:
        try:
            is_ready, due = self.look(tx, scripts.LOOK)
        except NoTube:
            return False
        tx.looked[self.number] = due_ms(due) if due else None
        return bool(is_ready)

    def next_due(self, tx: RedisTx) -> int | None:
        if not self._is_timed:
            return None
        if self.number not in tx.looked:
            self.can_take(tx)
        return tx.looked.get(self.number)

    def count(self, tx: RedisTx) -> Mapping[State, int]:
        return by_state(self.look(tx, scripts.COUNT))

    def normalize_task(self, raw: Any) -> Task:
        if isinstance(raw, Task):
            return raw
        id, record, payload = raw
        try:
            return self._task(int(id), record.split(b" ", 10), payload)
        except UNREADABLE as error:
            raise self._damaged(id, error) from error

    # Any script, as if nobody waited here. ``given`` follows the three arguments that each gets, see tube.lua

    def do(self, tx: RedisTx, script: Script, *given: Argument, now: int = 0) -> Any:
        """Run one that writes."""
        return tx.run(self, script, (self.flags, now, 0, *given), is_repeatable=False)

    def look(self, tx: RedisTx, script: Script, *given: Argument, most: int = 0) -> Any:
        """Run one that only reads; ``most``: see ``Runner.run``."""
        return tx.run(self, script, (self.flags, 0, 0, *given), most, is_repeatable=True)

    # Within

    def _write(self, tx: RedisTx, script: Script, now: int, given: Sequence[Argument], most: int = 0) -> Any:
        return tx.run(self, script, (self.flags, now, self._waiting(), *given), most, is_repeatable=False)

    def _add_acks(self, given: list[Argument], refs: Sequence[Ref], owner: str | None) -> Leases:
        """Add each ack's arguments to ``given``; return the known tasks, which need not be read again."""
        known: dict[tuple[int, int], Task] = {}
        mine = session_id(owner) if owner else None
        for id, token, task in refs:
            if task is not None and token is not None:
                known[id, token] = task
                given += (_text(id), _lease(token, task, mine), 0)
            else:
                given += (_text(id), "-" if token is None else token, 1)
        return known

    def _changes(self, flat: Sequence[Any], known: Leases = NO_LEASES, now: int = 0) -> Sequence[Change]:
        """The changes that a script answers, four words each; see tasks.lua."""
        changes = []
        for place in range(0, len(flat), 4):
            event = EVENTS[flat[place]]
            fields = flat[place + 2].split(b" ", 10)
            try:
                id = int(flat[place + 1])
                if len(fields) == 1:  # an ack with only the token as its record
                    changes.append(new_change((event, done(known[id, int(fields[0])], now), None)))
                    continue
                _, _, _, updated, due, ttl, ttr, attempts, *_ = fields
                lease = known.get((id, int(attempts))) if event is ACK else None
                if lease is not None:
                    task = done(with_times(lease, _ms(ttl), _ms(ttr)), int(updated))
                else:
                    task = self._task(id, fields, flat[place + 3])
                changes.append(new_change((event, task, _ms(due))))
            except UNREADABLE as error:
                raise self._damaged(flat[place + 1], error) from error
        return changes

    def _give_back(self, tx: RedisTx, flat: Sequence[Any], owner: str | None, now: int) -> None:
        """Release what was taken along with a task that cannot be read: the caller is not told of it."""
        given: list[Argument] = [owner or "-", 0]
        for place in range(1, len(flat), 4):
            with suppress(StoreError):
                task = self.normalize_task(flat[place : place + 3])
                given += (flat[place], task.attempts)
        with suppress(StoreError, Refused):
            self._write(tx, scripts.RELEASE, now, given)

    def _damaged(self, id: bytes, error: Exception) -> StoreError:
        shown = f"{int(id)}" if id.isdigit() else repr(id)
        return StoreError(
            f"task {shown} of tube {self.name!r} cannot be read, which `tubes doctor --deep --fix` repairs: "
            f"{error}"
        )

    def _task(self, id: int, fields: Sequence[bytes], payload: bytes | None) -> Task:
        """A task from the fields of its record; see tube.lua. A lost payload is None, and holds up nobody."""
        state, pri, created, updated, due, ttl, ttr, attempts, owner, kind, utube = fields
        data = payload if kind == b"b" or payload is None else decode_json(payload)
        name = sub_queue_name(utube.decode("utf-8", "backslashreplace"))  # others may put invalid UTF-8
        return make_task(
            id, self.name, STATES_OF_BYTES[state], data, int(pri), name, int(created), int(updated), _ms(due),
            _ms(ttl), _ms(ttr), int(attempts), None if owner == b"-" else owner.decode(),
        )  # fmt: skip


def _text(id: int) -> str:
    """An id as scripts write it."""
    return f"{id:016d}"


def _ms(text: bytes) -> int | None:
    return None if text == b"-" else int(text)


def _lease(token: int, task: Task | None, mine: UUID | None) -> int:
    """The token to present; 0, which no lease has, if another session, of whatever store, took the task."""
    return token if task is None or mine is None or task.owner in (mine, None) else 0


def _pointers(refs: Sequence[Ref], owner: str | None) -> list[Argument]:
    """The arguments for tasks that the owner must hold: of each its id, and its token or -."""
    given: list[Argument] = []
    mine = session_id(owner) if owner else None
    for id, token, task in refs:
        given += (_text(id), "-" if token is None else _lease(token, task, mine))
    return given


def _takes(refs: Sequence[Ref]) -> list[Argument]:
    """The same for tasks that anybody may hold: of each also the session that its Task says took it, or -."""
    given: list[Argument] = []
    for id, token, task in refs:
        owner = "-" if task is None or task.owner is None else task.owner.hex
        given += (_text(id), "-" if token is None else token, owner)
    return given


def by_state(counts: Sequence[int]) -> Mapping[State, int]:
    """How many tasks are in each state, as count.lua answers."""
    return dict(zip((State.READY, State.TAKEN, State.DELAYED, State.BURIED), counts, strict=True))


def due_ms(score: bytes) -> int | None:
    """When something is next due, by the first score of ``due``, which damage may have made infinite."""
    ms = float(score)
    if isinf(ms):
        return None if ms > 0 else 0
    return int(ms)


def _raws(flat: Sequence[Any]) -> list[Raw]:
    """The tasks that a script answers, three words each."""
    return [(flat[place], flat[place + 1], flat[place + 2]) for place in range(0, len(flat), 3)]


def check_pri(pri: int) -> None:
    """Refuse a priority that Redis cannot tell from its neighbours."""
    if pri > HIGHEST_PRI:
        raise BadOption(f"pri must be at most 2**53 in Redis, not {pri}", option="pri", value=pri)


def _record(item: NewTask, now: int) -> str:
    """The record of a new task; see tube.lua."""
    payload, _, pri, utube, ttl, ttr, delay = item
    check_pri(pri)
    due = first_due(item, now)
    times = " ".join("-" if ms is None else str(ms) for ms in (due, ttl, ttr))
    kind = "j" if type(payload) is str else "b"
    return f"{'~' if delay else 'r'} {pri} {now} {now} {times} 0 - {kind} {utube or ''}"
