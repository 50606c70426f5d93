"""Reward plan: what a trace of reward computations needs under each scaling policy.

Owns the names of the policies and the table; `gleaner.sim.rewards` runs them.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from gleaner.actors.reward.planning.policies import (
    Autoscaler,
    Fixed,
    Ideal,
    Planned,
    ScalingPolicy,
    ZeroQueue,
)
from gleaner.actors.reward.planning.queue_model import TimeoutCheck
from gleaner.sim.rewards.service import RewardService
from gleaner.sim.rewards.workload import Workload

SKIPPED = 1
"""Batches of each job before the account begins: the first one has no history."""

POLICIES: dict[str, str] = {
    "distrs": "fewest workers that keep the delay; an item that may time out does not queue",
    "distrs-strict": "the same, judged when a queued item would start",
    "history": "the same without regard to timeouts",
    "zero-queue": "so many that nothing queues, for all jobs together",
    "zero-queue-dedicated": "the same, of each job for itself",
    "static-peak": "the most that the first batches use at once, at all times",
    "static-mean": "their mean, at all times",
    "hpa": "70 % utilisation, as Kubernetes' autoscaler",
    "reactive": "a worker for each item that waits or runs",
    "ideal": "perfect knowledge of what is to come: the bound",
}


class StageUse(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of one stage. worker_hours: allocated; busy_hours: with an item; most: at once."""

    stage: str
    worker_hours: float
    busy_hours: float
    most: int


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True):
    """A row. cost: worker hours times cost of a worker, over all stages; delays: extra seconds of a batch
    beyond its earliest completion; plans: how often the number of workers was decided; short: how many of
    these would have needed more workers than there may be."""

    policy: str
    cost: float
    stages: list[StageUse]
    mean_delay_s: float
    most_delay_s: float
    batches: int
    plans: int
    short: int


class RewardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`rlctl plan --rewards --json`."""

    items: int
    jobs: int
    max_delay_s: float
    policies: list[PolicyUse]


class TooFewBatches(ValueError):
    """No job has a batch behind its first one."""


def policy_of(name: str, workload: Workload, max_delay_s: float, cap: int, seed: int) -> ScalingPolicy:
    """The policy of that name. cap: most workers of a stage; 0: as many as items. Raises KeyError."""
    stages, rng = workload.stages, random.Random(f"{seed}/{name}")
    caps = [cap or workload.items] * len(stages)
    calibration = [batches[0].history() for batches in workload.jobs.values()]
    made: dict[str, Callable[[], ScalingPolicy]] = {
        "distrs": lambda: Planned(stages, caps, max_delay_s, TimeoutCheck.QUEUED, rng),
        "distrs-strict": lambda: Planned(stages, caps, max_delay_s, TimeoutCheck.STARTED, rng),
        "history": lambda: Planned(stages, caps, max_delay_s, TimeoutCheck.OFF, rng),
        "zero-queue": lambda: ZeroQueue(stages, rng, dedicated=False),
        "zero-queue-dedicated": lambda: ZeroQueue(stages, rng, dedicated=True),
        "static-peak": lambda: Fixed(calibration, peak=True),
        "static-mean": lambda: Fixed(calibration, peak=False),
        "hpa": lambda: Autoscaler(caps),
        "reactive": lambda: Autoscaler(caps, by_queue=True),
        "ideal": lambda: Ideal(stages, caps, max_delay_s, TimeoutCheck.OFF, rng),
    }
    return made[name]()


def compared(
    workload: Workload, names: Sequence[str], max_delay_s: float, cap: int = 0, seed: int = 1
) -> Iterator[PolicyUse]:
    """Run the workload under each policy; a row as soon as it is there. Raises TooFewBatches."""
    if all(len(batches) <= SKIPPED for batches in workload.jobs.values()):
        raise TooFewBatches(
            "no job has two batches: the first one is the history from which the next ones are planned"
        )
    for name in names:
        policy = policy_of(name, workload, max_delay_s, cap, seed)
        account = RewardService(workload, policy, SKIPPED).run()
        stages = [
            StageUse(
                stage=stage.name,
                worker_hours=account.allocated_s[at] / 3600,
                busy_hours=account.busy_s[at] / 3600,
                most=account.most[at],
            )
            for at, stage in enumerate(workload.stages)
        ]
        costs = [use.worker_hours * stage.cost for use, stage in zip(stages, workload.stages, strict=True)]
        delays_s = np.array(account.delays_s or [0.0])
        yield PolicyUse(
            policy=name,
            cost=sum(costs),
            stages=stages,
            mean_delay_s=float(delays_s.mean()),
            most_delay_s=float(delays_s.max()),
            batches=len(account.delays_s),
            plans=account.plans,
            short=policy.short if isinstance(policy, Planned) else 0,
        )
