"""Gives back what ended sessions hold, for takes and for the sweep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from tubes.clock import real_monotonic
from tubes.interrupts import guarded
from tubes.open_tubes import OpenTubes, apart_from_others
from tubes.store import Store
from tubes.taking import Takes

LOOK_EVERY = 0.05
"""Seconds between two looks for dead sessions by consumers that keep finding tasks."""

RESCUED_AT_ONCE = 10
"""Most ended sessions whose tasks are given back before a second look, chosen at random if there are more.

When many processes see the same sessions end, as when a host with many workers dies, this divides the work.
Before each further look there may be twice as many: each reads all that are left.
"""


class Rescuer:
    """Rescues tasks for one queue."""

    def __init__(self, store: Store, tubes: OpenTubes) -> None:
        self._store = store
        self._tubes = tubes
        self._look_at = 0.0

    def look(self, taker: Takes) -> None:
        """Rescue for a take in ``taker``, if the last look was a while ago: busy takes can afford that."""
        now = real_monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self.rescue_for(taker, allow_recent=True)

    def rescue_for(self, taker: Takes, *, allow_recent: bool = False) -> int:
        """Before a take in ``taker``: give back what dead sessions hold, so that the take can get it."""
        if self._store.deaths_suspected(allow_recent=allow_recent):
            return self.rescue(taker)
        released = 0
        if taker.ended:
            with apart_from_others(taker):  # a damaged task, say, must not hold up this take
                released = taker.rescue()
        return released

    def rescue(self, taker: Takes | None = None, *, thoroughly: bool = True) -> int:
        """Release what ended sessions hold, in every open tube; return the number of tasks.

        With a ``taker``, only that tube and this queue's store are waited for. Tubes on other servers, and
        tasks of unknown sessions, are left to a later sweep. Without ``thoroughly``, so are only these tasks.
        """
        store, is_thorough = self._store, thoroughly and taker is None
        released, seen, most = 0, {*store.set_aside}, RESCUED_AT_ONCE
        while True:
            ended = guarded(partial(store.ended_sessions, store.clock.now_ms(), thoroughly=is_thorough))
            left = [session for session in ended if session not in seen]
            chosen = left if len(left) <= most else random.sample(left, most)
            most *= 2
            seen.update(chosen)
            if chosen:
                released += self._rescue_from(chosen, taker)
            if len(chosen) == len(left):
                return released

    def _rescue_from(self, ended: Sequence[str], taker: Takes | None) -> int:
        """Release what these sessions hold, and forget them or set them aside.

        They are set aside while they may hold more: in a tube that is not open here, as its type is not
        registered; or in one that has them in ``ended``, as tasks are locked or its server is away. The next
        thorough sweep looks for them anew, and forgets those that hold no more.
        """
        store, released = self._store, 0
        tubes, all_ended = self._tubes.open_all(), {*ended}
        put_off = {tube for tube in tubes if tube.place.is_apart and taker not in (None, tube)}
        holders = self._tubes.asked_of_many("holders", [tube for tube in tubes if tube not in put_off])
        for tube in tubes:
            tube.ended |= all_ended & holders.get(tube.record.id, all_ended)
            if tube not in put_off:
                with apart_from_others(tube):
                    released += tube.rescue()
        is_one_closed = len(tubes) < len(store.read(store.tubes))
        is_any_left = any(tube.ended for tube in tubes)  # also what other threads are giving back just now
        if is_any_left or is_one_closed:
            store.set_aside.update(ended)
        else:
            guarded(store.forget_sessions, ended)
        return released
