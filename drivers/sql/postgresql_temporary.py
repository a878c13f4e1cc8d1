"""Empties what must not outlive a restart of the server: what temporary tubes held before it."""

from __future__ import annotations

from .postgresql_wire import BEGIN, Wire

LIFT = "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
"""Lifts time limits until the transaction ends: it may take long, and no queue works without it."""


def empty_temporary(wire: Wire, namespace: str) -> None:
    """Remove what temporary tubes held before the server was started. A crash has emptied the table already.

    So has the crash of one of the server's processes, which does not change the server's start time: then
    only the counts need correcting. Every new connection looks: whoever outlives a restart has only new ones.
    """
    epoch = "CAST(extract(epoch FROM pg_postmaster_start_time()) AS text)"  # the same in every time zone
    server, tube, task = (f'"{namespace}_{table}"' for table in ("server", "tube", "temporary_task"))
    stored = f"FROM {task} AS task WHERE task.tube = {tube}.id AND task.front"
    places = ("= 1", "= 0", "IS NULL")  # each of which has an index
    is_gone = " AND ".join(f"NOT EXISTS (SELECT 1 {stored} {place})" for place in places)
    is_wrong = f"temporary AND stored <> 0 AND {is_gone}"
    look = (
        f"SELECT 1 FROM {server} WHERE started <> {epoch} OR EXISTS (SELECT 1 FROM {tube} WHERE {is_wrong})"
    )
    if not wire.execute(look, ()).rows:
        return
    # The second to come waits for the first, and finds it done
    was_started = f"SELECT started <> {epoch} FROM {server} FOR UPDATE"
    is_new = (True,) in wire.execute(was_started, (), begin=BEGIN).rows  # two rows, if data was restored
    wire.execute(LIFT, ())
    if is_new:
        wire.execute(f"UPDATE {server} SET started = {epoch}", ())
        # Out of the front first, while nobody can see it: else the DELETE takes one of the server's locks for
        # each sub-queue that a task leaves, and there may be too few
        wire.execute(f"LOCK TABLE {task} IN SHARE ROW EXCLUSIVE MODE", ())
        wire.execute(f"UPDATE {task} SET front = NULL WHERE front = 1 AND utube IS NOT NULL", ())
        wire.execute(f"DELETE FROM {task}", ())
    # Wait for puts under way, and count after that: an UPDATE that waits would count what was there before
    wrong = wire.execute(f"SELECT id FROM {tube} WHERE {is_wrong} ORDER BY id FOR UPDATE", ()).rows
    counts = " + ".join(f"(SELECT count(*) {stored} {place})" for place in places)
    wire.execute(f"UPDATE {tube} SET stored = {counts} WHERE id = ANY($1)", ([id for (id,) in wrong],))
    wire.simple("COMMIT")
