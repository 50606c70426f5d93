"""Layout of a journal's SQLite file: tables, versions, and upgrade steps.

Owns these and the checks made when a file is opened. To raise the layout, add a step to `_STEPS` and keep
every older one; all steps of a file run in one transaction. A file of a newer layout is refused.

Layout 1: no versions of messages, checksums without stream and version. Layout 2: both, and a checksum over
the row of each stream, so that a byte changed anywhere is found.
"""

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

from gleaner.supervisor.errors import JournalUnreadable
from gleaner.supervisor.journal.rows import Row, StreamRows, damaged, row_checksum, stream_checksum

LAYOUT = 2
TRIAL = "(trial)"
"""Name of a row in `snapshots` that a kill may leave of a trial write; it is never read."""

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of SQLite's calls; the second occurs if a damaged file has invalid text."""

TABLES = {
    "streams": "CREATE TABLE streams (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, last_seq INTEGER "
    "NOT NULL, base_seq INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
    "events": "CREATE TABLE events (stream TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, version "
    "INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID",
    "snapshots": "CREATE TABLE snapshots (stream TEXT PRIMARY KEY, seq INTEGER NOT NULL, kind TEXT NOT NULL, "
    "version INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
}

_NAMES_USED = """
WITH RECURSIVE used(name) AS (
    SELECT min(stream) FROM events
    UNION ALL
    SELECT (SELECT min(stream) FROM events WHERE stream > used.name) FROM used WHERE used.name NOT NULL)
SELECT name FROM used WHERE name NOT NULL UNION SELECT stream FROM snapshots
"""


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make, upgrade and check the file behind `db`, which is in autocommit mode.

    Raises JournalDamaged, JournalUnreadable, sqlite3.Error.
    """
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise damaged(str(path), verdict)
    version = layout_of(db, path)
    if version < LAYOUT:
        db.execute("BEGIN IMMEDIATE")
        try:
            if version == 0:
                _create(db)
            else:
                for older in range(version, LAYOUT):
                    _STEPS[older](db, path)
            db.execute(f"PRAGMA user_version={LAYOUT}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    check(db, path)


def refuse_damaged_log(path: Path) -> None:
    """Check the write-ahead log before SQLite opens it. Raises JournalDamaged, OSError."""
    wal = path.with_name(path.name + "-wal")
    if not wal.exists():
        return
    from gleaner.supervisor.journal.wal_check import (
        wal_damage,  # here: NumPy takes longer to import than all of this package
    )

    if what := wal_damage(wal.read_bytes()):
        raise damaged(str(path), what)


def layout_of(db: sqlite3.Connection, path: Path) -> int:
    """The layout of the file; 0 for an empty one. Raises JournalDamaged, JournalUnreadable."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > LAYOUT:
        raise JournalUnreadable(
            f"journal {path} has layout {version}, this program supports up to {LAYOUT}: run the newer "
            "program, or move the file away to begin without it"
        )
    if version < 0 or (version == 0 and _tables(db)):
        raise damaged(str(path), f"layout {version}, and there are tables")
    return version


def check(db: sqlite3.Connection, path: Path) -> None:
    """Check what must hold for every whole file of this layout, whatever its streams contain. Raises
    JournalDamaged."""
    if _tables(db) != TABLES:
        raise damaged(str(path), "its tables are not those of a journal")
    known = set()
    for name, *numbers, crc in db.execute("SELECT name, incarnation, last_seq, base_seq, crc FROM streams"):
        if stream_checksum(name, *numbers) != crc:
            raise damaged(str(path), f"the row of stream {name} fails its checksum")
        known.add(name)
    for (name,) in db.execute(_NAMES_USED):
        if name not in known and name != TRIAL:
            raise damaged(str(path), f"there are events of {name}, and no such stream")


def read_stream(db: sqlite3.Connection, layout: int, name: str) -> StreamRows | None:
    """A stream of a file of this or the first layout; None if there is none. Raises sqlite3.Error."""
    if layout == 1:
        return _read_first(db, name)
    found = db.execute("SELECT incarnation, last_seq, base_seq FROM streams WHERE name=?", (name,)).fetchone()
    if found is None:
        return None
    row = db.execute("SELECT seq, kind, version, body, crc FROM snapshots WHERE stream=?", (name,)).fetchone()
    events = db.execute(
        "SELECT seq, kind, version, body, crc FROM events WHERE stream=? ORDER BY seq", (name,)
    )
    incarnation, last_seq, base_seq = found
    snapshot = None if row is None else Row(*row)
    return StreamRows(name, incarnation, last_seq, base_seq, snapshot, tuple(Row(*event) for event in events))


def stream_names(db: sqlite3.Connection) -> list[str]:
    """Every stream, in the order of names. Raises sqlite3.Error."""
    return [name for (name,) in db.execute("SELECT name FROM streams ORDER BY name")]


def _tables(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"))


# -- the way from older layouts --


def _create(db: sqlite3.Connection) -> None:
    for statement in TABLES.values():
        db.execute(statement)


def _from_first(db: sqlite3.Connection, path: Path) -> None:
    """Layout 1 to 2. Every row is checked before it gets its new checksum: damage is not blessed."""
    streams = [_read_first(db, name) for name in stream_names(db)]
    for table in TABLES:
        db.execute(f"DROP TABLE {table}")
    _create(db)
    for rows in streams:
        assert rows is not None
        for fault in rows.faults():
            raise damaged(str(path), fault)
        head = (rows.name, rows.incarnation, rows.last_seq, rows.base_seq)
        db.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?)", (*head, stream_checksum(*head)))
        if rows.snapshot is not None:
            db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", (rows.name, *rows.snapshot))
        db.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", [(rows.name, *row) for row in rows.events]
        )


def _read_first(db: sqlite3.Connection, name: str) -> StreamRows | None:
    """A stream of layout 1, in the terms of today. A row that fails its old checksum gets a wrong new one."""
    found = db.execute("SELECT incarnation, last_seq FROM streams WHERE name=?", (name,)).fetchone()
    if found is None:
        return None
    row = db.execute("SELECT seq, kind, body, crc FROM snapshots WHERE stream=?", (name,)).fetchone()
    snapshot = None if row is None else _row_of_first(name, *row)
    events = db.execute("SELECT seq, kind, body, crc FROM events WHERE stream=? ORDER BY seq", (name,))
    rows = tuple(_row_of_first(name, *event) for event in events)
    incarnation, last_seq = found
    base_seq = 0 if snapshot is None else snapshot.seq
    return StreamRows(name, incarnation, last_seq, base_seq, snapshot, rows)


def _row_of_first(name: str, seq: int, kind: str, body: bytes, crc: int) -> Row:
    whole = zlib.crc32(body, zlib.crc32(f"{seq} {kind}".encode())) == crc
    new = row_checksum(name, seq, kind, 1, body)
    return Row(seq, kind, 1, body, new if whole else ~new)


_STEPS: dict[int, Callable[[sqlite3.Connection, Path], None]] = {1: _from_first}
"""From each older layout to the next one."""
