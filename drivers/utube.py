"""``utube``: a fifo of sub-queues, with one task of each taken at a time (Tarantool: utube)."""

from tubes.driver import Features, TubeType

UTUBE = TubeType(
    Features(grouped=True),
    doc=(
        "Each task belongs to a sub-queue, named by utube; those put without a name share one. No two tasks of a "
        "sub-queue are taken at the same time, and inside it the order is strictly first in, first out."
    ),
)
