"""Tasks as lines of JSON, in and out: what ``tubes put`` reads and ``tubes take`` prints."""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import tubes
from tubes.cli_output import await_reader, is_awaited, line, progress, say, write_line
from tubes.clock import real_monotonic
from tubes.interrupts import guarded, is_raised_by_handler
from tubes.payload import parse
from tubes.task import Task

BATCH = 500
"""Most lines that are put, or tasks that are taken, in one commit."""

PATIENCE = 0.1
"""Seconds for which taken tasks may wait for a reader that lags behind."""


def task_as_json(task: Task) -> dict[str, Any]:
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


def json_value(text: str) -> Any:
    """Return what JSON text means, or raise ValueError."""
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        hint = """; text needs quotes of its own: '"text"'""" if error.pos == 0 else ""
        raise ValueError(f"not JSON ({error}){hint}") from error


def base64_payload(text: str) -> bytes:
    """Return the payload that base64 text means, or raise ValueError."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from error


class Putting:
    """Puts the lines of standard input."""

    def __init__(
        self, tube: tubes.Tube, read: Callable[[str], Any], options: dict[str, Any], is_json: bool
    ) -> None:
        self._tube = tube
        self._read = read
        self._options = options
        self._is_json = is_json
        self._batch = 1 if tube.features.bounded else BATCH  # a full tube takes what it has room for
        self._waiting: list[tuple[int, Any]] = []
        self._stored = self._bad = self._under_way = 0
        self._next = 1

    def run(self) -> int:
        """Return how many lines were bad."""
        try:
            with progress("put", prints=self._is_json) as self._moved:
                number = 0
                for lines in incoming():
                    for text in lines:
                        number += 1
                        self._add(number, text)
                    if self._waiting:
                        self._store()  # store what has come before waiting for more
        except BaseException as error:
            say(f"ended early, {self._stored} put; {self._where(error)}")
            raise
        if self._bad:
            say(f"{self._stored} put, {self._bad} bad")
        return self._bad

    def _where(self, error: BaseException) -> str:
        first = self._waiting[0][0] if self._waiting else self._next
        if isinstance(error, tubes.OutcomeUnknown):
            last = self._waiting[self._under_way - 1][0]
            which = f"line {first}" if last == first else f"lines {first} to {last}"
            return f"{which} may or may not have been put; later lines were not"
        return f"line {first} and later lines were not"

    def _add(self, number: int, raw: bytes) -> None:
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                self._waiting.append((number, self._read(text)))
        except ValueError as error:
            self._report(number, error)
        if len(self._waiting) >= self._batch:
            self._store()

    def _store(self) -> None:
        try:
            self._put(len(self._waiting))
        except TypeError:  # JSON that cannot be carried, such as NaN: find it
            self._put_one_by_one()

    def _put_one_by_one(self) -> None:
        while self._waiting:
            try:
                self._put(1)
            except TypeError as error:
                self._report(self._waiting.pop(0)[0], error)

    def _put(self, count: int) -> None:
        tasks = guarded(self._put_first, count)
        self._moved(advance=count)
        if self._is_json:
            for task in tasks:
                write_line(line(task_as_json(task)))

    def _put_first(self, count: int) -> list[Task]:
        """Put the first lines that wait; Ctrl-C finds them both stored and counted, or neither."""
        self._under_way = count
        values = [value for _, value in self._waiting[:count]]
        if count == 1:  # by put, whose errors do not speak of a list
            tasks = [self._tube.put(values[0], **self._options)]
        else:
            tasks = self._tube.put_many(values, **self._options)
        self._stored += count
        self._next = self._waiting[count - 1][0] + 1
        del self._waiting[:count]
        return tasks

    def _report(self, number: int, error: Exception) -> None:
        self._bad += 1
        say(f"line {number}: {error}")


def incoming() -> Iterator[list[bytes]]:
    """Lines of standard input; each time, as many as have come."""
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
    """Read from standard input when something has come, even if others that share it made it non-blocking."""
    while True:
        try:
            return os.read(0, 1 << 18)
        except BlockingIOError:
            arrived = select.poll()
            arrived.register(0, select.POLLIN)
            arrived.poll()


class Taking:
    """Takes tasks and prints them. None is held while the reader lags behind, since its ttr would run out."""

    def __init__(self, tube: tubes.Tube, count: int | None, timeout: float | None, acks: bool) -> None:
        self._tube = tube
        self._count = count
        self._timeout = timeout
        self._acks = acks
        self._printed = 0
        self._most = BATCH
        self.late = False

    def run(self) -> int:
        """Return how many tasks were printed."""
        with progress("take", self._count, prints=True) as moved:
            while self._count is None or self._printed < self._count:
                await_reader()
                most = self._most if self._count is None else min(self._most, self._count - self._printed)
                printed = guarded(self._take_and_print, most)
                if not printed:
                    break
                moved(advance=printed)
        return self._printed

    def _take_and_print(self, most: int) -> int:
        tasks = self._tube.take_many(most, self._timeout)
        printed = self._print(tasks)
        self._most = printed if printed < len(tasks) else min(self._most + 1, BATCH)
        return printed

    def _print(self, tasks: list[Task]) -> int:
        """Write lines until the reader lags or a signal comes; a second one finds what was written acked."""
        written = 0
        patient_until = real_monotonic() + PATIENCE
        try:
            for task in tasks:
                if written and not is_awaited(1000 * (patient_until - real_monotonic())):
                    break
                write_line(line(task_as_json(task)))
                written += 1
        finally:  # a closed pipe, Ctrl-C and TERM come here too
            self._printed += written
            try:
                self._finish(tasks, written)
            except BaseException as error:
                if is_raised_by_handler(error):  # while this waited for a lock
                    self._finish(tasks, written)
                raise
        return written

    def _finish(self, tasks: list[Task], written: int) -> None:
        """Ack what was written, if that is asked for, and give back the others. It may be called again."""
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
                late = "was printed but not acked: its ttl or ttr was over"
                say(str(tubes.NotTaken(self._tube.name, task.id, late)))
