"""What the suite does not send to a Redis Cluster: types, most of Tarantool's answers, the asyncio API; and races."""

from typing import Any

import pytest
from faults.harness import TYPES
from faults.racing import race
from oracle.awaited_stage import AwaitedStage
from oracle.recording import Case
from oracle.replay import replay
from oracle.stage import Stage
from oracle.test_oracle import DEPARTURES, ON_CLUSTER, ON_SERVERS
from redis_kit import ClusterKit
from soak.test_races import SECONDS, check

from tubes.testing.through_asyncio import ThroughAsyncio

IN_THE_SUITE = {case.id for case in ON_CLUSTER}
THE_OTHERS: list[Any] = [case for case in ON_SERVERS if case.id not in IN_THE_SUITE]


class TestRedisClusterFifo(ClusterKit):
    type = "fifo"


class TestRedisClusterFifottl(ClusterKit):
    type = "fifottl"


class TestRedisClusterLimfifottl(ClusterKit):
    type = "limfifottl"


class TestRedisClusterUtube(ClusterKit):
    type = "utube"


class TestAwaitedRedisClusterLimfifottl(ThroughAsyncio, ClusterKit):
    type = "limfifottl"


class TestAwaitedRedisClusterUtubettl(ThroughAsyncio, ClusterKit):
    type = "utubettl"


@pytest.mark.parametrize("case", THE_OTHERS)
def test_it_does_as_tarantool_on_a_cluster(case: Case, cluster_oracle_url: str) -> None:
    with Stage(cluster_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", ON_CLUSTER)
def test_it_does_as_tarantool_on_a_cluster_through_asyncio(case: Case, cluster_oracle_url: str) -> None:
    with AwaitedStage(cluster_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("type", TYPES)
def test_a_minute_of_races_on_a_cluster(redis_cluster: str, type: str) -> None:
    """The same as on one server."""
    check(race(redis_cluster, type, SECONDS), "a Redis Cluster", type)
