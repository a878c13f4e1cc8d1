"""What the kits on servers have in common."""

from __future__ import annotations

from hypothesis import settings

from tubes import Queue
from tubes.testing import ConformanceKit
from tubes.testing.agreement import shortened
from tubes.testing.suite import Connect, MakeTube


class ServerKit(ConformanceKit):
    """The tasks are on a server, which outlives its clients."""

    def machine_settings(self) -> settings:
        """Each call is a round trip or several, so it runs for a shorter time."""
        return shortened(super().machine_settings())

    def test_a_temporary_tube_comes_back_empty(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        """After a restart of the server, see the fault tests; not when its last client has gone."""
        make_tube(temporary=True).put("a")
        queue.close()
        task = make_queue().tube.jobs.take(0)
        assert task is not None and task.data == "a"
