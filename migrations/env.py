"""Runs the migrations on the connection that the caller gives, or prints them (``tubes migrate --sql``)."""

from __future__ import annotations

from typing import Any

from alembic import context

settings = context.config.attributes
options: dict[str, Any] = {
    "version_table": f"{settings.get('namespace', 'tubes')}_version",
    "namespace": settings.get("namespace", "tubes"),
    "transactional_ddl": False,
}

if context.is_offline_mode():
    context.configure(dialect_name=settings.get("dialect", "sqlite"), literal_binds=True, **options)
    context.run_migrations()
else:
    context.configure(connection=settings["connection"], **options)
    context.run_migrations()
