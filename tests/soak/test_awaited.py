"""What the suite does not send through the asyncio API: types, and most of Tarantool's answers."""

from pathlib import Path
from typing import Any

import pytest
from oracle.awaited_stage import AwaitedStage
from oracle.recording import Case
from oracle.replay import replay
from oracle.test_oracle import AWAITED, AWAITED_ON_POSTGRESQL, AWAITED_ON_REDIS, DEPARTURES, EVERY_CASE
from postgres_kit import PostgresKit
from redis_kit import RedisKit

from tubes.testing import ConformanceKit
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedFifo(ThroughAsyncio, ConformanceKit):
    type = "fifo"


class TestAwaitedFifottl(ThroughAsyncio, ConformanceKit):
    type = "fifottl"


class TestAwaitedLimfifottl(ThroughAsyncio, ConformanceKit):
    type = "limfifottl"


class TestAwaitedUtube(ThroughAsyncio, ConformanceKit):
    type = "utube"


class TestAwaitedPostgresFifo(ThroughAsyncio, PostgresKit):
    type = "fifo"


class TestAwaitedPostgresFifottl(ThroughAsyncio, PostgresKit):
    type = "fifottl"


class TestAwaitedPostgresLimfifottl(ThroughAsyncio, PostgresKit):
    type = "limfifottl"


class TestAwaitedPostgresUtube(ThroughAsyncio, PostgresKit):
    type = "utube"


class TestAwaitedRedisFifo(ThroughAsyncio, RedisKit):
    type = "fifo"


class TestAwaitedRedisFifottl(ThroughAsyncio, RedisKit):
    type = "fifottl"


class TestAwaitedRedisLimfifottl(ThroughAsyncio, RedisKit):
    type = "limfifottl"


class TestAwaitedRedisUtube(ThroughAsyncio, RedisKit):
    type = "utube"


def others(replayed: list[Any]) -> list[Any]:
    """The recordings that the suite does not replay there."""
    known = {case.id for case in replayed}
    return [case for case in EVERY_CASE if case.id not in known]


@pytest.mark.parametrize("case", others(AWAITED))
def test_it_does_as_tarantool(case: Case, tmp_path: Path) -> None:
    with AwaitedStage(f"sqlite:///{tmp_path / 'case.db'}") as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", others(AWAITED_ON_POSTGRESQL))
def test_it_does_as_tarantool_on_postgresql(case: Case, postgres_oracle_url: str) -> None:
    with AwaitedStage(postgres_oracle_url) as stage:
        replay(case, DEPARTURES, stage)


@pytest.mark.parametrize("case", others(AWAITED_ON_REDIS))
def test_it_does_as_tarantool_on_redis(case: Case, redis_oracle_url: str) -> None:
    with AwaitedStage(redis_oracle_url) as stage:
        replay(case, DEPARTURES, stage)
