"""The type utube on a SQLite file."""

from tubes.testing import ConformanceKit


class TestSqliteUtube(ConformanceKit):
    type = "utube"
    topics = ("agreement", "api", "groups", "ordering", "ownership")
