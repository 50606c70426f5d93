"""Read-only view of journals in PostgreSQL: one stream, or a whole database.

Each is read as of one moment, for inspection from outside. Owns the reading statements. Never writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from gleaner.supervisor.journal.file import JournalView
from gleaner.supervisor.journal.postgres_layout import (
    Database,
    connect,
    layout_of,
    translated,
    without_password,
)
from gleaner.supervisor.journal.rows import Row, StreamRows, damaged

TRIAL = "(trial)"
"""The stream of trial writes; it is never read."""


def read_stream(db: Database, space: str, name: str) -> StreamRows | None:
    """A stream as of one moment; None if there is none. Raises psycopg.Error."""
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        head = db.execute(
            "SELECT incarnation, last_seq, base_seq FROM gleaner.streams WHERE space=%s AND name=%s",
            (space, name),
        ).fetchone()
        if head is None:
            return None
        columns = "SELECT seq, kind, version, body, crc FROM"
        where = "WHERE space=%s AND stream=%s"
        row = db.execute(f"{columns} gleaner.snapshots {where}", (space, name)).fetchone()
        events = db.execute(f"{columns} gleaner.events {where} ORDER BY seq", (space, name)).fetchall()
    snapshot = None if row is None else Row(*row)
    incarnation, last_seq, base_seq = head
    rows = tuple(Row(*event) for event in events)
    return StreamRows(name, incarnation, last_seq, base_seq, snapshot, rows)


@contextmanager
def view_database(url: str) -> Iterator[JournalView]:
    """Every journal of a database, streams named `<space>: <stream>`. Raises JournalError."""
    db = connect(url)
    try:
        yield _DatabaseView(url, db, layout_of(db, url))
    except psycopg.Error as problem:
        raise translated(url, problem) from problem
    finally:
        db.close()


class _DatabaseView:
    """See `JournalView`. Each stream is read as of one moment; several are not."""

    def __init__(self, url: str, db: Database, layout: int) -> None:
        self.place, self.layout = without_password(url), layout
        self._db = db

    def names(self) -> list[str]:
        found = self._db.execute("SELECT space, name FROM gleaner.streams ORDER BY space, name")
        return [f"{space}: {name}" for space, name in found]

    def rows(self, name: str) -> StreamRows | None:
        space, _, stream = name.rpartition(": ")
        return read_stream(self._db, space, stream)

    def check(self) -> None:
        """Rows without a stream; pages and checksums of pages are the server's."""
        lost = self._db.execute(
            "SELECT space, stream FROM gleaner.events UNION SELECT space, stream FROM gleaner.snapshots"
            " WHERE stream<>%s EXCEPT SELECT space, name FROM gleaner.streams",
            (TRIAL,),
        ).fetchone()
        if lost is not None:
            raise damaged(self.place, f"there are events of {lost[0]}: {lost[1]}, and no such stream")
