"""``utubettl``: a utube with priorities, time to live, time to run, and delays (Tarantool: utubettl)."""

from tubes.driver import Features, TubeType

UTUBETTL = TubeType(
    Features(timed=True, priority=True, grouped=True),
    doc=(
        "As utube, with the pri, ttl, ttr and delay of fifottl. Priority counts over all sub-queues, and inside "
        "each of them."
    ),
)
