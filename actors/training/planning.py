"""Planning: what a step measured goes to the Scheduler, which answers with the plan of the next one.

Owns nothing. Algorithm 1 itself is `actors.cluster.seeding`.
"""

from actors.cluster.messages import Plan, PlanNext
from actors.cluster.seeding import StepTimes
from actors.rollout.messages import BatchReport, BatchTimes
from actors.training.asking import Asking
from actors.training.messages import StepResult
from supervisor import AskFailed, Context

MANAGER = "rollout/manager"
SCHEDULER = "cluster/scheduler"
TIMES_DEADLINE_S = 5.0  # the times of a batch: not worth a wait, the plan stays without them


class Planning:
    """See the module."""

    def __init__(self, ctx: Context, asking: Asking) -> None:
        self._ctx, self._asking = ctx, asking

    async def plan(self, step: int) -> Plan:
        """The plan of `step`, without a new measurement."""
        return await self._asking.ask(SCHEDULER, PlanNext(step=step, times=None), Plan)

    async def next(self, step: int, batch: str, result: StepResult, plan: Plan) -> Plan:
        """Algorithm 1 on what this step measured; the plan stays where the batch's times are gone."""
        try:
            times = await self._ctx.ask(
                MANAGER, BatchReport(batch=batch), deadline_s=TIMES_DEADLINE_S, expect=BatchTimes
            )
        except AskFailed as problem:
            self._ctx.log.warning("no times of %s: %s", batch, problem)
            return plan
        measured = StepTimes(
            train_wait_s=result.waiting_s,
            remote_wait_s=times.since_last_s if times.remote_s > 0 else 0.0,
            train_s=result.training_s,
            remote_s=times.remote_s,
            mean_prem=times.mean_prem,
            next_prem=times.next_prem,
        )
        return await self._asking.ask(SCHEDULER, PlanNext(step=step + 1, times=measured), Plan)
