"""How much room our own threads have for nested calls, such as those that read deeply nested data."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WHOLE = 8 << 20
"""Bytes: what threads have on most systems."""


@contextmanager
def whole_stacks() -> Iterator[None]:
    """Give a thread that is started meanwhile a whole stack, unless the program has chosen a size for all.

    With musl, as in Alpine Linux, it would have 128 KiB, or 1 MiB with the builds of Python made for that. Python
    counts nested calls, up to 1,000, or 10,000 in 3.12 and 3.13, and crashes if so many have no room.
    """
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    # The size is that of all threads started just now, and is known only by setting it
    chosen = threading.stack_size(WHOLE if limit == resource.RLIM_INFINITY else max(WHOLE, limit))
    try:
        if chosen:
            threading.stack_size(chosen)
        yield
    finally:
        threading.stack_size(chosen)
