"""Turns of training problems: no problem repeats before every problem was drawn.

Owns the count. A part of I1.
"""

from collections.abc import Iterator, Set


class ProblemTurns:
    """problems: of the training split; None where that is unknown: then nothing is checked."""

    def __init__(self, problems: int | None) -> None:
        self._problems = problems
        self._step_of: dict[int, int] = {}

    def trained(self, step: int, problems: Set[int]) -> Iterator[str]:
        """A step was trained on these; return the violations."""
        again = sorted(one for one in problems if self._step_of.get(one, step) != step)
        self._step_of |= dict.fromkeys(sorted(problems), step)
        if self._problems is not None and max(self._step_of, default=0) + 1 < self._problems:
            for one in again:
                yield f"step {step} was trained on problem {one} again, and not all problems were drawn yet"

    def rewound(self, step: int) -> None:
        """Steps trained after this one no longer count."""
        self._step_of = {problem: last for problem, last in self._step_of.items() if last <= step}
