"""The first schema: tubes, tasks, sessions, connections, calls.

``tubes.drivers.sql.tables`` says what the columns and the four indexes of a task are for.
"""

from __future__ import annotations

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = ("tubes",)
depends_on = None

SQLITE_TABLES = """
CREATE TABLE {ns}_tube (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    options TEXT NOT NULL,
    temporary BOOLEAN NOT NULL,
    stored INTEGER NOT NULL
);
CREATE TABLE {ns}_task (
    id INTEGER PRIMARY KEY,
    tube INTEGER REFERENCES {ns}_tube (id),
    state TEXT NOT NULL,
    front INTEGER,
    pri INTEGER NOT NULL,
    place INTEGER,
    utube TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    due_ms INTEGER,
    ttl_ms INTEGER,
    ttr_ms INTEGER,
    attempts INTEGER NOT NULL,
    owner TEXT,
    data TEXT,
    bytes BLOB
);
CREATE INDEX {ns}_task_front ON {ns}_task (tube, state DESC, place, id) WHERE front = 1;
CREATE INDEX {ns}_task_member ON {ns}_task (tube, utube, front DESC, pri, id)
    WHERE front IS NOT NULL AND utube IS NOT NULL;
CREATE INDEX {ns}_task_aside ON {ns}_task (tube, state, pri, id) WHERE front IS NULL;
CREATE INDEX {ns}_task_due ON {ns}_task (tube, due_ms) WHERE due_ms IS NOT NULL AND state <> 't';
CREATE TABLE {ns}_session (
    id TEXT NOT NULL PRIMARY KEY,
    ttr_ms INTEGER NOT NULL,
    ends_ms INTEGER
);
CREATE TABLE {ns}_connection (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_ms INTEGER NOT NULL
);
CREATE TABLE {ns}_calls (
    tube INTEGER NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (tube, event)
) WITHOUT ROWID
"""

BEST_BEHIND = """
    UPDATE {ns}_task SET front = 1 WHERE id = (
        SELECT id FROM {ns}_task WHERE tube = {of}.tube AND utube = {of}.utube AND front = 0
        ORDER BY pri, id LIMIT 1
    )
"""

STANDS_IN_FRONT = (
    "SELECT 1 FROM {ns}_task WHERE tube = new.tube AND utube = new.utube AND front = 1 AND id <> new.id"
)

WORSE_IN_FRONT = (
    "SELECT id FROM {ns}_task WHERE tube = new.tube AND utube = new.utube AND front = 1 AND state = 'r'"
    " AND (pri > new.pri OR (pri = new.pri AND id > new.id))"
)

# Every statement that moves a task sets ttr_ms, but a take does not: it never leaves or enters the front, and the
# conditions of three triggers would cost it a tenth of its time.
SQLITE_TRIGGERS = {
    # A task went away. From the front of its sub-queue: the best one from behind follows. With the largest id: a row of
    # no tube keeps that from being given again, which costs a third of AUTOINCREMENT's page more for every insert.
    # Both in one trigger, since it is starting a trigger that costs.
    "gone": """AFTER DELETE ON {ns}_task
        WHEN (old.front = 1 AND old.utube IS NOT NULL) OR NOT EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id)
        BEGIN """ + BEST_BEHIND.replace("{of}", "old").rstrip() + """ AND old.front = 1;
            DELETE FROM {ns}_task WHERE tube IS NULL AND front IS NULL
                AND NOT EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id);
            INSERT INTO {ns}_task (id, state, pri, created_ms, updated_ms, attempts)
                SELECT old.id, '-', 0, 0, 0, 0
                WHERE NOT EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id);
        END""",
    # The same, by being buried or delayed.
    "aside": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN old.front = 1 AND new.front IS NULL AND new.utube IS NOT NULL
        BEGIN """ + BEST_BEHIND.replace("{of}", "new") + """; END""",
    # A task was kicked, or its delay is over: in front if nobody is, or before a worse one.
    "back": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN new.front = 0 AND new.utube IS NOT NULL AND old.front IS NULL
        BEGIN
            UPDATE {ns}_task SET front = 0 WHERE id = (""" + WORSE_IN_FRONT + """);
            UPDATE {ns}_task SET front = 1 WHERE id = new.id AND NOT EXISTS (""" + STANDS_IN_FRONT + """);
        END""",
    # A taken task was given back, and a better one came meanwhile.
    "returned": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN old.state = 't' AND new.state = 'r' AND new.front = 1 AND new.utube IS NOT NULL AND EXISTS (
            SELECT 1 FROM {ns}_task WHERE tube = new.tube AND utube = new.utube AND front = 0
            AND (pri < new.pri OR (pri = new.pri AND id < new.id))
        )
        BEGIN
            UPDATE {ns}_task SET front = 0 WHERE id = new.id;
            """ + BEST_BEHIND.replace("{of}", "new") + """;
        END""",
}  # fmt: skip


def upgrade() -> None:
    ns = context.get_context().opts["namespace"]
    for statement in SQLITE_TABLES.split(";\n"):
        op.execute(statement.strip().format(ns=ns))
    for name, body in SQLITE_TRIGGERS.items():
        op.execute(f"CREATE TRIGGER {ns}_task_{name} {body.format(ns=ns)}")


def downgrade() -> None:
    ns = context.get_context().opts["namespace"]
    for table in ("calls", "connection", "session", "task", "tube"):
        op.execute(f"DROP TABLE {ns}_{table}")
