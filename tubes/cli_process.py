"""The command as a process: its standard files, its signals, and Python's own warnings and logs."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress

import tubes
from tubes.cli_output import Unbuffered, say, write_error, write_out
from tubes.clock import pause

A_MOMENT = 0.01
"""Seconds until a lost signal is sent again: by then Python is done with clearing objects away."""


class Terminated(BaseException):
    """SIGTERM came."""


def set_up() -> None:
    """Set up reliable standard files, warnings and logs in lines of our own, and the handling of signals."""
    _fill_closed_places()
    sys.stdout, sys.stderr = Unbuffered(1, write_out), Unbuffered(2, write_error)
    warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
    if not _are_warnings_ignored():
        warnings.simplefilter("always", tubes.TubesWarning)  # never an error, whatever PYTHONWARNINGS says
    logging.basicConfig(level=logging.WARNING, handlers=[StderrHandler()])
    sys.unraisablehook = _send_again
    signal.signal(signal.SIGTERM, _terminate)


def stop_sending_again() -> None:
    """The command is over: from now on a signal may be lost."""
    sys.unraisablehook = sys.__unraisablehook__


class StderrHandler(logging.Handler):
    """Prints what is logged, as a line for a person."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        say(record.getMessage() + (f" ({error})" if error is not None else ""))


def _fill_closed_places() -> None:
    """If standard files are closed (``tubes take jobs >&-``), open some that refuse to be read or written.

    Else the store's file would get their number, and what is printed would be written into it.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)


def _are_warnings_ignored() -> bool:
    with warnings.catch_warnings(record=True) as seen, suppress(tubes.TubesWarning):
        warnings.warn("?", tubes.TubesWarning, stacklevel=1)
        return not seen
    return False


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _send_again(lost: sys.UnraisableHookArgs) -> None:
    """Send again a signal that came where nothing can be raised: while Python clears objects away.

    A signal that comes while the garbage collector runs is handled in the first thing that the collector
    calls. While a command starts, that run is long: one in twenty of the signals that came then did nothing.
    """
    number = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
    else:
        _thread.start_new_thread(_send, (number,))  # a Thread needs locks, which this thread may hold


def _send(number: int) -> None:
    pause(A_MOMENT)
    signal.pthread_kill(threading.main_thread().ident or 0, number)
