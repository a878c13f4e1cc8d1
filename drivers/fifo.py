"""``fifo``: first in, first out, and nothing else (Tarantool: fifo)."""

from tubes.driver import Features, TubeType

FIFO = TubeType(
    Features(),
    doc="Tasks are taken in the order in which they were put. A returned task keeps its place.",
)
