"""Figures of a process's control links, summed up from the states of the links.

Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from gleaner.supervisor.system_messages import LinkFigures
from gleaner.transport.link_end import COUNTED
from gleaner.transport.links import LinkState


def link_figures(states: Sequence[LinkState], ended: Mapping[str, int]) -> LinkFigures:
    """The open links, and the sums (`COUNTED`) of those and of all that have `ended`: sums only grow, though
    links open and close."""
    return LinkFigures(
        states=dict(Counter(state.state for state in states)),
        unacked=sum(state.unacked for state in states),
        waiting=sum(state.waiting for state in states),
        totals={name: ended.get(name, 0) + sum(getattr(state, name) for state in states) for name in COUNTED},
    )
