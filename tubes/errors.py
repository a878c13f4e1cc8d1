"""Every error that tubes raises, one tree.

TubeError
├── UnknownDriver (LookupError)      no driver of that name is registered
├── IncompleteDriver (TypeError)     a driver lacks methods; names them all
├── BadOption (ValueError)           an option, a name or an argument that is not valid
│   └── NotSupported                 the tube's type, or the store, cannot do that
├── TubeExists                       create_tube of a name that is taken
├── NoSuchTube (LookupError)
├── NoSuchSession (LookupError)
├── TaskNotFound (LookupError)
├── NotTaken                         this session does not hold that task
│   └── LeaseLost                    it did, by that very take, but no longer does
├── TubeFull                         no room came within the put's timeout
├── TubeBusy                         drop of a tube with taken tasks or waiting consumers
├── DuplicateKey                     a driver of your own has a task with this key
└── StoreError
    ├── StoreUnavailable             the file, disk or server cannot be used (now)
    ├── StoreBusy                    a lock was held for too long, or the server ended the call
    ├── Conflict                     a conflict that retries did not settle
    ├── OutcomeUnknown               the connection died during a commit, or the disk failed in it
    └── SchemaMismatch               the store's schema is not the one this version knows

TubesWarning (UserWarning)           something that works, but probably not as intended
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class TubeError(Exception):
    """Root of all errors of tubes. Each can be pickled, so that it reaches the parent of a worker process."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: _carried(value) for name, value in self.__dict__.items()}
        return _remade, (type(self), self.args, state)


def _carried(value: object) -> object:
    """An attribute as it reaches another process: its repr, if it cannot be pickled, such as a lambda."""
    try:
        pickle.dumps(value)
    except Exception:
        return shown(value)
    return value


def _remade(kind: type[TubeError], args: tuple[Any, ...], state: dict[str, Any]) -> TubeError:
    """An error as it was pickled, without another call of ``__init__``, which makes the message."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UnknownDriver(TubeError, LookupError):
    """No driver is registered under ``type``."""

    def __init__(self, type: object, known: Iterable[str] = (), *, why: str = "") -> None:
        self.type = type
        near = suggestion(type if isinstance(type, str) else "", known)
        super().__init__(f"unknown tube type {shown(type)}{near}{why}")


class IncompleteDriver(TubeError, TypeError):
    """A driver does not implement all of the driver API; ``missing`` names every gap."""

    def __init__(self, driver: str, missing: Iterable[str]) -> None:
        self.driver = driver
        self.missing: tuple[str, ...] = tuple(missing)
        super().__init__(f"driver {driver} is incomplete, it lacks: {', '.join(self.missing)}")


class BadOption(TubeError, ValueError):
    """An option, a name or an argument that is not valid; the message says what is."""

    def __init__(self, message: str, *, option: str | None = None, value: object = None) -> None:
        self.option = option
        self.value = value
        super().__init__(message)


class NotSupported(BadOption):
    """The tube's type or its store does not do that."""


class TubeExists(TubeError):
    """``create_tube`` of a name that is taken; with ``if_not_exists``, only if by a tube of another type."""

    def __init__(self, name: str, detail: str = "; pass if_not_exists=True to open it") -> None:
        self.name = name
        super().__init__(f"tube {name!r} already exists{detail}")


class NoSuchTube(TubeError, LookupError):
    """There is no tube of that name (any more)."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"there is no tube {name!r}{suggestion(name, known)}")


class NoSuchSession(TubeError, LookupError):
    """``identify`` of a session that is unknown or over."""

    def __init__(self, session: object) -> None:
        self.session = session
        super().__init__(f"session {session} is unknown, or it is over")


class TaskNotFound(TubeError, LookupError):
    """The tube holds no task with this id."""

    def __init__(self, tube: str, id: int) -> None:
        self.tube = tube
        self.id = id
        super().__init__(f"tube {tube!r} has no task {id}")


class NotTaken(TubeError):
    """This session does not hold the task: it never did, or it has lost it."""

    def __init__(self, tube: str, id: int, detail: str = "is not taken by this session") -> None:
        self.tube = tube
        self.id = id
        super().__init__(f"task {id} of tube {tube!r} {detail}")


class LeaseLost(NotTaken):
    """This session took the task and has lost that lease: its time ran out, or it was released since."""

    def __init__(self, tube: str, id: int, token: int) -> None:
        self.token = token
        super().__init__(tube, id, f"is no longer held by the take with token {token}")


class TubeFull(TubeError):
    """A bounded tube had no room until the put's ``timeout`` was over. Nothing was stored."""

    def __init__(self, tube: str, capacity: int, wanted: int) -> None:
        self.tube = tube
        self.capacity = capacity
        self.wanted = wanted
        super().__init__(f"tube {tube!r} is full: capacity {capacity}, no room for {wanted} more")


class TubeBusy(TubeError):
    """The tube cannot be dropped now."""

    def __init__(self, tube: str, why: str) -> None:
        self.tube = tube
        super().__init__(f"tube {tube!r} cannot be dropped: {why}")


class DuplicateKey(TubeError):
    """A task with this key is stored already: for drivers of your own, since no built-in type has keys."""


class StoreError(TubeError):
    """The store could not do it. The original error is the ``__cause__``.

    A plain StoreError, of none of the kinds below, means that the store works: what is stored there, or was
    asked of it, is wrong.
    """


def store_works(error: object) -> bool:
    """Whether it is such a plain StoreError: a tube or a task is to blame, and others can go on."""
    return type(error) is StoreError


class StoreUnavailable(StoreError):
    """The store cannot be used: no such file, a full disk, a server that is down, a closed queue."""


class StoreBusy(StoreError):
    """A lock was held or all connections were in use for too long, or the server ended the call.

    Nothing was changed. A call that would wait for itself is refused with it at once.
    """


class Conflict(StoreError):
    """A conflict with other transactions that retries did not settle. Nothing was changed."""


class OutcomeUnknown(StoreError):
    """The connection died during the commit, or the disk failed in it: the change may have been made, or not.

    ``at_ms`` is the instant that a take would have noted, if that differs from the queue's clock.
    """

    at_ms: int | None = None


class SchemaMismatch(StoreError):
    """The store's tables are of a version that this version of tubes does not know."""


class TubesWarning(UserWarning):
    """Something that works, but probably not as it was meant."""


ELSEWHERE = {
    "priority": "pri", "countdown": "delay", "eta": "delay", "expires": "ttl", "visibility_timeout": "ttr",
    "job_timeout": "ttr", "lock": "utube", "group": "utube", "maxsize": "capacity",
}  # fmt: skip
"""What options are called in Celery, RQ, huey, procrastinate and the like, and what comes nearest here."""


def shown(value: object) -> str:
    """A value as a message shows it, even if its repr fails, as that of a number of 4,301 digits does."""
    try:
        return repr(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be shown"


def suggestion(word: str, known: Iterable[str], besides: Iterable[str] = ()) -> str:
    """Return "; did you mean 'x'?", what is known, or nothing. ``besides`` may be meant; it is not listed."""
    words, lower = sorted(known), word.lower()
    meant = {name.lower(): name for name in (*sorted(besides), *words)}
    near = ELSEWHERE.get(lower)
    close = [near] if near in meant else get_close_matches(lower, meant, n=1)
    if close:
        return f"; did you mean {meant[close[0]]!r}?"
    return f"; there are: {', '.join(words)}" if words else ""
