"""The schema, version by version, as Alembic migrations with a version table and a branch label of their own."""

HEAD = "0001"
"""The revision that this version of tubes works with."""

LABEL = "tubes"
