"""``fifottl``: a fifo with priorities, time to live, time to run, and delays (Tarantool: fifottl)."""

from tubes.driver import Features, TubeType

FIFOTTL = TubeType(
    Features(timed=True, priority=True),
    doc=(
        "Tasks are taken by pri (0 first), then in the order in which they were put. A task is removed when its "
        "ttl is over, comes back when its ttr is over, and can be put or released with a delay."
    ),
)
