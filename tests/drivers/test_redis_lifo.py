"""The example of a custom driver, on Redis."""

from redis_kit import RedisKit

import examples.lifo  # noqa: F401  # registers it


class TestRedisLifo(RedisKit):
    type = "lifo"
