"""ActiveFault: a fault in force, with its duration and its mending.

Owns the types of a fault's effects.
"""

from collections.abc import Callable
from dataclasses import dataclass

Evidence = dict[str, int]
"""The effects, counted."""


class NoEffect(Exception):
    """The fault had no effect; the text gives the reason."""


@dataclass(slots=True)
class ActiveFault:
    """A fault that is in force.

    lasts_s: longest time until it is mended. over: whether it can be mended before. mend: undoes it and
    returns the effects; raises Missed where there were none. gone: processes that were killed, or will be.
    wrong: after the recovery, the faults of the recovery itself, as texts.
    """

    lasts_s: float
    mend: Callable[[], Evidence]
    over: Callable[[], bool] = lambda: False
    gone: tuple[int, ...] = ()
    wrong: Callable[[], str] = lambda: ""
