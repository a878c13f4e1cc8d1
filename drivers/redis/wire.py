"""One connection to a Redis server, through redis-py's: scripts by hash, each one round trip.

It uses redis-py's connection without its client, whose EVALSHA takes several times as long (194 µs against
45), and which retries by itself when nobody knows whether the first try was done.
"""

from __future__ import annotations

import math
import re
import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from tubes.clock import real_monotonic
from tubes.errors import OutcomeUnknown

from ..forks import keep_from_children
from ..retries import Lost
from .scripts import Argument, Keys, Script, packed

NOT_NOW = (
    exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
)  # fmt: skip
"""Errors of a server that will do it later, or whose successor will.

ASK names the node to which keys are being moved. To ask that one is no use: until it has all keys of a
script, some of which never exist, it says TRYAGAIN. When it has them, the first node says MOVED, whose
error redis-py derives from that of ASK.
"""


NO_ANSWER = exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError
"""What redis-py raises when no answer will come any more, or none that can be read."""


class Refused(Exception):
    """The server did not do it, and said why."""

    def __init__(self, error: exceptions.RedisError) -> None:
        self.error = error
        super().__init__(str(error))
        self.__cause__ = error


class NoTube(Refused):
    """What a script says of a tube that was dropped."""


class NoSession(Refused):
    """What a script says of a session that may not take there; see admit.lua."""


class Damaged(Refused):
    """A script met what cannot be: a key of the wrong type, or something missing that the rest implies, say."""


_KINDS = {
    "NOTUBE": NoTube,
    "NOSESSION": NoSession,
    "WRONGTYPE|not an integer|not a valid float|would overflow": Damaged,
    r"(?<!@)\buser_script:\d+: ": Damaged,  # Lua's place of an error; that of a failed command is after an @
}
"""Refusals by what the server says."""

IS_FULL = "max number of clients"
"""What a server says when it takes no more connections: one that is in use may soon be given back."""

MANY, EACH = 2000, 0.0002
"""From how many arguments on a server gets time for each, and how many seconds: a task takes it 30 to 60 µs.

A task that is put is two arguments; a task of an answer counts as two.
"""

MOST = 1_000_000
"""The most tasks of an answer that a server is given time for: a call for all there are may mean a few."""


LARGE = 1 << 20
"""Bytes from which a command may be more than a server takes: the least ``proto-max-bulk-len``."""


class Wire:
    """Used by one thread at a time."""

    def __init__(self, connection: Any, patience: float) -> None:
        self.patience = patience
        """Seconds to wait for an answer, except to a large batch."""
        self._connection = connection
        self._run_id = ""
        self.is_lost = False
        try:
            connection.connect()
            keep_from_children(self)
        except (exceptions.AuthenticationError, exceptions.ResponseError) as error:
            self.close()
            raise _refused(error) from error
        except (exceptions.RedisError, OSError, UnicodeError) as error:  # a host's name may be invalid
            self.close()
            if IS_FULL in str(error):
                raise exceptions.TryAgainError(str(error)) from error
            raise Lost(str(error), was_sent=False) from error
        self._poll = select.poll()
        self._poll.register(self._connection._sock, select.POLLIN)
        self._timeout = connection.socket_timeout

    def evaluate(self, script: Script, keys: Keys, given: Sequence[Argument], most: int = 0) -> Any:
        """Run a script, and return what it answers: text as bytes. ``most``: the most tasks in that."""
        self._give_time(max(len(given), 2 * min(most, MOST)))
        self._send(_evalsha(script, keys, given))
        answer = self.receive()
        if isinstance(answer, exceptions.NoScriptError):
            self._send(_command("EVAL", script.text, len(keys), *keys, *given))
            answer = self.receive()
        if isinstance(answer, exceptions.RedisError):
            raise _refused(answer)
        return answer

    def evaluate_durably(
        self, script: Script, keys: Keys, given: Sequence[Argument], patience: float, most: int = 0
    ) -> Any:
        """Run a script, and wait in the same round trip until its changes are on the server's disk."""
        self._give_time(max(len(given), 2 * min(most, MOST)))
        until = real_monotonic() + patience
        answer, waited = self._both(_evalsha(script, keys, given) + _waitaof(patience))
        if isinstance(answer, exceptions.NoScriptError):
            # WAITAOF may have waited already, for what was written before.
            again = _command("EVAL", script.text, len(keys), *keys, *given)
            answer, waited = self._both(again + _waitaof(until - real_monotonic()))
        if isinstance(answer, exceptions.RedisError):
            raise _refused(answer)
        if isinstance(waited, exceptions.RedisError):
            raise OutcomeUnknown(f"it was done, but may not be on the server's disk: {waited}") from waited
        if not waited[0]:
            raise OutcomeUnknown(f"it was done, but is not on the server's disk after {patience:g} s")
        return answer

    def command(self, *words: Argument) -> Any:
        """Run any command."""
        self.send(words)
        answer = self.receive()
        if isinstance(answer, exceptions.RedisError):
            raise _refused(answer)
        return answer

    # For callers that wait for several answers

    def send(self, *commands: Sequence[Argument]) -> None:
        """Send commands in one go; their answers are received later."""
        self._give_time(0)
        self._send(b"".join(_command(*words) for words in commands))

    def receive(self) -> Any:
        """Wait for the next answer; a refusal is returned like any other."""
        try:
            return self._connection.read_response(disable_decoding=True)
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as error:
            self.close()  # redis-py has done so: to it these are errors of the connection
            return error
        except NO_ANSWER as error:
            self.close()
            raise Lost(str(error), was_sent=True) from error
        except exceptions.RedisError as error:
            return error

    @property
    def run_id(self) -> str:
        """The server's run id: another after each start."""
        if not self._run_id:
            self._run_id = self.info("server")["run_id"]
        return self._run_id

    def info(self, section: str) -> dict[str, str]:
        """What the server tells about itself."""
        told = self.command("INFO", section)
        if not isinstance(told, bytes):
            raise _not_redis("INFO", told)
        lines = told.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def time_ms(self) -> float:
        """What the server's clock says."""
        told = self.command("TIME")
        if not (isinstance(told, list) and len(told) == 2 and all(map(_is_number, told))):
            raise _not_redis("TIME", told)
        seconds, micros = map(int, told)
        return seconds * 1000 + micros / 1000

    def fileno(self) -> int:
        """The socket, for polls."""
        fd: int = self._connection._sock.fileno()
        return fd

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come unasked, such as the end of the connection."""
        return not self._poll.poll(0)

    def close(self) -> None:
        """End the connection. Idempotent."""
        self.is_lost = True
        with suppress(Exception):
            self._connection.disconnect()

    def _give_time(self, arguments: int) -> None:
        """Wait longer for the answer to a large batch: a server that is at work is not lost."""
        timeout = self.patience + arguments * EACH if arguments > MANY else self.patience
        if timeout != self._timeout:
            self._timeout = timeout
            self._connection._sock.settimeout(timeout)

    def _both(self, commands: bytes) -> tuple[Any, Any]:
        self._send(commands, may_be_done=True)
        answer = self.receive()
        return answer, None if self.is_lost else self.receive()

    def _send(self, commands: bytes, *, may_be_done: bool = False) -> None:
        """Send commands. A server never does a part of one; but of two, it may do the first alone."""
        try:
            if len(commands) < LARGE:
                self._connection.send_packed_command((commands,), check_health=False)
            else:  # redis-py closes right after a failure, and what the server said is lost
                for sent in range(0, len(commands), LARGE):  # a socket's timeout is for all that it is given
                    self._connection._sock.sendall(commands[sent : sent + LARGE])
        except (exceptions.RedisError, OSError) as error:
            is_cut = isinstance(error, OSError) and not isinstance(error, TimeoutError)  # by TLS an SSLError
            said = self._last_words() if is_cut else None
            self.close()
            if isinstance(said, exceptions.RedisError):
                raise Refused(said) from error
            raise Lost(str(error), was_sent=may_be_done) from error

    def _last_words(self) -> Any:
        """What the server said before it closed the connection in mid-command: that this is too large."""
        with suppress(Lost):
            return self.receive()
        return None


def _evalsha(script: Script, keys: Keys, given: Sequence[Argument]) -> bytes:
    return b"*%d\r\n%b%b%b" % (3 + len(keys) + len(given), script.packed, keys.packed, packed(given))


def _command(*words: Argument) -> bytes:
    return b"*%d\r\n%b" % (len(words), packed(words))


def _waitaof(seconds: float) -> bytes:
    return _command("WAITAOF", 1, 0, max(math.ceil(seconds * 1000), 1))  # 0 would be for ever


def _refused(error: exceptions.RedisError) -> Exception:
    """Errors that say where to go instead, or to come again, stay what they are."""
    if str(error).startswith("BUSY "):  # a script runs for too long
        return exceptions.TryAgainError(str(error))
    if "READONLY" in str(error):  # before Redis 7 within the error of a script
        return exceptions.ReadOnlyError(str(error))
    if isinstance(error, NOT_NOW):
        return error
    return next((kind for said, kind in _KINDS.items() if re.search(said, str(error))), Refused)(error)


def _is_number(word: object) -> bool:
    return isinstance(word, bytes) and word.isdigit()


def _not_redis(asked: str, answer: object) -> Refused:
    """The error for an answer that no Redis gives."""
    return Refused(exceptions.ResponseError(f"it is not Redis: it answers {asked} with {answer!r:.60}"))


def only_reads(error: Exception) -> bool:
    """Whether a server says that it is no longer a master. A connection that waits there gets UNBLOCKED."""
    is_replica = isinstance(error, exceptions.ReadOnlyError | exceptions.MasterDownError)
    return is_replica or str(error).startswith("UNBLOCKED")
