"""The kit on a Cluster of three nodes: the tubes of its queues lie on all of them."""

import pytest
from redis_kit import RedisKit


class ClusterKit(RedisKit):
    """The other types are in ``tests/soak``."""

    @pytest.fixture
    def store_url(self, redis_cluster: str) -> str:
        return f"{redis_cluster}?dead_after=2.5"


class TestRedisClusterUtubettl(ClusterKit):
    type = "utubettl"


class TestRedisClusterLimfifottl(ClusterKit):
    type = "limfifottl"
