"""The five types on SQL databases: tables, statements, one driver, and a store for each database."""
