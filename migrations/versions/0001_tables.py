"""The first schema: tubes, tasks, sessions, connections, calls.

The central column is the task's ``front``. A task that may be taken now, or that is taken, stands in front
(1); a ready task that waits behind another of its sub-queue does not (0); a buried or delayed one stands
aside (NULL). At most one task of a sub-queue stands in front, and triggers keep it so: when a task leaves the
front, they bring up the best one from behind. A take therefore costs the same however much lies in busy
sub-queues. The indexes:

* ``front``  (tube, state desc, place, id) where front = 1: the taken tasks of a tube, by the end of their
  time (their ``place``), and right after them the ready ones, by ``pri`` (their ``place``): a take moves its
  entry by a few places; on PostgreSQL, where an update moves no entry, the ready ones come first;
* ``member`` (tube, utube, front desc, pri, id): a sub-queue, first the task in front, then those behind it;
  on PostgreSQL two indexes, ``first``, which is unique, and ``behind``;
* ``aside``  (tube, state, pri, id) where front is null: what a kick brings back;
* ``due``    (tube, due_ms) of all that are not taken: what the sweeper looks for. A taken task's deadline is
  its place.
"""

from __future__ import annotations

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = ("tubes",)
depends_on = None

# A put reads its tube's number from the table of tubes, and is refused if there is none. A foreign key would
# scan all tasks, of every tube, when a tube is dropped; a trigger would cost a batch an eighth of its time.
# The only row without a tube is the one that keeps the largest id from being given again.
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
    tube INTEGER,
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
    bytes BLOB,
    CONSTRAINT {ns}_task_has_tube CHECK (tube IS NOT NULL OR state = '-')
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

# Every statement that moves a task sets ttr_ms, except a take: its task neither leaves nor enters the front,
# and the conditions of three triggers would cost a take a tenth of its time.
SQLITE_TRIGGERS = {
    # A task went away. If it was at the front of its sub-queue, the best one from behind follows. If it had
    # the largest id, a row without a tube keeps that from being given again, at a third of the cost of
    # AUTOINCREMENT, which writes one more page at every insert. Both are in one trigger, since starting a
    # trigger is what costs. The INSERT is ignored if the new row has no state: an INSERT … SELECT from the
    # table that it writes would store the row twice.
    "gone": """AFTER DELETE ON {ns}_task
        WHEN (old.front = 1 AND old.utube IS NOT NULL) OR NOT EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id)
        BEGIN """ + BEST_BEHIND.replace("{of}", "old").rstrip() + """ AND old.front = 1;
            DELETE FROM {ns}_task WHERE tube IS NULL AND front IS NULL
                AND NOT EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id);
            INSERT OR IGNORE INTO {ns}_task (id, state, pri, created_ms, updated_ms, attempts) VALUES (
                old.id, CASE WHEN EXISTS (SELECT 1 FROM {ns}_task WHERE id > old.id) THEN NULL ELSE '-' END, 0, 0, 0, 0
            );
        END""",
    # The same, if it was buried or delayed.
    "aside": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN old.front = 1 AND new.front IS NULL AND new.utube IS NOT NULL
        BEGIN """ + BEST_BEHIND.replace("{of}", "new") + """; END""",
    # A task was kicked, or its delay is over: to the front, if no task is there, or a worse ready one.
    "back": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN new.front = 0 AND new.utube IS NOT NULL AND old.front IS NULL
        BEGIN
            UPDATE {ns}_task SET front = 0 WHERE id = (""" + WORSE_IN_FRONT + """);
            UPDATE {ns}_task SET front = 1 WHERE id = new.id AND NOT EXISTS (""" + STANDS_IN_FRONT + """);
        END""",
    # A taken task was given back, and a better one came meanwhile.
    "returned": """AFTER UPDATE OF ttr_ms ON {ns}_task
        WHEN old.state = 't' AND new.state = 'r' AND new.front = 1 AND new.utube IS NOT NULL AND (
            SELECT pri < new.pri OR (pri = new.pri AND id < new.id) FROM {ns}_task
            WHERE tube = new.tube AND utube = new.utube AND front = 0 ORDER BY pri, id LIMIT 1
        )
        BEGIN
            UPDATE {ns}_task SET front = 0 WHERE id = new.id;
            """ + BEST_BEHIND.replace("{of}", "new") + """;
        END""",
}  # fmt: skip


# The server's row has no key, since data that is restored without its schema brings a second row. REPLICA
# IDENTITY: in a publication, such as one of all tables, a row that nothing identifies may not be changed.
POSTGRESQL_TABLES = """
CREATE SEQUENCE "{ns}_task_id" AS bigint;
CREATE TABLE "{ns}_tube" (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    type text COLLATE "C" NOT NULL,
    options text NOT NULL,
    temporary boolean NOT NULL,
    stored bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000);
CREATE TABLE "{ns}_session" (
    id text COLLATE "C" PRIMARY KEY,
    ttr_ms bigint NOT NULL,
    ends_ms bigint
) WITH (fillfactor = 50);
CREATE TABLE "{ns}_connection" (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session text COLLATE "C" NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    started_ms bigint NOT NULL,
    beat bigint NOT NULL DEFAULT 0,
    beat_every_ms bigint NOT NULL,
    called_ms bigint NOT NULL DEFAULT extract(epoch FROM clock_timestamp()) * 1000.0,
    called_beat bigint NOT NULL DEFAULT 0,
    absences integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE "{ns}_calls" (
    tube bigint NOT NULL,
    event text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (tube, event)
) WITH (fillfactor = 50);
CREATE TABLE "{ns}_server" (
    started text NOT NULL
);
ALTER TABLE "{ns}_server" REPLICA IDENTITY FULL;
INSERT INTO "{ns}_server" (started) VALUES ('')
"""

# No foreign key: it would lock the tube's row with every put. No table owns the sequence: an unlogged table's
# own one is reset by a crash. A fifo's rows are only in the primary key and in the index front. No take is a
# HOT update, since state and place are indexed, so no room is left for one; what keeps the table small is to
# vacuum early and unthrottled.
POSTGRESQL_TASKS = """
CREATE {kind} "{table}" (
    id bigint NOT NULL DEFAULT pg_catalog.nextval('"{ns}_task_id"') PRIMARY KEY,
    tube bigint NOT NULL,
    pri bigint NOT NULL,
    place bigint,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    due_ms bigint,
    ttl_ms bigint,
    ttr_ms bigint,
    attempts integer NOT NULL,
    front smallint,
    state text COLLATE "C" NOT NULL,
    utube text COLLATE "C",
    owner text COLLATE "C",
    data text,
    bytes bytea
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    vacuum_truncate = off
);
CREATE INDEX "{table}_front" ON "{table}" (tube, state, place, id) WHERE front = 1;
CREATE UNIQUE INDEX "{table}_first" ON "{table}" (tube, utube) WHERE front = 1 AND utube IS NOT NULL;
CREATE INDEX "{table}_behind" ON "{table}" (tube, utube, pri, id) WHERE front = 0;
CREATE INDEX "{table}_aside" ON "{table}" (tube, state, pri, id) WHERE front IS NULL;
CREATE INDEX "{table}_due" ON "{table}" (tube, due_ms) WHERE due_ms IS NOT NULL AND state <> 't'
"""

POSTGRESQL_FUNCTIONS = (
    # The key of a sub-queue's advisory lock, which whatever changes its front takes, to see what others did.
    """FUNCTION {schema}."{ns}_key"(tube bigint, utube text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(utube, hashint8extended(tube, pg_catalog.hashtextextended('{ns}', @number@)))
$$""",
    # Ends a statement with an SQLSTATE of our own.
    """FUNCTION {schema}."{ns}_refuse"(code text, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = why;
END $$""",
)

# Every statement that moves a task sets ttr_ms, except a take, as on SQLite. All others that write the row of
# a task in a sub-queue lock the sub-queue first, then the row. A take need not: its task still stands in
# front afterwards.
POSTGRESQL_TASK_FUNCTIONS = (
    # The best task from behind comes to the front; the caller holds the lock. One that is being deleted or
    # buried just now is waited for, and found gone: hence the loop. If it were skipped, a rollback would
    # leave it stranded.
    """FUNCTION {promote}(tube_ bigint, utube_ text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    best bigint;
BEGIN
    LOOP
        SELECT id INTO best FROM {task} WHERE tube = tube_ AND utube = utube_ AND front = 0 ORDER BY pri, id LIMIT 1;
        EXIT WHEN best IS NULL;
        UPDATE {task} SET front = 1 WHERE id = best AND front = 0;
        EXIT WHEN FOUND;
    END LOOP;
END $$""",
    # Whether a task may stand in front: none is there, or a worse ready one, which steps back. One that is
    # being taken or removed just now is not waited for, since that could deadlock: a removal promotes when it
    # gets the lock.
    """FUNCTION {may_lead}(tube_ bigint, utube_ text, pri_ bigint, id_ bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    head record;
BEGIN
    SELECT id, state, pri INTO head FROM {task} WHERE tube = tube_ AND utube = utube_ AND front = 1;
    IF head.id IS NULL THEN
        RETURN true;
    END IF;
    IF head.state = 'r' AND (head.pri, head.id) > (pri_, id_) THEN
        UPDATE {task} SET front = 0 WHERE id = (
            SELECT id FROM {task} WHERE id = head.id AND front = 1 AND state = 'r' FOR UPDATE SKIP LOCKED
        );
        RETURN FOUND;
    END IF;
    RETURN false;
END $$""",
    """FUNCTION {join}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.front = 1 THEN
        {lock_new}
        IF NOT {may_lead}(new.tube, new.utube, new.pri, new.id) THEN
            new.front := 0;
        END IF;
    END IF;
    RETURN new;
END $$""",
    """FUNCTION {leave}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF old.front = 1 THEN
        {lock_old}
        PERFORM {promote}(old.tube, old.utube);
    END IF;
    RETURN NULL;
END $$""",
    """FUNCTION {back}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {lock_new}
    IF {may_lead}(new.tube, new.utube, new.pri, new.id) THEN
        UPDATE {task} SET front = 1 WHERE id = new.id AND front = 0;
    END IF;
    RETURN NULL;
END $$""",
    """FUNCTION {returned}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {lock_new}
    IF EXISTS (
        SELECT 1 FROM {task} WHERE tube = new.tube AND utube = new.utube AND front = 0 AND (pri, id) < (new.pri, new.id)
    ) THEN
        UPDATE {task} SET front = 0 WHERE id = new.id;
        PERFORM {promote}(new.tube, new.utube);
    END IF;
    RETURN NULL;
END $$""",
)

# Locks a sub-queue. A transaction must then see what others did before. One with a single snapshot for all
# its statements cannot, and is refused: it would leave a task that was put meanwhile behind nobody, for ever.
LOCK = """IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM {refuse}('TB002', 'a transaction that changes a sub-queue must be READ COMMITTED');
    END IF;
    PERFORM pg_advisory_xact_lock({key}({row}.tube, {row}.utube));"""

# join decides before the row is written. The others run after it, or the unique index would fail half-way:
# first one task steps back, then another leads. The conditions are parsed with every statement, even without
# sub-queues: those of join and gone are the shortest (a put takes the server 36 µs, not 40), and their
# functions check the rest.
POSTGRESQL_TRIGGERS = (
    """"{table}_join" BEFORE INSERT ON "{table}" FOR EACH ROW
    WHEN (new.utube IS NOT NULL) EXECUTE FUNCTION "{table}_join"()""",
    """"{table}_gone" AFTER DELETE ON "{table}" FOR EACH ROW
    WHEN (old.utube IS NOT NULL) EXECUTE FUNCTION "{table}_leave"()""",
    """"{table}_aside" AFTER UPDATE OF ttr_ms ON "{table}" FOR EACH ROW
    WHEN (old.utube IS NOT NULL AND old.front = 1 AND new.front IS NULL) EXECUTE FUNCTION "{table}_leave"()""",
    """"{table}_back" AFTER UPDATE OF ttr_ms ON "{table}" FOR EACH ROW
    WHEN (new.utube IS NOT NULL AND old.front IS NULL AND new.front = 0) EXECUTE FUNCTION "{table}_back"()""",
    """"{table}_returned" AFTER UPDATE OF ttr_ms ON "{table}" FOR EACH ROW
    WHEN (new.utube IS NOT NULL AND old.state = 't' AND new.state = 'r' AND new.front = 1)
    EXECUTE FUNCTION "{table}_returned"()""",
)

# A function names its tables with their schema, so that it works whatever the search_path of its caller is; a
# SET search_path on the function would cost time at every call. The schema is known only where the SQL runs.
# Queues of one namespace in two schemas must not lock each other's sub-queues: a hash of the schema's name is
# part of the key.
IN_THIS_SCHEMA = """DO $migration$ BEGIN
EXECUTE replace(replace(replace($create$
CREATE {create}
$create$, '$$', '$no_schema_can_have_this_within_its_name_which_is_of_63_bytes_at_most$'),
    '@number@', pg_catalog.hashtextextended(current_schema(), 0)::text),
    '@schema@', pg_catalog.quote_ident(current_schema()));
END $migration$"""

TASK_TABLES = (("task", "TABLE"), ("temporary_task", "UNLOGGED TABLE"))
TASK_FUNCTIONS = ("returned", "back", "leave", "join", "may_lead", "promote")


def upgrade() -> None:
    ns = context.get_context().opts["namespace"]
    if op.get_context().dialect.name == "postgresql":
        _upgrade_postgresql(ns)
    else:
        _upgrade_sqlite(ns)


def downgrade() -> None:
    ns = context.get_context().opts["namespace"]
    if op.get_context().dialect.name == "postgresql":
        _downgrade_postgresql(ns)
    else:
        _downgrade_sqlite(ns)


def _upgrade_sqlite(ns: str) -> None:
    for statement in SQLITE_TABLES.split(";\n"):
        op.execute(statement.strip().format(ns=ns))
    for name, body in SQLITE_TRIGGERS.items():
        op.execute(f"CREATE TRIGGER {ns}_task_{name} {body.format(ns=ns)}")


def _downgrade_sqlite(ns: str) -> None:
    for table in ("calls", "connection", "session", "task", "tube"):
        op.execute(f"DROP TABLE {ns}_{table}")


def _upgrade_postgresql(ns: str) -> None:
    schema = "@schema@"
    for statement in POSTGRESQL_TABLES.split(";\n"):
        op.execute(statement.strip().format(ns=ns))
    for function in POSTGRESQL_FUNCTIONS:
        op.execute(IN_THIS_SCHEMA.format(create=function.format(ns=ns, schema=schema)))
    for name, kind in TASK_TABLES:
        table = f"{ns}_{name}"
        named = {function: f'{schema}."{table}_{function}"' for function in TASK_FUNCTIONS}
        common = {"key": f'{schema}."{ns}_key"', "refuse": f'{schema}."{ns}_refuse"'}
        named |= {f"lock_{row}": LOCK.format(row=row, **common) for row in ("new", "old")}
        named["task"] = f'{schema}."{table}"'
        for statement in POSTGRESQL_TASKS.split(";\n"):
            op.execute(statement.strip().format(ns=ns, table=table, kind=kind))
        for function in POSTGRESQL_TASK_FUNCTIONS:
            op.execute(IN_THIS_SCHEMA.format(create=function.format(**named)))
        for trigger in POSTGRESQL_TRIGGERS:
            op.execute(f"CREATE TRIGGER {trigger.format(table=table)}")


def _downgrade_postgresql(ns: str) -> None:
    for name, _ in TASK_TABLES:
        op.execute(f'DROP TABLE "{ns}_{name}"')
        for function in TASK_FUNCTIONS:
            op.execute(f'DROP FUNCTION "{ns}_{name}_{function}"')
    for function in ("key", "refuse"):
        op.execute(f'DROP FUNCTION "{ns}_{function}"')
    for table in ("server", "calls", "connection", "session", "tube"):
        op.execute(f'DROP TABLE "{ns}_{table}"')
    op.execute(f'DROP SEQUENCE "{ns}_task_id"')
