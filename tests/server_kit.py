"""What the kits on servers have in common."""

from __future__ import annotations

from hypothesis import settings

from tubes.testing import ConformanceKit
from tubes.testing.agreement import shortened


class ServerKit(ConformanceKit):
    """The tasks are on a server, which outlives its clients."""

    def machine_settings(self) -> settings:
        """Each call is a round trip or several, so it runs for a shorter time."""
        return shortened(super().machine_settings())
