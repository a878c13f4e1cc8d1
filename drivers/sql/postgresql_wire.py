"""One connection to a PostgreSQL server: prepared statements, each one round trip.

It uses psycopg's libpq wrapper, below its cursors: the same INSERT takes 145 µs this way and 214 through a
cursor. Values travel as text.

Behind a pooler that may give each transaction another of the server's connections, nothing may outlast a
transaction: no prepared statement, no setting. There each transaction brings its settings, and a transaction
of one statement travels in one pipeline: BEGIN, settings, statement and COMMIT.
"""

from __future__ import annotations

import itertools
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq.abc import PGresult
from psycopg.types import bool as bools
from psycopg.types import numeric, string

from tubes.errors import BadOption, StoreError, StoreUnavailable
from tubes.interrupts import interruptible, postpone

from ..forks import keep_from_children
from ..retries import Lost
from .lending import Lender
from .postgresql_spinning import Spinner
from .statements import Row

T = TypeVar("T")

PLANNING = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
"""A plan made while the table was empty must not be a scan, since it is kept while the table fills.

Starting workers or compiling takes longer than a statement: looks that found nothing took 17 ms with two
workers.
"""

MEANING = {"array_nulls": "on"}
"""Batches travel as arrays, and a role's settings may have a NULL in one read as the text NULL."""

LASTING = {"plan_cache_mode": "force_generic_plan", "default_transaction_isolation": "read committed"}
"""What else is set if settings outlast a transaction."""

SILENCE = {
    "tcp_user_timeout": "tcp_user_timeout",
    "keepalives_idle": "tcp_keepalives_idle",
    "keepalives_interval": "tcp_keepalives_interval",
    "keepalives_count": "tcp_keepalives_count",
}
"""libpq's options for a silent network, and the server's settings for its end."""

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

DISCARD = "CLOSE ALL; UNLISTEN *; DISCARD TEMP; SELECT pg_advisory_unlock_all()"
"""Discards what users may have left on a connection, other than settings."""

TRIGGERS_SETTING = "session_replication_role"

HAS_TRIGGERS = f"current_setting('{TRIGGERS_SETTING}') <> 'replica'"
"""Without triggers nothing puts the right task in front of a sub-queue."""

PREPARED = "SELECT name FROM pg_prepared_statements"

POOLER = "08P01"
"""A pooler's SQLSTATE for all that ends a connection, such as losing the server's: it tells nothing of what
was done."""

NOTHING_DONE = ("query_wait_timeout", "server_login_retry", "cannot connect to server")
"""Signs in PgBouncer's messages that it had no connection to the server to send anything on."""

IDLE_TOO_LONG = ("25P03", "57P05")
"""The server has ended a connection that was idle for too long, and has not read what was sent just then."""

LOST_CODES = ("57P01", "57P02", "57P03", "08000", "08003", "08006", POOLER, *IDLE_TOO_LONG)
"""The server ends the connection, or has done so."""

TOO_LARGE = "54000"
"""A limit was exceeded, such as the size of a value."""

FAILED_BEFORE = "25P02"
"""What the server says to every statement in a transaction in which one has failed."""

ENDED = "a statement in this transaction, such as COMMIT or ROLLBACK, has ended it"

FAILING = "SELECT 1 / 0"
"""After this a transaction, or its innermost savepoint, can only be rolled back."""

CANCEL_WITHIN = 5.0
"""Seconds that a cancel request may take to reach the server."""

NOT_SUPPORTED = "0A000"
"""What the server says, for instance, if a statement's result no longer has the types that were prepared."""

READ_ONLY = "25006"
"""Nothing may be written: on a standby, or by the role's or the database's setting at connection time."""

ADAPTERS = AdaptersMap(types=psycopg.adapters.types)
"""What reads our results: an application may have others in psycopg's own for its own statements."""

for _of_types in (bools, numeric, string):
    _of_types.register_default_adapters(ADAPTERS)


class Refused(Exception):
    """The server refused a statement; the connection is fine. ``code`` is the SQLSTATE."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def without_triggers(option: str) -> BadOption:
    """The error for a connection without ``HAS_TRIGGERS``."""
    return BadOption(f"tubes does not work with {TRIGGERS_SETTING} = replica", option=option)


@dataclass(slots=True)
class Result:
    """What a statement gave: its rows, and how many it changed."""

    rows: list[Row]
    count: int


class Wire:
    """Used by one thread at a time. ``pooled``: whether it is behind a pooler; ``None``: find out."""

    def __init__(
        self, conninfo: str, what: str, durability: str, *, pooled: bool | None = False, **settings: str
    ) -> None:
        try:  # psycopg prepares nothing for borrowers: it would deallocate ours, too
            self._connection = psycopg.Connection.connect(
                conninfo,
                autocommit=True,
                prepare_threshold=None,
                client_encoding="utf8",
            )
            self._pg = self._connection.pgconn
            self._connection.add_notice_handler(self._heed)
            keep_from_children(self)
        except (psycopg.Error, OSError, UnicodeError) as error:  # out of file descriptors; no such host
            raise StoreUnavailable(f"{what} cannot be used: {str(error).strip()}") from error
        self._opened_by = os.getpid()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._spinner = Spinner(self._pg.socket)
        self._poll_to_send = select.poll()
        self._poll_to_send.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        self._prepared: dict[str, bytes] = {}
        self._transformer = Transformer(ADAPTERS)
        self._names = map(f"t{os.urandom(4).hex()}_{{}}".format, itertools.count())
        """For prepared statements, unique: behind an unnoticed pooler, others' of the same name would run."""
        self.is_lost = self.is_read_only = False
        self._lender: Lender | None = None
        self._was_lent = self._may_lack_triggers = False
        settings |= PLANNING | MEANING | {"synchronous_commit": "on" if durability == "full" else "off"}
        try:
            self.pooled = self._is_pooled() if pooled is None else pooled
            lasting = {} if self.pooled else settings | LASTING | self._silence()
            self._set_up = "; ".join(f"SET {name} = '{value}'" for name, value in lasting.items())
            """Sets it up for as long as it is open; empty behind a pooler."""
            has_triggers = self.simple(f"{self._set_up}; SELECT {HAS_TRIGGERS}").rows[0][0]
            if not has_triggers:  # by the role's settings, or the URL
                raise without_triggers("url")
        except BaseException:
            self.close()
            raise
        local = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        self._settle = f"SELECT {', '.join(local)}"
        """Sets the same for one transaction."""

    # Statements

    def execute(self, text: str, given: Sequence[Any], *, begin: str = "") -> Result:
        """Execute one statement: a transaction by itself unless one is open, or ``begin`` is to open one."""
        name = self._prepared.get(text)
        if name is None or begin:  # always, behind a pooler
            return self.pipeline(text, (given,), begin=begin)[0]
        self._check_own()
        self._sending(self._pg.send_query_prepared, name, [_sent(value) for value in given])
        return self._read(self._answers()[-1], was_prepared=True)

    def pipeline(self, text: str, rows: Sequence[Sequence[Any]], *, begin: str = "") -> list[Result]:
        """Execute a statement once for each row, in one pipeline with what must come before and after it."""
        self._check_own()
        values = [[_sent(value) for value in row] for row in rows]
        before, after = self._around(begin)
        name = self._prepared.get(text)
        is_new = name is None
        self._pg.enter_pipeline_mode()
        try:
            name = self._sending(self._send_all, text, name, values, before, after)
            answers = self._answers(are_piped=True)
        finally:
            if self._is_unread:
                self.close()
            if not self.is_lost:
                self._pg.exit_pipeline_mode()
                if after and self.in_transaction:
                    self.simple("ROLLBACK")
        for _ in range(len(before) + is_new):
            self._check(answers.pop(0), was_sent=False)
        if is_new and not self.pooled:
            self._prepared[text] = name
        # the server has skipped what follows a failure
        results = [self._read(answer, was_prepared=not is_new) for answer in answers]
        return results[: len(rows)]

    def begin(self, begin: str) -> None:
        """Begin a transaction ahead of its first statement. A query after it fixes the isolation level."""
        self.simple(f"{begin}; {self._settle if self.pooled else 'SELECT'}")

    def simple(self, text: str) -> Result:
        """Execute text without parameters: BEGIN, COMMIT, LISTEN. Return the result of its last statement."""
        self._check_own()
        self._sending(self._pg.send_query, text.encode())
        return self._read(self._answers()[-1])

    def clean_up(self) -> None:
        """Undo what was not committed, and what users have set on it, for the next use."""
        if self._is_unread:
            self.close()
            return
        if self.in_transaction:
            self.simple("ROLLBACK")
        if self._was_lent and self._set_up:
            reset = f"RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; {DISCARD}; {self._set_up}"
            prepared = {name.encode() for (name,) in self.simple(f"{reset}; {PREPARED}").rows}
            if prepared != {*self._prepared.values()}:  # users have prepared some, or deallocated ours
                self.close()
        elif self._was_lent and not self._is_in_utf8:  # behind a pooler nothing is reset
            self.close()
        self._was_lent = self._may_lack_triggers = False

    def check_settings(self) -> None:
        """Raise BadOption if a user whom it is lent to has set another encoding, or turned triggers off."""
        if not self._is_in_utf8:
            raise BadOption("tubes does not work with a client_encoding other than UTF8", option="unit")
        if self._may_lack_triggers and not self.simple(f"SELECT {HAS_TRIGGERS}").rows[0][0]:
            raise without_triggers("unit")

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that opened it, which may go on using it."""
        return self._opened_by != os.getpid()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, even a failed one."""
        return self._pg.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    @property
    def has_failed(self) -> bool:
        """Whether the open transaction can only be rolled back."""
        return self._pg.transaction_status == pq.TransactionStatus.INERROR

    # Notifications

    def fileno(self) -> int:
        """The socket, for polls."""
        return self._pg.socket

    def notifications(self) -> list[tuple[str, str, int]]:
        """The notifications that have come: channel, payload, the sender's server process id."""
        self._sending(self._pg.consume_input)
        came = []
        while (one := self._pg.notifies()) is not None:
            came.append((one.relname.decode(), one.extra.decode(errors="replace"), one.be_pid))
        return came

    @property
    def backend_pid(self) -> int:
        """The id of the server's process for this connection."""
        return self._pg.backend_pid

    def is_connected(self) -> bool:
        """Whether it has survived its idle time; if not, a statement would be sent to nobody."""
        try:
            self._check_own()
            while self._poll.poll(0):
                self.notifications()
            self._check_own()  # the server may have announced its end, and not ended it yet
        except Lost:
            self.close()
        return not self.is_lost

    def lender(self) -> Lender:
        """What lends this connection to users, as a SQLAlchemy Connection."""
        self._was_lent = True
        if self._lender is None:
            self._lender = Lender(
                "postgresql+psycopg://", self._connection, self._notice, stand_in=_that_goes_on
            )
        return self._lender

    def close(self) -> None:
        self.is_lost = True
        if not self.is_inherited:  # else the parent would lose it
            self._connection.close()

    # Within

    @property
    def _is_unread(self) -> bool:
        """Whether another thread has raised an exception in this one before it read the answer."""
        return self._pg.transaction_status == pq.TransactionStatus.ACTIVE

    @property
    def _is_in_utf8(self) -> bool:
        """Whether text travels in UTF-8, as ours does. The server tells whenever that changes."""
        return self._pg.parameter_status(b"client_encoding") in (b"UTF8", None)

    def _notice(self, text: str) -> None:
        """Look at a user's statement. Asking the server after each of them would cost a round trip."""
        if self._pg.transaction_status == pq.TransactionStatus.IDLE:
            raise StoreError(ENDED)  # else this is committed at once, or begins another transaction
        if TRIGGERS_SETTING in text.lower():
            self._may_lack_triggers = True

    def _heed(self, said: psycopg.errors.Diagnostic) -> None:
        """Heed what the server says unasked, such as that it ends the connection."""
        if said.severity_nonlocalized in ("FATAL", "PANIC"):
            self.is_lost = True

    def _sending(self, call: Callable[..., T], *args: Any) -> T:
        """Call libpq while no answer is under way: if that fails, nothing was done."""
        try:
            return call(*args)
        except psycopg.Error as error:
            raise self._gone(error, was_sent=False) from error

    def _is_pooled(self) -> bool:
        """Whether the server's process id is not the one told at connecting: a pooler makes that up."""
        pid: int = self.simple("SELECT pg_backend_pid()").rows[0][0]
        return pid != self._pg.backend_pid

    def _silence(self) -> dict[str, str]:
        """Settings for the server's end: else it would for hours keep what a vanished client has locked."""
        given = self._connection.info.get_parameters()
        return {ours: given[name] for name, ours in SILENCE.items() if given.get(name, "").isdecimal()}

    def _around(self, begin: str) -> tuple[Sequence[str], Sequence[str]]:
        """What must be sent before and after statements."""
        if not self.pooled:
            return ((begin,) if begin else ()), ()
        if begin:
            return (begin, self._settle), ()
        if self.in_transaction:
            return (), ()
        return (BEGIN, self._settle), ("COMMIT",)

    def _send_all(
        self,
        text: str,
        name: bytes | None,
        rows: Sequence[Sequence[bytes | None]],
        before: Sequence[str],
        after: Sequence[str],
    ) -> bytes:
        pg = self._pg
        for other in before:
            pg.send_query_params(other.encode(), None)
        if name is None:
            # a new name each time: that it was prepared may go unnoticed; without a name it is soon forgotten
            name = b"" if self.pooled else next(self._names).encode()
            pg.send_prepare(name, text.encode())
        for row in rows:
            pg.send_query_prepared(name, row)
        for other in after:
            pg.send_query_params(other.encode(), None)
        pg.pipeline_sync()
        return name

    def _answers(self, *, are_piped: bool = False) -> list[PGresult]:
        """Wait for all answers to what was sent. An interrupt cancels that, unless it is done already."""
        answers: list[PGresult] = []
        interrupt: BaseException | None = None
        while True:
            try:
                self._collect(answers, are_piped=are_piped)
                break
            except Lost as lost:
                if interrupt is not None:
                    raise interrupt from lost
                if _are_done(answers):  # else the server has said why
                    raise
                break
            except BaseException as caught:
                if interrupt is None:
                    self._break_off()
                interrupt = caught
        if not answers:
            gone = self._gone(None, was_sent=True)
            raise gone if interrupt is None else interrupt
        if interrupt is not None and not (_are_done(answers) and postpone(interrupt)):
            raise interrupt
        return answers

    def _collect(self, answers: list[PGresult], *, are_piped: bool) -> None:
        """Add the answers as they come. ``None`` ends them; in a pipeline it ends each, and SYNC all."""
        pg = self._pg
        try:
            while True:
                while pg.is_busy():
                    interruptible(self._wait)
                    pg.consume_input()
                answer = pg.get_result()
                if answer is not None and answer.status != pq.ExecStatus.PIPELINE_SYNC:
                    answers.append(answer)
                elif answer is not None or not are_piped:
                    return
                elif pg.status == pq.ConnStatus.BAD:  # no SYNC will come
                    break
        except psycopg.Error as error:
            raise self._gone(error, was_sent=True) from error
        raise self._gone(None, was_sent=True)

    def _wait(self) -> None:
        """Wait until something has come, or until the socket has room for more of what is to be sent."""
        if self._pg.flush():
            self._poll_to_send.poll()
        else:
            self._spinner.spin()
            self._poll.poll()

    def cancel(self) -> bool:
        """Cancel what is under way, if anything is; tell whether the server could be told. Any thread may."""
        if not self.is_inherited:  # what is under way is the parent's
            try:
                self._connection.cancel_safe(timeout=CANCEL_WITHIN)
            except psycopg.errors.CancellationTimeout:
                return False
            except psycopg.Error:
                pass
        return True

    def _break_off(self) -> None:
        """Cancel what was interrupted. A server that cannot be told would not answer either."""
        if not self.cancel():
            self.close()

    def _check_own(self) -> None:
        """Send nothing in a child that was forked in the middle of a call, nor after a pipeline broke off."""
        if self.is_lost or self.is_inherited:
            self.is_lost = True
            raise Lost("it was lost before, or belongs to the parent process", was_sent=False)

    def _gone(self, error: Exception | None, *, was_sent: bool) -> Lost | Refused:
        self.is_lost = True
        message = str(error).strip() if error is not None else "the connection is closed"
        if "output buffer" in message:  # libpq's, of 1 GB at most: no other connection has more room
            return Refused(TOO_LARGE, message)
        return Lost(message, was_sent=was_sent)

    def _read(self, result: PGresult, *, was_prepared: bool = False) -> Result:
        status = result.status
        if status == pq.ExecStatus.TUPLES_OK:
            load = self._transformer
            load.set_pgresult(result)
            rows = load.load_rows(0, result.ntuples, tuple)
            return Result(rows, result.command_tuples or 0)
        try:
            self._check(result, was_sent=True)
        except Refused as error:
            if not (was_prepared and error.code == NOT_SUPPORTED):
                raise
            # A column's type was altered, and other prepared statements may be for the old one
            self.is_lost = True
            raise Lost(str(error), was_sent=False) from error
        return Result([], result.command_tuples or 0)

    def _check(self, result: PGresult, *, was_sent: bool) -> None:
        """Raise what went wrong. If the server told so itself, nothing after it in the pipeline was done."""
        if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            return
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = result.get_error_message()
        if code in LOST_CODES or self._pg.status == pq.ConnStatus.BAD:
            self.is_lost = True
            is_told = code and (code != POOLER or any(sign in message for sign in NOTHING_DONE))
            raise Lost(message, was_sent=code not in IDLE_TOO_LONG and (was_sent or not is_told))
        if code == READ_ONLY:
            self.is_read_only = True
        raise Refused(code, message)


def _are_done(answers: Sequence[PGresult]) -> bool:
    return all(answer.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK) for answer in answers)


def _sent(value: Any) -> bytes | None:
    """A value in PostgreSQL's text format."""
    if value is None:
        return None
    if type(value) is str:
        return value.encode()
    if type(value) is bytes:
        return b"\\x" + value.hex().encode()
    if type(value) is bool:
        return b"t" if value else b"f"
    if type(value) is list:
        return array(value)
    return str(value).encode()


def array(values: Sequence[Any]) -> bytes:
    """Values as an array in PostgreSQL's text format. If all are of one type, they are converted together."""
    kinds = {*map(type, values)}
    if kinds == {int}:
        return f"{{{','.join(map(str, values))}}}".encode()
    if kinds == {str}:
        text = _BETWEEN.join(values)
        if text.count(_BETWEEN) == len(values) - 1:
            text = text.replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","')
            return f'{{"{text}"}}'.encode()
    return b"{" + b",".join([_in_array(value) for value in values]) + b"}"


_BETWEEN = "\x1f"
"""A character that JSON escapes, so that payloads do not contain it."""


def _in_array(value: Any) -> bytes:
    sent = _sent(value)
    if sent is None:
        return b"NULL"
    if isinstance(value, (str, bytes)):
        return b'"' + sent.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return sent


@contextmanager
def _that_goes_on(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """The connection, with its transaction kept open whatever an application does to each new connection."""
    kept = ("commit", "rollback", "set_autocommit", "set_isolation_level", "set_read_only", "set_deferrable")
    vars(connection).update({name: lambda *_: None for name in kept})
    try:
        yield connection
    finally:
        for name in kept:
            del vars(connection)[name]
