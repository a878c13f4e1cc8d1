"""Tubes on Redis, Valkey and their clusters: every step is one Lua script, which is one round trip."""

try:
    import redis  # used by the modules, which would not say how to get it

    if int(redis.__version__.partition(".")[0]) < 6:  # it tells none of a Cluster's answers from a refusal
        raise ImportError(f"redis-py is {redis.__version__}, and tubes needs 6 or newer")
except ImportError as error:
    raise ImportError(f"{error}; pip install 'tubes-queue[redis]'") from error
