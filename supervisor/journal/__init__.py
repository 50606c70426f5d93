"""Journals: the port, and what keeps them (SQLite, PostgreSQL, memory)."""
