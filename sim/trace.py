"""The history of one simulated run, folded into one number: two runs are the same if their hashes are.

Owns the hash and nothing of what is noted. A fact is a str, int, float or bytes: never an object, whose text
may hold an address, and never a set, whose order differs from process to process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

Fact = str | int | float | bytes

DIGEST_BYTES = 16
LINES_AT_ONCE = 256  # are hashed together: a call for each would cost as much as the line


class Trace:
    """Notes what happens, and when.

    Args:
        now: the virtual time, in seconds.
        sink: gets every note as a line of text too; for a replay that is to be read.
    """

    def __init__(self, now: Callable[[], float], sink: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._lines: list[str] = []
        self.sink = sink
        self.notes = 0
        """How many were made."""

    def note(self, what: str, *facts: Fact) -> None:
        """It happened now."""
        self.notes += 1
        line = f"{self._now()!r} {what} {facts!r}\n"
        lines = self._lines
        lines.append(line)
        if len(lines) >= LINES_AT_ONCE:
            self._fold()
        if self.sink is not None:
            self.sink(line)

    @property
    def hash(self) -> str:
        """Of everything noted so far, in hexadecimal."""
        self._fold()
        return self._hash.hexdigest()

    def _fold(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()
