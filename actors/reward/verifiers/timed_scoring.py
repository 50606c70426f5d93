"""`judged`: scores responses of one batch in turn, each in a process of its own.

A worker has four deadlines of one response for a batch. Responses that cannot be begun in time are left, and
a pool tries them alone. Pure: the clock is injected.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gleaner.actors.reward import verdicts
from gleaner.actors.reward.verdicts import Judgement

GOES_ON = 2
"""Deadlines of one response in which the responses of a batch are begun."""
NOT_REACHED = Judgement(0.0, verdicts.OVERLOADED, "the responses before it took all of the time: it is next")
"""For a response of a batch that was not begun; a pool tries it alone."""
Clock = Callable[[], float]

_T = TypeVar("_T")


def judged(
    items: Sequence[_T], judge: Callable[[_T], Judgement], deadline_s: float, clock: Clock
) -> list[Judgement]:
    """The judgement by `judge` of each that is begun in time, the first in any case; `NOT_REACHED` for the
    others. deadline_s: of one."""
    until_s = clock() + GOES_ON * deadline_s
    return [
        judge(item) if not number or clock() < until_s else NOT_REACHED for number, item in enumerate(items)
    ]
