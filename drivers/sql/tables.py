"""The tables of a namespace, as SQLAlchemy sees them. ``migrations/`` makes them, with triggers and indexes.

The central column is the task's ``front``. A task that may be taken now, or that is taken, stands in front
(1); a ready task that waits behind another of its sub-queue does not (0); a buried or delayed one stands
aside (NULL). At most one task of a sub-queue stands in front, and triggers keep it so: when a task leaves the
front, they bring up the best one from behind. A take therefore costs the same however much lies in busy
sub-queues. The indexes:

* ``front``  (tube, state desc, place, id) where front = 1: the taken tasks of a tube, by the end of their
  time (their ``place``), and right after them the ready ones, by ``pri`` (their ``place``): a take moves its
  entry by a few places; on PostgreSQL, where an update moves no entry, the ready ones come first;
* ``member`` (tube, utube, front desc, pri, id): a sub-queue, first the task in front, then those behind it;
  on PostgreSQL two indexes, ``first``, which is unique, and ``behind``;
* ``aside``  (tube, state, pri, id) where front is null: what a kick brings back;
* ``due``    (tube, due_ms) of all that are not taken: what the sweeper looks for. A taken task's deadline is
  its place.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa


class Tables:
    """The tables of one namespace."""

    def __init__(self, namespace: str) -> None:
        meta, big, text = sa.MetaData(), sa.BigInteger, sa.Text
        self.tube = sa.Table(
            f"{namespace}_tube",
            meta,
            sa.Column("id", big, primary_key=True),
            sa.Column("name", text, nullable=False, unique=True),
            sa.Column("type", text, nullable=False),
            sa.Column("options", text, nullable=False),
            sa.Column("temporary", sa.Boolean, nullable=False),
            sa.Column("stored", big, nullable=False),
        )
        self.task = sa.Table(
            f"{namespace}_task",
            meta,
            sa.Column("id", big, primary_key=True),
            sa.Column("tube", big, nullable=False),
            sa.Column("state", text, nullable=False),
            sa.Column("front", sa.SmallInteger),
            sa.Column("pri", big, nullable=False),
            sa.Column("place", big),
            sa.Column("utube", text),
            sa.Column("created_ms", big, nullable=False),
            sa.Column("updated_ms", big, nullable=False),
            sa.Column("due_ms", big),
            sa.Column("ttl_ms", big),
            sa.Column("ttr_ms", big),
            sa.Column("attempts", sa.Integer, nullable=False),
            sa.Column("owner", text),
            sa.Column("data", text),
            sa.Column("bytes", sa.LargeBinary),
        )
        self.temporary_task = self.task.to_metadata(meta, name=f"{namespace}_temporary_task")
        self.session = sa.Table(
            f"{namespace}_session",
            meta,
            sa.Column("id", text, primary_key=True),
            sa.Column("ttr_ms", big, nullable=False),
            sa.Column("ends_ms", big),
        )
        self.connection = sa.Table(
            f"{namespace}_connection",
            meta,
            sa.Column("id", big, primary_key=True),
            sa.Column("session", text, nullable=False),
            sa.Column("host", text, nullable=False),
            sa.Column("pid", sa.Integer, nullable=False),
            sa.Column("started_ms", big, nullable=False),
        )
        self.calls = sa.Table(
            f"{namespace}_calls",
            meta,
            sa.Column("tube", big, primary_key=True),
            sa.Column("event", text, primary_key=True),
            sa.Column("count", big, nullable=False),
        )


@lru_cache(maxsize=64)
def tables(namespace: str) -> Tables:
    """The tables of a namespace, described once."""
    return Tables(namespace)
