"""`Stair`: the moment within a seeding window at which half of the engines leave for training.

Two rules. `PaperStair` is Algorithm 1 of RollPacker (arXiv 2509.21009, section 4.4); `PlannedStair` has a
time that was predicted for the step. Pure.
"""

import math
from typing import Protocol

FIRST_LOOK, LAST_LOOK, LOOK_STEP = 0.20, 0.50, 0.05
"""Shares of the requests that are complete: looks between 20 and 50 %, at least 5 % apart."""


class Stair(Protocol):
    """The state of one window."""

    def look(self, window_s: float) -> tuple[float, float]:
        """When to look next: after so many seconds, or when so large a share of the requests needs no engine
        any more, whichever is earlier. window_s: seconds since the window began."""

    def due(self, window_s: float, ended: float, half_fits: bool) -> bool:
        """Whether half of the engines leave now. ended: share of the requests that need no engine any more;
        half_fits: whether the other half has enough cache for what is left."""


class PaperStair:
    """See the module: one look each at 20, 25, … 50 %, and none later."""

    def __init__(self) -> None:
        self._next = FIRST_LOOK

    def look(self, window_s: float) -> tuple[float, float]:
        return math.inf, self._next if self._next <= LAST_LOOK else 1.0

    def due(self, window_s: float, ended: float, half_fits: bool) -> bool:
        if ended < self._next:
            return False
        self._next = ended + LOOK_STEP
        return half_fits and ended <= LAST_LOOK


class PlannedStair:
    """See the module: after `after_s`, as soon as the half has enough cache, with a look at each 5 %."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._next = 1.0

    def look(self, window_s: float) -> tuple[float, float]:
        return (self._after_s - window_s, 1.0) if window_s < self._after_s else (math.inf, self._next)

    def due(self, window_s: float, ended: float, half_fits: bool) -> bool:
        self._next = ended + LOOK_STEP
        return window_s >= self._after_s and half_fits
