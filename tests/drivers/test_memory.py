"""The type with the most features, in a SQLite database in memory: nobody else can open that."""

from tubes.testing import PrivateKit


class TestMemory(PrivateKit):
    type = "utubettl"
    url = "sqlite://"
    topics = ("agreement", "groups")
