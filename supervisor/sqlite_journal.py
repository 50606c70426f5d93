"""Journals in one SQLite file (WAL mode), written by one thread with group commit.

Owns the file, its format and the verdict on damage. A torn tail (a commit that a kill cut off) is dropped by
SQLite's own recovery, since it was never acknowledged; a damaged middle is refused with the file's name,
never half read. Bounds: at most `MAX_WAITING` events wait for a commit, then `append` fails with
`JournalFull`.
"""

import asyncio
import queue
import sqlite3
import threading
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from supervisor.errors import Fenced, JournalDamaged, JournalError, JournalFull
from supervisor.message import Message, decode_body, encode_body, kind_of

T = TypeVar("T")

SCHEMA_VERSION = 1
MAX_WAITING = 100_000
"""Events queued for the writer thread; minutes of the largest load measured, so reaching it means a dead
disk."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, last_seq INTEGER
NOT NULL); CREATE TABLE IF NOT EXISTS events (
    stream TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (stream, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (
    stream TEXT PRIMARY KEY, seq INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT
    NULL);
"""


class _Write(NamedTuple):
    stream: str
    incarnation: int
    rows: list[tuple[str, bytes]]
    is_snapshot: bool
    done: asyncio.Future[int]


class SqliteJournal:
    """A `JournalStore` in the file `path`.

    Args:
        path: the database file; created with its folder if missing.
        commit_s: how long a group gathers before it is committed. A kill loses at most what was appended, and
            not yet acknowledged, in that time.
        durable: fsync each commit (survives power loss); without it a commit survives any kill of the
        process.

    Raises:
        JournalDamaged: the file is not a journal, is of another schema version, or fails its integrity check.
        JournalFull: no space to create it.
    """

    def __init__(self, path: Path, *, commit_s: float = 0.005, durable: bool = False) -> None:
        self.path = path
        self._commit_s = commit_s
        self._durable = durable
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writes: queue.Queue[_Write | Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        self._opened: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = self._connect()
        self._thread = threading.Thread(target=self._write_loop, name=f"journal {path.name}", daemon=True)
        self._thread.start()

    def open(self, stream: str, incarnation: int) -> None:
        """See `JournalStore.open`. Runs once an actor start, so it may touch the file directly."""
        done: queue.Queue[Exception | None] = queue.Queue(1)

        def claim() -> None:
            try:
                with self._db:
                    row = self._db.execute(
                        "SELECT incarnation FROM streams WHERE name=?", (stream,)
                    ).fetchone()
                    if row is not None and row[0] > incarnation:
                        raise Fenced(
                            f"{self.path}: {stream} was opened by incarnation {row[0]}, this is {incarnation}"
                        )
                    self._db.execute(
                        "INSERT INTO streams VALUES (?, ?, 0)"
                        " ON CONFLICT(name) DO UPDATE SET incarnation=excluded.incarnation",
                        (stream, incarnation),
                    )
                done.put(None)
            except (Fenced, sqlite3.Error) as problem:
                done.put(problem if isinstance(problem, Fenced) else self._translate(problem))

        self._writes.put(claim)
        problem = done.get()
        if problem is not None:
            raise problem

    def append(self, stream: str, incarnation: int, events: Sequence[Message]) -> Awaitable[int]:
        """See `JournalStore.append`."""
        return self._enqueue(stream, incarnation, events, is_snapshot=False)

    def snapshot(self, stream: str, incarnation: int, state: Message) -> Awaitable[int]:
        """See `JournalStore.snapshot`."""
        return self._enqueue(stream, incarnation, [state], is_snapshot=True)

    async def read(self, stream: str) -> tuple[Message | None, list[tuple[int, Message]]]:
        """See `JournalStore.read`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Message | None, list[tuple[int, Message]]]] = loop.create_future()

        def work() -> None:
            try:
                result = self._read(stream)
            except (JournalError, sqlite3.Error) as problem:
                error = problem if isinstance(problem, JournalError) else self._translate(problem)
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_resolve, done, result)

        self._writes.put_nowait(work)
        return await done

    async def close(self) -> None:
        """Commit what waits, then close the file."""
        self._writes.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # -- the writer thread --

    def _enqueue(
        self, stream: str, incarnation: int, messages: Sequence[Message], *, is_snapshot: bool
    ) -> Awaitable[int]:
        loop = asyncio.get_running_loop()
        self._loop = loop
        done: asyncio.Future[int] = loop.create_future()
        rows = [(kind_of(message), encode_body(message)) for message in messages]
        try:
            self._writes.put_nowait(_Write(stream, incarnation, rows, is_snapshot, done))
        except queue.Full:
            done.set_exception(
                JournalFull(f"{self.path}: {MAX_WAITING} events wait for the disk; is it stuck?")
            )
        return done

    def _write_loop(self) -> None:
        stop = False
        while not stop:
            group: list[_Write] = []
            item = self._writes.get()
            if self._commit_s and isinstance(item, _Write):
                threading.Event().wait(self._commit_s)  # let a group gather
            while True:
                if item is None:
                    stop = True
                elif isinstance(item, _Write):
                    group.append(item)
                else:
                    self._commit(group)
                    group = []
                    item()
                try:
                    item = self._writes.get_nowait()
                except queue.Empty:
                    break
            self._commit(group)
        self._db.close()

    def _commit(self, group: list[_Write]) -> None:
        if not group:
            return
        results: list[tuple[_Write, int | Exception]] = []
        try:
            with self._db:
                results = [(write, self._apply(write)) for write in group]
        except sqlite3.Error as problem:
            error = self._translate(problem)
            results = [(write, error) for write in group]
        for write, result in results:
            if isinstance(result, Exception):
                write.done.get_loop().call_soon_threadsafe(_fail, write.done, result)
            else:
                write.done.get_loop().call_soon_threadsafe(_resolve, write.done, result)

    def _apply(self, write: _Write) -> int | Exception:
        row = self._db.execute(
            "SELECT incarnation, last_seq FROM streams WHERE name=?", (write.stream,)
        ).fetchone()
        if row is None or row[0] > write.incarnation:
            holder = "nobody" if row is None else f"incarnation {row[0]}"
            return Fenced(f"{self.path}: {write.stream} belongs to {holder}, this is {write.incarnation}")
        last_seq: int = row[1]
        if write.is_snapshot:
            kind, body = write.rows[0]
            self._db.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)",
                (write.stream, last_seq, kind, body, row_checksum(last_seq, kind, body)),
            )
            self._db.execute("DELETE FROM events WHERE stream=? AND seq<=?", (write.stream, last_seq))
            return last_seq
        for kind, body in write.rows:
            last_seq += 1
            self._db.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                (write.stream, last_seq, kind, body, row_checksum(last_seq, kind, body)),
            )
        self._db.execute("UPDATE streams SET last_seq=? WHERE name=?", (last_seq, write.stream))
        return last_seq

    def _read(self, stream: str) -> tuple[Message | None, list[tuple[int, Message]]]:
        row = self._db.execute("SELECT last_seq FROM streams WHERE name=?", (stream,)).fetchone()
        last_seq = 0 if row is None else row[0]
        snapshot: Message | None = None
        base = 0
        found = self._db.execute(
            "SELECT seq, kind, body, crc FROM snapshots WHERE stream=?", (stream,)
        ).fetchone()
        if found is not None:
            base, kind, body, crc = found
            snapshot = self._checked(stream, base, kind, body, crc)
        events: list[tuple[int, Message]] = []
        expected = base
        for seq, kind, body, crc in self._db.execute(
            "SELECT seq, kind, body, crc FROM events WHERE stream=? ORDER BY seq", (stream,)
        ):
            expected += 1
            if seq != expected:
                raise JournalDamaged(self._advice(f"event {expected} of {stream} is missing"))
            events.append((seq, self._checked(stream, seq, kind, body, crc)))
        if expected != last_seq:
            raise JournalDamaged(self._advice(f"events {expected + 1} to {last_seq} of {stream} are missing"))
        return snapshot, events

    def _checked(self, stream: str, seq: int, kind: str, body: bytes, crc: int) -> Message:
        if row_checksum(seq, kind, body) != crc:
            raise JournalDamaged(self._advice(f"event {seq} of {stream} fails its checksum"))
        return decode_body(kind, body)

    # -- opening --

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, check_same_thread=False, timeout=5.0)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'NORMAL'}")
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise JournalDamaged(self._advice(verdict))
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise JournalDamaged(
                    self._advice(f"schema version {version}, this program writes {SCHEMA_VERSION}")
                )
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except sqlite3.Error as problem:
            raise self._translate(problem) from problem
        return db

    def _translate(self, problem: sqlite3.Error) -> JournalError:
        text = str(problem)
        if "full" in text or "disk I/O" in text or "unable to open" in text:
            return JournalFull(
                f"{self.path}: {text}: free space in {self.path.parent} or move the state directory"
            )
        if isinstance(problem, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
            return JournalDamaged(self._advice(text))
        return JournalError(f"{self.path}: {text}")

    def _advice(self, what: str) -> str:
        return (
            f"journal {self.path} is damaged ({' '.join(what.split())}): restore it from a copy,"
            " or move it away to begin without it"
        )


def row_checksum(seq: int, kind: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{seq} {kind}".encode()))


def _resolve(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: "asyncio.Future[T]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
