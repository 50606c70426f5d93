"""Deadline: a point of the loop's time, not a length to be measured anew.

Owns the arithmetic. Does not own a clock: `now` is an argument, so it is the same on real and on virtual
time. A length travels between processes (`deadline_left_ms` of an envelope); on arrival it becomes a
`Deadline` again, since no two processes share a clock. On the path of every message (`Delivery`,
`PendingAsk`) the same point is kept as the bare number, which costs no object.
"""

from __future__ import annotations

import msgspec


class Deadline(msgspec.Struct, frozen=True, order=True, gc=False):
    """A point `at_s` of `loop.time()`, in seconds. The sooner of two compares as the smaller."""

    at_s: float

    @classmethod
    def after(cls, seconds: float, now: float) -> Deadline:
        """The point `seconds` from `now`; a negative length has passed already."""
        return cls(now + seconds)

    def left_s(self, now: float) -> float:
        """Seconds until then; 0 when it has passed."""
        return max(self.at_s - now, 0.0)

    def passed(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return now >= self.at_s

    def sooner(self, other: Deadline | None) -> Deadline:
        """The stricter of two; None does not limit."""
        return self if other is None or self.at_s <= other.at_s else other
