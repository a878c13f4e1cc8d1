"""``limfifottl``: a fifottl that holds at most ``capacity`` tasks (Tarantool: limfifottl)."""

from tubes.driver import Features, TubeType

LIMFIFOTTL = TubeType(
    Features(timed=True, priority=True, bounded=True),
    doc=(
        "As fifottl, with room for capacity tasks, counted in every state; 0 is no limit. A put into a full tube "
        "waits for room as long as its timeout says, then fails with TubeFull."
    ),
)
