"""The type fifo on a SQLite file."""

from tubes.testing import ConformanceKit


class TestSqliteFifo(ConformanceKit):
    type = "fifo"
