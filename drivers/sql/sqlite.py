"""The SQLite store: a plain file, or memory. Local disks only: its locks do not work on network disks."""

from __future__ import annotations

import ctypes
import os
import socket
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite as dialects
from tubes.migrations import sqlite as migrations
from tubes.migrations.running import migrate_command, must_upgrade

from tubes.clock import Clock, real_monotonic
from tubes.driver import Features, TubeRecord, TubeType
from tubes.errors import BadOption, StoreBusy, StoreError, StoreUnavailable
from tubes.interrupts import check_thread, guarded
from tubes.stats import Counts, Deltas
from tubes.store import Unit
from tubes.waiting import Waiters

from ..examining import IsAlive
from ..retries import pause_after
from . import sqlite_joined
from .driver import SqlDriver
from .joined import join
from .sqlite_errors import translated
from .sqlite_files import check_file, check_writable, is_kept_out, is_missing, kept_from, warn_of_other_hosts
from .sqlite_joined import SqliteJoinedTx
from .sqlite_lock_file import InMemoryLocks, LockFile
from .sqlite_shared import SharedFile, file_at
from .sqlite_statistics import notes
from .sqlite_tx import ReadTx, SqliteTx
from .sqlite_url import path_of, url_of
from .sqlite_writer import SqliteWriter
from .statements import statements
from .store import SqlStore

T = TypeVar("T")

OLDEST = (3, 35, 0)
"""The first version of SQLite with all that the statements use: RETURNING came last."""

PAGE_SIZE = 1024
"""Of a new file. A small task dirties a few pages, and a commit writes each of them whole: at 1024 instead of
SQLite's 4096 bytes, put, take and ack cost a third less."""

CHECKPOINT_PAGES = {"full": 1000, "normal": 8000, "off": 8000}
"""Pages in the write-ahead log before they are copied into the file (a checkpoint). If every commit is
synced, a log that grows costs more than one that is overwritten (the file system records its new size each
time: 95 µs a put instead of 60), so it is kept at 1 MB. Otherwise it is the copying that costs: 8 MB, twice
SQLite's default."""

LONG_LOG = 64 << 20
"""Bytes of the write-ahead log beyond which ``tidy`` tries to shorten it. If a long read lets it grow
further, SQLite truncates it to this size when it restarts it."""

SHORTEN_FOR = 0.5
"""Seconds that this may hold up writers, as it waits for those that are reading."""

BEING_MADE = 1.0
"""Seconds for which a file is tried again that cannot be opened, in case another user is just making it."""

WAITS_FOR_READERS_MS = 50
"""Milliseconds that one try to switch a file to a write-ahead log waits for readers."""

DIALECT = dialects.dialect(paramstyle="qmark")


class SqliteStore(SqlStore):
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``, or ``sqlite://`` for memory."""

    dialect = DIALECT
    reconnects = False

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: str,
        session_ttr_ms: int,
        namespace: str,
        migrate: bool | None,
        busy_timeout: float,
    ) -> None:
        super().__init__()
        check_version(sqlite3.sqlite_version_info)
        self.clock = clock
        self.path = path_of(url)
        self._what = "the in-memory database" if self.path is None else f"SQLite file {self.path}"
        self._durability = durability
        self._namespace = namespace
        self._busy_timeout = busy_timeout
        self._own_ttr_ms = session_ttr_ms
        self.lost_sessions: set[str] = set()
        self._sql = statements(DIALECT, namespace)
        self._notes = notes(DIALECT, namespace)
        self._long_log = LONG_LOG
        self._is_parked = False
        if self.path is not None:
            warn_of_other_hosts(self.path, self._what)
        with SharedFile.opening(self.path):
            self._open(migrate=migrate is not False)

    def _open(self, *, migrate: bool = False) -> None:
        """Open the connections, bring the schema up, and begin a session.

        Another user may be opening the database just now, and have made a file beside it that not all its
        users may use yet: SQLite sets its permissions only once it is there, and so do we with the lock file.
        """
        until, tries = real_monotonic() + BEING_MADE, 0
        while True:
            try:
                return self._try_to_open(migrate=migrate)
            except StoreUnavailable as error:
                if not is_kept_out(error):
                    raise
                if real_monotonic() >= until:
                    if file := kept_from(self.path, error.__cause__):
                        raise StoreUnavailable(
                            f"{self._what} cannot be used: access to {file} is denied"
                        ) from error.__cause__
                    raise
            tries += 1
            pause_after(tries)

    def _try_to_open(self, *, migrate: bool) -> None:
        command = migrate_command(url_of(self.path), self._namespace)
        if self.path is not None:
            if not migrate and is_missing(self.path):  # SQLite would make it, just to look into it
                must_upgrade(None, self._what, command, migrate=False)
            SharedFile.check_usable(self.path)
            check_file(self.path, self._what)
        db = self._connect()
        file = None if self.path is None else file_at(self.path)
        self._shared: SharedFile | None = None
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.RLock()  # reentrant: a fork's hook may call during the fork, and is refused
        self._resuming = threading.RLock()  # reentrant: a signal handler may call while one begins
        self._is_gone = False
        self._connection = 0  # until a session has begun, which the listener must not look at before
        try:
            is_behind = migrations.is_behind(db, self._namespace, self._what, command, migrate=migrate)
            self.writer = SqliteWriter(
                db, self._what, self._busy_timeout, shares_commits=self._durability == "full"
            )
            self._prepare()  # only now: it changes the file
            if is_behind:
                migrations.bring_up(self.writer, self._namespace, self._what)
            if self.path is None:
                self._locks: LockFile | InMemoryLocks = InMemoryLocks()
                self.waiters, self.counts = Waiters(), Counts()
            else:
                shared = guarded(self._share, self.path)
                if file != shared.file:  # the writer has another one open, which nobody would notice
                    raise StoreUnavailable(
                        f"{self._what} cannot be used: it was replaced while it was being opened; connect again"
                    )
                self._reader = self._connect()
                self.writer.share(shared.hold, CHECKPOINT_PAGES[self._durability])
                self._locks = shared.locks
                self.waiters, self.counts = shared.waiters, shared.counts
                self.writer.check_not_locked_here = shared.check_not_locked_here
                sqlite_joined.watch_first_savepoints()
            self._call_others = self._locks.call
            self.set_aside: set[str] = set()
            guarded(self._begin_session)
        except BaseException as error:
            if self._connection:  # its session has begun, and another queue may keep the lock file open
                self._locks.let_go(self._connection)
            guarded(self._close_files, db)
            if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                raise translated(error, self._what) from error
            if isinstance(error, OSError):  # the lock file
                raise StoreUnavailable(f"{self._what} cannot be used: {error}") from error
            raise

    def _share(self, path: str) -> SharedFile:
        self._shared = shared = SharedFile.open(path, self._namespace, self._sql, self)
        return shared

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                self.path if self.path is not None else ":memory:",
                timeout=self._busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise translated(error, self._what) from error

    def _prepare(self) -> None:
        """Set up the writer's connection."""
        db = self.writer.db
        db.execute(f"PRAGMA page_size={PAGE_SIZE}")
        if self.path is not None:
            # SQLite waits for readers, and no new ones can begin meanwhile. It does not wait for another
            # writer, which may be switching the file as well
            db.execute(f"PRAGMA busy_timeout={WAITS_FOR_READERS_MS}")
            while not self._has_log():
                mode = self.writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                if mode != "wal":
                    raise StoreUnavailable(f"{self._what} cannot be used: it stays in {mode} mode, not WAL")
        for setting in (
            f"synchronous={self._durability.upper()}",
            "wal_autocheckpoint=0",  # see sqlite_checkpoints
            "foreign_keys=ON",
            "recursive_triggers=OFF",
            "secure_delete=OFF",
            f"journal_size_limit={LONG_LOG}",
            "cache_size=-8000",
            "temp_store=MEMORY",
        ):
            db.execute(f"PRAGMA {setting}")
        db.execute("PRAGMA busy_timeout=0")

    def _has_log(self) -> bool:
        """Tell whether the file has a write-ahead log; if so, it keeps it for as long as this connection is open.

        Until the connection has read something, others may take the log away. Then nobody could commit:
        without a log a commit waits for all readers, and the lock of ``sqlite_hold`` looks like one of them.
        """
        self.writer.execute("SELECT 1 FROM sqlite_master").fetchall()
        return bool(self.writer.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal")

    # Transactions

    def transact(self, work: Callable[[SqliteTx], T], on_commit: Callable[[T], None] | None = None) -> T:
        if self._is_closed or self._is_stale or self._is_gone:  # what refresh asks, without its call
            self.refresh()
        check_thread()
        return self.writer.transact(work, on_commit)

    def _transact_unsynced(self, work: Callable[[SqliteTx], T]) -> T:
        self.refresh()
        return self.writer.transact_unsynced(work)

    def transaction(self, on_commit: Callable[[], None]) -> AbstractContextManager[Any]:
        self.refresh()
        return self.writer.transaction(on_commit)

    def join_transaction(self, connection: Any, open: Callable[[Any], Unit]) -> Unit:
        def begin(joined: sa.Connection) -> SqliteJoinedTx:
            if self.path is None:
                raise BadOption(
                    "a queue in memory has no connection but its own: use queue.transaction()",
                    option="connection",
                )
            tx = sqlite_joined.begin(joined, self.path, self._namespace, self._what, self.writer.begin_on)
            shared = self._shared
            if shared is None:  # another thread has closed it since the call began
                raise StoreUnavailable("this queue is closed")
            shared.joined.add(tx)
            return tx

        return join(connection, "sqlite", self, begin, open, sqlite_joined.stands)

    def within(self, tx: Any, work: Callable[[Any], T]) -> T:
        if isinstance(tx, SqliteJoinedTx):
            return sqlite_joined.within(tx, work, self._what)
        return self.writer.within(tx, work)

    def connection(self, unit: Unit) -> sa.Connection:
        if isinstance(unit.tx, SqliteJoinedTx):
            return unit.tx.connection
        self.refresh()
        return self.writer.lender().lend(self, unit)

    def read(self, work: Callable[[Any], T]) -> T:
        return guarded(self._read, work)

    def _read(self, work: Callable[[Any], T]) -> T:
        self.refresh()
        try:
            if self._reader is None:
                with self.writer.held() as db:
                    return work(ReadTx(db, is_open=True))  # nobody else writes meanwhile
            with self._reading:
                if self._is_parked:
                    self.writer.refuse_to_wait_for_oneself()
                if self._is_stale or self._is_closed:  # what was open before the wait is not now
                    return self._read(work)
                reader = self._reader  # a new one after a fork
                tx = ReadTx(reader)
                try:
                    return work(tx)
                finally:
                    if reader.in_transaction:
                        reader.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error, self._what) from error

    def lock_tube(self, tx: Any, tube: TubeRecord) -> None:
        """There is nothing to lock: only one writes at a time."""

    # Sessions

    def _begin_session(self, *, is_first: bool = True) -> None:
        """Add a session, and a connection that proves its life before anybody else can see it."""
        session, locks = uuid.uuid4().hex, self._locks
        held: list[int] = []

        def step(tx: SqliteTx) -> int:
            now = self.clock.now_ms()
            if self._notes.are_there(tx):
                self._notes.forget(tx)
            others = [id for id, _ in tx.rows(self._sql.connections) if locks.is_alive(id)]
            if not others and is_first:
                self._empty_temporary(tx)
            tx.run(self._sql.add_session, session, self._own_ttr_ms)
            mine = [(session, socket.gethostname(), os.getpid(), now)]
            (id,) = tx.insert(self._sql.add_connection, mine)
            while locks.is_alive(id):  # some process still holds it for a newer file that was here
                tx.run(self._sql.remove_connection, id)
                (id,) = tx.insert(self._sql.add_connection, mine)
            locks.hold(id)
            held.append(id)
            return id

        def begun(id: int) -> None:
            self.session, self._connection, self.session_ttr_ms = session, id, self._own_ttr_ms

        try:
            self.writer.transact_unsynced(step, begun)
        except BaseException:
            for id in held:  # it was not stored, so another will get it
                locks.let_go(id)
            raise

    def _empty_temporary(self, tx: SqliteTx) -> None:
        any_type = TubeType(Features(grouped=True, bounded=True))  # may have either: nobody says which
        for tube in self.tubes(tx):
            if tube.temporary:
                SqlDriver(any_type, tube, self._sql).drop(tx)

    def join(self, session: str) -> None:
        self.prove_life()  # if it was taken for dead, that gives it a connection to join with
        super().join(session)

    def prove_life(self) -> None:
        """Take the locks again, in case this process has lost them; notice if others took it for dead.

        A library that copies the lock file drops them, since closing any descriptor of it does; and they are
        on another file if it was deleted and made again. A process that looks meanwhile takes this one for
        dead and gives its tasks to others. Then this one's acks are refused, and it goes on in a new session.
        """
        shared = self._shared
        if shared is None or self._is_closed or self._is_stale or self._left:
            return
        if not shared.is_in_place():
            self._be_gone()
            return
        with suppress(OSError):
            shared.prove_life()
        if not self.read(self._is_known):
            with self._resuming:
                self._resume()

    def _be_gone(self) -> None:
        """Have each call say that the file is gone, and hold no lock for one that is now in its place."""
        if not self._is_gone:
            self._is_gone = True
            self._locks.let_go(self._connection)

    def _resume(self) -> None:
        if not self._left and not self.read(self._is_known):
            self._locks.let_go(self._connection)
            self.lost_sessions.add(self.session)
            try:
                self._begin_session(is_first=False)
            except OSError as error:  # the lock file
                raise StoreUnavailable(f"{self._what} cannot be used: {error}") from error

    def deaths_suspected(self, *, thoroughly: bool = False, allow_recent: bool = False) -> bool:
        """``allow_recent``: among processes that look again and again, one at a time looks at the locks.

        Otherwise each would look at the locks of all others, and hundreds of processes would do nothing else.
        """
        shared = self._shared
        if shared is None or self._is_closed or self._is_stale or not self._connection:
            return False
        self.prove_life()
        if self._is_gone:
            return True  # the closer look then says so

        def all_live(tx: ReadTx) -> bool:
            if allow_recent and shared.locks.have_all_just_lived():
                return True
            return shared.locks.are_all_alive(id for id, _ in tx.only_rows(self._sql.connections))

        try:
            return self.read(lambda tx: not all_live(tx) or self._is_any_over(tx, thoroughly=thoroughly))
        except StoreUnavailable:
            return False

    def _notice_the_dead(self, tx: SqliteTx, now: int) -> None:
        for id, _ in tx.rows(self._sql.connections):
            if not self._locks.is_alive(id):
                tx.run(self._sql.remove_connection, id)
        self._end_lonely(tx, now)

    def _end_lonely(self, tx: SqliteTx, now: int) -> None:
        tx.run(self._sql.end_lonely, now)

    # Counting

    def _add_last_calls(self, db: sqlite3.Connection) -> None:
        """Store what other threads did since the queue began to close, without waiting for the lock again."""

        def store(deltas: list[Deltas]) -> None:
            db.execute("BEGIN IMMEDIATE")
            self._add_calls(SqliteTx(self.writer, is_open=True), deltas)
            db.execute("COMMIT")

        with suppress(sqlite3.Error):
            self.counts.flush(store)

    # Tidying

    def tidy(self) -> None:
        if self.path is None:
            return
        with suppress(sqlite3.Error, StoreError):  # such as a full disk: calls that write something say so
            if self.read(self._notes.are_there):
                self.transact(self._notes.forget)
        self._shorten_log()

    def _shorten_log(self) -> None:
        """Let SQLite restart its log, which it cannot do by itself while somebody is always reading."""
        try:
            size = os.path.getsize(f"{self.path}-wal")
        except OSError:
            return
        if size <= self._long_log:
            if size <= LONG_LOG:  # SQLite has cut it off since
                self._long_log = LONG_LOG
            return
        self._long_log = 2 * size  # if a read outlasts this: do not try again at once

        def write(tx: SqliteTx) -> None:
            tx.only_run(self._sql.move_connection, self.session, self._connection)  # changes nothing

        with suppress(sqlite3.Error, StoreError):  # such as a full disk: calls that write something say so
            if self.writer.shorten_log(min(SHORTEN_FOR, self._busy_timeout), write):
                self._long_log = LONG_LOG

    def who_lives(self, deep: bool) -> tuple[IsAlive, Callable[[], float]]:
        return lambda tx, connection: self._locks.is_alive(connection), lambda: 0.0

    # Life

    def exiting(self) -> None:
        """The interpreter is ending: stop waiting for ever for other threads, which may never go on."""
        self.writer.waits_until = real_monotonic() + self._busy_timeout

    def close(self) -> None:
        super().close()
        kept = None
        with self._renewing:
            if self._is_stale and not (self._is_renewing or self.writer.is_inherited):
                kept, self._shared = self._shared, None  # all that a fork has left open here
        self._release(kept)  # without the lock, which the listener may be waiting for

    def _close(self) -> None:
        self._locks.let_go(self._connection)
        with suppress(StoreBusy), self.writer.held() as db:  # if busy, they stay open until the process ends
            self.writer.is_over = True
            if self.counts.is_dirty:
                self._add_last_calls(db)
            self._close_files(db)

    def _close_files(self, db: sqlite3.Connection) -> None:
        if self._shared is not None:
            self._shared.about_to_close(self)
        if self._reader is not None:
            with self._reading:
                self._reader.close()
        # First the rollback: an unread result would keep a transaction open, and the file locked
        for end in (db.rollback, db.close):
            with suppress(sqlite3.Error):
                end()
        self._release(self._shared)
        self._shared = None

    def _release(self, shared: SharedFile | None) -> None:
        """Leave the file, as one of its users."""
        if shared is not None:
            shared.release(self)

    def before_fork(self) -> None:
        """Close all connections once nobody uses them. If that takes too long, the child cannot use the file.

        SQLite remembers for the whole process which locks it has on a file. A child inherits that memory but
        not the locks: it would believe that it holds some, and lose what it writes when the parent closes the
        file; and it would wait for ever for what other threads of the parent hold. SQLite forgets it when its
        last connection is closed.
        """
        if self._shared is None or self._is_stale:
            return
        if not self.writer.park(self._busy_timeout):  # another thread may be closing the queue just now
            return
        if self._shared is None or not self._reading.acquire(timeout=self._busy_timeout):
            self.writer.unpark()
            return
        self._is_parked = True
        if self._reader is not None:
            self._reader.close()
        self.writer.db.close()
        self._shared.listener.park()

    def after_fork(self) -> None:
        if not self._is_parked:
            return
        self._is_parked = False
        try:
            if self._shared is not None:
                if not self._shared.is_in_place():
                    self._be_gone()  # SQLite would make an empty file there
                    return
                check_writable(self._shared.path, self._what)  # SQLite would open it for reading, for ever
            self.writer.use(self._connect())
            self._prepare()
            self._reader = self._connect()
        except Exception:  # the next call says why, or opens it again, in another session
            self._is_stale = True
            self._locks.let_go(self._connection)
            self.writer.db.close()
            raise
        finally:
            if self._shared is not None:
                self._shared.listener.unpark()
            self._reading.release()
            self.writer.unpark()

    def forked(self) -> None:
        if self._shared is not None:
            if not (self._is_parked or self._is_stale):
                SharedFile.mark_unusable(self._shared.path)
            for inherited in (self.writer.db, self._reader, self._shared):  # the parent's: never closed here
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
            SharedFile.forget_all()
        self.writer.is_inherited = True
        self._is_parked = False
        super().forked()

    def _renew(self) -> None:
        if self.path is None:
            raise StoreUnavailable("an in-memory queue does not outlive a fork: connect again in the child")
        kept = None if self.writer.is_inherited else self._shared
        try:
            with SharedFile.opening(self.path):
                super()._renew()
        except BaseException:
            self._shared = kept
            raise
        self._release(kept)  # only now: its waiters go on waiting

    def refresh(self) -> None:
        if self._is_gone and not (self._is_closed or self._is_stale):
            raise StoreUnavailable(
                f"{self._what} cannot be used: it was deleted or replaced while it was open; connect again"
            )
        super().refresh()


def check_version(found: tuple[int, ...]) -> None:
    """Raise StoreUnavailable for a SQLite that is too old: a queue on it could put, but never take."""
    if found < OLDEST:
        version, oldest = (".".join(map(str, which)) for which in (found, OLDEST))
        raise StoreUnavailable(
            f"this Python's SQLite is {version}, but tubes needs {oldest} or newer: use a Python that has it"
        )
