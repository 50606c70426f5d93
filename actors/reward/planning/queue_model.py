"""Queue model: what becomes of items that share so many workers (SIMULATE of DistRS section 5.1).

Each stage has one queue and workers that take one item at a time. Owns the order and the two tests that a
number of workers must pass. Pure; `queue_loop` is its inner part.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.actors.reward.planning import queue_loop
from gleaner.actors.reward.planning.items import Floats, Ints, Items


class Order(enum.StrEnum):
    """Which item of a stage's queue a free worker takes."""

    EBF = "ebf"  # of the batch with the earliest completion, then the earliest arrival (DistRS 5.2)
    FCFS = "fcfs"  # the earliest arrival at the service
    EDF = "edf"  # the earliest completion of the item alone


class TimeoutCheck(enum.StrEnum):
    """Whether an item may queue although it could run into its timeouts (the timeout-aware constraint)."""

    OFF = "off"
    QUEUED = "queued"  # judged at the time at which it begins to queue: the paper's letter
    STARTED = "started"  # judged at the time at which it gets a worker: stricter


_CHECKS = {
    TimeoutCheck.OFF: 0,
    TimeoutCheck.QUEUED: queue_loop.QUEUED,
    TimeoutCheck.STARTED: queue_loop.STARTED,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep.

    Args:
        max_delay_s: D, the tolerated extra delay behind the earliest completion: of every batch, or of each.
        timeouts_s: T_j of each stage.
        check: of items that queue.
        order: of the queues.
    """

    max_delay_s: float | Floats
    timeouts_s: Sequence[float]
    check: TimeoutCheck = TimeoutCheck.QUEUED
    order: Order = Order.EBF


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation gave. finish_s: of each item; delays_s: d of each batch; begun_s: of each item in
    each stage, NaN where it skips the stage; queued: how many waits there were."""

    finish_s: Floats
    delays_s: Floats
    begun_s: Floats
    queued: int


def satisfies(items: Items, workers: Sequence[int], limits: Limits) -> bool:
    """Whether so many workers complete every batch by T + D, with no item in a queue that its timeouts could
    carry beyond that. Ends at the first sign that they do not."""
    ranks, latest_s = ranks_of(items, limits.order), _latest_s(items, limits)
    finish_s, begun_s = np.empty(0), np.empty((0, 0))
    kept: bool = queue_loop.compiled()(*_columns(items, workers, limits), ranks, latest_s, finish_s, begun_s)[
        0
    ]
    return kept


def outcome_of(items: Items, workers: Sequence[int], order: Order = Order.EBF) -> Outcome:
    """What becomes of all items. Raises ValueError where a stage that has items has no worker."""
    for stage, count in enumerate(workers):
        if count < 1 and items.times_s[:, stage].any():
            raise ValueError(f"stage {stage} has items and no worker")
    limits = Limits(math.inf, [0.0] * len(workers), TimeoutCheck.OFF, order)
    finish_s = np.full(len(items), np.nan)
    begun_s = np.full(items.times_s.shape, np.nan)
    latest_s = np.full(len(items), np.inf)
    ranks = ranks_of(items, order)
    _, queued = queue_loop.compiled()(*_columns(items, workers, limits), ranks, latest_s, finish_s, begun_s)
    delays_s = np.zeros(items.batches)
    np.maximum.at(delays_s, items.batch, finish_s)
    earliest_s = items.earliest_s()
    return Outcome(
        finish_s, np.where(np.isfinite(earliest_s), delays_s - earliest_s, 0.0), begun_s, int(queued)
    )


def ranks_of(items: Items, order: Order) -> Ints:
    """Place of each item in the order of the queues, 0 first."""
    keys: tuple[Floats, ...]
    if order is Order.EBF:
        keys = (items.arrival_s, items.earliest_s()[items.batch] if len(items) else items.arrival_s)
    elif order is Order.EDF:
        keys = (items.arrival_s, items.unqueued_s())
    else:
        keys = (items.arrival_s,)
    ranks = np.empty(len(items), np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(items))
    return ranks


def most_at_once(items: Items) -> Ints:
    """Workers of each stage with which no item ever queues: the most that run there at the same time."""
    begin_s = items.arrival_s.copy()
    most = np.zeros(items.times_s.shape[1], np.int64)
    for stage in range(items.times_s.shape[1]):
        time_s = items.times_s[:, stage]
        runs = time_s > 0
        at_s = np.concatenate([begin_s[runs] + time_s[runs], begin_s[runs]])
        change = np.repeat([-1, 1], runs.sum())
        by_time = np.lexsort((change, at_s))  # of two at the same time the one that ends comes first
        most[stage] = max(np.cumsum(change[by_time]).max(initial=0), 0)
        begin_s += time_s
    return most


def _latest_s(items: Items, limits: Limits) -> Floats:
    """T + D of the batch of each item."""
    if not len(items):
        return np.empty(0)
    earliest_s = items.earliest_s()
    max_delay_s = (
        limits.max_delay_s if isinstance(limits.max_delay_s, float) else limits.max_delay_s[: len(earliest_s)]
    )
    return np.asarray((earliest_s + max_delay_s)[items.batch], np.float64)


def _columns(items: Items, workers: Sequence[int], limits: Limits) -> tuple[object, ...]:
    behind_s = np.cumsum(np.asarray(limits.timeouts_s, np.float64)[::-1])[::-1]
    return (
        np.argsort(items.arrival_s, kind="stable"),
        items.arrival_s,
        np.ascontiguousarray(items.times_s),
        items.on_worker,
        np.asarray(workers, np.int64),
        np.ascontiguousarray(behind_s),
        _CHECKS[limits.check],
    )
