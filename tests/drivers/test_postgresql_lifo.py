"""The example of a custom driver, on PostgreSQL: only its order, since all else is built in."""

import pytest

import examples.lifo  # noqa: F401  # registers it
from tubes.testing.ordering import Ordering


class TestPostgresLifo(Ordering):
    type = "lifo"

    @pytest.fixture
    def store_url(self, postgres_queue_url: str) -> str:
        return postgres_queue_url
