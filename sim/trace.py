"""Trace: the history of one simulated run, folded into one hash.

Two runs are the same if their hashes are. Owns the hash and nothing of what is noted. A fact is a str, a
float, bytes, or an int of at most 64 bits: never an object, whose text may contain an address, and never a
set, whose order differs from process to process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

Fact = str | int | float | bytes

DIGEST_BYTES = 16
NOTES_AT_ONCE = 256  # are encoded and hashed together: a call for each would cost more than the note

_encode = msgspec.msgpack.Encoder().encode


class Trace:
    """Notes events, each with its time.

    Args:
        now: the virtual time, in seconds.
        sink: gets every note as a line of text; for a replay that a user reads.
    """

    def __init__(self, now: Callable[[], float], sink: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._notes: list[tuple[float, str, tuple[Fact, ...]]] = []
        self._folded = 0
        self.sink = sink

    @property
    def notes(self) -> int:
        """Number of notes so far."""
        return self._folded + len(self._notes)

    def note(self, what: str, *facts: Fact) -> None:
        """It happened now."""
        notes = self._notes
        notes.append((self._now(), what, facts))
        if len(notes) >= NOTES_AT_ONCE:
            self._fold()
        if self.sink is not None:
            self.sink(f"{self._now()!r} {what} {facts!r}\n")

    @property
    def hash(self) -> str:
        """Hash of everything noted so far, in hexadecimal."""
        self._fold()
        return self._hash.hexdigest()

    def _fold(self) -> None:
        """MessagePack encodes type and length of each fact: other facts are other bytes. The notes are hashed
        one behind the other, without the head of the array that they are encoded in."""
        head = 1 if len(self._notes) < 16 else 3
        self._hash.update(memoryview(_encode(self._notes))[head:])
        self._folded += len(self._notes)
        self._notes.clear()
