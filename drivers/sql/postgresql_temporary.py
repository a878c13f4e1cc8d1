"""Empties what does not outlive the server: what temporary tubes held before it was started."""

from __future__ import annotations

from .postgresql_wire import BEGIN, Wire

LIFT = "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
"""Until the transaction's end. With many tasks it may take longer than a role may, and nobody can do without it."""


def empty_temporary(wire: Wire, namespace: str) -> None:
    """What temporary tubes held before the server was started is gone; a crash has emptied the table already.

    So has the crash of one of the server's processes, which leaves the time of its start as it was: then only
    the counts are to be set. Every new connection looks: whoever outlives a restart has only new ones.
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
    # Who is second waits for the first, and finds it done
    was_started = f"SELECT started <> {epoch} FROM {server} FOR UPDATE"
    is_new = (True,) in wire.execute(was_started, (), begin=BEGIN).rows  # two rows, where data was restored
    wire.execute(LIFT, ())
    if is_new:
        wire.execute(f"UPDATE {server} SET started = {epoch}", ())
        # Out of the front first, with nobody there to see it: each sub-queue that a task leaves when it is deleted
        # takes one of the server's locks, of which there may be too few for all
        wire.execute(f"LOCK TABLE {task} IN SHARE ROW EXCLUSIVE MODE", ())
        wire.execute(f"UPDATE {task} SET front = NULL WHERE front = 1 AND utube IS NOT NULL", ())
        wire.execute(f"DELETE FROM {task}", ())
    # Who puts just now is waited for, and what that was is counted after: an UPDATE that waits sees what was before
    wrong = wire.execute(f"SELECT id FROM {tube} WHERE {is_wrong} ORDER BY id FOR UPDATE", ()).rows
    counts = " + ".join(f"(SELECT count(*) {stored} {place})" for place in places)
    wire.execute(f"UPDATE {tube} SET stored = {counts} WHERE id = ANY($1)", ([id for (id,) in wrong],))
    wire.simple("COMMIT")
