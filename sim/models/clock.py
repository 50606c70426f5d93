"""Clock: the port on which models spend time, of a simulated process's meter.

A model computes at once and reports the time that the real work would take; its runner lets that much virtual
time pass before the result, and its effects, are visible.
"""

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The clock of the work that runs now."""

    def spend(self, seconds: float) -> None:
        """The work takes this much longer."""

    def then(self, effect: Callable[[], None]) -> None:
        """Do this when the time of the work is over; never, if its process dies before."""


class PacedClock:
    """A clock of work that takes `pace` times as long as it should."""

    def __init__(self, clock: Clock, pace: Callable[[], float]) -> None:
        self._clock, self._pace = clock, pace

    def spend(self, seconds: float) -> None:
        """See `Clock`."""
        self._clock.spend(seconds * self._pace())

    def then(self, effect: Callable[[], None]) -> None:
        """See `Clock`."""
        self._clock.then(effect)


class Immediate:
    """A clock for tests and tools: effects happen at once, `spent_s` is the sum."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """See `Clock`."""
        self.spent_s += seconds

    def then(self, effect: Callable[[], None]) -> None:
        """See `Clock`."""
        effect()
