"""StreamRows: stored rows of a stream, their checksums, and the check of both.

Independent of the store. Owns the checksums and the order of replay. A stream is whole when its snapshot is
at `base_seq`, every event from there to `last_seq` is present, and every row passes its checksum; anything
else is damage.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gleaner.supervisor.errors import JournalDamaged, JournalUnreadable
from gleaner.supervisor.journal.upgrades import decode_stored
from gleaner.supervisor.message import Message


class Row(NamedTuple):
    """A stored event or snapshot. `version` is that of the message; `body` its MessagePack."""

    seq: int
    kind: str
    version: int
    body: bytes
    crc: int


@dataclass(frozen=True, slots=True)
class StreamRows:
    """One stream at one moment. base_seq: the number of the snapshot, which replaces the events up to it;
    last_seq: the newest number, of an event or of the snapshot."""

    name: str
    incarnation: int
    last_seq: int
    base_seq: int
    snapshot: Row | None
    events: tuple[Row, ...]

    def faults(self) -> Iterator[str]:
        """Everything that is wrong with it; nothing when it is whole."""
        if self.snapshot is None and self.base_seq:
            yield f"the snapshot of {self.name} is missing"
        if self.snapshot is not None:
            if self.snapshot.seq != self.base_seq:
                yield f"the snapshot of {self.name} is at {self.snapshot.seq}, expected {self.base_seq}"
            yield from self._row_fault("the snapshot", self.snapshot)
        expected = self.base_seq
        for row in self.events:
            expected += 1
            if row.seq != expected:
                yield f"event {expected} of {self.name} is missing"
                expected = row.seq if isinstance(row.seq, int) else expected
            yield from self._row_fault(f"event {row.seq}", row)
        if expected != self.last_seq:
            yield f"events {expected + 1} to {self.last_seq} of {self.name} are missing"

    def replay(self, place: str) -> tuple[Message | None, list[tuple[int, Message]]]:
        """The snapshot and the events after it, as this program knows them.

        Raises JournalDamaged, JournalUnreadable; both name `place`, what is wrong and what to do.
        """
        for fault in self.faults():
            raise damaged(place, fault)
        snapshot = None if self.snapshot is None else self._decoded(place, "the snapshot", self.snapshot)
        events = []
        for row in self.events:
            message = self._decoded(place, f"event {row.seq}", row)
            if message is not None:
                events.append((row.seq, message))
        return snapshot, events

    def _row_fault(self, what: str, row: Row) -> Iterator[str]:
        whole = isinstance(row.body, bytes)  # a damaged file may give any type
        if not whole or row_checksum(self.name, row.seq, row.kind, row.version, row.body) != row.crc:
            yield f"{what} of {self.name} fails its checksum"

    def _decoded(self, place: str, what: str, row: Row) -> Message | None:
        try:
            return decode_stored(row.kind, row.version, row.body)
        except JournalUnreadable as problem:
            raise JournalUnreadable(f"journal {place}: {what} of {self.name}: {problem}") from problem


def snapshot_seq(last_seq: int, base_seq: int) -> int:
    """The sequence number of a new snapshot: that of the newest event, or a new one if there is none since
    the last snapshot. No two snapshots of a stream have the same number, so a row of the stream that a power
    loss left beside the snapshot of another commit is found."""
    return last_seq + 1 if last_seq == base_seq else last_seq


def row_checksum(stream: str, seq: int, kind: str, version: int, body: bytes) -> int:
    """Checksum of an event or a snapshot, with all fields that show where it belongs."""
    return zlib.crc32(body, zlib.crc32(f"{stream}\0{seq}\0{kind}\0{version}".encode()))


def stream_checksum(name: str, incarnation: int, last_seq: int, base_seq: int) -> int:
    """Checksum of a stream's own row."""
    return zlib.crc32(f"{name}\0{incarnation}\0{last_seq}\0{base_seq}".encode())


def damaged(place: str, what: str) -> JournalDamaged:
    """The refusal of a journal that cannot be believed."""
    return JournalDamaged(
        f"journal {place} is damaged ({' '.join(what.split())}): restore it from a copy, or move it away to "
        "begin without it; `rlctl journal verify` shows how much of it is intact"
    )
