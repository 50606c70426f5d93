"""The stores under test, each with the operations of a test from outside."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from postgres_server import PostgresServer

from gleaner.supervisor import JournalStore, SqliteJournal
from gleaner.supervisor.journal.file import StreamContent, contents_of, view_file
from gleaner.supervisor.journal.group_commit import Keeper, NewRow, Write
from gleaner.supervisor.journal.postgres import PostgresJournal, PostgresKeeper
from gleaner.supervisor.journal.postgres_view import view_database
from gleaner.supervisor.journal.sqlite import SqliteKeeper


class PlaceUnderTest(Protocol):
    """An empty place for journals."""

    name: str

    def open(self, commit_s: float = 0.0) -> JournalStore:
        """Open a store on it, as a process would."""

    def keeper(self) -> Keeper:
        """The blocking side of the store."""

    def code(self) -> str:
        """The expression that opens it in another process."""

    def content(self, stream: str) -> StreamContent:
        """The journal as an outside reader sees it."""

    def sql(self, statement: str) -> None:
        """Execute the statement without the store. `{here}` in a statement limits it to this test's rows."""

    def fill(self, store: JournalStore) -> Callable[[], None]:
        """Leave no space; the result frees it again."""


class SqlitePlace:
    """A file."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "j.sqlite"

    def open(self, commit_s: float = 0.0) -> JournalStore:
        return SqliteJournal(self.path, commit_s=commit_s)

    def keeper(self) -> Keeper:
        return SqliteKeeper(self.path, durable=False, reserve_bytes=0)

    def code(self) -> str:
        module = "__import__('importlib').import_module('gleaner.supervisor')"
        return f"{module}.SqliteJournal(__import__('pathlib').Path({str(self.path)!r}))"

    def content(self, stream: str) -> StreamContent:
        with view_file(self.path) as journal:
            return contents_of(journal, [stream])[stream]

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.path) as db:
            db.execute(statement.replace("gleaner.", "").format(here="1=1"))

    def fill(self, store: JournalStore) -> Callable[[], None]:
        assert isinstance(store, SqliteJournal)
        db = store._keeper._db  # type: ignore[attr-defined]
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 10}")  # SQLITE_FULL, as on a full disk
        return lambda: db.execute("PRAGMA max_page_count=1000000")


class PostgresPlace:
    """A test's own space in a database for all tests."""

    name = "postgres"

    def __init__(self, server: PostgresServer, url: str, space: str) -> None:
        self.server, self.url, self.space = server, url, space

    def open(self, commit_s: float = 0.0) -> JournalStore:
        return PostgresJournal(self.url, space=self.space, commit_s=commit_s)

    def keeper(self) -> Keeper:
        return PostgresKeeper(self.url, self.space, None)

    def code(self) -> str:
        module = "__import__('importlib').import_module('gleaner.supervisor.journal.postgres')"
        return f"{module}.PostgresJournal({self.url!r}, space={self.space!r})"

    def content(self, stream: str) -> StreamContent:
        name = f"{self.space}: {stream}"
        with view_database(self.url) as journal:
            return contents_of(journal, [name])[name]

    def sql(self, statement: str) -> None:
        with self.server.session(self.url.rpartition("/")[2]) as db:
            db.execute(statement.format(here=f"space='{self.space}'").replace("x''", "''").encode())

    def fill(self, store: JournalStore) -> Callable[[], None]:
        self.sql(
            "CREATE FUNCTION gleaner.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
            "'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
        )
        for table in ("events", "snapshots"):
            self.sql(
                f"CREATE TRIGGER full_disk AFTER INSERT ON gleaner.{table} FOR EACH ROW WHEN "
                f"(NEW.space = '{self.space}') EXECUTE FUNCTION gleaner.full()"
            )
        return lambda: self.sql("DROP FUNCTION gleaner.full() CASCADE")


def put(
    keeper: Keeper, stream: str, incarnation: int, rows: Sequence[NewRow], snapshot: bool = False
) -> None:
    """Write rows as an older or newer program would, then close the place."""
    results = keeper.commit([Write(stream, incarnation, rows, snapshot)])
    assert not any(isinstance(result, Exception) for result in results), results
    keeper.close()
