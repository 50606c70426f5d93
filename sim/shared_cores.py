"""SharedCores: processes that share a machine's cores and slow each other down.

Owns the count of pieces of work that are under way, and the factor on their time. The crowd at the start of a
piece counts for all of it: turns and micro-batches are short compared with the life of a crowd.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSharing:
    """Factor on the time that a piece takes alone; empty: each process has cores of its own.

    turns: of an engine, with 1, 2, ... engines at a time. beside_training: the same while a trainer computes.
    training: of a trainer, beside 0, 1, ... engines. Beyond the end of a table its last entry counts, in
    proportion to the number.
    """

    turns: tuple[float, ...] = ()
    beside_training: tuple[float, ...] = ()
    training: tuple[float, ...] = ()


class SharedCores:
    """The pieces under way on the cores of one machine."""

    def __init__(self, crowding: CoreSharing | None = None) -> None:
        self._crowding = crowding or CoreSharing()
        self._engines = self._trainers = 0

    def enter(self, *, trains: bool = False) -> float:
        """One more piece begins, of an engine or of a trainer; returns the factor on its time alone."""
        if trains:
            self._trainers += 1
            return _factor(self._crowding.training, self._engines + self._trainers)
        self._engines += 1
        table = self._crowding.beside_training if self._trainers else self._crowding.turns
        return _factor(table, self._engines)

    def leave(self, *, trains: bool = False) -> None:
        """One is over, or died."""
        if trains:
            self._trainers -= 1
        else:
            self._engines -= 1


def _factor(table: Sequence[float], count: int) -> float:
    if not table:
        return 1.0
    return table[min(count, len(table)) - 1] * max(1.0, count / len(table))
