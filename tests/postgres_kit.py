"""The kit on PostgreSQL: one database, migrated once, in which each test makes and drops its own tubes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from server_kit import ServerKit

from tubes import Queue


class PostgresKit(ServerKit):
    """Each class of tests names a type."""

    ids_follow_commits = False

    @pytest.fixture
    def store_url(self, postgres_queue_url: str) -> str:
        return postgres_queue_url

    def die(self, queue: Queue) -> None:
        """End a connection without a word, and treat it as dead without waiting for its beats to stop."""
        store: Any = queue.store
        store.close()
        queue.close()
        url = store._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url) as db:
            db.execute("DELETE FROM tubes_connection WHERE id = %s", [store._connection])
            db.execute(
                "UPDATE tubes_session SET ends_ms = %s + ttr_ms WHERE ends_ms IS NULL"
                " AND id NOT IN (SELECT session FROM tubes_connection)",
                [queue.clock.now_ms()],
            )
