"""Reads the journal of another process, whether that one lives or not, without ever writing to it.

Owns nothing: the format is `sqlite_journal`'s. Used by whoever looks at a run from outside.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import ActorError, JournalDamaged, JournalError
from supervisor.message import Message, decode_body
from supervisor.sqlite_journal import SCHEMA_VERSION, row_checksum


@dataclass(frozen=True, slots=True)
class StreamContent:
    """One stream at one moment: its writer's incarnation, its snapshot and the events after that."""

    incarnation: int
    snapshot: Message | None
    events: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Snapshot, if any, then the events: what a replay gives."""
        return self.events if self.snapshot is None else (self.snapshot, *self.events)


def read_streams(path: Path, names: Iterable[str]) -> dict[str, StreamContent]:
    """The streams of `names` that the file holds, all as of one moment.

    Kinds of messages are known only where the module that defines them was imported. Raises: JournalDamaged,
    JournalError (no such file, a newer format, an unknown kind); both name the file.
    """
    if not path.is_file():
        raise JournalError(f"{path}: no such journal")
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)
    except sqlite3.Error as problem:
        raise JournalError(f"{path}: {problem}") from problem
    try:
        db.execute("BEGIN")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise JournalError(f"{path}: schema version {version}, this program reads {SCHEMA_VERSION}")
        found = ((name, _read(db, path, name)) for name in names)
        return {name: content for name, content in found if content is not None}
    except sqlite3.DatabaseError as problem:
        raise JournalDamaged(f"journal {path} is damaged ({problem}): restore it from a copy") from problem
    finally:
        db.close()


def _read(db: sqlite3.Connection, path: Path, name: str) -> StreamContent | None:
    row = db.execute("SELECT incarnation, last_seq FROM streams WHERE name=?", (name,)).fetchone()
    if row is None:
        return None
    incarnation, last_seq = row
    snapshot: Message | None = None
    seq = 0
    for seq, kind, body, crc in db.execute(
        "SELECT seq, kind, body, crc FROM snapshots WHERE stream=?", (name,)
    ):
        snapshot = _message(path, name, seq, kind, body, crc)
    events = []
    for number, kind, body, crc in db.execute(
        "SELECT seq, kind, body, crc FROM events WHERE stream=? ORDER BY seq", (name,)
    ):
        seq += 1
        if number != seq:
            raise JournalDamaged(f"journal {path} is damaged: event {seq} of {name} is missing")
        events.append(_message(path, name, number, kind, body, crc))
    if seq != last_seq:
        raise JournalDamaged(
            f"journal {path} is damaged: events {seq + 1} to {last_seq} of {name} are missing"
        )
    return StreamContent(incarnation, snapshot, tuple(events))


def _message(path: Path, name: str, seq: int, kind: str, body: bytes, crc: int) -> Message:
    if row_checksum(seq, kind, body) != crc:
        raise JournalDamaged(f"journal {path} is damaged: event {seq} of {name} fails its checksum")
    try:
        return decode_body(kind, body)
    except ActorError as problem:
        raise JournalError(f"{path}: event {seq} of {name}: {problem}") from problem
