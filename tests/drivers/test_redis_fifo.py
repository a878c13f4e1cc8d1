"""The type fifo on Redis."""

from redis_kit import RedisKit


class TestRedisFifo(RedisKit):
    type = "fifo"
    topics = ("agreement", "atomicity", "ordering", "ownership")
