"""The one connection by which a queue writes to a SQLite file, and how threads share its commits.

A thread that finds the writer free runs its work and commits: a step of one statement without BEGIN and COMMIT.

What a thread does if it finds the writer taken depends on what a commit costs. With ``durability="full"`` it
is an fsync, so threads share it (group commit): they stand in line, and the next leader runs the work of all
that stand there (each guarded by a savepoint of its own) and commits once for everybody. Otherwise a commit
costs less than a switch between threads, so they sleep a moment and try again: the thread that has the writer
runs on without a switch for each call.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from itertools import pairwise
from os import sched_yield
from threading import get_ident
from typing import Any, TypeVar

from tubes.clock import pause, real_monotonic
from tubes.errors import StoreBusy, StoreError, StoreUnavailable
from tubes.interrupts import guarded, interruptible, postpone

from .lending import Lender
from .sqlite_checkpoints import Checkpoints, checkpoint_all
from .sqlite_errors import ENDED, commit_error, is_busy, translated
from .sqlite_hold import Hold
from .sqlite_stand_in import standing_in
from .sqlite_tx import LockedLate, SharedTx, SqliteTx, in_savepoint
from .statements import Row

T = TypeVar("T")

BEGIN = "BEGIN IMMEDIATE"

MOST_AT_ONCE = 64
"""How many members share one commit at most."""

COMPANY_COMES_IN = 0.0004
"""Seconds that the first in line waits at most for those that shared the last commit: that saves fsyncs."""

LONGEST_WAIT = 0.1
"""Seconds after which a thread in line looks by itself, in case the one to wake it was interrupted."""

FIRST_NAP, LONGEST_NAP, NAPS_FOR = 0.001, 0.004, 0.05
"""Seconds that a thread sleeps between tries if another has the writer and commits are not shared; after
NAPS_FOR it stands in line, since it might always wake while another has it."""

QUICK_TRIES = 8
"""Tries for the file's write lock before the first pause: most commits are over by then, unless they wait for
the disk."""

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.016
"""Seconds between two tries after that: each pause is twice the last (backoff), so that a writer that goes on
and on does many steps while the pages that it has cached are still valid."""

SHORT_PAUSE, PATIENT_FOR = 0.004, 0.08
"""Seconds between the tries of a thread that has waited for PATIENT_FOR seconds, so that nobody starves; a step
then reads the clock again, too."""

SHORTEST_PAUSE = 0.0005
"""After a second the pauses get shorter with every try, down to this: who has waited longest is likely next."""

GOES_ON_FOR, LETS_OTHERS_FOR = 0.1, 0.005
"""Seconds for which a queue writes on and on while others have waited for PATIENT_FOR, and for which it then lets
them: they would hardly ever try just in the tenth of a millisecond between two of its commits. On a slow disk,
which syncs ten times a second, some would wait until they give up."""

ENDED_ELSEWHERE, LOOK = 0.5, 0.001
"""Seconds that a call waits for another thread to end a transaction of its own thread; and between two looks."""


def stays_inside(is_inside: Callable[[], bool]) -> bool:
    """Tell whether this thread stays inside a transaction, so that its call would wait for itself.

    Another thread may end the transaction: a web framework that runs the parts of a request in a pool of
    threads may have given this one the next request by then.
    """
    until = real_monotonic() + ENDED_ELSEWHERE
    while is_inside():
        if real_monotonic() >= until:
            return True
        interruptible(pause, LOOK)
    return False


class _Member:
    """A thread in the line, with its ``work``; without, it wants the writer for itself and shares no commit.

    It waits until it ``leads`` (the turn is its own) or ``is_settled``: a leader has run its work, which
    has a ``result`` or an ``error``, or must be run again (``retry``).
    """

    __slots__ = (
        "alone", "error", "is_settled", "leads", "lock", "next", "on_commit", "result", "retry", "since", "work",
    )  # fmt: skip

    def __init__(
        self,
        work: Callable[[Any], Any] | None = None,
        on_commit: Callable[[Any], None] | None = None,
    ) -> None:
        self.work = work
        self.on_commit = on_commit
        self.alone = work is None
        self.since = real_monotonic()
        self.lock = threading.Lock()
        self.lock.acquire()
        self.reset()

    def reset(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.next: _Member | None = None
        self.leads = False
        self.retry = False
        self.is_settled = False

    def stir(self) -> None:
        """Wake the thread to look at its outcome, or whether the writer is free."""
        try:
            self.lock.release()
        except RuntimeError:  # it was stirred and has not looked yet
            return

    def stir_next(self) -> None:
        """Pass on that the commit is done: stirred all at once, the threads would be a thundering herd."""
        if self.next is not None:
            self.next.stir()


class _Spoiled(Exception):
    """A member has failed in a way that made SQLite roll back the shared transaction."""


class SqliteWriter:
    """Serialises and commits all writes of one queue to its file (or memory) through one connection."""

    def __init__(
        self, db: sqlite3.Connection, what: str, busy_timeout: float, *, shares_commits: bool
    ) -> None:
        self.db = db
        self._shares_commits = shares_commits
        self._what = what
        self._busy_timeout = busy_timeout
        self._turn = threading.Lock()
        self._line: deque[_Member] = deque()
        self._holder = 0
        """The thread that is inside ``transaction``; 0: none."""
        self._owner = 0
        """The thread that runs work and commits it; 0: none."""
        self._waiting: set[int] = set()
        """The threads that stand in line."""
        self._company = 0
        """How many members shared the last commit with its leader."""
        self._lender: Lender | None = None
        self._tx = SqliteTx(self)
        self.log = Checkpoints()
        self._hold: Hold | None = None
        self._goes_on_until = float("inf")
        """When it next lets others write."""
        self.check_not_locked_here: Callable[[], None] = lambda: None
        """Raises StoreBusy if this thread has the file's write lock through something else."""
        self.waits_until = float("inf")
        """When threads in line give up."""
        self.is_over = False
        """Its connection is being closed. Threads in line give up: the one that closes may wait for them."""
        self.is_inherited = False
        """Set on the parent's writer in a forked child: what is open on it is not the child's to end."""

    def share(self, hold: Hold, pages: int) -> None:
        """From now on, do what concerns others on the same file: copy a log of so many pages, let others write."""
        self.log.use(hold, pages)
        self._hold = hold
        self._goes_on_until = 0.0

    # A transaction each

    def transact(self, work: Callable[[SqliteTx], T], on_commit: Callable[[T], None] | None = None) -> T:
        """Run ``work`` and commit it, alone or together with other threads' work."""
        if self._line or self._company or self._turn.locked():
            return guarded(self._transact_among_others, work, on_commit)
        try:
            with self._turn:  # entered and left whole, whatever signal comes
                if self.log.is_due():  # like _maybe_copying, but cheaper when not due
                    with self.log.after_commit(self.db):
                        return self._run_alone(work, on_commit)
                return self._run_alone(work, on_commit)
        finally:
            if self._line:
                self._stir_first()

    def transact_unsynced(
        self, work: Callable[[SqliteTx], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        """The same without waiting for the disk, unless it shares a commit that does. For guarded calls only.

        The next commit that is synced makes this one safe as well: what a power cut leaves is the log up to
        some commit.
        """
        if not self._shares_commits or self._line or self._company or not self._turn.acquire(False):
            return self.transact(work, on_commit)
        try:
            self._end_what_was_left()  # in which that setting cannot be changed
            self.db.execute("PRAGMA synchronous=NORMAL")
            with self._maybe_copying():
                return self._run_alone(work, on_commit)
        finally:
            try:
                self.db.execute("PRAGMA synchronous=FULL")
            finally:
                self._give_up_turn()

    def _run_alone(self, work: Callable[[SqliteTx], T], on_commit: Callable[[T], None] | None) -> T:
        self._owner = get_ident()
        tx = self._tx
        tx.is_open = False
        try:
            if real_monotonic() >= self._goes_on_until:  # asked here, too, to spare most calls that call
                self._let_others_now_and_then()
            if self.db.in_transaction:
                self._end_what_was_left()
            try:
                result = work(tx)
            except LockedLate:
                tx.is_open = True
                result = work(tx)  # which reads the clock again
            if tx.is_open:
                self.db.execute("COMMIT")
            if on_commit is not None:
                on_commit(result)
            return result
        except sqlite3.Error as error:
            self._roll_back()
            raise commit_error(error, self._what) from error
        except BaseException:
            self._roll_back()  # also one that was interrupted before it was noted as open
            raise
        finally:
            self._owner = 0

    def _transact_among_others(
        self, work: Callable[[SqliteTx], T], on_commit: Callable[[T], None] | None
    ) -> T:
        member = _Member(work, on_commit)  # before it has the turn: there may be no memory for it
        if not self._shares_commits:
            self._take_turn()
        elif len(self._line) < self._company or not self._turn.acquire(False):
            return self._stand_in_line(member)  # type: ignore[no-any-return]
        return self._lead(member)  # type: ignore[no-any-return]

    @contextmanager
    def transaction(self, on_commit: Callable[[], None]) -> Iterator[SqliteTx]:
        """Hold the writer for as long as the block stays_inside."""
        self._take_turn()
        try:
            self._holder = get_ident()
            tx = SqliteTx(self, is_open=True)
            with self._translating():
                self._end_what_was_left()
                self.begin()
            try:
                yield tx
            finally:
                if self._lender is not None:
                    self._lender.take_back()
            if self.is_inherited:
                raise StoreUnavailable(
                    "this transaction belongs to the parent process: a forked child cannot commit it"
                )
            try:
                self._check_stands()
                with self._maybe_copying():
                    self.db.execute("COMMIT")
            except sqlite3.Error as error:
                raise commit_error(error, self._what) from error
            on_commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            if not self.is_inherited:
                self._holder = 0
                self._give_up_turn()

    def within(self, tx: SqliteTx, work: Callable[[Any], T]) -> T:
        """Run ``work`` in such a transaction; an error undoes what it did, and nothing else."""
        self._check_stands()
        with self._translating():
            return in_savepoint(self.db, self.db.execute, work, tx)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self._what) from error

    def _check_stands(self) -> None:
        if not self.db.in_transaction:
            raise StoreError(f"{self._what}: {ENDED}")

    def lender(self) -> Lender:
        """What lends the connection to users, in a ``transaction``."""
        if self._lender is None:
            self._lender = Lender(
                "sqlite://",
                self.db,
                lambda _: self._check_stands(),
                closes_results=True,
                stand_in=standing_in,
            )
        return self._lender

    def is_held_by(self, thread: int) -> bool:
        """Whether this thread has the file's write lock in a ``transaction``."""
        return self._holder == thread and self.db.in_transaction

    @contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """Hold the connection itself: to read, if the database has no other; to shorten the log; to close."""
        if self._holder == get_ident():
            yield self.db
            return
        self._take_turn()
        try:
            yield self.db
        finally:
            self._give_up_turn()

    def shorten_log(self, patience: float, write: Callable[[SqliteTx], object]) -> bool:
        """Copy the write-ahead log into the file and truncate it; return False if readers prevented that.

        ``write`` adds something to the log first: see ``sqlite_checkpoints``.
        """
        with self.held() as db, self.log.alone() as is_alone:
            if not is_alone:
                return True  # another is copying it
            self._run_alone(write, None)
            return checkpoint_all(db, "TRUNCATE", patience)

    # Around a fork

    def park(self, timeout: float) -> bool:
        """Get the turn and keep it; tell whether that succeeded in time."""
        if get_ident() in (self._holder, self._owner) or not self._turn.acquire(timeout=timeout):
            return False
        self._owner = get_ident()
        return True

    def use(self, db: sqlite3.Connection) -> None:
        """Write through another connection from now on. Only between ``park`` and ``unpark``."""
        self.db = db
        self._lender = None
        self._tx = SqliteTx(self)

    def unpark(self) -> None:
        """Let the others go on."""
        self._owner = 0
        self._give_up_turn()

    # Threads that find it taken

    def refuse_to_wait_for_oneself(self) -> None:
        """Raise StoreBusy if this thread has the writer, or the file's write lock through something else."""
        self._check_is_not_here(get_ident())
        self.check_not_locked_here()

    def _check_is_not_here(self, thread: int) -> None:
        if self._holder == thread and stays_inside(lambda: self._holder == thread):
            raise StoreBusy(
                "this thread is inside queue.transaction() and would wait for itself: pass unit= to the "
                "call; make calls that take none before or after"
            )
        if self._owner == thread or thread in self._waiting:
            raise StoreBusy(
                "a signal handler or fork hook made a call that would wait for the call it interrupted: "
                "set a flag there instead, or raise"
            )

    def _take_turn(self) -> None:
        """Get the writer for this thread alone, until it gives up the turn."""
        if self._turn.acquire(False):
            return
        if self._shares_commits or not self._snatch_turn():
            self._stand_in_line(_Member())

    def _snatch_turn(self) -> bool:
        """Sleep a moment and try again, for a while; tell whether it got the turn."""
        self._check_is_not_here(get_ident())
        began, nap = real_monotonic(), FIRST_NAP
        while not self._turn.acquire(False):
            if real_monotonic() - began >= NAPS_FOR:
                return False
            interruptible(pause, nap)
            nap = min(nap * 2, LONGEST_NAP)
        return True

    def _stand_in_line(self, member: _Member) -> Any:
        thread = get_ident()
        self._check_is_not_here(thread)
        self._waiting.add(thread)
        self._line.append(member)
        try:
            self._wait(member)
        except BaseException as interrupt:
            self._leave_line(member)
            is_done = member.is_settled and not member.retry and member.error is None
            if not is_done or not (isinstance(interrupt, StoreBusy) or postpone(interrupt)):
                raise
        finally:
            self._waiting.discard(thread)
            member.stir_next()
        if member.leads:
            return None if member.work is None else self._lead(member)
        return self._outcome(member)

    def _wait(self, member: _Member) -> None:
        """Return when the member's work is settled, or the turn is its own."""
        if self._company and not member.alone:  # the last of the company to come will lead, since it is awake
            patience = COMPANY_COMES_IN if self._first_in_line() is member else LONGEST_WAIT
            interruptible(member.lock.acquire, True, patience)
        while not member.is_settled and not member.leads:
            if self._turn.acquire(False):
                if member.is_settled:
                    self._give_up_turn()
                else:
                    self._line.remove(member)
                    member.leads = True
                return
            if self.is_over:
                raise StoreUnavailable("this queue is closed")
            if real_monotonic() >= self.waits_until:
                raise StoreBusy(
                    f"{self._what} is closing, and another thread is in the middle of a transaction"
                )
            if not interruptible(member.lock.acquire, True, LONGEST_WAIT):
                self.check_not_locked_here()  # only now: it takes longer than most waits

    def _first_in_line(self) -> _Member | None:
        try:
            return self._line[0]
        except IndexError:
            return None

    def _call_first(self, is_meant: Callable[[_Member], bool]) -> _Member | None:
        """Take the first in line out of it and return it, if ``is_meant``. Members may leave at any time."""
        while (first := self._first_in_line()) is not None and is_meant(first):
            with suppress(ValueError):  # it has left
                self._line.remove(first)
                return first
        return None

    def _leave_line(self, member: _Member) -> None:
        """An interrupt came while waiting: leave, unless a leader is at the work; then wait for its end."""
        try:
            self._line.remove(member)
            self._stir_first()  # we may have been the one told that the writer is free
        except ValueError:
            while not member.is_settled and not member.leads:
                with suppress(BaseException):
                    member.lock.acquire()
            if member.leads:
                self._give_up_turn()

    def _give_up_turn(self) -> None:
        """Let go of the writer, and tell the first in line.

        The turn is not handed over: until the other thread runs, this one may come again with its next work,
        and then does the line's work too. With a handover, threads would keep waiting for a switch to each
        other. Only a member that must be alone is handed the turn, since no leader would gather it.
        """
        if self._line and (first := self._call_first(lambda member: member.alone)):
            first.leads = True
            first.stir()
            return
        self._turn.release()
        self._stir_first()

    def _stir_first(self) -> None:
        first = self._first_in_line()
        if first is not None:
            first.stir()

    def _outcome(self, member: _Member) -> Any:
        if member.retry:
            member.reset()
            return self._lead(member) if self._turn.acquire(False) else self._stand_in_line(member)
        if member.error is not None:
            raise member.error
        return member.result

    def _lead(self, member: _Member) -> Any:
        if member.alone or not self._line:
            self._company = 0
            try:
                with self._maybe_copying():
                    return self._run_alone(member.work, member.on_commit)  # type: ignore[arg-type]
            finally:
                self._give_up_turn()
        batch = [member]
        failure: BaseException | None = None
        try:
            self._owner = get_ident()
            self._end_what_was_left()
            self.begin()
            for one in batch:
                if one is batch[-1]:
                    self._gather(batch)  # and these are next
                self._run(one)
            with self._maybe_copying():
                self.db.execute("COMMIT")
        except BaseException as error:
            failure = error
            self._roll_back()
        try:
            self._settle(batch, failure)
            self._company = len(batch) - 1
        finally:
            for one, other in pairwise(batch):
                one.next = other
            for one in batch:
                one.is_settled = True
            self._owner = 0
            member.stir_next()
            self._give_up_turn()
        return self._outcome(member)

    def _gather(self, batch: list[_Member]) -> None:
        """Let those in line join the batch, up to the first that must be alone."""
        while len(batch) < MOST_AT_ONCE and (first := self._call_first(lambda member: not member.alone)):
            batch.append(first)

    def _run(self, member: _Member) -> None:
        """Run one member's work. An error is the member's own; raise _Spoiled if it ended the transaction."""
        tx = SharedTx(self)
        try:
            member.result = member.work(tx)  # type: ignore[misc]
            tx.release()
        except Exception as error:
            if not self.db.in_transaction:
                member.alone = True
                raise _Spoiled from error
            tx.undo()
            member.error = translated(error, self._what) if isinstance(error, sqlite3.Error) else error

    def _settle(self, batch: list[_Member], failure: BaseException | None) -> None:
        """Give every member its outcome: the commit's, its own error, or another try."""
        for member in batch:
            if failure is None:
                if member.error is None and member.on_commit is not None:
                    try:
                        member.on_commit(member.result)
                    except Exception as error:  # its own matter: the commit is done
                        member.error = error
            elif isinstance(failure, sqlite3.Error):
                member.error = commit_error(failure, self._what)
                member.error.__cause__ = failure
            elif isinstance(failure, _Spoiled):
                member.error, member.retry = None, True
            elif member is batch[0]:
                member.error = failure
            else:
                member.retry = True

    # SQL

    def _let_others_now_and_then(self) -> None:
        """Let those write who have waited for long, if there are any, and if it has gone on for long itself."""
        if real_monotonic() >= self._goes_on_until:
            if self._hold is not None and self._hold.is_anybody_in_need():
                interruptible(pause, LETS_OTHERS_FOR)
            self._goes_on_until = real_monotonic() + GOES_ON_FOR

    def begin(self, *, is_step: bool = False) -> None:
        """Begin a transaction that has the file's write lock."""
        self._let_others_now_and_then()
        if not self._execute_unless_busy(BEGIN, ()):
            self.insist(BEGIN, (), is_step=is_step)

    def execute(self, text: str) -> sqlite3.Cursor:
        """Execute what needs the file's lock; while others hold it, try again until the timeout."""
        return self._execute_unless_busy(text, ()) or self.insist(text, ())

    def insist(self, text: str, given: Row, *, is_step: bool = False) -> sqlite3.Cursor:
        """Retry until the lock can be had, or raise StoreBusy after the timeout.

        A step that has waited for PATIENT_FOR is begun anew: by the time that it was given, it might take a task
        that has expired meanwhile, or for a ttr that is over already. LockedLate says that it has the lock now.
        """
        for _ in range(0 if self._shares_commits else QUICK_TRIES):
            sched_yield()  # its holder may need this very processor
            if cursor := self._execute_unless_busy(text, given):
                return cursor
        self.check_not_locked_here()
        self.log.let_go(self.db)
        began = real_monotonic()
        with closing(self._tries(self._busy_timeout)) as tries:
            for is_late in tries:
                if not (is_step and is_late):
                    if cursor := self._execute_unless_busy(text, given):
                        return cursor
                elif self._execute_unless_busy(BEGIN, ()):
                    raise LockedLate
        raise self._in_vain(began)

    def begin_on(self, db: sqlite3.Connection) -> None:
        """Begin a transaction on the user's connection, and wait for the lock for as long as that waits itself.

        But not as it waits: SQLite sleeps for up to a tenth of a second between two tries, and others are faster.
        """
        self.refuse_to_wait_for_oneself()
        self._let_others_now_and_then()
        patience = db.execute("PRAGMA busy_timeout").fetchone()[0]
        db.execute("PRAGMA busy_timeout=0")
        try:
            with closing(self._tries(patience / 1000)) as tries:
                is_begun = _execute_unless_busy(db, BEGIN) or any(
                    _execute_unless_busy(db, BEGIN) for _ in tries
                )
            if not is_begun:
                db.execute(BEGIN)  # which says why not
        finally:
            db.execute(f"PRAGMA busy_timeout={patience}")

    def _tries(self, patience: float) -> Generator[bool, None, None]:
        """Pause before each try for the file's lock; yield whether they have taken PATIENT_FOR by then."""
        began, nap, waited = real_monotonic(), FIRST_PAUSE, 0.0
        try:
            while waited < PATIENT_FOR:
                interruptible(pause, nap)
                yield False
                waited = real_monotonic() - began
                if waited >= patience:
                    return
                nap = min(nap * 2, LONGEST_PAUSE)
            with nullcontext() if self._hold is None else self._hold.in_need():
                while waited < patience:
                    interruptible(pause, max(SHORT_PAUSE / max(waited, 1.0) ** 2, SHORTEST_PAUSE))
                    yield True
                    waited = real_monotonic() - began
        finally:
            self._goes_on_until = real_monotonic() + GOES_ON_FOR

    def _execute_unless_busy(self, text: str, given: Row) -> sqlite3.Cursor | None:
        return _execute_unless_busy(self.db, text, given)

    def _in_vain(self, began: float) -> StoreBusy:
        """The error after waiting for the lock since ``began``. Members in line for as long get it, too."""
        why = f"{self._what} was locked by another connection for more than {self._busy_timeout:g} s"
        while first := self._call_first(lambda member: member.since <= began):
            first.error = StoreBusy(why)
            first.is_settled = True
            first.stir()
        return StoreBusy(why)

    def _maybe_copying(self) -> AbstractContextManager[None]:
        """Around a commit: SQLite copies the log after it, if that is due."""
        return self.log.after_commit(self.db) if self.log.is_due() else nullcontext()

    def _roll_back(self) -> None:
        try:
            if self.db.in_transaction and not self.is_inherited:
                self.db.execute("ROLLBACK")
        except (sqlite3.Error, MemoryError):  # whoever writes next tries again
            pass

    def _end_what_was_left(self) -> None:
        """Roll back what could not be: a step of one statement would end up in it, and never be committed."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
            if self._shares_commits:  # this may be what could not be set back in there
                self.db.execute("PRAGMA synchronous=FULL")


def _execute_unless_busy(db: sqlite3.Connection, text: str, given: Row = ()) -> sqlite3.Cursor | None:
    try:
        return db.execute(text, given)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return None
        raise
