"""The kit on PostgreSQL: one database, migrated once, in which each test makes and drops its own tubes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import settings

from tubes import Queue
from tubes.testing import ConformanceKit
from tubes.testing.agreement import shortened
from tubes.testing.suite import Connect, MakeTube


class PostgresKit(ConformanceKit):
    """Each class of tests names a type."""

    ids_follow_commits = False

    @pytest.fixture
    def store_url(self, postgres_queue_url: str) -> str:
        return postgres_queue_url

    def machine_settings(self) -> settings:
        """Each call is a round trip or several, so it runs for a shorter time."""
        return shortened(super().machine_settings())

    def die(self, queue: Queue) -> None:
        """End a connection without a word; then, without waiting for its beats, what is done with the dead."""
        store: Any = queue.store
        super().die(queue)
        url = store._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url) as db:
            db.execute("DELETE FROM tubes_connection WHERE id = %s", [store._connection])
            db.execute(
                "UPDATE tubes_session SET ends_ms = %s + ttr_ms WHERE ends_ms IS NULL"
                " AND id NOT IN (SELECT session FROM tubes_connection)",
                [queue.clock.now_ms()],
            )

    def test_a_temporary_tube_comes_back_empty(
        self, queue: Queue, make_tube: MakeTube, make_queue: Connect
    ) -> None:
        """After a restart of the server, see the fault tests; not when its last client has gone."""
        make_tube(temporary=True).put("a")
        queue.close()
        task = make_queue().tube.jobs.take(0)
        assert task is not None and task.data == "a"
