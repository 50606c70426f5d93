"""Modelled rank of a trainer's gang from 1 on: `gleaner.actors.training.rank.RankWork`.

Owns nothing: `trainer_work` models all ranks of a gang as one, the weights as well as the time. A rank is
here so that it can die, and take the others with it.
"""

from gleaner.sim.models.clock import Clock


class SimRankWork:
    """See the module. `clock`: of this process."""

    doing = "idle"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def serve(self, within_s: float) -> None:
        """See `RankWork`."""
        self._clock.spend(within_s)
