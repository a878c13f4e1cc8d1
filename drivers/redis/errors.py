"""Turns a Redis server's refusals into our errors, in one place."""

from __future__ import annotations

import re
from contextlib import suppress

from tubes.errors import NoSuchTube, StoreError, StoreUnavailable, TubeError

from .nodes import Nodes
from .scripts import Keys
from .wire import Failed, NoTube, Refused, Wire, WrongType

_NO_NUMBER = re.compile(r"not an integer|not a valid float|would overflow")
"""What a server says when it cannot add to a stored value."""


def translated(error: Refused, nodes: Nodes, keys: Keys) -> TubeError:
    """Return our error for a server's refusal; the keys are those of the queue."""
    what, said = nodes.what, str(error)
    if isinstance(error, NoTube):
        return NoSuchTube("(dropped)")
    if "multibulk length" in said:
        return StoreError(f"the batch is larger than {what} accepts at once: split it ({said})")
    if "bulk length" in said:
        return StoreError(f"the payload is larger than {what} accepts (see proto-max-bulk-len): {said}")
    if isinstance(error, WrongType):
        return wrong_key(nodes, keys) or StoreError(
            f"{what} has keys of the wrong type, which `tubes doctor` names: {said}"
        )
    if _NO_NUMBER.search(said):
        return StoreError(
            f"{what} has something other than a number where one must be, which `tubes doctor` names: {said}"
        )
    if isinstance(error, Failed):
        return StoreError(f"{what} has contradictory data, which `tubes doctor --deep` names: {said}")
    return StoreUnavailable(f"{what} refused: {said}")


def wrong_key(nodes: Nodes, keys: Keys) -> StoreError | None:
    """The error that names a queue's key of the wrong type, if there is one: then no doctor can run."""

    def types(wire: Wire) -> list[str]:
        return [wire.command("TYPE", key).decode() for key in keys]

    with suppress(StoreError, Refused):
        for key, type in zip(keys, nodes.call(keys, types, is_repeatable=True), strict=True):
            if type not in ("hash", "none"):
                return StoreError(
                    f"{nodes.what}: the key {key} is a {type}, but must be a hash: rename or remove it, "
                    "and run `tubes doctor --fix`"
                )
    return None
