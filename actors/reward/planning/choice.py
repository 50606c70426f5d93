"""The policies that a running service can use, by the name of the setting `reward.planner.kind`."""

import random
from collections.abc import Sequence

from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.planning.policies import Autoscaler, Calibrated, Planned, ScalingPolicy, ZeroQueue
from gleaner.actors.reward.planning.queue_model import TimeoutCheck

STATIC = "static"
"""No policy: the number of workers is fixed by the settings."""
CHECKS = {
    "distrs": TimeoutCheck.QUEUED,
    "distrs-strict": TimeoutCheck.STARTED,
    "history": TimeoutCheck.OFF,
}
AUTOSCALERS = {"hpa": False, "reactive": True}
CALIBRATED = {"static-peak": True, "static-mean": False}
"""Whether the workers are the most that the calibration used at once; else their mean."""
ZERO_QUEUE = "zero-queue"


def policy(
    kind: str, stages: Sequence[Stage], caps: Sequence[int], max_delay_s: float, rng: random.Random
) -> ScalingPolicy:
    """The policy of that name. caps: the most workers of each stage. Raises KeyError for any other name."""
    if kind in CHECKS:
        return Planned(stages, caps, max_delay_s, CHECKS[kind], rng)
    if kind == ZERO_QUEUE:
        return ZeroQueue(stages, rng, dedicated=False)
    if kind in CALIBRATED:
        return Calibrated(CALIBRATED[kind])
    return Autoscaler(caps, by_queue=AUTOSCALERS[kind])


def period_s(kind: str) -> float:
    """Between two plans of a policy that follows the clock; 0 for one that follows batches."""
    return Autoscaler.period_s if kind in AUTOSCALERS else 0.0
