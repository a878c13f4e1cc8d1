"""The type with the most features, in a SQLite database in memory, which nobody else can open."""

from tubes.testing import PrivateKit


class TestMemory(PrivateKit):
    type = "utubettl"
    url = "sqlite://"
    topics = ("agreement", "groups")
