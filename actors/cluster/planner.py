"""`Planner`: the policy that plans the steps of a job, chosen by its settings."""

from collections.abc import Callable
from typing import Protocol

from gleaner.actors.cluster.artifact_seeding import ArtifactPolicy
from gleaner.actors.cluster.round_planner import KindPolicy, RoundPlanner
from gleaner.actors.cluster.seeding import SeedingPolicy, SeedingState
from gleaner.actors.cluster.seeding_model import ModelPolicy
from gleaner.actors.protocol.step_times import StepTimes
from gleaner.configs.schema import Config


class Planner(Protocol):
    """Plans one step after the other; pure, so that the same journal gives the same plans."""

    def initial(self, reserved_engines: int = 0) -> SeedingState:
        """The plan of the first step; `reserved_engines` is 0 if it is not known."""

    def next(self, state: SeedingState, times: StepTimes) -> SeedingState:
        """The plan of the step after the one with these measurements."""


def planner_of(config: Config) -> Planner:
    """The controller that `seeding.controller` names."""
    rule = SeedingPolicy(config.seeding, n_reserved=config.fleet.reserved, n_prem_max=config.fleet.n_prem_max)
    policies: dict[str, Callable[[], KindPolicy]] = {
        "feedback": lambda: rule,
        "artifact": lambda: ArtifactPolicy(rule),
        "model": lambda: ModelPolicy(rule, config.seeding, config.prices, config.fleet.reserved),
    }
    policy = policies[config.seeding.controller]()
    return RoundPlanner(policy) if config.rounds.on else policy
