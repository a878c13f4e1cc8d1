"""The type utube on Redis."""

from redis_kit import RedisKit


class TestRedisUtube(RedisKit):
    type = "utube"
    topics = ("agreement", "groups", "ordering")
