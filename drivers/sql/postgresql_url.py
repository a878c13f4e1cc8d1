"""The URL of a PostgreSQL database: what is valid, which options are ours, and what libpq is told."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo

from tubes.errors import BadOption, suggestion

from ..watch import DEAD_AFTER, dead_after

OURS = ("dead_after", "pooled")
"""Options in a URL that are not for libpq."""

_TORN = re.compile(r"[^:]*://[^:/@]*:[^@]*\?[^@]*=[^@]*@")
"""A URL with an @ in its query, such as a password's: SQLAlchemy takes all before it for credentials."""

_TOO_FAR = re.compile(r"[^:]*:///[^?]*@")
"""One with three slashes, as SQLite's have, before a user: all that follows would pass for a database's name."""


def parsed(url: str) -> tuple[sa.URL, float, bool | None]:
    """Return the URL without our options; ``dead_after``, in seconds; ``pooled``, ``None`` for auto."""
    try:
        if url.partition("?")[0].count("@") > 1:  # a part of the password would pass for a name
            raise ValueError
        if _TORN.match(url):  # its end would pass for the host, which is looked up and shown
            raise ValueError
        if _TOO_FAR.match(url):
            raise ValueError
        if "\0" in unquote(url):  # libpq would read no further, and connect to another place
            raise ValueError
        url.encode()  # UnicodeEncodeError is a ValueError, and contains the whole URL
        found = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # its text may show a part of a password
        raise BadOption(
            "bad store URL: write postgresql+psycopg://user@host:5432/database, with a password's / ? # @ : "
            "and % as %2F and so on",
            option="url",
        ) from None
    if found.drivername not in ("postgresql", "postgresql+psycopg"):
        raise BadOption(
            f"tubes speaks to PostgreSQL through psycopg, not {found.drivername!r}: "
            "postgresql+psycopg://user@host/database",
            option="url",
        )
    seconds = dead_after(str(found.query.get("dead_after", DEAD_AFTER)))
    answers: dict[Any, bool | None] = {"auto": None, "yes": True, "no": False}
    pooled = found.query.get("pooled", "auto")
    if pooled not in answers:
        raise BadOption(f"pooled must be yes, no or auto, not {pooled!r}", option="pooled")
    rest = found.set(drivername="postgresql+psycopg").difference_update_query(OURS)
    return rest, seconds, answers[pooled]


def conninfo(url: sa.URL) -> str:
    """Return what libpq is told of such a URL; BadOption if it would refuse that."""
    try:
        _, settings = url.get_dialect()().create_connect_args(url)
        return make_conninfo(**settings)
    except sa.exc.ArgumentError:  # its text may show a part of a password
        raise BadOption("bad store URL: a port is a number, one for each host", option="url") from None
    except psycopg.ProgrammingError as error:  # it names the option, but no value
        said = str(error).strip()
        unknown = re.search('connection option "(.*)"', said)
        near = suggestion(unknown[1], (), OURS) if unknown else ""
        raise BadOption(f"bad store URL: {said}{near}", option="url") from error
