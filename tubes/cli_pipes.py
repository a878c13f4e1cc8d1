"""Tasks as lines of JSON, in and out: what the commands of ``tubes.cli`` read and print."""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import click

import tubes
from tubes.interrupts import guarded, interruptible
from tubes.task import Task

BATCH = 500
"""Most lines that are put, or tasks that are taken, in one commit."""

SIGNALS_EVERY = 100
"""Milliseconds between two looks for signals while a reader is slow: one that the system gave to another thread ends no
wait of this one."""


class Closed(Exception):
    """Whoever read our output has gone away, or it cannot be written."""


class Terminated(BaseException):
    """SIGTERM came."""


_secrets: set[str] = set()

_BEFORE_HOST, _IN_QUERY = re.compile(r"://[^:/@]*:(.+)@"), re.compile(r"password=([^&]+)")
"""Where a URL has a password."""

_C1 = re.compile(r"[\x7f-\x9f]")
"""What some terminals obey as they do an escape, and JSON lets pass."""


def keep_secret(url: str) -> None:
    """Never print this URL's passwords, also where they are not written as they should."""
    try:
        passwords = [urlsplit(url).password or ""]
    except ValueError:  # no URL at all: who knows what is in it
        passwords = [url]
    passwords += _BEFORE_HOST.findall(url) + _IN_QUERY.findall(url)
    for password in filter(None, passwords):
        _secrets.update((password, unquote(password), repr(password)[1:-1]))


def without_secrets(text: str) -> str:
    """A text without these passwords."""
    for secret in sorted(_secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "***")
    return text


def say(text: str) -> None:
    """Tell a person, on stderr."""
    one_line = "; ".join(map(str.strip, text.splitlines()))
    click.echo(f"tubes: {printable(without_secrets(one_line))}", err=True)


def printable(text: str) -> str:
    """A text in which what a terminal would obey is shown as what it is."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def line(value: object) -> str:
    """One line of NDJSON, readable; with escapes where text is not valid Unicode, or where a terminal would obey it."""
    try:
        text = _dumps(value)
    except RecursionError:
        text = _json_without_recursion(value)
    text = text.encode(errors="backslashreplace").decode()  # a lone surrogate's escape is JSON's own
    return _C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=repr)


class _Text(str):
    """JSON already."""


def _json_without_recursion(value: object) -> str:
    """The same of what is nested so deeply that it could just be read: to write it takes some calls more."""
    written: list[str] = []
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, _Text):
            written.append(part)
        elif isinstance(part, (dict, list)) and part:
            begin, end = "{}" if isinstance(part, dict) else "[]"
            inside: list[object] = []
            for item in part:
                inside.append(_Text(", " if inside else begin))
                inside += [_Text(f"{_dumps(item)}: "), part[item]] if begin == "{" else [item]
            left += [_Text(end), *reversed(inside)]
        else:
            written.append(_dumps(part))
    return "".join(written)


def shown(task: Task) -> dict[str, Any]:
    """A task as JSON: its payload as ``data``, or as ``bytes`` in base64."""
    is_bytes = isinstance(task.data, bytes)
    return {
        "id": task.id,
        "tube": task.tube,
        "state": task.state.name.lower(),
        **({"bytes": base64.b64encode(task.data).decode()} if is_bytes else {"data": task.data}),
        "pri": task.pri,
        "utube": task.utube,
        "created_at": task.created_at.isoformat(),
        "updated_at": task.updated_at.isoformat(),
        "due_at": None if task.due_at is None else task.due_at.isoformat(),
        "ttl": task.ttl,
        "ttr": task.ttr,
        "attempts": task.attempts,
        "session": None if task.owner is None else str(task.owner),
    }


def write_line(text: str) -> None:
    """Write a line to standard output, past every buffer: when this returns, the reader can have it."""
    write_out((text + "\n").encode())


def write_out(data: bytes) -> None:
    """Write to standard output; raise Closed where that cannot be."""
    left = memoryview(data)
    output = select.poll()
    output.register(1, select.POLLOUT)
    try:
        while left:
            while not interruptible(output.poll, SIGNALS_EVERY):
                pass
            left = left[os.write(1, left[: select.PIPE_BUF]) :]
    except BrokenPipeError as error:
        raise Closed from error
    except OSError as error:  # a full disk
        say(f"the output cannot be written: {error.strerror}")
        raise Closed from error


def write_error(data: bytes) -> None:
    """Write to stderr; where that cannot be, the work goes on, and the exit status tells."""
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


class Unbuffered(io.TextIOBase):
    """A standard file for what click and rich print.

    Of what is left in a buffer since it cannot be written, Python would tell at its end, with a status of its own.
    """

    def __init__(self, number: int, write: Callable[[bytes], None]) -> None:
        self._number = number
        self._write = write
        self._encoding = getattr((sys.__stdout__, sys.__stderr__)[number - 1], "encoding", "utf-8")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def write(self, text: str) -> int:
        self._write(text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)


@contextmanager
def progress(what: str, total: int | None = None, *, is_free: bool = True) -> Iterator[Callable[..., None]]:
    """A bar on stderr when that is a terminal; gives what changes it: ``advance=``, or ``completed=`` and the like."""
    if not (is_free and os.isatty(2)):
        yield lambda **news: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(what, total=total))


def base64_payload(text: str) -> bytes:
    """Return the payload that base64 text means, or raise ValueError."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from error


class Putting:
    """Puts the lines of standard input."""

    def __init__(
        self, tube: tubes.Tube, parse: Callable[[str], Any], options: dict[str, Any], is_json: bool
    ) -> None:
        self._tube = tube
        self._parse = parse
        self._options = options
        self._is_json = is_json
        self._batch = 1 if tube.features.bounded else BATCH  # a full tube takes what it has room for
        self._waiting: list[tuple[int, Any]] = []
        self._stored = self._bad = 0
        self._next = 1

    def run(self) -> int:
        """Return how many lines were bad."""
        try:
            with progress("put") as self._moved:
                number = 0
                for lines in incoming():
                    for text in lines:
                        number += 1
                        self._add(number, text)
                    self._store()  # what has come is stored before more is waited for
        except BaseException as error:
            say(f"ended early, {self._stored} put; {self._where(error)}")
            raise
        if self._bad:
            say(f"{self._stored} put, {self._bad} bad")
        return self._bad

    def _where(self, error: BaseException) -> str:
        first = self._waiting[0][0] if self._waiting else self._next
        if isinstance(error, tubes.OutcomeUnknown):
            last = self._waiting[: self._batch][-1][0]
            return f"whether lines {first} to {last} were, nobody knows; what follows them was not"
        return f"line {first} and what follows it were not"

    def _add(self, number: int, raw: bytes) -> None:
        try:
            text = raw.decode()
            if text.strip():
                self._waiting.append((number, self._parse(text)))
        except ValueError as error:
            self._report(number, error)
        if len(self._waiting) >= self._batch:
            self._store()

    def _store(self) -> None:
        while self._waiting:
            count = min(self._batch, len(self._waiting))
            try:
                self._put(count)
            except TypeError:  # JSON that cannot be carried, such as NaN: find it
                self._put_one_by_one(count)

    def _put_one_by_one(self, count: int) -> None:
        for _ in range(count):
            try:
                self._put(1)
            except TypeError as error:
                self._report(self._waiting.pop(0)[0], error)

    def _put(self, count: int) -> None:
        tasks = guarded(self._put_first, count)
        self._moved(advance=count)
        if self._is_json:
            for task in tasks:
                write_line(line(shown(task)))

    def _put_first(self, count: int) -> list[Task]:
        """Put the first lines that wait; Ctrl-C finds them either stored and counted, or neither."""
        tasks = self._tube.put_many([value for _, value in self._waiting[:count]], **self._options)
        self._stored += count
        self._next = self._waiting[count - 1][0] + 1
        del self._waiting[:count]
        return tasks

    def _report(self, number: int, error: Exception) -> None:
        self._bad += 1
        say(f"line {number}: {error}")


def incoming() -> Iterator[list[bytes]]:
    """Lines of standard input, as many as have come whenever some have."""
    unfinished: list[bytes] = []
    while chunk := read_in():
        ends, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield b"".join((*unfinished, ends)).split(b"\n")
            unfinished = [rest]
        else:
            unfinished.append(chunk)
    if last := b"".join(unfinished):
        yield [last]


def read_in() -> bytes:
    """Read from standard input when something has come, also where others that have it open made it not wait."""
    while True:
        try:
            return os.read(0, 1 << 18)
        except BlockingIOError:
            arrived = select.poll()
            arrived.register(0, select.POLLIN)
            arrived.poll()


class Taking:
    """Takes tasks and prints them."""

    def __init__(self, tube: tubes.Tube, count: int | None, timeout: float | None, acks: bool) -> None:
        self._tube = tube
        self._count = count
        self._timeout = timeout
        self._acks = acks
        self._printed = 0
        self.late = False

    def run(self) -> int:
        """Return how many tasks were printed."""
        with progress("take", self._count, is_free=not os.isatty(1)) as moved:
            while self._count is None or self._printed < self._count:
                most = BATCH if self._count is None else min(BATCH, self._count - self._printed)
                taken = guarded(self._take_and_print, most)
                if not taken:
                    break
                moved(advance=taken)
        return self._printed

    def _take_and_print(self, most: int) -> int:
        tasks = self._tube.take_many(most, self._timeout)
        self._print(tasks)
        return len(tasks)

    def _print(self, tasks: list[Task]) -> None:
        """Write lines until a signal comes; another one finds what was written acked."""
        written = 0
        try:
            for task in tasks:
                write_line(line(shown(task)))
                written += 1
        finally:  # a closed pipe, Ctrl-C and TERM come here too
            self._printed += written
            if self._acks and written:
                self._ack(tasks[:written])
            for task in tasks[written:]:
                with suppress(tubes.NotTaken):  # its time was over: it is back already
                    self._tube.release(task)

    def _ack(self, printed: list[Task]) -> None:
        acked = {task.id for task in self._tube.ack_many(printed)}
        for task in printed:
            if task.id not in acked:
                self.late = True
                say(str(tubes.NotTaken(self._tube.name, task.id, "was printed, but its ttl or ttr was over")))
