"""The types with the most features, in a SQLite database in memory: nobody else can open that."""

from tubes.testing import PrivateKit


class TestMemoryUtubettl(PrivateKit):
    type = "utubettl"
    url = "sqlite://"


class TestMemoryLimfifottl(PrivateKit):
    type = "limfifottl"
    url = "sqlite://"
