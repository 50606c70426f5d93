"""`AttemptTimes`: time of one attempt at a step, by the trainer's own clock.

The manager's absence is subtracted from the laps in which the trainer needs the manager; this module owns
which those are.
"""

from collections.abc import Callable

from gleaner.actors.training.step_clock import Laps, StepSeconds

NEEDS_MANAGER = frozenset({"seeding", "waiting"})
"""While it trains or publishes, the trainer does not wait for the manager, whether it lives or not."""


class AttemptTimes:
    """The clock starts at once.

    Args:
        now: the actor's clock. away: seconds that the manager was away so far (`Absence.total_s`).
    """

    def __init__(self, now: Callable[[], float], away: Callable[[], float]) -> None:
        self._now, self._away = now, away
        self._laps, self._away_s = Laps(now()), away()

    def lap(self, what: str) -> float:
        """Count the time since the last lap as `what`: "seeding", "waiting", "training" or "weights". Returns
        its length."""
        before_s, self._away_s = self._away_s, self._away()
        away_s = self._away_s - before_s if what in NEEDS_MANAGER else 0.0
        return self._laps.lap(what, self._now(), away_s)

    @property
    def spent(self) -> StepSeconds:
        """Seconds by use so far."""
        return StepSeconds(**{f"{what}_s": seconds for what, seconds in self._laps.spent.items()})
