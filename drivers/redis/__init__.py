"""Tubes on Redis, Valkey and their clusters: every step is one Lua script, which is one round trip."""

try:
    import redis  # noqa: F401 - used by the modules, which would not say how to get it
except ImportError as error:
    raise ImportError(f"{error}; pip install 'tubes-queue[redis]'") from error
