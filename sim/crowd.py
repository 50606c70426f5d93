"""Processes that share the cores of one machine: the more of them compute, the longer each takes.

Owns the count of pieces of work that are under way, and what it makes of their time. The crowd at the begin
of a piece counts for all of it: turns and micro-batches are short against how long a crowd lasts.
"""

from collections.abc import Sequence


class Crowd:
    """factors: with k pieces under way, each takes factors[k - 1] times as long as alone; with more than
    there are factors for, the last says it, in proportion to their number. Empty: each has its own cores."""

    def __init__(self, factors: Sequence[float] = ()) -> None:
        self._factors = tuple(factors)
        self._count = 0

    def enter(self) -> float:
        """One more begins: this many times as long as alone it takes."""
        self._count += 1
        if not self._factors:
            return 1.0
        known = len(self._factors)
        return self._factors[min(self._count, known) - 1] * max(1.0, self._count / known)

    def leave(self) -> None:
        """One is over, or died."""
        self._count -= 1
