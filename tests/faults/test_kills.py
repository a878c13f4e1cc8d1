"""Producers and consumers are killed and stopped at random moments. The long form is in ``tests/soak``."""

from __future__ import annotations

import pytest
from faults.harness import ENOUGH, TYPES, Crew, drain, settle, torment


@pytest.mark.parametrize("type", TYPES)
def test_kills_and_stops_lose_no_task_and_ack_none_twice(crew: Crew, type: str) -> None:
    """Workers are killed and stopped for a while; then every task is accounted for, and none is stuck."""
    crew.type = type
    if type not in ("fifo", "utube"):
        crew.tube = {"ttr": 0.5}
    if type == "limfifottl":
        crew.tube |= {"capacity": 100}
    killed = torment(crew, 1.5, 4)
    account = settle(crew.lines(), drain(crew))
    assert killed >= 4 and account.acked >= ENOUGH, account


def test_the_account_sees_a_lost_task_and_a_second_ack() -> None:
    """The check itself can fail, such as on a lost task, a second ack or a second holder of a lease."""
    fine = [
        ["put?", "a"],
        ["put!", "a", "1"],
        ["take", "1", "1", "a"],
        ["ack?", "1", "1"],
        ["ack!", "1", "1"],
    ]
    assert settle(fine, {}).acked == 1
    with pytest.raises(AssertionError, match="are lost"):
        settle([*fine, ["put!", "b", "2"]], {})
    with pytest.raises(AssertionError, match="acked twice"):
        settle([*fine, ["ack!", "1", "1"]], {})
    with pytest.raises(AssertionError, match="two holders"):
        settle([*fine, ["take", "1", "1", "a"]], {})
    with pytest.raises(AssertionError, match="handed out again"):
        settle([*fine, ["take", "1", "2", "a"]], {})
    with pytest.raises(AssertionError, match="still there"):
        settle(fine, {1: "a"})
    with pytest.raises(AssertionError, match="two tasks"):
        settle([*fine, ["take", "7", "1", "a"]], {})
    with pytest.raises(AssertionError, match="refused"):
        settle([*fine, ["put-", "c"], ["take", "9", "1", "c"]], {})
