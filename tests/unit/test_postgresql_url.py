"""Our own options in a PostgreSQL URL are checked before anything connects."""

from __future__ import annotations

import re
import traceback

import psycopg
import pytest

import tubes


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://nowhere.invalid/db?dead_after=soon", "dead_after"),
        ("postgresql://nowhere.invalid/db?dead_after=0", "dead_after"),
        ("postgresql://nowhere.invalid/db?pooled=perhaps", "pooled"),
        ("postgresql://nowhere.invalid/db?pooled=yes&pooled=no", "pooled"),
        ("postgresql+asyncpg://nowhere.invalid/db", "url"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(url: str, named: str) -> None:
    with pytest.raises(tubes.BadOption) as refused:
        tubes.connect(url)
    assert refused.value.option == named


@pytest.mark.parametrize(("given", "meant"), [("dead_aftr=3", "dead_after"), ("poled=no", "pooled")])
def test_an_option_that_is_nearly_ours_is_suggested(given: str, meant: str) -> None:
    with pytest.raises(tubes.BadOption, match=f"did you mean '{meant}'"):
        tubes.connect(f"postgresql://nowhere.invalid/db?{given}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host:port/db",
        "postgresql://user:pa@s3cret@nohost.invalid/db",
        "postgresql://user:pa@nohost.invalid/s3cret@host/db",
        "postgresql://user:s3cret%00@127.0.0.1:1/db",
        "postgresql://user:s3cret@127.0.0.1:1/d%00b",
        "://user:s3cret@host",
        "postgresql://127.0.0.1:1/db?user=me&password=pa@s3cret",
        "postgresql://127.0.0.1:1?sslpassword=pa@s3cret&user=me",
        "postgresql://a:1,b:2/db?password=pa@s3cret",
        "postgresql:///user:s3cret@host/db",
        "s3cret@host",
        "host=host user=me password=s3cret",
        "postgresql://user@host/db?port=s3cret",
        "postgresql://user:s3cret@/db?host=a:1,b:2&port=3",
        "postgresql://user:s3cret\ud800@host/db",
        "postgresql://user:s3cret@host/\ud800",
        "postgresql://user@host/db?password=s3cret\ud800",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(url: str) -> None:
    """It may contain a password, and so may the parser's message about it."""
    with pytest.raises(tubes.BadOption, match="store") as caught:
        tubes.connect(url)
    assert caught.value.option == "url"
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql://user:pa?ss@nohost.invalid/db", "nohost.invalid"),
        ("postgresql://me@nohost.invalid:1/db?application_name=a@b", "nohost.invalid"),
        ("postgresql:///db?host=/nowhere&application_name=a@b", "/nowhere"),
        ("postgresql://nohost..invalid/db", "nohost..invalid"),
        (f"postgresql://{'h' * 64}/db", "hhh"),
    ],
)
def test_an_unusual_url_is_read_and_its_server_is_away(url: str, host: str) -> None:
    """Even if no host can have that name: then psycopg lets Python's own error through."""
    with pytest.raises(tubes.StoreUnavailable, match=re.escape(host)):
        tubes.connect(url)


KNOWN = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
SECRETS = KNOWN & {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}


@pytest.mark.parametrize(
    "place",
    ["user:s3cret@127.0.0.1:1/db", *(f"127.0.0.1:1/db?user=me&{name}=s3cret" for name in sorted(SECRETS))],
)
def test_a_server_that_is_away_is_named_without_the_password(place: str) -> None:
    with pytest.raises(tubes.StoreUnavailable, match=r"127\.0\.0\.1:1/db") as caught:
        tubes.connect(f"postgresql+psycopg://{place}")
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
