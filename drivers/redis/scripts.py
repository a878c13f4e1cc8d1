"""The Lua scripts, one verb a file, and the keys that they work on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)

TUBE_KEYS = (
    "meta", "tasks", "states", "held", "sessions", "waiting", "bell", "ready", "line", "busy", "buried", "due",
    "calls", "seeking", "room",
)  # fmt: skip
"""The keys of a tube, in the order in which its scripts get them; tube.lua says what each is."""

NEVER = "never"
"""The key after these, which never exists, so that no Cluster breaks off a script; see tube.lua."""

PLAIN_KEYS = TUBE_KEYS[:8]
"""The keys that put, take and ack get if the tube has no features: the last does not exist there.

Each key costs 0.3 µs a call.
"""

QUEUE_KEYS = ("tubes", "sessions", "connections", "roll", "last")
"""The keys of a queue, in that order; see queue.lua."""


Argument = str | bytes | int


def packed(words: Iterable[Argument]) -> bytes:
    """Words of a command as they are sent: each with its length before it."""
    parts = []
    for word in words:
        if not isinstance(word, bytes):
            word = str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


class Script:
    """A script as servers know it: its text, and the SHA-1 of that."""

    __slots__ = ("name", "packed", "sha", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = _INCLUDE.sub(lambda include: _read(include[1]), _read(name))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.packed = packed(["EVALSHA", self.sha])

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


class Keys(tuple[str, ...]):
    """The keys of a tube or a queue. All have one hash tag, so a Cluster has them on one node."""

    tag: str

    def __new__(cls, tag: str, names: Iterable[str]) -> Keys:
        keys = super().__new__(cls, [f"{tag}:{name}" for name in names])
        keys.tag = tag
        return keys

    @classmethod
    def of_tube(cls, namespace: str, id: int, *only: str) -> Keys:
        """``{tubes:7}:meta`` and so on, or only those that are named."""
        return cls(f"{{{namespace}:{id}}}", only or (*TUBE_KEYS, NEVER))

    @classmethod
    def of_queue(cls, namespace: str) -> Keys:
        """``{tubes}:tubes`` and so on."""
        return cls(f"{{{namespace}}}", QUEUE_KEYS)

    def named(self, name: str) -> str:
        """One of them, by its name in tube.lua or queue.lua."""
        return f"{self.tag}:{name}"

    @cached_property
    def packed(self) -> bytes:
        """As they are sent with a script."""
        return packed([len(self), *self])


PUT = Script("put")
TAKE = Script("take")
ACK = Script("ack")
TOUCH = Script("touch")
RELEASE = Script("release")
BURY = Script("bury")
DELETE = Script("delete")
KICK = Script("kick")
EXPIRE = Script("expire")
TRUNCATE = Script("truncate")
RELEASE_OWNER = Script("release_owner")
PEEK = Script("peek")
LIST = Script("list")
LOOK = Script("look")
COUNT = Script("count")
OPEN = Script("open")
EMPTY = Script("empty")
DROP = Script("drop")
ADMIT = Script("admit")
WAIT = Script("wait")
UNWAIT = Script("unwait")
ADD_CALLS = Script("add_calls")
EXAMINE = Script("examine")
MEND = Script("mend")
SURVEY = Script("survey")
TYPES = Script("types")
HOLDERS = Script("holders")

TUBES = Script("tubes")
ADD_TUBE = Script("add_tube")
LAST = Script("last")
REMOVE_TUBE = Script("remove_tube")
BEGIN_SESSION = Script("begin_session")
BEAT = Script("beat")
CALL_ROLL = Script("call_roll")
IS_ALIVE = Script("is_alive")
JOIN = Script("join")
LEAVE = Script("leave")
END_SESSIONS = Script("end_sessions")
SESSIONS = Script("sessions")
SET_SESSION_TTR = Script("set_session_ttr")
FORGET_SESSIONS = Script("forget_sessions")
ADD_SESSION = Script("add_session")

OF_PLAIN = (PUT, TAKE, ACK)
"""The scripts that begin with plain.lua."""
