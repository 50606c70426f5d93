"""`Mixture`: mapping of a job's problems to the problems of its tasks. Pure.

Any stretch of problems holds each task's share to within one, so every step has its mix. The same shares give
the same order in every process.
"""

from array import array
from collections.abc import Sequence


class Mixture:
    """Mixes tasks by shares. shares: of each task, above 0; only their ratios count."""

    def __init__(self, shares: Sequence[float]) -> None:
        if not shares or min(shares) <= 0:
            raise ValueError(f"shares: expected numbers above 0, got {list(shares)}")
        total = sum(shares)
        self._shares = [share / total for share in shares]
        self._given = [0] * len(shares)
        self._tasks = array("I")
        self._numbers = array("Q")

    def place(self, index: int) -> tuple[int, int]:
        """The task, and the number of the problem among those of that task. Costs the places up to it."""
        if index < 0:
            raise ValueError(f"problem {index}: indices begin at 0")
        while len(self._tasks) <= index:
            due = len(self._tasks) + 1
            lacks = [share * due - given for share, given in zip(self._shares, self._given, strict=True)]
            task = lacks.index(max(lacks))
            self._tasks.append(task)
            self._numbers.append(self._given[task])
            self._given[task] += 1
        return self._tasks[index], self._numbers[index]
