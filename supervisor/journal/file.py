"""Reader of another process's journal, living or dead; it never writes.

Owns nothing: the formats are those of the stores. Used to look at a run from outside. A journal is named by
the path of its file or by the URL of its database (`postgresql://...`).
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gleaner.supervisor.errors import JournalDamaged, JournalError
from gleaner.supervisor.journal import sqlite_layout
from gleaner.supervisor.journal.rows import StreamRows, damaged
from gleaner.supervisor.journal.sqlite_layout import layout_of, read_stream, stream_names
from gleaner.supervisor.message import Message

BUSY_S = 5.0


@dataclass(frozen=True, slots=True)
class StreamContent:
    """One stream at one moment: its writer's incarnation, its snapshot and the events after that."""

    incarnation: int
    snapshot: Message | None
    events: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Snapshot, if any, then the events: the result of a replay."""
        return self.events if self.snapshot is None else (self.snapshot, *self.events)


class JournalView(Protocol):
    """A journal as it was at one moment. Every method raises JournalDamaged, JournalError."""

    place: str
    layout: int

    def names(self) -> list[str]:
        """Its streams, by name."""

    def rows(self, name: str) -> StreamRows | None:
        """A stream as it is stored, whole or not; None if there is none."""

    def check(self) -> None:
        """Check what must hold for the whole journal, whatever its streams contain."""


@contextmanager
def view_file(path: Path) -> Iterator[JournalView]:
    """A journal file. Raises JournalDamaged, JournalUnreadable, JournalError (no such file); all name it."""
    if not path.is_file():
        raise JournalError(f"{path}: no such journal")
    try:
        db = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None
        )
    except sqlite3.Error as problem:
        raise JournalError(f"{path}: {problem}") from problem
    try:
        db.execute("BEGIN")
        yield _FileView(path, db, layout_of(db, path))
    except sqlite3.OperationalError as problem:
        if "no such table" in str(problem):
            raise damaged(str(path), str(problem)) from problem
        raise JournalError(f"{path}: {problem}") from problem
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        raise damaged(str(path), str(problem)) from problem
    finally:
        db.close()


def read_streams(path: Path, names: Iterable[str]) -> dict[str, StreamContent]:
    """The streams of `names` that the file holds, all as of one moment.

    Kinds of messages are known only where the module that defines them was imported. Raises: JournalDamaged,
    JournalUnreadable, JournalError (no such file); all name the file.
    """
    with view_file(path) as journal:
        return contents_of(journal, names)


def contents_of(journal: JournalView, names: Iterable[str]) -> dict[str, StreamContent]:
    """The same of a journal that is open."""
    found = {}
    for name in names:
        rows = journal.rows(name)
        if rows is not None:
            snapshot, events = rows.replay(journal.place)
            found[name] = StreamContent(rows.incarnation, snapshot, tuple(event for _seq, event in events))
    return found


class _FileView:
    """See `JournalView`."""

    def __init__(self, path: Path, db: sqlite3.Connection, layout: int) -> None:
        self.place, self.layout = str(path), layout
        self._path, self._db = path, db

    def names(self) -> list[str]:
        return stream_names(self._db)

    def rows(self, name: str) -> StreamRows | None:
        return read_stream(self._db, self.layout, name)

    def check(self) -> None:
        """Pages, tables, the rows of the streams, and the write-ahead log."""
        verdict = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(self.place, verdict)
        if self.layout == sqlite_layout.LAYOUT:
            sqlite_layout.check(self._db, self._path)
        self._check_log()

    def _check_log(self) -> None:
        """Twice if necessary: its writer may begin the log anew while it is read."""
        try:
            sqlite_layout.refuse_damaged_log(self._path)
        except JournalDamaged:
            sqlite_layout.refuse_damaged_log(self._path)
