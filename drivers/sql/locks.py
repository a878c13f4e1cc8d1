"""How a step keeps others that write meanwhile, as on PostgreSQL, from changing what it is about to change.

All steps lock in one order, so that they cannot deadlock: first the count of what a bounded tube holds, then
sub-queues, then tasks, both sorted. What is found in another order is locked only if nobody has it.

On SQLite a writer is alone, so nothing is locked: what is found is what is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .statements import ID, STATE, UTUBE, Passing, Row, Statements, json_ids
from .tx import SqlTx

T = TypeVar("T")


class Locks:
    """The locks of one tube. A step keeps what it has locked until its transaction is over."""

    def __init__(self, statements: Statements, tube: int, *, grouped: bool, bounded: bool) -> None:
        self._sql = statements
        self._tube = tube
        self.with_groups = grouped and statements.is_shared
        self.with_room = self.with_groups and bounded
        """Whether ``lock_room`` comes first. Without sub-queues, a put waits for nothing else."""

    def lock_room(self, tx: SqlTx) -> None:
        """Lock the count of what is stored before any sub-queue, as a put does, or the two could deadlock."""
        tx.run(self._sql.give_room, 0, self._tube)

    def lock_groups(self, tx: SqlTx, ids: Sequence[int]) -> None:
        """Lock the sub-queues of these tasks."""
        if self.with_room:
            self.lock_room(tx)
        if self.with_groups:
            tx.rows(self._sql.lock_groups, json_ids(ids))

    def lock_stored(self, tx: SqlTx, ids: Sequence[int], *, taken: bool = False) -> list[Row]:
        """Lock those of these tasks that are stored, after their sub-queues; return their rows.

        ``taken``: a single task is locked only if it is taken, since locking a ready one for nothing hides it
        from takes. Several are all locked, so that an ack of some happens at one moment.
        """
        self.lock_groups(tx, ids)
        sql = self._sql
        if len(ids) == 1:
            return tx.rows(sql.lock_one_taken if taken else sql.lock_one, ids[0], self._tube)
        return tx.rows(sql.lock_some, self._tube, json_ids(ids))

    # Those that nobody else has locked

    def lock_free(
        self, tx: SqlTx, looks: Sequence[Passing], *given: Any, limit: int, by: Callable[[Row], Any]
    ) -> list[Row]:
        """Lock what these looks find and nobody else has locked; return it in order. It never waits.

        So it may lock rows before their sub-queues. If somebody else has a sub-queue locked, the next look
        leaves it out: however much others have locked, it hides nothing that is free.
        """
        locked: dict[int, Row] = {}
        busy: set[str] = set()
        while True:
            rows: list[Row] = []
            names = (json.dumps([*busy], ensure_ascii=False),) if busy else ()
            for look in looks:
                rows += tx.rows(look.elsewhere if busy else look.free, self._tube, *given, *names, limit)
            rows.sort(key=by)
            if not self.with_groups:
                return rows[:limit]
            found = [row for row in rows[:limit] if row[ID] not in locked][: limit - len(locked)]
            free = {*self._lock_free_groups(tx, [row[ID] for row in found])}
            locked.update((row[ID], row) for row in found if row[ID] in free)
            missed = {row[UTUBE] for row in found if row[ID] not in free}
            if len(rows) < limit or not missed:
                return sorted(locked.values(), key=by)
            busy |= missed

    def _lock_free_groups(self, tx: SqlTx, ids: list[int]) -> list[int]:
        """Lock the sub-queues of these tasks that nobody else has locked; return the tasks that are in these."""
        if not (self.with_groups and ids):
            return ids
        return [id for (id,) in tx.rows(self._sql.lock_free_groups, json_ids(ids))]

    # As many as there are, up to a limit, even if others have them locked

    def lock_any(self, tx: SqlTx, limit: int) -> list[int]:
        """Lock some tasks, in whatever state; return their ids. Fewer than ``limit``: there are no more."""

        def found() -> list[int]:
            return [id for (id,) in tx.rows(self._sql.ids, self._tube, limit)]

        def free() -> list[int]:
            ids: list[int] = []
            for look in self._sql.ids_free:
                if len(ids) < limit:
                    ids += [id for (id,) in tx.rows(look, self._tube, limit - len(ids))]
            return self._lock_free_groups(tx, ids)

        return self._lock_as_many(tx, limit, found, self._lock_ids, free)

    def lock_taken(self, tx: SqlTx, limit: int, *, by: Callable[[Row], Any]) -> list[Row]:
        """Lock some taken tasks; return their rows in order. Fewer than ``limit``: there are no more."""

        def found() -> list[Row]:
            return sorted(tx.rows(self._sql.taken.all, self._tube, limit), key=by)

        def free() -> list[Row]:
            return self.lock_free(tx, (self._sql.taken,), limit=limit, by=by)

        return self._lock_as_many(tx, limit, found, self._lock_still_taken, free)

    def _lock_as_many(
        self,
        tx: SqlTx,
        limit: int,
        found: Callable[[], list[T]],
        lock: Callable[[SqlTx, list[T]], list[T]],
        free: Callable[[], list[T]],
    ) -> list[T]:
        """``lock`` what is ``found``, and wait for whoever has some of it locked.

        They may have changed it meanwhile. Then lock what is ``free``; if that is too little, start over with
        nothing locked, since those it waits for next may be waiting for what it has.
        """
        if not self._sql.is_shared:
            return found()
        while True:
            tx.run(self._sql.mark)
            things = found()
            locked = lock(tx, things) if things else things
            if len(locked) == len(things) or len(things) < limit:
                return locked
            locked = free()
            if len(locked) == limit:
                return locked
            tx.run(self._sql.back_to_mark)

    def _lock_ids(self, tx: SqlTx, ids: list[int]) -> list[int]:
        """Lock them in the order of ``lock_stored``. The DELETE that follows would lock them in another."""
        self.lock_groups(tx, ids)
        return [id for (id,) in tx.rows(self._sql.lock_ids, json_ids(ids))]

    def _lock_still_taken(self, tx: SqlTx, rows: list[Row]) -> list[Row]:
        """Lock these rows; return them as they are now, without those that are no longer taken."""
        locked = {row[ID]: row for row in self.lock_stored(tx, [row[ID] for row in rows], taken=True)}
        now = [locked[row[ID]] for row in rows if row[ID] in locked]
        return [row for row in now if row[STATE] == "t"]
