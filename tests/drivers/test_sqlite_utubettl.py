"""The type utubettl on a SQLite file."""

from tubes.testing import ConformanceKit


class TestSqliteUtubettl(ConformanceKit):
    type = "utubettl"
