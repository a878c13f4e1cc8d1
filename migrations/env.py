"""Runs the migrations on the connection that the caller gives, or prints them (``tubes migrate --sql``)."""

from __future__ import annotations

from typing import Any

from alembic import context
from tubes.migrations import version_table

settings = context.config.attributes
namespace = settings.get("namespace", "tubes")
target: dict[str, Any]
if context.is_offline_mode():
    dialect = settings.get("dialect", "sqlite")
    target = {"dialect_name": dialect, "literal_binds": True, "dialect_opts": {"paramstyle": "named"}}
else:
    dialect = settings["connection"].dialect.name
    target = {"connection": settings["connection"]}

context.configure(
    version_table=version_table(namespace),
    namespace=namespace,
    transactional_ddl=dialect != "sqlite",  # there the transaction is the store's
    **target,
)
with context.begin_transaction():
    context.run_migrations()
