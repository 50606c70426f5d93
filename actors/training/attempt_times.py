"""Where the time of one attempt at a step goes, by the trainer's own clock.

Owns which of its laps the manager's absence takes away from: those in which the trainer needs the manager.
"""

from collections.abc import Callable

from actors.training.step_clock import Laps, Spent

NEEDS_MANAGER = frozenset({"seeding", "waiting"})
"""While it trains or publishes, the trainer does not wait for the manager, whether it lives or not."""


class AttemptTimes:
    """Begins now.

    Args:
        now: the actor's clock. away: seconds that the manager was away so far (`Absence.total_s`).
    """

    def __init__(self, now: Callable[[], float], away: Callable[[], float]) -> None:
        self._now, self._away = now, away
        self._laps, self._away_s = Laps(now()), away()

    def lap(self, what: str) -> float:
        """What passed since the last lap was `what`: "seeding", "waiting", "training" or "weights"; answers
        how long it was."""
        before_s, self._away_s = self._away_s, self._away()
        away_s = self._away_s - before_s if what in NEEDS_MANAGER else 0.0
        return self._laps.lap(what, self._now(), away_s)

    @property
    def spent(self) -> Spent:
        """So far."""
        return Spent(**{f"{what}_s": seconds for what, seconds in self._laps.spent.items()})
