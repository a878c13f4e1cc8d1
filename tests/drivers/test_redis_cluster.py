"""The type with the most features on a Redis Cluster; the others are in ``tests/soak``."""

from redis_kit import ClusterKit


class TestRedisClusterUtubettl(ClusterKit):
    type = "utubettl"
    topics = ("agreement", "groups", "reopening")
