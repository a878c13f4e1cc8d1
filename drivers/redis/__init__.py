"""Tubes on Redis, Valkey and their clusters: every step is one Lua script, which is one round trip."""
