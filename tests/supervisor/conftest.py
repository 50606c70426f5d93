"""Fixtures of the journal suite: the stores that it runs on."""

from pathlib import Path
from uuid import uuid4

import pytest
from journal_places_under_test import PlaceUnderTest, PostgresPlace, SqlitePlace
from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def journal_database(postgres: PostgresServer) -> str:
    """The URL of a database for all tests; each test has its own space in it."""
    return postgres.new_database()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PlaceUnderTest:
    """An empty place for journals, of each kind."""
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    url: str = request.getfixturevalue("journal_database")
    return PostgresPlace(request.getfixturevalue("postgres"), url, f"job/{uuid4().hex[:12]}")
