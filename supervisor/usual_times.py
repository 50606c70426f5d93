"""When something that is done again and again is late: by how long it took lately.

Pure policy. A deadline that only says "worth a line" must fit the job: a micro-batch takes a second of a
small model and minutes of a large one. So it follows what was measured here, above a floor that says how long
nothing of the kind is worth a line.
"""

from collections import deque

MANY_TIMES = 3.0
"""So many times the longest of the last ones is late: lengths of responses alone make steps differ
twofold."""
REMEMBERED = 8
MAX_KINDS = 64
"""Kinds remembered; they are words of the code. One beyond it has the deadline of one that was never seen."""


class UsualTimes:
    """How long things of some kinds took lately.

    Args:
        first_s: late before anything of the kind was measured. floor_s: late at the earliest.
    """

    def __init__(self, first_s: float, floor_s: float) -> None:
        self._first_s, self._floor_s = first_s, floor_s
        self._took: dict[str, deque[float]] = {}

    def took(self, seconds: float, kind: str = "") -> None:
        """One of this kind is over."""
        if kind in self._took or len(self._took) < MAX_KINDS:
            self._took.setdefault(kind, deque(maxlen=REMEMBERED)).append(seconds)

    def late_s(self, kind: str = "") -> float:
        """After so many seconds the next one of this kind is late."""
        lately = self._took.get(kind)
        return max(self._floor_s, MANY_TIMES * max(lately) if lately else self._first_s)
