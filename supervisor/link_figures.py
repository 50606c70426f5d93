"""Sums over the control links of a process that only grow, though links come and go.

Owns the sums. Pure: what the links say of themselves goes in.
"""

from collections import Counter
from collections.abc import Sequence

from supervisor.system_messages import LinkFigures
from transport.links import LinkState

COUNTED = ("sent", "received", "resent", "duplicates", "gaps")


class LinkSums:
    """Remembers each link's last counts; what a link counted after the last look at it is not in the sums
    when it is gone."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._before: dict[tuple[str, bool], LinkState] = {}  # bounded by the links that there are

    def observe(self, states: Sequence[LinkState]) -> LinkFigures:
        """Add what was counted since the last look."""
        now = {(state.where, state.dialled): state for state in states}
        for key, state in now.items():
            before = self._before.get(key)
            for name in COUNTED:
                count: int = getattr(state, name)
                known: int = getattr(before, name) if before is not None else 0
                self._sums[name] += (
                    count - known if count >= known else count
                )  # less: another link of that name
        self._before = now
        return LinkFigures(
            states=dict(Counter(state.state for state in states)),
            unacked=sum(state.unacked for state in states),
            waiting=sum(state.waiting for state in states),
            totals={name: self._sums[name] for name in COUNTED},
        )
