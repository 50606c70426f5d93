"""`StepPlanner`: sends a step's measurements to the Scheduler and gets the next plan.

Owns what was measured before engines were relaunched with another width, until the step's end: instances that
relaunch are away then. Algorithm 1 itself is `gleaner.actors.cluster.seeding`.
"""

import asyncio

from msgspec import structs

from gleaner.actors.names import BALANCER, MANAGER, SCHEDULER
from gleaner.actors.protocol.cluster import Plan, PlanNext, PlanWidth, WidthPlanned
from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.protocol.rollout import BatchReport, BatchTimes, RolloutFigures, RolloutStatus
from gleaner.actors.protocol.step_times import RoundKinds, Seen, StepTimes
from gleaner.actors.protocol.throughput import EnginePace, Paces, PacesAre, engine_pace
from gleaner.actors.protocol.training import StepResult, StepSoFar
from gleaner.actors.training.retrying_ask import RetryingAsk
from gleaner.supervisor import AskFailed, Context

TIMES_DEADLINE_S = 5.0  # the times of a batch; without them in that time the plan stays


class StepPlanner:
    """See the module."""

    def __init__(self, ctx: Context, retrying_ask: RetryingAsk) -> None:
        self._ctx, self._retrying_ask = ctx, retrying_ask
        self._before: tuple[str, BatchTimes, PacesAre] | None = None  # a relaunch, by batch
        self._training_s: float | None = None  # of the last step, without its update

    async def plan(self, step: int) -> Plan:
        """The plan of `step`, without a new measurement."""
        engines = 0
        try:
            figures = await self._ctx.ask(
                MANAGER, RolloutStatus(), deadline_s=TIMES_DEADLINE_S, expect=RolloutFigures
            )
            engines = figures.reserved_engines
        except AskFailed as problem:
            self._ctx.log.info("reserved engine count lookup failed: %s", problem)
        ask = PlanNext(step=step, times=None, reserved_engines=engines)
        return await self._retrying_ask.ask(SCHEDULER, ask, Plan)

    async def width(
        self, step: int, batch: str, so_far: StepSoFar, groups: int, rounds: RoundKinds | None
    ) -> bool:
        """Have the width of the next step decided, while this one, of so many groups, is trained. Returns
        whether it is."""
        times, paces = await asyncio.gather(self._times(batch), self._paces())
        training_s = self.training_s(so_far, groups)
        if times is None or training_s is None:
            return False
        measured = _measured(expected_result(step, so_far, training_s), times, paces, rounds)
        ask = PlanWidth(step=step + 1, times=measured)
        try:
            planned = await self._retrying_ask.ask(SCHEDULER, ask, WidthPlanned)
        except AskFailed as problem:
            self._ctx.log.info("width of step %d is left to its plan: %s", step + 1, problem)
            return False
        if planned.changed:
            self._before = batch, times, paces
        return planned.decided

    def training_s(self, so_far: StepSoFar, groups: int) -> float | None:
        """What the step will have trained, without its update: if its groups take as long as those that are
        trained, without any as the last step. None: not known yet."""
        return so_far.training_s * groups / so_far.groups if so_far.groups else self._training_s

    async def next(
        self,
        step: int,
        batch: str,
        result: StepResult,
        plan: Plan,
        rounds: RoundKinds | None = None,
        idle_s: float | None = None,
    ) -> tuple[Plan, CriticalPath | None]:
        """The plan of the next step, from this step's measurements (unchanged if the batch's times are gone),
        and the critical path of this step. rounds: None without any. idle_s: since `width`, if that was."""
        times, paces = await asyncio.gather(self._times(batch), self._paces())
        before, self._before = self._before, None
        self._training_s = max(0.0, result.training_s - result.update_s)
        if times is None:
            return plan, None
        if before is not None and before[0] == batch:
            times, paces = without_relaunch(times, before[1]), before[2]
        measured = structs.replace(_measured(result, times, paces, rounds), idle_s=idle_s)
        ahead = await self._retrying_ask.ask(SCHEDULER, PlanNext(step=step + 1, times=measured), Plan)
        return ahead, times.path

    async def _times(self, batch: str) -> BatchTimes | None:
        """The times of a batch; None if they are gone."""
        ask = BatchReport(batch=batch)
        try:
            return await self._ctx.ask(MANAGER, ask, deadline_s=TIMES_DEADLINE_S, expect=BatchTimes)
        except AskFailed as problem:
            self._ctx.log.warning("batch times lookup failed: %s: %s", batch, problem)
            return None

    async def _paces(self) -> PacesAre:
        """Decode rates of whole instances, by kind; none if the balancer has just restarted."""
        try:
            return await self._ctx.ask(BALANCER, Paces(), deadline_s=TIMES_DEADLINE_S, expect=PacesAre)
        except AskFailed as problem:
            self._ctx.log.info("decode rates lookup failed: %s", problem)
            return PacesAre(instances={})


def expected_result(step: int, so_far: StepSoFar, training_s: float) -> StepResult:
    """What the step will have taken without its update. Half of the devices count as all: what a stair has
    taken is not known before its end."""
    return StepResult(
        step=step,
        root=b"",
        reward=None,
        samples=0,
        tokens=0,
        loss=0.0,
        grad_norm=0.0,
        seeding_s=so_far.seeding_s,
        waiting_s=so_far.waiting_s,
        training_s=training_s,
        weights_s=0.0,
    )


def without_relaunch(times: BatchTimes, before: BatchTimes) -> BatchTimes:
    """The times of a step whose instances were relaunched while its trainer updated, as if they had stayed.
    before: the same when they were still there."""
    rest_s = max(0.0, times.step_s - before.step_s)
    return structs.replace(
        times,
        mean_prem=before.mean_prem,
        next_prem=before.next_prem,
        remote_s=before.remote_s,
        remote_wait_s=before.remote_wait_s + rest_s,
        instance_engines=before.instance_engines,
        preemptible=before.preemptible,
        carried_prem=before.carried_prem,
    )


def _measured(result: StepResult, times: BatchTimes, paces: PacesAre, rounds: RoundKinds | None) -> StepTimes:
    measured = measured_times(result, times, paces.instances, rounds)
    return structs.replace(measured, retracted=paces.retracted.get("preemptible", 0))


def measured_times(
    result: StepResult, times: BatchTimes, paces: dict[str, EnginePace], rounds: RoundKinds | None = None
) -> StepTimes:
    """The measurements of a step by the trainer, the manager and the instances."""
    counted = times.counted or times.groups
    reserved = engine_pace(paces.get("reserved"), times.reserved_engines, times.reserved)
    preemptible = engine_pace(paces.get("preemptible"), times.instance_engines, times.preemptible)
    return StepTimes(
        train_wait_s=result.waiting_s,
        remote_wait_s=times.remote_wait_s,
        train_s=result.training_s - result.half_s / 2,
        remote_s=times.remote_s,
        mean_prem=times.mean_prem,
        next_prem=times.next_prem,
        reserved_engines=times.reserved_engines,
        instance_engines=times.instance_engines,
        carried_prem=times.carried_prem,
        seen=Seen(
            step_s=times.step_s,
            seeding_s=result.seeding_s,
            update_s=result.update_s,
            rolled_s=times.rolled_s,
            start_s=times.remote_start_s,
            reserved=reserved,
            preemptible=preemptible,
            requests=counted * times.counted_samples if times.counted else times.requests,
            groups=counted,
            limit=times.limit,
            lengths=times.lengths,
            prompt_tokens=times.prompt_tokens,
            surplus=times.groups - counted,
            stair_s=result.stair_s,
            half_s=result.half_s,
        ),
        rounds=rounds,
    )
