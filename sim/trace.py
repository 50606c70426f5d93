"""The history of one simulated run, folded into one number: two runs are the same if their hashes are.

Owns the hash and nothing of what is noted. A fact is a str, int, float or bytes: never an object, whose text
may hold an address, and never a set, whose order differs from process to process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

Fact = str | int | float | bytes

DIGEST_BYTES = 16


class Trace:
    """Notes what happens, and when.

    Args:
        now: the virtual time, in seconds.
        sink: gets every note as a line of text too; for a replay that is to be read.
    """

    def __init__(self, now: Callable[[], float], sink: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.sink = sink
        self.notes = 0
        """How many were made."""

    def note(self, what: str, *facts: Fact) -> None:
        """It happened now."""
        self.notes += 1
        line = f"{self._now()!r} {what} {facts!r}\n"
        self._hash.update(line.encode())
        if self.sink is not None:
            self.sink(line)

    @property
    def hash(self) -> str:
        """Of everything noted so far, in hexadecimal."""
        return self._hash.hexdigest()
