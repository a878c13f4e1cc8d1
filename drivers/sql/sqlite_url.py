"""The URL of a SQLite database: which file it names, and which URL names a file."""

from __future__ import annotations

import os

import sqlalchemy as sa

from tubes.errors import BadOption, StoreUnavailable


def url_of(path: str | None) -> str:
    """The URL of a file, as ``path_of`` reads it."""
    return "sqlite://" if path is None else f"sqlite:///{path.replace('%', '%25').replace('?', '%3F')}"


def path_of(url: str) -> str | None:
    """The file that a URL names, by the one path that all its users have for it; ``None``: memory."""
    try:
        parsed = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # its text may show a part of a password
        raise BadOption(
            "this store URL cannot be read: write sqlite:///relative.db, sqlite:////absolute.db or sqlite://",
            option="url",
        ) from None
    names_a_host = url.partition("://")[2][:1] not in ("", "/")  # or a user
    if names_a_host or "?" in url or parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        # meant for a server, it may have a password in it, and one that was not parsed as such
        shown = "" if "@" in url or "password" in url.lower() else f" {parsed.render_as_string()!r}"
        raise BadOption(
            f"bad SQLite URL{shown}: write sqlite:///relative.db, sqlite:////absolute.db"
            " or sqlite:// for memory",
            option="url",
        )
    if parsed.database is None or parsed.database in ("", ":memory:"):
        return None
    try:
        os.fsencode(parsed.database)
        return os.path.realpath(parsed.database)  # SQLite names its log so, too: one file, one lock file
    except ValueError as error:
        raise BadOption(f"no file can have the name {parsed.database!r}: {error}", option="url") from error
    except OSError as error:  # the current folder was removed
        raise StoreUnavailable(
            f"SQLite file {parsed.database} cannot be used: no current folder ({error})"
        ) from error
