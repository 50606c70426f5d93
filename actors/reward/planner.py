"""RewardPlanner: computes how many reward workers each stage needs, in a process of its own.

A plan takes up to seconds of a core (DistRS section 6.3), in which the proxy must answer. It keeps no state
that a plan depends on, but the window of an autoscaler and the calibration of a fixed number: a planner that
dies costs one plan, and the last one stands.
"""

from collections.abc import Mapping

import numpy as np

from gleaner.actors.protocol.planning import HistoryPlanned, PlanWorkers, WorkersPlanned
from gleaner.actors.reward.planning import choice
from gleaner.actors.reward.planning.forecast import BatchHistory, OpenBatch, unknown
from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.planning.policies import SHARED, ActiveBatch, ScalingPolicy, ServiceView
from gleaner.supervisor import Actor, Refused, handles

MOST_BATCHES = 1024


class RewardPlanner(Actor):
    """See the module.

    Args:
        kind: of the policy (`planning.choice`).
        max_delay_s: D.
    """

    def __init__(self, kind: str, max_delay_s: float) -> None:
        self._kind, self._max_delay_s = kind, max_delay_s
        self._policy: ScalingPolicy | None = None
        self._made_for: tuple[list[Stage], list[int]] = ([], [])
        self._plans = 0
        self._at_the_most = 0
        self._longest_s = 0.0

    @handles(PlanWorkers)
    async def plan(self, message: PlanWorkers) -> WorkersPlanned:
        began_s = self.ctx.now()
        try:
            view, stages, caps = view_of(message, began_s)
        except ValueError as problem:
            raise Refused(f"this cannot be planned: {problem}") from problem
        workers = await self.ctx.offload(self._planned, view, stages, caps)
        self._plans += 1
        self._at_the_most += any(count == cap for count, cap in zip(workers, caps, strict=True) if cap)
        self._longest_s = max(self._longest_s, self.ctx.now() - began_s)
        return WorkersPlanned(workers=workers)

    def _planned(self, view: ServiceView, stages: list[Stage], caps: list[int]) -> list[int]:
        if self._policy is None or self._made_for != (stages, caps):
            self._policy = choice.policy(self._kind, stages, caps, self._max_delay_s, self.ctx.rng)
            self._made_for = (stages, caps)
        wanted = self._policy.workers(view).get(SHARED, (0,) * len(stages))
        return [min(count, cap) for count, cap in zip(wanted, caps, strict=True)]

    def summary(self) -> dict[str, str | int | float]:
        return {
            "plans": self._plans,
            "plans_at_the_most": self._at_the_most,
            "longest_plan_s": round(self._longest_s, 3),
        }


def view_of(message: PlanWorkers, now_s: float) -> tuple[ServiceView, list[Stage], list[int]]:
    """The policy's view, the stages, and the most workers of each. Raises ValueError."""
    stages = [Stage(one.name, one.cost, one.timeout_s) for one in message.stages]
    if len(message.batches) > MOST_BATCHES:
        raise ValueError(f"{len(message.batches)} batches, at most {MOST_BATCHES} are planned")
    histories = {one.name: _history(one, len(stages)) for one in message.histories}
    batches = [
        ActiveBatch(
            one.name,
            OpenBatch(now_s + one.origin_s, one.expected, one.arrived, one.queued, one.running_s),
            _known(histories, one.history) or unknown(one.expected, stages),
            one.history,
        )
        for one in message.batches
    ]
    view = ServiceView(
        now_s=now_s,
        batches=batches,
        workers=tuple(one.workers for one in message.stages),
        busy=tuple(one.busy for one in message.stages),
        queued=tuple(one.queued for one in message.stages),
    )
    return view, stages, [one.most for one in message.stages]


def _known(histories: Mapping[str, BatchHistory], name: str) -> BatchHistory | None:
    if name and name not in histories:
        raise ValueError(f"history {name!r} is missing")
    return histories.get(name)


def _history(packed: HistoryPlanned, stages: int) -> BatchHistory:
    arrivals_s = np.frombuffer(packed.arrivals_s, np.dtype("<f8"))
    times_s = np.frombuffer(packed.times_s, np.dtype("<f8")).reshape(-1, stages)
    if not (np.isfinite(arrivals_s).all() and np.isfinite(times_s).all()):
        raise ValueError(f"history {packed.name}: times are finite numbers of seconds")
    return BatchHistory(arrivals_s, times_s)
