"""The type utubettl on Redis."""

from redis_kit import RedisKit


class TestRedisUtubettl(RedisKit):
    type = "utubettl"
