"""Clock: the port on which models spend time, of a simulated process's meter.

A model computes at once and reports the time that the real work would take; its runner lets that much virtual
time pass before the result, and its effects, are visible.
"""

from collections.abc import Callable
from typing import Protocol

from gleaner.sim.slowness import Slowness


class Clock(Protocol):
    """The clock of the work that runs now."""

    @property
    def bill_s(self) -> float:
        """Seconds that the work takes so far."""

    def spend(self, seconds: float) -> None:
        """The work takes this much longer."""

    def then(self, effect: Callable[[], None]) -> None:
        """Do this when the time of the work is over; never, if its process dies before."""


class PacedClock:
    """A clock of work that takes longer while `slowness` lasts."""

    def __init__(self, clock: Clock, slowness: Slowness) -> None:
        self._clock, self._slowness = clock, slowness

    @property
    def bill_s(self) -> float:
        """See `Clock`."""
        return self._clock.bill_s

    def spend(self, seconds: float) -> None:
        """See `Clock`."""
        self._clock.spend(self._slowness.takes_s(seconds, after_s=self._clock.bill_s))

    def then(self, effect: Callable[[], None]) -> None:
        """See `Clock`."""
        self._clock.then(effect)


class Immediate:
    """A clock for tests and tools: effects happen at once, `spent_s` is the sum."""

    bill_s = 0.0

    def __init__(self) -> None:
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """See `Clock`."""
        self.spent_s += seconds

    def then(self, effect: Callable[[], None]) -> None:
        """See `Clock`."""
        effect()
