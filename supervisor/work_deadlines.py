"""WorkDeadlines: deadline for offloaded work, from earlier durations of its kind.

A piece of work that passes its deadline has hung. Pure. Work on a thread of its own leaves the loop free, so
a long step is no silence. Work that never returns (a CUDA call that hangs, a collective whose other side is
gone, a lock) is no exit either, and nothing ends it. The deadline is a multiple of the largest measured
duration: what takes ten times as long as ever before is not slow. It is never below a minimum, because pieces
of a kind differ in size; and a kind that was not measured yet has a limit of its own, because a first time
loads, compiles and warms up.
"""

TIMES = 10.0
"""Multiple of the largest measured duration: the lengths of responses make micro-batches differ that much. A
permanent slowdown is visible in the figures of steps, not here."""


class WorkDeadlines:
    """The pieces of work of one actor, by kind; an actor's code names few.

    Args:
        floor_s: no deadline is shorter.
        first_s: the deadline of a kind that was not measured yet.
    """

    def __init__(self, floor_s: float, first_s: float) -> None:
        self._floor_s, self._first_s = floor_s, first_s
        self._longest_s: dict[str, float] = {}

    def deadline_s(self, kind: str) -> float:
        """Deadline of a piece that begins now."""
        longest_s = self._longest_s.get(kind)
        return self._first_s if longest_s is None else max(self._floor_s, TIMES * longest_s)

    def took(self, kind: str, seconds: float) -> None:
        """A piece is done."""
        self._longest_s[kind] = max(seconds, self._longest_s.get(kind, 0.0))

    def hung(self, kind: str, seconds: float) -> str:
        """The text for a piece that passed its deadline."""
        longest_s = self._longest_s.get(kind)
        expected = f"expected {longest_s:.3g} s" if longest_s is not None else "its first"
        return f"no progress in {kind} for {seconds:.0f} s, {expected}"
