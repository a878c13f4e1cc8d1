"""The type fifottl on Redis."""

from redis_kit import RedisKit


class TestRedisFifottl(RedisKit):
    type = "fifottl"
    topics = ("agreement", "ordering", "timing")
