"""Two types on a Redis Cluster; the others are in ``tests/soak``."""

from redis_kit import ClusterKit


class TestRedisClusterUtubettl(ClusterKit):
    type = "utubettl"


class TestRedisClusterLimfifottl(ClusterKit):
    type = "limfifottl"
