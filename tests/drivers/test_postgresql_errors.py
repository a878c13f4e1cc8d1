"""An error on the user's connection is known by its code, whichever driver passes it on."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from tubes.drivers.sql.postgresql_errors import translated
from tubes.drivers.sql.postgresql_joined import refused_to_user
from tubes.drivers.sql.postgresql_wire import Refused

import tubes


class Pgcode(Exception):
    """An error with its code where psycopg2 has it."""

    pgcode = "40P01"


@pytest.mark.parametrize(
    "original",
    [
        psycopg.errors.DeadlockDetected("deadlock detected"),
        Pgcode("deadlock detected"),
        Exception({"S": "ERROR", "C": "40P01", "M": "deadlock detected"}),
    ],
    ids=["psycopg", "psycopg2", "pg8000"],
)
def test_a_deadlock_is_a_conflict_through_any_driver(original: Exception) -> None:
    refused = refused_to_user(sa.exc.DBAPIError("SELECT 1", None, original))
    assert (refused.code, str(refused)) == ("40P01", "deadlock detected")
    assert isinstance(translated(refused, "it"), tubes.Conflict)


@pytest.mark.parametrize(
    "said",
    [
        "out of shared memory",
        "Shared Memory erschöpft\nHINT:  Sie müssen möglicherweise max_locks_per_transaction erhöhen.",
    ],
    ids=["without its hint", "in German"],
)
def test_that_no_more_can_be_locked_is_told_apart_from_a_want_of_memory(said: str) -> None:
    assert "smaller batches" in str(translated(Refused("53200", said), "it"))
    assert "out of memory" in str(translated(Refused("53200", "out of memory"), "it"))


@pytest.mark.parametrize(
    "said",
    [
        "database is not accepting commands to avoid wraparound data loss in database postgres",
        "Datenbank nimmt keine Befehle an\nHINT:  Führen Sie ein datenbankweites VACUUM in dieser Datenbank aus.",
    ],
    ids=["without its hint", "in German"],
)
def test_that_a_server_has_no_more_numbers_for_transactions_is_no_fault_of_a_payload(said: str) -> None:
    assert isinstance(translated(Refused("54000", said), "it"), tubes.StoreUnavailable)
    assert "payload" in str(translated(Refused("54000", "index row size 2720 exceeds 2704"), "it"))


@pytest.mark.parametrize("code", ["53000", "58030"], ids=["no more files", "a disk that fails"])
def test_a_server_whose_machine_fails_it_cannot_be_used_now(code: str) -> None:
    assert isinstance(translated(Refused(code, "could not read block 0"), "it"), tubes.StoreUnavailable)
