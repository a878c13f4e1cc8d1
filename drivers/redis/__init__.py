"""Tubes on Redis, Valkey and their clusters: every step is one Lua script, sent in one round trip."""

try:
    import redis  # the modules need it, and would not say how to install it

    if int(redis.__version__.partition(".")[0]) < 6:  # it cannot tell a Cluster's answers from other errors
        raise ImportError(f"redis-py is {redis.__version__}, but tubes needs 6 or newer")
except ImportError as error:
    raise ImportError(f"{error}; pip install 'tubes-queue[redis]'") from error
