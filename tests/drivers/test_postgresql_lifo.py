"""The example of a custom driver, on PostgreSQL."""

from postgres_kit import PostgresKit

import examples.lifo  # noqa: F401  # registers it


class TestPostgresLifo(PostgresKit):
    type = "lifo"
