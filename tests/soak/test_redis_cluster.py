"""The types that the suite does not send to a Redis Cluster, and races there."""

import pytest
from faults.harness import TYPES
from faults.racing import race
from redis_kit import ClusterKit
from soak.test_races import SECONDS, check


class TestRedisClusterFifo(ClusterKit):
    type = "fifo"


class TestRedisClusterFifottl(ClusterKit):
    type = "fifottl"


class TestRedisClusterLimfifottl(ClusterKit):
    type = "limfifottl"


class TestRedisClusterUtube(ClusterKit):
    type = "utube"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_races_on_a_cluster(redis_cluster: str, type: str) -> None:
    """The same as on one server."""
    check(race(redis_cluster, type, SECONDS), "a Redis Cluster", type)
