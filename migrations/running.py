"""Runs Alembic for one namespace, up to the schema that this version knows."""

from __future__ import annotations

import io
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tubes.errors import SchemaMismatch, StoreUnavailable

from . import HEAD, LABEL, VERSIONS

if TYPE_CHECKING:
    from alembic.config import Config


_alone: Any = threading.RLock()
"""Alembic's ``op`` and ``context`` are global: without this lock, a thread would use another's connection."""


def _forked() -> None:
    global _alone
    _alone = threading.RLock()  # a thread of the parent's may have held it


os.register_at_fork(after_in_child=_forked)


@contextmanager
def _own_alembic() -> Iterator[None]:
    """Use Alembic, then give it back to the user's migration that is under way, if any (an ``env.py``)."""
    from alembic import context, op

    with _alone:
        theirs = [vars(module).get("_proxy") for module in (context, op)]
        try:
            yield
        finally:
            for proxy in theirs:
                if proxy is not None:
                    proxy._install_proxy()


def must_upgrade(version: str | None, what: str, command: str, *, migrate: bool) -> bool:
    """Whether a schema is behind; SchemaMismatch if it is newer, and unless ``migrate`` if older or missing.

    ``command`` is what the error tells the user to run.
    """
    if version == HEAD:
        return False
    if version is not None and version not in VERSIONS:
        raise SchemaMismatch(
            f"{what} has schema {version}, which this version of tubes (schema {HEAD}) does not know: upgrade tubes"
        )
    if not migrate:
        raise SchemaMismatch(
            f"{what} has {'no schema' if version is None else f'schema {version}'}, but needs {HEAD}: "
            f"run `{command}`, or connect with migrate=True"
        )
    return True


def in_the_way(which: object, namespace: str, what: str) -> SchemaMismatch:
    """The error for a database in which names of ours are taken."""
    return SchemaMismatch(
        f"{what} has tables that are in the way ({which}): give the queue a namespace other than {namespace!r}"
    )


def migrate_command(url: str, namespace: str) -> str:
    """The shell command that brings up the schema there."""
    words = ["tubes", "migrate", "--url", url]
    if namespace != "tubes":
        words += ["--namespace", namespace]
    return shlex.join(words)


@lru_cache(maxsize=16)
def schema_sql(namespace: str, dialect: str, version: str | None = None) -> str:
    """Return the SQL that makes the schema of a version, or of nothing; on PostgreSQL it is one transaction."""
    from alembic import command

    out = io.StringIO()
    settings = config(namespace)
    settings.output_buffer = out
    settings.attributes["dialect"] = dialect
    with _own_alembic():
        command.upgrade(settings, f"{version or 'base'}:{LABEL}@head", sql=True)
    return out.getvalue()


def config(namespace: str) -> Config:
    """Return Alembic's configuration; StoreUnavailable if it could not read our migrations."""
    from alembic.config import Config

    made = Config()
    folder = Path(__file__).parent
    if not (folder / "env.py").is_file():
        if not (folder / "env.pyc").is_file():
            raise StoreUnavailable(
                "the schema cannot be made: tubes is imported from an archive, or compiled into a program, and "
                f"Alembic needs the files of {folder}"
            )
        made.set_main_option("sourceless", "true")  # not always: it would find what is left of removed files
    # The folder itself: for "tubes.migrations:" Alembic would register one more exit function each time.
    made.set_main_option("script_location", str(folder).replace("%", "%%"))
    made.attributes["namespace"] = namespace
    return made
