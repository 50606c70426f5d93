"""Slowness: work takes longer for a time, and its usual time again after that.

Owns the arithmetic of work during which the slowness ends. Work that has begun when the slowness begins keeps
its pace.
"""

import math
from collections.abc import Callable


class Slowness:
    """See the module. `now_s`: the time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._factor, self._until_s = 1.0, math.inf

    @property
    def factor(self) -> float:
        """How many times as long work takes that is done now."""
        return self._factor if self._now_s() < self._until_s else 1.0

    def begin(self, factor: float, for_s: float = math.inf) -> None:
        """Replace the slowness by this one; below 1, work is faster."""
        self._factor, self._until_s = factor, self._now_s() + for_s

    def takes_s(self, usual_s: float, *, more_s: float = 0.0, after_s: float = 0.0) -> float:
        """Duration of work that usually takes `usual_s`, and begins `after_s` from now. more_s: what it takes
        beside that while it is slow, before the factor."""
        slow_s = (usual_s + more_s) * self._factor
        left_s = max(0.0, self._until_s - self._now_s() - after_s)
        if slow_s <= left_s:
            return slow_s
        return left_s + usual_s * (1.0 - left_s / slow_s)
