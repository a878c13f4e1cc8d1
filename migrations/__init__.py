"""The schema, version by version, as Alembic migrations with their own version table and branch label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tubes.errors import BadOption

VERSIONS = ("0001",)
"""The revisions that this version of tubes knows, oldest first."""

HEAD = VERSIONS[-1]
"""The revision that it works with."""

LABEL = "tubes"

TABLES = ("tube", "task", "temporary_task", "session", "connection", "calls", "server", "version")
"""The names of a namespace's tables behind its prefix, on all databases together."""


def version_table(namespace: str) -> str:
    """The table with the revision of a namespace's tables. BadOption if that is your own Alembic's."""
    if namespace.lower() == "alembic":
        raise BadOption(
            "bad namespace 'alembic': alembic_version is the table of the application's own migrations",
            option="namespace",
            value=namespace,
        )
    return f"{namespace}_version"


def include_object(namespace: str = "tubes") -> Callable[[Any, str | None, str, bool, Any], bool]:
    """Return an ``include_object`` for your own Alembic's ``context.configure``: it leaves our tables out.

    Without it, ``alembic revision --autogenerate`` would drop them, since your models do not have them.
    """
    ours = {f"{namespace}_{table}" for table in TABLES}

    def include(object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        return not (type_ == "table" and name in ours)

    return include
