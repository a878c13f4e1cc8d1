"""The whole kit: all suites, for a store that several connections can open, and for one that only one can."""

from __future__ import annotations

from typing import ClassVar

from tubes.testing.agreement import Agreement
from tubes.testing.api import Api
from tubes.testing.atomicity import Atomicity
from tubes.testing.capacity import Capacity
from tubes.testing.changes import Changes
from tubes.testing.concurrency import Concurrency, SharedConcurrency
from tubes.testing.groups import Groups
from tubes.testing.ordering import Ordering
from tubes.testing.ownership import Ownership, SharedOwnership
from tubes.testing.reopening import Reopening
from tubes.testing.timing import Timing


class PrivateKit(
    Api, Ordering, Ownership, Timing, Groups, Capacity, Changes, Atomicity, Concurrency, Agreement
):
    """What a driver must do on a store that nobody else can open, such as one in memory."""

    shared: ClassVar[bool] = False


class ConformanceKit(PrivateKit, SharedOwnership, SharedConcurrency, Reopening):
    """What a driver must do.

    >>> class TestLifo(ConformanceKit):  # doctest: +SKIP
    ...     type = "lifo"
    """

    shared: ClassVar[bool] = True
