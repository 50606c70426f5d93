"""Problem history: which problems had long responses when they were launched last.

Pure. A problem whose draw a short round deferred is called long: its next `HOLDS` draws need not be launched
in a short round to be deferred again. Then it is launched once more, so a problem that was long by chance, or
is no longer, is found out. The decision does not see the randomness of the draw that it defers.
"""

from collections.abc import Iterable

HOLDS = 3


class ProblemHistory:
    """See the module. A draw is of the problem with its number modulo `problems`."""

    def __init__(self, problems: int) -> None:
        self._problems = problems
        self._holds: dict[int, int] = {}  # by problem: its draws that may be held from now on

    def to_hold(self, first: int, count: int, room: int) -> tuple[int, ...]:
        """The draws from `first` on, `room` at most, that are held where `count` others are launched."""
        held = list[int]()
        number = first
        while number < first + len(held) + count:
            if len(held) < room and number % self._problems in self._holds:
                held.append(number)
            number += 1
        return tuple(held)

    def deferred(self, draw: int) -> None:
        """A short round launched it and it did not count."""
        self._holds[draw % self._problems] = HOLDS

    def counted(self, draw: int) -> None:
        """A short round launched it and it counted."""
        self._holds.pop(draw % self._problems, None)

    def held(self, draw: int) -> None:
        """It was deferred without a launch."""
        problem = draw % self._problems
        left = self._holds.pop(problem, 0) - 1
        if left > 0:
            self._holds[problem] = left

    def holds(self) -> tuple[tuple[int, int], ...]:
        """The long problems, each with its draws that may be held yet."""
        return tuple(self._holds.items())

    def restore(self, holds: Iterable[tuple[int, int]]) -> None:
        """Have these long problems."""
        self._holds = dict(holds)
