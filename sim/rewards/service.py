"""RewardService: stages, queues and workers of a reward service on virtual time.

Owns the items on their way, the pools of workers and the account. How many workers there are is a policy's
(`gleaner.actors.reward.planning.policies`). Workers start at once: a service that gets a hint of the next
rollout starts them before its first item arrives (DistRS section 4), and the account begins when they are
used. One that is not wanted any more ends with the item that it has.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gleaner.actors.reward.planning.forecast import BatchHistory, OpenBatch, unknown
from gleaner.actors.reward.planning.items import NO_WORKER, Items, Stage
from gleaner.actors.reward.planning.policies import SHARED, ActiveBatch, ScalingPolicy, ServiceView, Workers
from gleaner.actors.reward.planning.queue_model import Order
from gleaner.actors.reward.planning.queues import BatchQueues
from gleaner.sim.rewards.workload import Batch, Workload


@dataclass(frozen=True, slots=True)
class Account:
    """What a run gave.

    Args:
        allocated_s, busy_s: worker seconds of each stage.
        most: workers of each stage at once.
        delays_s: extra delay of each measured batch.
        plans: how often the policy was asked.
    """

    allocated_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    most: Workers
    delays_s: tuple[float, ...]
    plans: int


@dataclass(slots=True)
class _Pool:
    """Workers of one stage."""

    queue: "BatchQueues[_Item]" = field(default_factory=BatchQueues)
    wanted: int = 0
    busy: int = 0


@dataclass(slots=True)
class _Item:
    batch: "_Running"
    row: int
    stage: int = -1
    begun_s: float = math.nan


@dataclass(slots=True)
class _Running:
    """A batch that has begun."""

    job: str
    name: str
    batch: Batch
    origin_s: float
    left: int
    arrived: int = 0
    running: dict[int, _Item] = field(default_factory=dict)  # by row
    waiting: dict[int, _Item] = field(default_factory=dict)


ARRIVE, DONE, TICK, OVERDUE = range(4)


class RewardService:
    """One run of a workload under a policy.

    Args:
        workload: its jobs, batches and stages.
        policy: asked when a batch begins or ends, and on its period.
        skipped: batches of each job before the account begins: the first has no history.
    """

    def __init__(self, workload: Workload, policy: ScalingPolicy, skipped: int = 1) -> None:
        self._workload, self._policy, self._skipped = workload, policy, skipped
        self._stages: Sequence[Stage] = workload.stages
        self._pools: dict[tuple[str, int], _Pool] = defaultdict(_Pool)
        self._events: list[tuple[float, int, int, object]] = []
        self._numbers = 0
        self._now_s = 0.0
        self._active: dict[str, _Running] = {}
        self._complete_s: dict[str, float] = {}  # estimates, by batch
        self._histories: dict[str, BatchHistory] = {}
        self._ended: dict[str, int] = defaultdict(int)
        self._counting = skipped == 0
        count = len(self._stages)
        self._allocated_s, self._busy_s, self._most = [0.0] * count, [0.0] * count, [0] * count
        self._delays_s: list[float] = []
        self._plans = 0

    def run(self) -> Account:
        """All batches of all jobs, to the last."""
        for job, batches in self._workload.jobs.items():
            if batches:
                self._begin(job, 0, batches[0].gap_s)
        if self._policy.period_s:
            self._push(self._policy.period_s, TICK, None)
        while self._events:
            at_s, _, kind, what = heapq.heappop(self._events)
            self._pass(at_s)
            if kind == TICK:
                self._tick()
            elif kind == OVERDUE and what in self._active:
                self._plan()
            elif isinstance(what, _Item):
                self._arrived(what) if kind == ARRIVE else self._done(what)
        return Account(
            tuple(self._allocated_s),
            tuple(self._busy_s),
            tuple(self._most),
            tuple(self._delays_s),
            self._plans,
        )

    # -- events --

    def _push(self, at_s: float, kind: int, what: object) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at_s, self._numbers, kind, what))

    def _begin(self, job: str, number: int, origin_s: float) -> None:
        batch = self._workload.jobs[job][number]
        running = _Running(job, f"{job}/{number}", batch, origin_s, left=len(batch.arrivals_s))
        for row, arrival_s in enumerate(batch.arrivals_s.tolist()):
            self._push(origin_s + arrival_s, ARRIVE, _Item(running, row))

    def _arrived(self, item: _Item) -> None:
        batch = item.batch
        batch.arrived += 1
        first = batch.arrived == 1
        if first:
            self._active[batch.name] = batch
        self._go_on(item)
        if first and batch.name in self._active:
            self._plan()
            self._push(self._earliest_s(batch), OVERDUE, batch.name)

    def _done(self, item: _Item) -> None:
        del item.batch.running[item.row]
        pool = self._pool(item.batch.job, item.stage)
        pool.busy -= 1
        self._fill(pool)
        self._go_on(item)

    def _tick(self) -> None:
        if self._active or self._events:
            self._push(self._now_s + self._policy.period_s, TICK, None)
            self._plan()

    def _go_on(self, item: _Item) -> None:
        """To its next stage, or out."""
        times_s = item.batch.batch.times_s[item.row]
        item.stage += 1
        while item.stage < len(self._stages) and not times_s[item.stage]:
            item.stage += 1
        if item.stage == len(self._stages):
            self._complete(item.batch)
            return
        batch = item.batch
        pool = self._pool(batch.job, item.stage)
        pool.queue.add(batch.name if self._policy.order is Order.EBF else "", self._arrival_s(item), item)
        batch.waiting[item.row] = item
        self._fill(pool)

    def _arrival_s(self, item: _Item) -> float:
        return item.batch.origin_s + float(item.batch.batch.arrivals_s[item.row])

    def _fill(self, pool: _Pool) -> None:
        while pool.busy < pool.wanted and (item := pool.queue.pick(self._complete_s)) is not None:
            batch = item.batch
            del batch.waiting[item.row]
            batch.running[item.row] = item
            pool.busy += 1
            item.begun_s = self._now_s
            self._push(self._now_s + float(batch.batch.times_s[item.row, item.stage]), DONE, item)

    def _complete(self, batch: _Running) -> None:
        """One of its items is."""
        batch.left -= 1
        if batch.left:
            return
        self._active.pop(batch.name, None)
        self._complete_s.pop(batch.name, None)
        self._histories[batch.job] = batch.batch.history()
        number = self._ended[batch.job]
        self._ended[batch.job] += 1
        if number >= self._skipped:
            self._delays_s.append(max(self._now_s - batch.origin_s - batch.batch.earliest_s(), 0.0))
        batches = self._workload.jobs[batch.job]
        if number + 1 < len(batches):
            self._begin(batch.job, number + 1, self._now_s + batches[number + 1].gap_s)
        if not self._counting:
            self._counting = all(self._ended[job] >= self._skipped for job in self._workload.jobs)
        self._plan()

    # -- workers --

    def _pool(self, job: str, stage: int) -> _Pool:
        return self._pools[job if self._policy.dedicated else SHARED, stage]

    def _plan(self) -> None:
        self._plans += 1
        wanted: Mapping[str, Workers] = self._policy.workers(self._view())
        for (name, _), pool in self._pools.items():
            if name not in wanted:
                pool.wanted = 0
        for name, workers in wanted.items():
            for stage, count in enumerate(workers):
                self._pools[name, stage].wanted = count
        if self._policy.order is Order.EBF:
            self._estimate()
        for pool in list(self._pools.values()):
            self._keep_going(pool)
            self._fill(pool)

    def _keep_going(self, pool: _Pool) -> None:
        """Items that wait are never left without a worker, whatever a policy foresaw."""
        if len(pool.queue) and not pool.wanted and not pool.busy:
            pool.wanted = 1

    def _estimate(self) -> None:
        """Estimate the completion of each active batch anew."""
        for name, batch in self._active.items():
            self._complete_s[name] = self._earliest_s(batch)

    def _earliest_s(self, batch: _Running) -> float:
        """Its earliest completion, as far as the policy can foresee it."""
        if self._policy.foresees:
            return batch.origin_s + batch.batch.earliest_s()
        history = self._history(batch)
        longest_s = float((history.arrivals_s + history.times_s.sum(axis=1)).max())
        return max(batch.origin_s + longest_s, self._now_s)

    def _history(self, batch: _Running) -> BatchHistory:
        return self._histories.get(batch.job) or unknown(len(batch.batch.arrivals_s), self._stages)

    def _view(self) -> ServiceView:
        count = len(self._stages)
        workers, busy, queued = [0] * count, [0] * count, [0] * count
        for (_, stage), pool in self._pools.items():
            workers[stage] += max(pool.wanted, pool.busy)
            busy[stage] += pool.busy
            queued[stage] += len(pool.queue)
        active = [self._seen(batch) for batch in self._active.values()]
        return ServiceView(self._now_s, active, tuple(workers), tuple(busy), tuple(queued))

    def _seen(self, batch: _Running) -> ActiveBatch:
        queued = [0] * len(self._stages)
        running_s: list[list[float]] = [[] for _ in self._stages]
        for item in batch.waiting.values():
            queued[item.stage] += 1
        for item in batch.running.values():
            running_s[item.stage].append(self._now_s - item.begun_s)
        open_batch = OpenBatch(batch.origin_s, len(batch.batch.arrivals_s), batch.arrived, queued, running_s)
        return ActiveBatch(batch.job, open_batch, self._history(batch), truth=lambda: self._truth(batch))

    def _truth(self, batch: _Running) -> Items:
        """All that is to come of it, exactly."""
        times_s = batch.batch.times_s.copy()
        arrival_s = batch.origin_s + batch.batch.arrivals_s
        on_worker = np.full(len(times_s), NO_WORKER, np.int64)
        open_rows = arrival_s > self._now_s
        for row, item in (batch.waiting | batch.running).items():
            open_rows[row] = True
            times_s[row, : item.stage] = 0.0
            arrival_s[row] = self._now_s
            if row in batch.running:
                on_worker[row] = item.stage
                times_s[row, item.stage] = max(times_s[row, item.stage] - (self._now_s - item.begun_s), 1e-9)
        rows = np.flatnonzero(open_rows)
        return Items(np.zeros(len(rows), np.int64), arrival_s[rows], times_s[rows], on_worker[rows])

    def _pass(self, at_s: float) -> None:
        """Time passes: account for it."""
        passed_s, self._now_s = at_s - self._now_s, at_s
        if not self._counting or not passed_s:
            return
        now = [0] * len(self._stages)
        for (_, stage), pool in self._pools.items():
            now[stage] += max(pool.wanted, pool.busy)
            self._busy_s[stage] += pool.busy * passed_s
        for stage, count in enumerate(now):
            self._allocated_s[stage] += count * passed_s
            self._most[stage] = max(self._most[stage], count)
