"""Power loss: what is left of a journal when its host loses its power.

SQLite itself writes the commits into a file, pages of that file are lost, torn and stored out of order,
and production's store recovers it. Owns the fate of each page. What SQLite had forced out, with the settings
of `SqliteJournal` (WAL, `synchronous=NORMAL`), is kept: everything up to its last checkpoint, and what the
kernel has written back meanwhile. With a disk that only promised that, pages of the last checkpoint are lost
too.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.sim.kept_streams import Claim, Commit
from gleaner.supervisor.errors import Fenced, JournalError
from gleaner.supervisor.journal import sqlite_layout
from gleaner.supervisor.journal.rows import StreamRows, damaged, stream_checksum
from gleaner.supervisor.journal.sqlite import SqliteKeeper
from gleaner.supervisor.journal.wal_check import HEADER_BYTES

PAGE_BYTES = 4096
SECTOR_BYTES = 512
FATES = ("lost", "cut", "torn", "reordered")
"""Of the pages of the log: none is stored; those up to a place are; and half of the next one; any are."""
_ADVICE = re.compile(r"truncate -s (\d+)")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What is left. streams: None where production refuses the journal. refusal: its text, "" for none.
    truncated: the journal was refused, and opened after the operator did what the text advises."""

    streams: tuple[StreamRows, ...] | None
    refusal: str = ""
    truncated: bool = False


def after_power_loss(
    place: str,
    base: Iterable[StreamRows],
    commits: Sequence[Commit],
    rng: random.Random,
    *,
    false_syncs: bool = False,
) -> Recovered:
    """The journal at `place` after a power loss. base: what is sure to be stored. commits: those behind it,
    in order. false_syncs: the first half of them was checkpointed, on a disk that did not store that."""
    with tempfile.TemporaryDirectory(prefix="gleaner-power-") as folder:
        path = Path(folder) / "journal.db"
        _make(path, base)
        false_syncs = false_syncs or not _syncs(path)
        half = len(commits) // 2 if false_syncs else 0
        before = path.read_bytes()
        if half:
            _write(path, commits[:half], checkpoint=True)
        log = _write(path, commits[half:], checkpoint=False)
        if half:
            path.write_bytes(_mixed(before, path.read_bytes(), rng))
        wal = path.with_name(path.name + "-wal")
        left = _left(log, rng)
        if not false_syncs:  # SQLite forces the header of each new log out
            left = log[:HEADER_BYTES] + left[HEADER_BYTES:]
        wal.write_bytes(left)
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
        try:
            return Recovered(_read(path))
        except JournalError as problem:
            refusal = str(problem).replace(str(path), place)
        advice = _ADVICE.search(refusal)
        if advice is None:
            return Recovered(None, refusal)
        with wal.open("r+b") as file:
            file.truncate(int(advice[1]))
        try:
            return Recovered(_read(path), refusal, truncated=True)
        except JournalError as problem:
            return Recovered(None, str(problem).replace(str(path), place))


def _make(path: Path, base: Iterable[StreamRows]) -> None:
    """A journal of production's layout with these streams, all of it stored."""
    SqliteKeeper(path, durable=False, reserve_bytes=0).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        for it in base:
            crc = stream_checksum(it.name, it.incarnation, it.last_seq, it.base_seq)
            head = (it.name, it.incarnation, it.last_seq, it.base_seq, crc)
            db.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?)", head)
            if it.snapshot is not None:
                db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", (it.name, *it.snapshot))
            rows = [(it.name, *row) for row in it.events]
            db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")


def _syncs(path: Path) -> bool:
    """Whether production's store has SQLite force its checkpoints out."""
    keeper = SqliteKeeper(path, durable=False, reserve_bytes=0)
    try:
        return bool(keeper.pragma("synchronous"))
    finally:
        keeper.close()


def _write(path: Path, commits: Sequence[Commit], *, checkpoint: bool) -> bytes:
    """Commit them as production's store does. Returns its log as it is before the store is closed."""
    keeper = SqliteKeeper(path, durable=False, reserve_bytes=0)
    whole = path.read_bytes()
    try:
        for commit in commits:
            if isinstance(commit, Claim):
                with contextlib.suppress(Fenced):
                    keeper.claim(commit.stream, commit.incarnation)
            else:
                keeper.commit(commit)
        wal = path.with_name(path.name + "-wal")
        log = wal.read_bytes() if wal.exists() else b""
    finally:
        keeper.close()  # which checkpoints
    if not checkpoint:
        path.write_bytes(whole)
    return log


def _left(log: bytes, rng: random.Random) -> bytes:
    """What of the log is stored. Where a page is not, there is nothing yet, or what an earlier round left."""
    pages = [log[at : at + PAGE_BYTES] for at in range(0, len(log), PAGE_BYTES)]
    fate = rng.choice(FATES)
    cut = rng.randrange(len(pages) + 1)
    if fate == "lost" or not pages:
        return b""
    if fate == "cut":
        return b"".join(pages[:cut])
    if fate == "torn":
        torn = pages[cut] if cut < len(pages) else b""
        sectors = [torn[at : at + SECTOR_BYTES] for at in range(0, len(torn), SECTOR_BYTES)]
        return b"".join(pages[:cut]) + b"".join(sectors[: rng.randrange(len(sectors) + 1)])
    stored = rng.random()
    earlier = rng.random() < 0.5
    return b"".join(
        page if rng.random() < stored else rng.randbytes(len(page)) if earlier else bytes(len(page))
        for page in pages
    )


def _mixed(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """A file of which any page is still the earlier one."""
    before = before.ljust(len(after), b"\0")
    stored = rng.random()
    places = range(0, len(after), PAGE_BYTES)
    return b"".join((after if rng.random() < stored else before)[at : at + PAGE_BYTES] for at in places)


def _read(path: Path) -> tuple[StreamRows, ...]:
    """The streams, as production's store opens and reads them. Raises JournalError."""
    keeper = SqliteKeeper(path, durable=False, reserve_bytes=0)
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            names = sqlite_layout.stream_names(db)
        streams = tuple(keeper.read(name) for name in names)
    finally:
        keeper.close()
    for stream in streams:
        for fault in stream.faults():
            raise damaged(str(path), fault)
    return streams
