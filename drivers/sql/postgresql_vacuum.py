"""Vacuums the tables of tasks as soon as it pays.

Autovacuum looks once a minute at most. Until then every take steps over the dead rows at the head of the
index: a minute of batches makes a take six times as slow, and the table ten times as large.
"""

from __future__ import annotations

import threading

from tubes.clock import real_monotonic

from .postgresql_wire import Refused, Wire

DEAD = 10_000
"""A table with so many dead rows is vacuumed; a take leaves one, and an ack another."""

REST = 50
"""The pause before the next vacuum, as a multiple of the last one's time. So vacuums take at most a
fiftieth of the time, even if tables are huge or an old transaction keeps all dead rows; more only if
``LONGEST_REST`` cuts the pause short."""

LONGEST_REST = 60.0
"""The longest such pause, and the one after a vacuum that failed, in seconds."""

LONGEST = 2.0
"""Seconds that a vacuum may hold up the sweep, and a close. A table that takes longer is left to autovacuum."""

HARMLESS = "'AccessShareLock', 'RowShareLock', 'RowExclusiveLock'"
"""Locks beside which a vacuum can begin. Skipping a table for another lock logs a warning on the server."""


class Vacuum:
    """Vacuums one namespace's tables, if no other process has just done it. Only their owner may."""

    def __init__(self, namespace: str) -> None:
        names = ", ".join(f"""('"{namespace}_{table}"')""" for table in ("task", "temporary_task"))
        self._look = f"""
            SELECT name FROM (VALUES {names}) AS ours (name) JOIN pg_class ON pg_class.oid = to_regclass(name)
            WHERE pg_stat_get_dead_tuples(pg_class.oid) >= {DEAD} AND pg_has_role(relowner, 'USAGE')
            AND coalesce(pg_stat_get_last_vacuum_time(pg_class.oid) NOT BETWEEN
                clock_timestamp() - make_interval(secs => $1) AND clock_timestamp(), true)
            AND NOT EXISTS (
                SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
                WHERE relation = pg_class.oid AND datname = current_database() AND mode NOT IN ({HARMLESS})
            )
        """
        self._rest = self._not_before = 0.0

    def run(self, wire: Wire) -> None:
        """Vacuum the tables for which it pays; skip one that somebody has locked, such as another vacuum."""
        began = real_monotonic()
        if began < self._not_before:
            return
        try:
            for (name,) in wire.execute(self._look, (self._rest,)).rows:
                _in_time(wire, f"VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, PARALLEL 0) {name}")
                self._rest = min(REST * (real_monotonic() - began), LONGEST_REST)
        except (Refused, RuntimeError):  # by a statement_timeout, say; or there are no more threads
            self._not_before = real_monotonic() + LONGEST_REST


def _in_time(wire: Wire, text: str) -> None:
    """Execute a statement, and cancel it if it takes too long."""
    began, timer = real_monotonic(), threading.Timer(LONGEST, wire.cancel)
    timer.daemon = True
    timer.start()
    try:
        wire.simple(text)
    finally:
        timer.cancel()
        timer.join()
        if real_monotonic() - began >= LONGEST:  # the cancel may come too late, and end the next statement
            wire.close()
