"""The type fifottl on a SQLite file."""

from tubes.testing import ConformanceKit


class TestSqliteFifottl(ConformanceKit):
    type = "fifottl"
    topics = ("agreement", "api", "ordering", "ownership", "timing")
