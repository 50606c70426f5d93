"""Shrinking: fewest faults that still fail, by delta debugging of a schedule.

Owns the search. Pure: the caller tests whether a schedule fails (mostly by a whole simulated run), so the
search saves tests: halves first, then ever smaller pieces, and no set is tested twice.

Law (tests/chaos/test_chaos_shrink.py): the result fails, and it would not with any one fault less - unless
the tests ran out, which the result states.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_QUESTIONS = 300
"""Runs that a search may take: minutes for schedules of tens of faults."""


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[T]):
    """The remaining items. minimal: no single item of it can be dropped; False where the tests ran out
    first."""

    items: tuple[T, ...]
    questions: int
    minimal: bool


class _NoTestsLeft(Exception):
    """No test is left."""


class _Remembered(Generic[T]):
    """Remembers answers, by the positions that are kept."""

    def __init__(self, items: Sequence[T], fails: Callable[[Sequence[T]], bool], most: int) -> None:
        self._items, self._fails, self._most = items, fails, most
        self._answers: dict[tuple[int, ...], bool] = {}
        self.questions = 0

    def fails(self, kept: Sequence[int]) -> bool:
        key = tuple(kept)
        known = self._answers.get(key)
        if known is None:
            if self.questions >= self._most:
                raise _NoTestsLeft
            self.questions += 1
            known = self._answers[key] = self._fails([self._items[index] for index in key])
        return known


def shrink(
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], *, max_questions: int = MAX_QUESTIONS
) -> Shrunk[T]:
    """The smallest part of `items`, in their order, for which `fails` is still true.

    Raises ValueError where `fails` is false for all of them: then there is nothing to search for.
    """
    asked = _Remembered(items, fails, max_questions)
    kept = list(range(len(items)))
    if not asked.fails(kept):
        raise ValueError(f"all {len(items)} together do not fail: nothing to shrink")
    pieces = 2
    try:
        if kept and asked.fails([]):
            kept = []
        while len(kept) > 1 or (kept and pieces <= len(kept)):
            smaller = _without_a_piece(asked, kept, pieces)
            if smaller is not None:
                kept, pieces = smaller, max(2, min(pieces - 1, len(smaller)))
            elif pieces >= len(kept):
                break
            else:
                pieces = min(2 * pieces, len(kept))
    except _NoTestsLeft:
        return Shrunk(tuple(items[index] for index in kept), asked.questions, minimal=False)
    return Shrunk(tuple(items[index] for index in kept), asked.questions, minimal=True)


def _without_a_piece(asked: _Remembered[T], kept: list[int], pieces: int) -> list[int] | None:
    """`kept` less the first of its `pieces` parts that is not needed; one part alone is tried first where
    that test is smaller."""
    bounds = [len(kept) * part // pieces for part in range(pieces + 1)]
    for begin, end in itertools.pairwise(bounds):
        alone = kept[begin:end]
        if len(alone) < len(kept) and asked.fails(alone):
            return alone
    for begin, end in itertools.pairwise(bounds):
        rest = kept[:begin] + kept[end:]
        if len(rest) < len(kept) and asked.fails(rest):
            return rest
    return None
