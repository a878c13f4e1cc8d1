"""The URL of a Redis server: what is valid, which options are ours, how to show it without passwords."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from tubes.errors import BadOption

from ..watch import DEAD_AFTER, dead_after

OURS = ("dead_after", "protocol")
"""Options in a URL that are not for redis-py."""

ABOUT_SENTINELS = ("sentinel", "sentinel_username", "sentinel_password")
"""Further ones: the addresses of Sentinels, and who asks them."""

KNOWN = (*OURS, *ABOUT_SENTINELS)

SECRETS = ("password", "ssl_password", "sentinel_password")
"""What may be secret in a URL's query: the passwords for the server, the client's own key, and Sentinels."""

SENTINEL_PORT = 26379
"""On which a Sentinel listens, if its address names no port."""

Address = tuple[str, int]


class Sentinels(NamedTuple):
    """Who knows by what name which server is the primary, and as whom to ask them."""

    name: str
    addresses: tuple[Address, ...]
    login: Mapping[str, str | None]


_DATABASE = re.compile(r"[0-9]*/?")
"""What the path may be."""

_HOST = re.compile(r"[^][]*|\[[0-9A-Fa-f:.]+(%[^]]*)?\](:[^][]*)?")
"""What may name the server, after the user: Python's own check of brackets came only with 3.11.4."""


def check_url(url: str) -> None:
    """Refuse a URL with a / ? or # in its password: what is before that would be taken for host and port.

    Also refuse one whose path is no number: redis-py would silently take the database 0 instead. And one of a
    socket by a relative path: the first part of it would be taken for a host, and left out.
    """
    try:
        urlsplit(url)
    except ValueError:
        raise no_url() from None
    base, _, query = url.partition("?")
    user_and_host, _, path = base.partition("://")[2].partition("/")
    is_socket = base.startswith("unix:")
    is_file = is_socket and user_and_host[-1:] in ("", "@")  # whose name may have an @
    torn_by_path = "@" in path and not is_file
    torn_by_query = "@" in query and "=" not in query.partition("@")[0]
    is_host = _HOST.fullmatch(user_and_host.rpartition("@")[2])
    if "#" in url or torn_by_path or torn_by_query or not is_host:
        raise no_url()
    if is_socket and not (is_file and path):
        raise BadOption(
            "the store's URL names no socket: it needs an absolute path, as in unix:///path/redis.sock?db=0",
            option="url",
        )
    if not is_socket and not _DATABASE.fullmatch(path):
        raise BadOption(
            "the store's URL names no database: its path must be a number, as in redis://host:6379/0",
            option="url",
        )


def no_url() -> BadOption:
    """The error for such a URL, which repeats nothing of it."""
    return BadOption(
        "bad store URL: write redis://user:password@host:6379/0, rediss://… or "
        "unix:///path/redis.sock?db=0, with a password's / ? # @ and % as %2F and so on",
        option="url",
    )


def parsed(url: str) -> tuple[str, float]:
    """The URL without the options that are ours, and the seconds of ``dead_after``, one of these.

    The protocol is always 2, whatever the URL says.
    """
    check_url(url)
    rest, options = _split(url, OURS)
    return rest, dead_after(options.get("dead_after", str(DEAD_AFTER)))


def described(url: str) -> str:
    """A server's name for messages, by a URL that was checked: without what may be secret in it."""
    parts = urlsplit(url)
    sentinels = dict(parse_qsl(parts.query)).get("sentinel")
    by = f"?sentinel={sentinels}" if sentinels else ""
    return f"Redis at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{by}"


def sentinels_of(url: str) -> tuple[str, Sentinels | None]:
    """The URL without what it says of Sentinels, and that, or BadOption."""
    rest, options = _split(url, ABOUT_SENTINELS)
    addresses, *login = map(options.get, ABOUT_SENTINELS)
    if addresses is None:
        return rest, None
    name = urlsplit(url).netloc.rpartition("@")[2]  # its ``hostname`` would be in lower case
    asked = tuple(filter(None, map(_address, addresses.split(","))))
    if not name or ":" in name or len(asked) <= addresses.count(","):
        raise BadOption(
            "bad store URL: with Sentinels, write redis://mymaster/0?sentinel=host1:26379,host2:26379, with the "
            "name by which they know the primary in place of its host and port",
            option="url",
        )
    return rest, Sentinels(name, asked, dict(zip(("username", "password"), login, strict=True)))


def without_passwords(url: str) -> tuple[str, bool]:
    """The URL without its passwords, and whether there were any."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in options if name not in SECRETS]
    netloc = parts.netloc.rpartition("@")[2]
    if parts.username:
        netloc = f"{parts.username}@{netloc}"
    query = urlencode(kept, safe="/:,")
    shown = f"{parts.scheme}://{netloc}{parts.path}"
    return f"{shown}?{query}" if query else shown, bool(parts.password) or kept != options


def _address(text: str) -> Address | None:
    """A Sentinel's address, ``None`` if that is none."""
    with suppress(ValueError):  # a port that is no number, or a bracket without its other
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port or SENTINEL_PORT) if parts.hostname else None
    return None


def _split(url: str, names: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """The URL without the options of these names, and all its options."""
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in options if name not in names], safe="/:,")
    return f"{base}?{rest}" if rest else base, dict(options)
