"""Goals of recoveries, with a verdict on a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.recovery.engine_deaths import Deaths
from bench.recovery.manager_deaths import Return
from bench.runtime.task import percentile


@dataclass(frozen=True, slots=True)
class Goal:
    """`value` may be at most `bound`, both in `unit`."""

    what: str
    value: float
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether it is reached; false without a measurement."""
        return self.value <= self.bound


def goals(deaths: Deaths | None, returns: Sequence[Return]) -> list[Goal]:
    """Goals for these measurements."""
    found = []
    if deaths is not None and deaths.killed:
        first = [death.first_s for death in deaths.killed]
        what = "an engine killed, until the first resumed token"
        found += [
            Goal(f"{what}, median", percentile(first, 0.5), 1.0, "s"),
            Goal(f"{what}, p99", percentile(first, 0.99), 3.0, "s"),
            Goal("tokens lost", deaths.lost, 0, ""),
        ]
    if deaths is not None:
        found.append(Goal("tokens generated twice by dead engines", deaths.generated_twice, 0, ""))
    if returns:
        what = "the manager killed, until the first new frame is acknowledged"
        found += [
            Goal(f"{what}, longest", max(one.first_s for one in returns), 2.0, "s"),
            Goal("the oldest frame that was sent again", max(one.resent_ms for one in returns), 50.0, "ms"),
            Goal("tokens generated twice", max(one.generated_twice for one in returns), 0, ""),
            Goal("tokens lost by the manager's death", max(one.lost for one in returns), 0, ""),
        ]
    return found
