"""SqliteJournal: journals in one SQLite file (WAL mode), the embedded default.

Owns the file and the meaning of its errors. A torn tail (a commit that a kill cut off) is dropped by SQLite's
own recovery, since it was never acknowledged. Anything else that is not as it was written is refused with the
file's name, never half read. `group_commit` has the threads and the groups, `sqlite_layout` the tables.

A full disk: below `reserve_bytes` of free space `refuses` gives the reason, while appends go on, so that
accepted work can be finished; when nothing is left they fail with `JournalFull`. Everything acknowledged is
kept, and the store takes appends again as soon as there is space.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gleaner.supervisor.errors import Fenced, JournalDamaged, JournalError, JournalFull, JournalUnable
from gleaner.supervisor.journal import sqlite_layout
from gleaner.supervisor.journal.group_commit import Committed, GroupCommit, Write
from gleaner.supervisor.journal.rows import StreamRows, damaged, row_checksum, snapshot_seq, stream_checksum
from gleaner.supervisor.journal.sqlite_layout import SQLITE_ERRORS

T = TypeVar("T")

_Head = tuple[int, int, int]
"""Incarnation, last and base of a stream."""

RESERVE_BYTES = 64 << 20
"""Free space below which no new work is begun. The most that a host can have accepted, a few batches of token
logs, needs less; so that work is finished before the disk is full."""
PROBE_BYTES = 64 << 10
"""A trial write: more than the free pages that a file may have by chance, too little to matter."""
BUSY_S = 5.0  # another process reads or copies the file

_DAMAGE = (
    "malformed",
    "not a database",
    "no such table",
    "no such column",
    "has no column",
    "Could not decode",
)
_UNABLE = ("disk I/O", "unable to open", "readonly", "locked")


class SqliteKeeper:
    """A `group_commit.Keeper` in the file `path`; the arguments are those of `SqliteJournal`."""

    def __init__(self, path: Path, *, durable: bool, reserve_bytes: int) -> None:
        self.path = path
        self.place = str(path)
        self._reserve_bytes = reserve_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sqlite_layout.refuse_damaged_log(path)
        except OSError as problem:
            raise JournalFull(
                f"{path}: {problem.strerror}: free space there, or make it writable"
            ) from problem
        self._db = self._open(durable)

    def _open(self, durable: bool) -> sqlite3.Connection:
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(self.path, check_same_thread=False, timeout=BUSY_S, isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            sqlite_layout.prepare(db, self.path)
        except BaseException as problem:
            if db is not None:
                db.close()
            if isinstance(problem, SQLITE_ERRORS):
                error = self._translate(problem)
                known = isinstance(error, JournalUnable | JournalDamaged)
                raise error if known else damaged(self.place, str(problem)) from problem
            raise
        return db

    def pragma(self, name: str) -> int:
        """A setting of the connection, as SQLite has it."""
        value: int = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def claim(self, stream: str, incarnation: int) -> None:
        """See `Keeper`."""

        def claim() -> None:
            held, last_seq, base_seq = self._head(stream, incarnation)
            if held > incarnation:
                raise Fenced(f"{self.path}: {stream} was opened by incarnation {held}, this is {incarnation}")
            self._set_head(stream, incarnation, last_seq, base_seq)

        self._transaction(claim)

    def commit(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        """See `Keeper`."""
        return self._transaction(lambda: self._apply_all(writes))

    def read(self, stream: str) -> StreamRows:
        """See `Keeper`."""
        try:
            rows = sqlite_layout.read_stream(self._db, sqlite_layout.LAYOUT, stream)
        except SQLITE_ERRORS as problem:
            raise self._translate(problem) from problem
        return rows or StreamRows(stream, 0, 0, 0, None, ())

    def newest_incarnation(self) -> int:
        """See `Keeper`."""
        try:
            newest: int | None = self._db.execute("SELECT max(incarnation) FROM streams").fetchone()[0]
        except SQLITE_ERRORS as problem:
            raise self._translate(problem) from problem
        return newest or 0

    def force_out(self) -> None:
        """See `Keeper`."""
        try:
            self._db.execute("PRAGMA synchronous=FULL")
        except SQLITE_ERRORS as problem:
            raise self._translate(problem) from problem

    def probe(self) -> None:
        """See `Keeper`."""
        if low := self.low():
            raise JournalFull(low)
        row = (sqlite_layout.TRIAL, 0, "", 0, bytes(PROBE_BYTES), 0)
        self._transaction(
            lambda: self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", row)
        )
        self._transaction(lambda: self._db.execute("DELETE FROM snapshots WHERE stream=?", row[:1]))

    def low(self) -> str:
        """See `Keeper`."""
        try:
            disk = os.statvfs(self.path.parent)
        except OSError as problem:
            return f"{self.path}: {problem.strerror}"
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes >= self._reserve_bytes:
            return ""
        return (
            f"{self.path}: {free_bytes >> 10} KiB are left in {self.path.parent}, new work needs "
            f"{self._reserve_bytes >> 10}: free space there"
        )

    def close(self) -> None:
        """See `Keeper`."""
        self._db.close()

    # -- rows --

    def _apply_all(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        """The head of a stream is read and written once a transaction, however often it moves within."""
        heads: dict[str, _Head] = {}
        results = [self._apply(write, heads) for write in writes]
        for stream, head in heads.items():
            self._set_head(stream, *head)
        return results

    def _apply(self, write: Write, heads: "dict[str, _Head]") -> Committed | Exception:
        stream = write.stream
        held, last_seq, base_seq = heads.get(stream) or self._head(stream, write.incarnation)
        if held > write.incarnation:
            return Fenced(f"{self.path}: {stream} belongs to incarnation {held}, this is {write.incarnation}")
        if write.is_snapshot:
            base_seq = last_seq = snapshot_seq(last_seq, base_seq)
            kind, version, body = write.rows[0]
            crc = row_checksum(stream, last_seq, kind, version, body)
            self._db.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
                (stream, last_seq, kind, version, body, crc),
            )
            self._db.execute("DELETE FROM events WHERE stream=?", (stream,))
        else:
            rows = []
            for kind, version, body in write.rows:
                last_seq += 1
                crc = row_checksum(stream, last_seq, kind, version, body)
                rows.append((stream, last_seq, kind, version, body, crc))
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        heads[stream] = write.incarnation, last_seq, base_seq
        return Committed(last_seq, last_seq - base_seq)

    def _head(self, stream: str, incarnation: int) -> _Head:
        """Incarnation, last and base of a stream; of a stream that does not exist yet, the initial values."""
        row: _Head | None = self._db.execute(
            "SELECT incarnation, last_seq, base_seq FROM streams WHERE name=?", (stream,)
        ).fetchone()
        return row or (incarnation, 0, 0)

    def _set_head(self, stream: str, incarnation: int, last_seq: int, base_seq: int) -> None:
        crc = stream_checksum(stream, incarnation, last_seq, base_seq)
        self._db.execute(
            "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?)",
            (stream, incarnation, last_seq, base_seq, crc),
        )

    def _transaction(self, work: Callable[[], T]) -> T:
        """All of it or nothing. Raises Fenced, JournalError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            result = work()
            self._db.execute("COMMIT")
        except SQLITE_ERRORS as problem:
            raise self._translate(problem) from problem
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        return result

    def _translate(self, problem: Exception) -> JournalError:
        text = str(problem)
        if isinstance(problem, UnicodeDecodeError) or any(word in text for word in _DAMAGE):
            return damaged(self.place, text)
        advice = f"{self.path}: {text}: free space in {self.path.parent} or move the state directory"
        if "full" in text:
            return JournalFull(advice)
        if any(word in text for word in _UNABLE):
            return JournalUnable(advice)
        return JournalError(f"{self.path}: {text}")


class SqliteJournal(GroupCommit):
    """A `JournalStore` in the file `path`.

    Args:
        path: the database file; created with its folder if missing, upgraded if it is of an older layout.
        commit_s: how long a group gathers before it is committed. A kill loses at most what was appended, and
            not yet acknowledged, in that time.
        durable: fsync each commit (survives power loss); without it a commit survives any kill of the
            process.
        reserve_bytes: free space below which `refuses` gives a reason.

    Raises:
        JournalDamaged: the file is not a journal, or not as it was written.
        JournalUnreadable: a newer program wrote it.
        JournalFull: no space to create it.
    """

    def __init__(
        self,
        path: Path,
        *,
        commit_s: float = 0.005,
        durable: bool = False,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.path = path
        super().__init__(SqliteKeeper(path, durable=durable, reserve_bytes=reserve_bytes), commit_s=commit_s)
