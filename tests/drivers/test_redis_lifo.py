"""The example of a custom driver, on Redis: only its order, since all else is built in."""

import pytest

import examples.lifo  # noqa: F401  # registers it
from tubes.testing.ordering import Ordering


class TestRedisLifo(Ordering):
    type = "lifo"
    transactions = False

    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return redis_url
