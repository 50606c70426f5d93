"""Meter: virtual seconds that modelled work spends, and its process waits for.

The work is that of engines, trainers and disks. Owns the sum. Work in a simulated process is done in an
instant; so its model spends seconds here, and `machine.SimWorker` gives the result when they have passed. One
meter a process; one piece of work at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost of one piece of work: virtual seconds, and its effects on others when they have passed."""

    seconds: float
    effects: tuple[Callable[[], None], ...]


class Meter:
    """See the module."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        """Seconds of all the work so far."""
        self.beside_s = 0.0
        """Spent by calls on the process's own loop, outside of any work: the process did not wait for it."""
        self._works = False
        self._bill_s = 0.0
        self._effects: list[Callable[[], None]] = []

    @property
    def bill_s(self) -> float:
        """Seconds of the work in hand so far."""
        return self._bill_s

    def spend(self, seconds: float) -> None:
        """Add seconds to the work in hand. Raises ValueError for a negative number."""
        if not seconds >= 0:
            raise ValueError(f"work cannot take {seconds} s")
        if self._works:
            self._bill_s += seconds
        else:
            self.beside_s += seconds

    def then(self, effect: Callable[[], None]) -> None:
        """Do this when the work in hand is over; never, if its process dies before; at once outside of any
        work. For effects that are visible to others only when complete, such as a file that is renamed at the
        end."""
        if self._works:
            self._effects.append(effect)
        else:
            effect()

    # -- for the runner of the work --

    def begin(self) -> None:
        """A piece of work begins."""
        self._works = True

    def end(self) -> Bill:
        """The work is done, as far as others can see; returns its cost."""
        bill = Bill(self._bill_s, tuple(self._effects))
        self.spent_s += bill.seconds
        self._works, self._bill_s = False, 0.0
        self._effects.clear()
        return bill
