"""The type limfifottl on Redis."""

from redis_kit import RedisKit


class TestRedisLimfifottl(RedisKit):
    type = "limfifottl"
    topics = ("agreement", "capacity", "timing")
