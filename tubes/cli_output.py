"""What the command prints: lines on standard output and stderr, a progress bar, and never a password."""

from __future__ import annotations

import io
import json
import math
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import unquote, urlsplit

import click

from tubes.interrupts import interruptible

SIGNALS_EVERY = 100
"""Milliseconds between two looks for signals while a reader is slow.

A signal that the system gives to another thread does not end this one's wait.
"""


class Closed(Exception):
    """The reader of our output has gone away, or it cannot be written."""


_secrets: set[str] = set()

_BEFORE_HOST = re.compile(r":///*[^:/@]*:(.+)@", re.DOTALL)
_IN_QUERY = re.compile(r"(?:password|scram_client_key|scram_server_key|oauth_client_secret)=([^&]+)")
"""Where a URL has a password, or what is as good as one."""

_OBEYED = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What some terminals obey like an escape, and what else ends or reverses a line: JSON lets it pass."""


def keep_secret(url: str) -> None:
    """Never print this URL's passwords, even if they are not written as they should be."""
    try:
        passwords = [urlsplit(url).password or ""]
    except ValueError:  # not a URL at all: hide all of it
        passwords = [url]
    passwords += _BEFORE_HOST.findall(url) + _IN_QUERY.findall(url)
    for password in filter(None, passwords):
        _secrets.update((password, unquote(password), repr(password)[1:-1]))


def without_secrets(text: str) -> str:
    """A text without these passwords. One may be part of another, or overlap with it."""
    places = sorted(
        (found.start(), found.start() + len(secret))
        for secret in _secrets
        for found in re.finditer(f"(?={re.escape(secret)})", text)
    )
    shown, end = "", 0
    for begin, after in places:
        if begin >= end:
            shown += f"{text[end:begin]}***"
        end = max(end, after)
    return shown + text[end:]


def say(text: str) -> None:
    """Tell a person, on stderr."""
    one_line = "; ".join(map(str.strip, without_secrets(text).splitlines()))
    click.echo(f"tubes: {printable(one_line)}", err=True)


def printable(text: str) -> str:
    """A text in which what a terminal would obey is shown as an escape."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def line(value: object) -> str:
    """One line of NDJSON, readable; invalid Unicode and what a terminal would obey are written as escapes."""
    try:
        text = _dumps(value)
    except (RecursionError, ValueError):
        text = _json_part_by_part(value)
    text = text.encode(errors="backslashreplace").decode()  # a lone surrogate's escape is JSON's own
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=repr, allow_nan=False)


class _Text(str):
    """Text that is JSON already."""


def _json_part_by_part(value: object) -> str:
    """The same for what is nested so deeply that it could only just be read, and for numbers that JSON lacks.

    Writing takes a few more nested calls than reading. Others may have put 1e999, which is JSON, and infinite
    in Python; or NaN.
    """
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
        elif isinstance(part, float) and not math.isfinite(part):
            written.append("null" if math.isnan(part) else f"{math.copysign(1, part):.0f}e999")
        else:
            written.append(_dumps(part))
    return "".join(written)


def write_line(text: str) -> None:
    """Write a line to standard output, past every buffer: when this returns, the reader can have it."""
    write_out((text + "\n").encode())


def is_awaited(wait_ms: float) -> bool:
    """Whether standard output can be written now, or within so many milliseconds."""
    output = select.poll()
    output.register(1, select.POLLOUT)
    return bool(interruptible(output.poll, max(wait_ms, 0)))


def await_reader() -> None:
    """Wait until standard output can be written."""
    while not is_awaited(SIGNALS_EVERY):
        pass


def write_out(data: bytes) -> None:
    """Write to standard output, or raise Closed."""
    left = memoryview(data)
    try:
        while left:
            await_reader()
            with suppress(BlockingIOError):  # others that share it made it non-blocking, and were faster
                left = left[os.write(1, left[: select.PIPE_BUF]) :]
    except BrokenPipeError as error:
        raise Closed from error
    except OSError as error:  # a full disk
        say(f"the output cannot be written: {error.strerror}")
        raise Closed from error


def write_error(data: bytes) -> None:
    """Write to stderr; if that fails, the work goes on, and the exit status tells how it went."""
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


class Unbuffered(io.TextIOBase):
    """A standard file for what click and rich print.

    If a buffer kept what cannot be written, Python would report that at its end, with a status of its own.
    """

    def __init__(self, number: int, write: Callable[[bytes], None]) -> None:
        self._number = number
        self._write = write
        self._encoding = getattr((sys.__stdout__, sys.__stderr__)[number - 1], "encoding", "utf-8")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def write(self, text: str | bytes) -> int:
        """Write text, or bytes, which are what click prints for a shell that completes a command."""
        self._write(text if isinstance(text, bytes) else text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)


@contextmanager
def progress(what: str, total: int | None = None, *, prints: bool) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr if that is a terminal; gives what updates it: ``advance=``, ``completed=``.

    None is drawn if lines are printed meanwhile, and on a terminal: it would get between them.
    """
    if not os.isatty(2) or (prints and os.isatty(1)):
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
