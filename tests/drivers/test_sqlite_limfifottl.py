"""The type limfifottl on a SQLite file."""

from tubes.testing import ConformanceKit


class TestSqliteLimfifottl(ConformanceKit):
    type = "limfifottl"
    topics = ("agreement", "api", "capacity", "changes", "concurrency", "ordering", "timing")
