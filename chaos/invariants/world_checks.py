"""Checks of the world: capacity, plans, money and time, against the simulated machines.

Owns their list, which `catalogue` has beside the checks of tokens and steps.
"""

from gleaner.chaos.invariants.answers import AnswersFollowCommits
from gleaner.chaos.invariants.calm_waits import NoLateWaitInCalm
from gleaner.chaos.invariants.capacity import NoCapacityForgotten
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.credit import CreditCounts
from gleaner.chaos.invariants.drains import DrainsEnd
from gleaner.chaos.invariants.fleet_size import HOSTS_END_S, FleetAsWished
from gleaner.chaos.invariants.instances import InstancesLive
from gleaner.chaos.invariants.membership import MembersLive
from gleaner.chaos.invariants.plans_survive import PlansSurvive
from gleaner.chaos.invariants.recovery_time import RecoversInTime
from gleaner.chaos.invariants.request_age import RequestsEndInTime
from gleaner.chaos.invariants.reward_hosts import RewardHostItems
from gleaner.chaos.invariants.reward_stages import RewardStages
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.shared_service import SharedServiceCalls
from gleaner.chaos.invariants.verdict_age import VerdictsInTime
from gleaner.chaos.invariants.windows import WindowsOpen
from gleaner.configs.schema import Config
from gleaner.sim.run_setup import Paces

__all__ = ["HOSTS_END_S", "WORLD_CHECKS", "world_checks"]

WORLD_CHECKS: tuple[type[Check], ...] = (
    NoCapacityForgotten, MembersLive, InstancesLive, DrainsEnd, RequestsEndInTime, RecoversInTime,
    NoLateWaitInCalm, PlansSurvive, FleetAsWished, WindowsOpen, AnswersFollowCommits,
    CreditCounts, VerdictsInTime, RewardHostItems, RewardStages, SharedServiceCalls,
)  # fmt: skip


def world_checks(shadow: Shadow, config: Config) -> tuple[Check, ...]:
    """One of each, for a job of these settings."""
    liveness = config.liveness
    return (
        NoCapacityForgotten(shadow, liveness, by_shares=config.rollout.balancing == "measured"),
        MembersLive(liveness),
        InstancesLive(shadow, liveness),
        DrainsEnd(shadow),
        RequestsEndInTime(shadow, config.rollout.request_deadline_s),
        RecoversInTime(config),
        NoLateWaitInCalm(liveness),
        PlansSurvive(every_instance=config.ablation.every_instance),
        FleetAsWished(config.fleet, liveness, Paces(), every_instance=config.ablation.every_instance),
        WindowsOpen(shadow),
        AnswersFollowCommits(shadow),
        CreditCounts(),
        VerdictsInTime(shadow, config),
        RewardHostItems(),
        RewardStages(),
        SharedServiceCalls(config),
    )
