"""Keeps Ctrl-C and other signals from landing where they would leave a lock held, or a taken task unnoticed.

Python runs a signal's handler in the main thread, between any two instructions, and a handler may raise, as
Ctrl-C's does. A call into SQLite is one instruction: a signal that comes during a commit raises right after
it, before the caller can note what was committed. Of takes that were interrupted at a random moment, more
than half left their task taken without anybody knowing. So work that must not be cut in two is ``guarded``:
signals that come meanwhile are noted, and handed to their handlers at its end. The parts of it that only wait
are ``interruptible``: there, signals get through at once.

A RecursionError, too, can come anywhere, and again in each ``finally`` that calls something, so that what has
begun could not be ended. A call that might run out of stack is therefore refused before it begins: see
``check_thread``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` itself looks up enums: 25 times slower
import os
import threading
from collections.abc import Callable, Mapping
from sys import _getframe, getrecursionlimit
from threading import get_ident
from types import BuiltinFunctionType, FrameType
from typing import Any, TypeVar, TypeVarTuple

try:
    from signal import SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2
except ImportError as error:
    raise ImportError(
        f"tubes needs Linux, or another POSIX system: this one lacks its signals and file locks ({error})"
    ) from error

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

getsignal: Callable[[int], Any] = _signal.getsignal
signal: Callable[[int, Any], Any] = _signal.signal
Handler = Callable[[int, FrameType | None], Any]

NOTED = tuple(map(int, (SIGINT, SIGTERM, SIGALRM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD)))
"""The signals that programs handle: to raise, as a timeout around a piece of work does, or to call a verb."""

ARE_GREENLETS: bool = not isinstance(get_ident, BuiltinFunctionType)
"""Whether gevent or eventlet has replaced Python's threads by greenlets."""

NEEDED_CALLS = 100
"""Nested calls that a store's work may need: a driver's step, its commit, and a new connection for it."""

MOST_TRIES = 100
"""How often to try to put handlers back while those already back raise: more often than signals come."""


def _may_be_main() -> bool:
    """Whether the thread that imports this could be the main one.

    ``threading`` takes the thread that imports it first for the main one. In a sub-interpreter, or if Python
    is embedded, that may be a thread that Python lets set no handler, and in which none ever runs.
    """
    try:
        signal(NOTED[0], None)  # always refused: first for a wrong thread, else for the handler
    except ValueError:
        return get_ident() != threading.main_thread().ident
    except TypeError:
        pass
    return True


class _Guard:
    """The state of the main thread's guarded work. There is one.

    ``is_on``: guarded work is under way, and signals are noted. ``is_open``: a wait inside it is under way,
    and signals get through. Never both. Neither: there is no guarded work, or a handler interrupts it:
    ``is_begun`` tells which.
    """

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident if _may_be_main() else None
        self.handlers: dict[int, Handler] = {}
        self.seen: tuple[list[Any], Mapping[int, _Note]] = [], {}
        """What was found last time, and the notes for it: one value, so that no signal separates them."""
        self.noted: list[tuple[int, FrameType | None] | BaseException] = []
        self.raised = 0
        """The id of the exception that a handler raised last in the present, or the last, guarded work."""
        self.is_open = False
        self.is_on = False
        self.is_begun = False

    def see(self, found: list[Any]) -> Mapping[int, _Note]:
        """Note which signals have handlers, and what these are."""
        given = {
            number: _Note(handler) for number, handler in zip(NOTED, found, strict=True) if callable(handler)
        }
        self.handlers.update({number: note.handler for number, note in given.items()})
        self.seen = found, given
        return given

    def forked(self) -> None:
        """In a forked child: the main thread's guarded work goes on only if the main thread forked."""
        if self.thread != get_ident():
            self.thread = get_ident()
            self.is_open = self.is_on = self.is_begun = False
            self.noted = []
            for number, handler in self.handlers.items():
                if type(getsignal(number)) is _Note:
                    signal(number, handler)


_guard = _Guard()
os.register_at_fork(after_in_child=_guard.forked)


def guarded(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Do ``work`` uninterrupted; at its end, handle the signals that came, and raise what handlers raise."""
    if _guard.is_on or get_ident() != _guard.thread:  # an outer guard holds, or it is not the main thread
        return work(*args)
    if _guard.is_begun:
        return _closed_again(work, *args) if _guard.is_open else work(*args)
    found = [*map(getsignal, NOTED)]
    seen, given = _guard.seen
    if found != seen:
        given = _guard.see(found)
    if not given:
        return work(*args)
    _guard.raised = 0  # else an error might be taken for an earlier one, whose id it has got
    try:
        _guard.is_begun = True
        for number, note in given.items():
            signal(number, note)
        _guard.is_on = True
        return work(*args)
    finally:
        _guard.is_on = False
        try:
            for number, note in given.items():
                if getsignal(number) is note:  # else another handler was set meanwhile
                    signal(number, note.handler)
        except BaseException:  # raised by a handler that is back already
            _restore(given)
            raise
        finally:
            _guard.is_begun = False
            if _guard.noted:
                _hand_on()


def _restore(given: Mapping[int, _Note]) -> None:
    """Put back the remaining handlers for ``guarded``, after one that was back already has raised."""
    for _ in range(MOST_TRIES):
        try:
            for number, note in given.items():
                if getsignal(number) is note:
                    signal(number, note.handler)
            return
        except BaseException:  # one is being raised already
            pass


def check_thread() -> None:
    """Raise what makes a call to a store impossible here; nothing has begun yet.

    RecursionError: the stack has too little room. RuntimeError: threads are not what they were when this was
    imported, so a wait might block all greenlets, or be taken for one of the call that it waits for.
    """
    if threading.get_ident is not get_ident:
        raise RuntimeError(
            "Python's threads were replaced, as monkey patching by gevent or eventlet does, after tubes was "
            "imported: patch before that"
        )
    try:
        _getframe(getrecursionlimit() - NEEDED_CALLS)
    except ValueError:  # the stack is not that deep; to ask costs 0.2 µs
        return
    raise RecursionError(
        f"maximum recursion depth exceeded: a call to a store needs room for {NEEDED_CALLS} more nested calls"
    )


def interruptible(wait: Callable[[*Ts], T], *args: *Ts) -> T:
    """Do what only waits: signals are handled at once, even inside guarded work."""
    if get_ident() != _guard.thread or _guard.is_open or not _guard.is_begun:
        return wait(*args)
    was_on = _guard.is_on
    try:
        _guard.is_on = False
        _open()
        return wait(*args)
    finally:
        _guard.is_on, _guard.is_open = was_on, False


def is_interrupted() -> bool:
    """Whether a handler runs in the middle of this thread's guarded work, whose locks stay held meanwhile."""
    return get_ident() == _guard.thread and _guard.is_begun and not (_guard.is_on or _guard.is_open)


def forget_raised() -> None:
    """Begin to tell what a callback raises from what a signal's handler raises in the middle of it."""
    _guard.raised = 0


def is_raised_by_handler(error: BaseException) -> bool:
    """Whether a signal's handler raised this, in or after the last guarded work, or since ``forget_raised``."""
    return get_ident() == _guard.thread and id(error) == _guard.raised


def postpone(interrupt: BaseException) -> bool:
    """Raise what interrupted a wait only at the end of the guarded work, since what was waited for is done.

    Tell whether that is possible: in other threads there is no guard.
    """
    if get_ident() != _guard.thread or not _guard.is_on:
        return False
    _guard.noted.append(interrupt)
    return True


def _closed_again(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Guarded work inside an interruptible call inside guarded work: a callback that calls the tube."""
    _guard.is_on, _guard.is_open = True, False
    try:
        return work(*args)
    finally:
        _guard.is_on, _guard.is_open = False, True
        if _guard.noted:
            _hand_on()


class _Note:
    """Notes a signal in place of its handler, during guarded work.

    A callback may get hold of it there, and keep it: a debugger puts it back later, or another handler calls
    it as the one before. It is then what it stands for.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler: Handler = handler.handler if type(handler) is _Note else handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _guard.is_begun or getsignal(number) is not self:
            self.handler(number, frame)
            return
        noted = [each[0] for each in _guard.noted if isinstance(each, tuple)]
        if number not in noted:  # once, as a signal is that comes again while it is pending
            _guard.noted.append((number, frame))
        if _guard.is_open:
            _open()


def _open() -> None:
    """Let signals through: first those noted, then those that come while one is handled."""
    _guard.is_open = True
    while _guard.noted:
        _guard.is_open = False
        try:
            _hand_on()
        finally:  # what a handler raises ends the wait; a callback may catch it
            _guard.is_open = True


def _hand_on() -> None:
    """Call the handlers of all noted signals, whatever one of them raises."""
    noted = _guard.noted.pop(0)
    try:
        if isinstance(noted, BaseException):
            raise noted
        _guard.handlers[noted[0]](*noted)
    except BaseException as error:
        _guard.raised = id(error)
        raise
    finally:
        if _guard.noted:
            _hand_on()
