"""Turns a Redis server's refusals into our errors, in one place."""

from __future__ import annotations

from tubes.errors import NoSuchTube, StoreError, StoreUnavailable, TubeError

from .scripts import Keys
from .wire import Damaged, NoTube, Refused


def translated(error: Refused, what: str, keys: Keys) -> TubeError:
    """Return our error for a refusal of the server ``what``; the keys are those of the queue."""
    said = str(error)
    if isinstance(error, NoTube):
        return NoSuchTube("(dropped)")
    if "multibulk length" in said:
        return StoreError(f"the batch is larger than {what} accepts at once: split it ({said})")
    if "bulk length" in said:
        return StoreError(f"the payload is larger than {what} accepts (see proto-max-bulk-len): {said}")
    if isinstance(error, Damaged):
        return StoreError(
            f"{what} has damaged data, which `tubes doctor --deep` names: {said}. If that cannot run either, one of "
            f"{', '.join(keys)} is no hash: rename or remove it, and run `tubes doctor --fix`"
        )
    return StoreUnavailable(f"{what} refused: {said}")
