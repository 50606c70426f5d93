"""Goals of the token plane at one width, with a verdict on a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.token_plane.sizes import SystemResult

OURS = "gleaner"
PARSED = "router, parsed by one Python client"
PASSED = "router, bytes only counted"
SYSTEMS = (OURS, PARSED, PASSED)
AT_ROWS = 64


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: ours in tokens/s against a bound; `met` is None where the other was not measured."""

    what: str
    ours: float
    bound: float | None

    @property
    def met(self) -> bool | None:
        """Whether it is reached."""
        return None if self.bound is None else self.ours >= self.bound


def goals(found: Sequence[SystemResult]) -> list[Goal]:
    """Goals with the needed measurements; none without our own figure at that width."""
    rates = {one.system: one.tokens_per_s for one in found if one.rows == AT_ROWS}
    if OURS not in rates:
        return []
    parsed, passed = rates.get(PARSED), rates.get(PASSED)
    return [
        Goal("20 times the parsed path", rates[OURS], None if parsed is None else 20 * parsed),
        Goal("5 times the pass-through", rates[OURS], None if passed is None else 5 * passed),
        Goal("a million tokens/s", rates[OURS], 1e6),
    ]
