"""A fault that is in force: how long it lasts, how it is mended. Owns the words that breaking is told in."""

from collections.abc import Callable
from dataclasses import dataclass

Evidence = dict[str, int]
"""What really happened, counted."""


class Missed(Exception):
    """The fault did not happen; says why."""


@dataclass(slots=True)
class Strike:
    """A fault that is in force.

    lasts_s: until it is to be mended, at most. over: whether that can be done before. mend: undoes it and
    says what happened; raises Missed where that was nothing. gone: processes that were killed, or are to be.
    wrong: after the recovery, what is wrong with how it came about, in words.
    """

    lasts_s: float
    mend: Callable[[], Evidence]
    over: Callable[[], bool] = lambda: False
    gone: tuple[int, ...] = ()
    wrong: Callable[[], str] = lambda: ""
