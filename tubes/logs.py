"""Logging that never fails, whatever the user's log handlers do."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from tubes.interrupts import is_raised_by_handler


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that never fails: a handler that raises ends no thread, and no call whose change is committed.

    Python's own handlers print their errors and go on. This does the same for handlers that raise theirs.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), None)

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **named})
        except Exception as error:
            if is_raised_by_handler(error):  # a signal's, not a log's
                raise
            if logging.raiseExceptions:
                traceback.print_exc()
