"""Policies: how many workers each stage of a reward service shall have.

One port, and the policies that DistRS is compared with (its sections 6.1 and 6.3): zero queues for each job
or for all, history alone, perfect knowledge, a fixed number, and two autoscalers that see utilisation or
queues. Pure.
"""

import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gleaner.actors.reward.planning.forecast import BatchHistory, OpenBatch, forecast
from gleaner.actors.reward.planning.items import Items, Stage, joined
from gleaner.actors.reward.planning.queue_model import Order, TimeoutCheck, most_at_once
from gleaner.actors.reward.planning.search import limits_of, plan
from gleaner.actors.reward.planning.tolerated_delay import tolerated_s

SHARED = ""
"""Name of the pool that all jobs share; a dedicated one has the name of its job."""
Workers = tuple[int, ...]
"""Of each stage."""
MOST_CALIBRATIONS = 64
"""Kinds of batches; the one without a batch for the longest time is calibrated again beyond that."""
DOWN_WINDOW_S, TOLERANCE = 300.0, 0.1  # defaults of Kubernetes' autoscaler


@dataclass(frozen=True, slots=True)
class ActiveBatch:
    """A batch that has begun and is not complete. history: of the batch before it, or what is assumed without
    one; kind: of the batch before it, "" if the history is assumed; truth: what there is to come, in a
    simulation alone, where the ideal policy reads it."""

    job: str
    open: OpenBatch
    history: BatchHistory
    kind: str = ""
    truth: Callable[[], Items] | None = None


@dataclass(frozen=True, slots=True)
class ServiceView:
    """What a policy sees. busy, queued: of each stage; workers: that each stage has now."""

    now_s: float
    batches: Sequence[ActiveBatch]
    workers: Workers
    busy: Workers
    queued: Workers


class ScalingPolicy(Protocol):
    """Decides the workers of each pool. Asked when a batch begins or ends, and each `period_s` if that is
    not 0. order: of the queues; dedicated: whether each job has a pool of its own; foresees: whether it knows
    what is to come, as no real policy does."""

    period_s: float
    order: Order
    dedicated: bool
    foresees: bool

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """Workers of each stage, by pool."""


class Planned:
    """DistRS: the fewest workers with which the queue model keeps the tolerated delay. Without the
    timeout-aware check it is "history only".

    Args:
        stages: of the pipeline.
        caps: the most workers of each stage.
        max_delay_s: D.
        check: which items may not queue.
        rng: draws the times of items that queue or run.
    """

    period_s = 0.0
    order = Order.EBF
    dedicated = False
    foresees = False

    def __init__(
        self,
        stages: Sequence[Stage],
        caps: Sequence[int],
        max_delay_s: float,
        check: TimeoutCheck,
        rng: random.Random,
    ) -> None:
        self._stages, self._caps, self._rng = stages, caps, rng
        self._max_delay_s, self._check = max_delay_s, check
        self.short = 0
        """Plans so far that not even the caps keep."""

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """See `ScalingPolicy`."""
        parts = [self._foreseen(batch, view.now_s) for batch in view.batches]
        delays_s = [self._tolerated_s(batch, part) for batch, part in zip(view.batches, parts, strict=True)]
        limits = limits_of(self._stages, np.array(delays_s), self._check, self.order)
        found = plan(joined(parts, len(self._stages)), self._stages, self._caps, limits)
        self.short += not found.kept
        return {SHARED: found.workers}

    def _tolerated_s(self, batch: ActiveBatch, items: Items) -> float:
        earliest_s = float(items.earliest_s().max(initial=batch.open.origin_s))
        return tolerated_s(self._max_delay_s, earliest_s - batch.open.origin_s)

    def _foreseen(self, batch: ActiveBatch, now_s: float) -> Items:
        return forecast(batch.open, batch.history, self._stages, now_s, self._rng)


class Ideal(Planned):
    """The same with perfect knowledge of what is to come: no real policy has it."""

    foresees = True

    def _foreseen(self, batch: ActiveBatch, now_s: float) -> Items:
        if batch.truth is None:
            raise ValueError(f"batch of {batch.job}: the ideal policy needs what is to come, in a simulation")
        return batch.truth()


class ZeroQueue:
    """So many workers that nothing queues if batches are like the ones before them: of each job for itself
    (ZQ-Dedicated), or of all together (what sharing alone saves)."""

    period_s = 0.0
    order = Order.FCFS
    dedicated = False
    foresees = False

    def __init__(self, stages: Sequence[Stage], rng: random.Random, dedicated: bool) -> None:
        self._stages, self._rng, self.dedicated = stages, rng, dedicated

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """See `ScalingPolicy`."""
        by_pool: dict[str, list[Items]] = {}
        for batch in view.batches:
            items = forecast(batch.open, batch.history, self._stages, view.now_s, self._rng)
            by_pool.setdefault(batch.job if self.dedicated else SHARED, []).append(items)
        count = len(self._stages)
        return {pool: _counts(most_at_once(joined(items, count))) for pool, items in by_pool.items()}


class Fixed:
    """The same number at all times: the most that earlier batches used at once, or their mean while they
    lasted."""

    period_s = 0.0
    order = Order.FCFS
    dedicated = False
    foresees = False

    def __init__(self, calibration: Sequence[BatchHistory], peak: bool) -> None:
        self._workers = fixed_workers(calibration, peak)

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """See `ScalingPolicy`."""
        return {SHARED: self._workers}


class Calibrated:
    """`Fixed` for a service that runs: the calibration of each kind of batch is its first one that ended.
    Until then a kind has the workers of the history that is assumed for it."""

    period_s = 0.0
    order = Order.FCFS
    dedicated = False
    foresees = False

    def __init__(self, peak: bool) -> None:
        self._peak = peak
        self._calibration: OrderedDict[str, BatchHistory] = OrderedDict()

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """See `ScalingPolicy`."""
        for batch in view.batches:
            if batch.kind:
                self._calibration.setdefault(batch.kind, batch.history)
                self._calibration.move_to_end(batch.kind)
        while len(self._calibration) > MOST_CALIBRATIONS:
            self._calibration.popitem(last=False)
        assumed = [batch.history for batch in view.batches if not batch.kind]
        known = [*self._calibration.values(), *assumed]
        return {SHARED: fixed_workers(known, self._peak)} if known else {}


class Autoscaler:
    """Scales to a target on a period, without any idea of batches.

    It is Kubernetes' HorizontalPodAutoscaler: workers x (utilisation / target), no change within a tolerance,
    and down only to the most that was wanted in a window (defaults of its documentation: 15 s, 10 %, 300 s).
    With `by_queue` it counts what waits and runs, as scalers by queue length do.
    """

    order = Order.FCFS
    dedicated = False
    foresees = False
    period_s = 15.0

    def __init__(self, caps: Sequence[int], target: float = 0.7, by_queue: bool = False) -> None:
        if not 0 < target <= 1:
            raise ValueError(f"target: expected a share of the workers, got {target:g}")
        self._caps, self._target, self._by_queue = caps, target, by_queue
        self._wanted: deque[tuple[float, Workers]] = deque()

    def workers(self, view: ServiceView) -> Mapping[str, Workers]:
        """See `ScalingPolicy`."""
        wanted = tuple(self._wish(view, stage) for stage in range(len(self._caps)))
        self._wanted.append((view.now_s, wanted))
        while self._wanted[0][0] < view.now_s - DOWN_WINDOW_S:
            self._wanted.popleft()
        return {
            SHARED: tuple(max(past[1][stage] for past in self._wanted) for stage in range(len(self._caps)))
        }

    def _wish(self, view: ServiceView, stage: int) -> int:
        workers, cap = view.workers[stage], self._caps[stage]
        if self._by_queue:
            return min(max(view.busy[stage] + view.queued[stage], 1), cap)
        use = view.busy[stage] / workers if workers else 1.0
        if workers and abs(use / self._target - 1.0) <= TOLERANCE:
            return workers
        return min(max(math.ceil(workers * use / self._target), 1), cap)


def fixed_workers(calibration: Sequence[BatchHistory], peak: bool) -> Workers:
    """Workers for these batches at the same time: all that run at once, or their mean number."""
    parts = [
        Items(np.zeros(len(one.arrivals_s), np.int64), one.arrivals_s, one.times_s) for one in calibration
    ]
    if peak:
        return _counts(np.sum([most_at_once(part) for part in parts], axis=0))
    spans_s = [max(float(part.earliest_s()[0] - part.arrival_s.min()), 1e-9) for part in parts]
    means = [part.times_s.sum(axis=0) / span_s for part, span_s in zip(parts, spans_s, strict=True)]
    return tuple(max(math.ceil(float(mean)), 1) for mean in np.sum(means, axis=0))


def _counts(counts: object) -> Workers:
    return tuple(int(count) for count in np.asarray(counts))
