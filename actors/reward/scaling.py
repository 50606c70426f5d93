"""WorkerScaling: has the reward workers planned, and gives each host its share.

Owns when a plan is made (DistRS section 5; never on a timer, unless the policy is an autoscaler) and how it
is applied: a plan that was made for other hosts than there are now is dropped. `reward/planner` computes it.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gleaner.actors.names import PLANNER
from gleaner.actors.protocol.planning import (
    BatchPlanned,
    HistoryPlanned,
    PlanWorkers,
    StagePlanned,
    WorkersPlanned,
)
from gleaner.actors.reward.assignment.batches import RewardBatch
from gleaner.actors.reward.assignment.shares import shares
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.planning import choice
from gleaner.actors.reward.planning.forecast import BatchHistory
from gleaner.actors.reward.planning.items import Stage
from gleaner.configs.schema import Planner
from gleaner.supervisor import AskFailed, Context

PLAN_DEADLINE_S = 30.0
LEAST_PAUSE_S = 0.5
"""Between two plans: events come in bursts, and a plan may take as long."""


class WorkerScaling:
    """See the module.

    Args:
        stages: of the service, with costs and their own timeouts (T_j).
        least: workers that a host keeps whatever is planned, by host.
        resize: gives a host so many workers of a stage.
    """

    def __init__(
        self,
        ctx: Context,
        dispatch: ItemDispatch,
        settings: Planner,
        stages: list[Stage],
        least: dict[str, int],
        resize: Callable[[str, str, int], None],
    ) -> None:
        self._ctx, self._dispatch, self._settings = ctx, dispatch, settings
        self._stages, self._least, self._resize = stages, least, resize
        self.on_lapsed: Callable[[RewardBatch], None] = _nothing
        """Called with each announced batch of which nothing came in time."""
        self._wake = asyncio.Event()
        self._hosts = 0  # how often they changed
        self.plans = 0
        self.dropped = 0
        """Plans that were made for other hosts, or that the planner could not make."""
        self.expired = 0
        """Announced batches of which nothing came in time."""
        self.planned: dict[str, int] = {}
        """Workers of each stage by the last plan."""

    def changed(self) -> None:
        """A batch began or ended: its workers must be planned."""
        self._wake.set()

    def hosts_changed(self) -> None:
        """A host joined, or is gone."""
        self._hosts += 1
        self._wake.set()

    async def run(self) -> None:
        """Plan whenever it is due; runs for ever."""
        period_s = choice.period_s(self._settings.kind)
        while True:
            await self._ctx.idle(self._wake, period_s or self._overdue_s())
            self._wake.clear()
            late = self._dispatch.batches.lapse(self._ctx.now(), self._settings.hint_expires_s)
            for batch in late:
                self.expired += 1
                self.on_lapsed(batch)
            if self._planned_batches() or period_s:
                await self._plan()
            elif late:  # nothing is left to plan for
                for stage in self._stages:
                    self._apply(stage.name, 0)
            await self._ctx.idle(asyncio.Event(), LEAST_PAUSE_S)

    def _planned_batches(self) -> list[RewardBatch]:
        return [batch for batch in self._dispatch.batches.active() if not batch.lapsed]

    def _overdue_s(self) -> float | None:
        """Until the next T-hat at which its batch is still open, or the next announcement that expires; None
        if there is none."""
        now_s, batches = self._ctx.now(), self._dispatch.batches
        times_s = [
            time_s
            for batch in self._planned_batches()
            for time_s in (batch.complete_s, batches.expires_s(batch, self._settings.hint_expires_s))
        ]
        ahead = [time_s - now_s for time_s in times_s if math.isfinite(time_s) and time_s > now_s]
        return min(ahead, default=None)

    async def _plan(self) -> None:
        hosts = self._hosts
        try:
            planned = await self._ctx.ask(
                PLANNER, self._view(), deadline_s=PLAN_DEADLINE_S, expect=WorkersPlanned
            )
        except AskFailed as problem:  # the last plan stands
            self.dropped += 1
            self._ctx.log.info("no plan of the reward workers: %s", problem)
            return
        if hosts != self._hosts:
            self.dropped += 1
            self._wake.set()
            return
        self.plans += 1
        for stage, count in zip(self._stages, planned.workers, strict=True):
            self._apply(stage.name, count)

    def _apply(self, stage: str, count: int) -> None:
        most = {
            host.name: host.most[stage]
            for host in self._dispatch.hosts
            if not host.barred and stage in host.most
        }
        self.planned[stage] = count
        jobs, waiting = self._dispatch.jobs, self._dispatch.items.jobs_waiting_in(stage)
        least = max(self._settings.min_workers, jobs.guaranteed_workers(stage, waiting))
        for name, workers in shares(max(count, least), most, self._least).items():
            self._resize(name, stage, workers)

    def _view(self) -> PlanWorkers:
        batches, running_s = self._planned_batches(), self._running_s()
        histories: dict[str, BatchHistory] = {}
        for batch in batches:
            if (history := self._dispatch.batches.history(batch.kind)) is not None:
                histories[batch.kind] = history
        return PlanWorkers(
            stages=[self._stage(stage) for stage in self._stages],
            batches=[
                self._batch(batch, batch.kind in histories, running_s.get(batch.name, {}))
                for batch in batches
            ],
            histories=[
                HistoryPlanned(
                    name=name,
                    arrivals_s=np.asarray(one.arrivals_s, "<f8").tobytes(),
                    times_s=np.asarray(one.times_s, "<f8").tobytes(),
                )
                for name, one in histories.items()
            ],
        )

    def _stage(self, stage: Stage) -> StagePlanned:
        hosts, items = self._dispatch.hosts, self._dispatch.items
        able = [host for host in hosts if not host.barred]
        most = self._dispatch.jobs.most_workers(sum(host.most.get(stage.name, 0) for host in able))
        return StagePlanned(
            name=stage.name,
            cost=stage.cost,
            timeout_s=stage.timeout_s,
            most=min(most, self._settings.max_workers) if self._settings.max_workers else most,
            workers=hosts.workers(stage.name),
            busy=sum(min(host.has.get(stage.name, 0), host.workers.get(stage.name, 0)) for host in hosts),
            queued=items.waiting_in(stage.name),
        )

    def _batch(
        self, batch: RewardBatch, known: bool, running_s: Mapping[str, Sequence[float]]
    ) -> BatchPlanned:
        waiting = self._dispatch.items.waiting_of(batch.name)
        return BatchPlanned(
            name=batch.name,
            origin_s=batch.origin_s - self._ctx.now(),
            expected=max(batch.expected, batch.arrived),
            arrived=batch.arrived,
            queued=[waiting.get(stage.name, 0) for stage in self._stages],
            running_s=[list(running_s.get(stage.name, ())) for stage in self._stages],
            history=batch.kind if known else "",
        )

    def _running_s(self) -> dict[str, dict[str, list[float]]]:
        """For how long each item of a host has been there, by batch and stage. What waits is counted where it
        waits: that may be 100,000 items, and the proxy answers nothing while it counts them."""
        now_s = self._ctx.now()
        found: dict[str, dict[str, list[float]]] = {}
        for item in self._dispatch.items.running():
            found.setdefault(item.batch, {}).setdefault(item.stage, []).append(max(now_s - item.began_s, 0.0))
        return found


def _nothing(_batch: RewardBatch) -> None:
    return None
