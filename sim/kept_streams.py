"""KeptStreams: rows of one journal on a simulated disk, in memory.

It keeps what SQLite would keep in one file. Owns the rows, their checksums and the fence, with the rules of
`sqlite_journal.SqliteKeeper`: a commit is whole or did not happen, a write of an older incarnation fails
alone. Knows no time and no fault but that of a disk without space; `journal` decides when a write arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gleaner.supervisor.errors import Fenced, JournalFull
from gleaner.supervisor.journal.group_commit import Committed, Write
from gleaner.supervisor.journal.rows import Row, StreamRows, row_checksum, snapshot_seq
from gleaner.supervisor.journal.sqlite_layout import LAYOUT


class _Stream:
    __slots__ = ("base_seq", "events", "incarnation", "last_seq", "snapshot")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.last_seq = 0
        self.base_seq = 0
        self.snapshot: Row | None = None
        self.events: list[Row] = []

    @classmethod
    def of(cls, rows: StreamRows) -> _Stream:
        """The stream of these rows."""
        found = cls(rows.incarnation)
        found.last_seq, found.base_seq = rows.last_seq, rows.base_seq
        found.snapshot, found.events = rows.snapshot, list(rows.events)
        return found


@dataclass(frozen=True, slots=True)
class Claim:
    """A stream is opened by an incarnation."""

    stream: str
    incarnation: int


Commit = Claim | tuple[Write, ...]
"""One transaction."""


class KeptStreams:
    """A `group_commit.Keeper`, and a `journal_file.JournalView` for inspection from outside.

    Args:
        place: its name on the disk.
        full: why nothing more can be written, "" while there is space.
        low: why new work should not be begun, "" where it may.
    """

    def __init__(self, place: str, full: Callable[[], str], low: Callable[[], str]) -> None:
        self.place = place
        self.layout = LAYOUT
        self.torn = False
        """Whether half of the last write is stored; the next process that opens the journal drops it."""
        self.refusal = ""
        """Why production does not open it after a power loss, "" where it does."""
        self.on_commit: Callable[[Commit], None] | None = None
        """Called with each transaction."""
        self._full = full
        self._low = low
        self._streams: dict[str, _Stream] = {}

    # -- what a store does --

    def claim(self, stream: str, incarnation: int) -> None:
        """See `Keeper`."""
        held = self._streams.get(stream)
        if held is not None and held.incarnation > incarnation:
            raise Fenced(
                f"{self.place}: {stream} was opened by incarnation {held.incarnation}, this is {incarnation}"
            )
        self._check_space()
        self._streams.setdefault(stream, _Stream(incarnation)).incarnation = incarnation
        if self.on_commit is not None:
            self.on_commit(Claim(stream, incarnation))

    def commit(self, writes: Sequence[Write]) -> list[Committed | Exception]:
        """See `Keeper`."""
        self._check_space()
        results = [self._apply(write) for write in writes]
        if self.on_commit is not None:
            self.on_commit(tuple(writes))
        return results

    def read(self, stream: str) -> StreamRows:
        """See `Keeper`."""
        return self.rows(stream) or StreamRows(stream, 0, 0, 0, None, ())

    def newest_incarnation(self) -> int:
        """See `Keeper`."""
        return max((stream.incarnation for stream in self._streams.values()), default=0)

    def force_out(self) -> None:
        """See `Keeper`: `SimJournal` has the disk do so."""

    def probe(self) -> None:
        """See `Keeper`."""
        if low := self.low():
            raise JournalFull(low)

    def low(self) -> str:
        """See `Keeper`."""
        return self._full() or self._low()

    def close(self) -> None:
        """See `Keeper`; the rows stay."""

    # -- what others look at --

    def names(self) -> list[str]:
        """See `JournalView`."""
        return sorted(self._streams)

    def rows(self, name: str) -> StreamRows | None:
        """See `JournalView`."""
        held = self._streams.get(name)
        if held is None:
            return None
        return StreamRows(
            name, held.incarnation, held.last_seq, held.base_seq, held.snapshot, tuple(held.events)
        )

    def all_rows(self) -> tuple[StreamRows, ...]:
        """Every stream, by name."""
        return tuple(rows for name in self.names() if (rows := self.rows(name)) is not None)

    def check(self) -> None:
        """See `JournalView`: what holds of the whole is true by its making."""

    # -- what a fault does --

    def apply(self, commit: Commit) -> None:
        """A transaction of another journal with the same rows."""
        if isinstance(commit, Claim):
            self._streams.setdefault(commit.stream, _Stream(commit.incarnation))
            self._streams[commit.stream].incarnation = commit.incarnation
        else:
            for write in commit:
                self._apply(write)

    def restore(self, streams: Iterable[StreamRows]) -> None:
        """Have these streams, and no others."""
        self._streams = {it.name: _Stream.of(it) for it in streams}

    def damage(self) -> str:
        """Flip a bit of the newest event, or else of a snapshot. Returns its stream, "" if there is nothing
        to damage."""
        for name in reversed(self._streams):
            stream = self._streams[name]
            if stream.events:
                stream.events[-1] = _flipped(stream.events[-1])
                return name
            if stream.snapshot is not None:
                stream.snapshot = _flipped(stream.snapshot)
                return name
        return ""

    def _apply(self, write: Write) -> Committed | Exception:
        stream = self._streams.get(write.stream)
        if stream is None:
            stream = self._streams[write.stream] = _Stream(write.incarnation)
        if stream.incarnation > write.incarnation:
            return Fenced(
                f"{self.place}: {write.stream} belongs to incarnation {stream.incarnation}, this is "
                f"{write.incarnation}"
            )
        stream.incarnation = write.incarnation
        if write.is_snapshot:
            seq = snapshot_seq(stream.last_seq, stream.base_seq)
            stream.base_seq = stream.last_seq = seq
            kind, version, body = write.rows[0]
            crc = row_checksum(write.stream, seq, kind, version, body)
            stream.snapshot = Row(seq, kind, version, body, crc)
            stream.events.clear()
        for kind, version, body in () if write.is_snapshot else write.rows:
            stream.last_seq += 1
            crc = row_checksum(write.stream, stream.last_seq, kind, version, body)
            stream.events.append(Row(stream.last_seq, kind, version, body, crc))
        return Committed(stream.last_seq, stream.last_seq - stream.base_seq)

    def _check_space(self) -> None:
        if full := self._full():
            raise JournalFull(full)


def _flipped(row: Row) -> Row:
    body = row.body or b"\0"
    return row._replace(body=bytes((body[0] ^ 1,)) + body[1:])
