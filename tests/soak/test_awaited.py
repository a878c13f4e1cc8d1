"""What the suite does not send through the asyncio door: types, and most of Tarantool's answers on PostgreSQL."""

import pytest
from oracle.awaited_stage import AwaitedStage
from oracle.recording import Case
from oracle.replay import replay
from oracle.test_oracle import DEPARTURES, EVERY_CASE
from postgres_kit import PostgresKit

from tubes.testing import ConformanceKit
from tubes.testing.through_asyncio import ThroughAsyncio


class TestAwaitedFifottl(ThroughAsyncio, ConformanceKit):
    type = "fifottl"


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


@pytest.mark.parametrize("case", [case for index, case in enumerate(EVERY_CASE) if index % 4])
def test_it_does_as_tarantool_on_postgresql(case: Case, postgres_oracle_url: str) -> None:
    with AwaitedStage(postgres_oracle_url) as stage:
        replay(case, DEPARTURES, stage)
