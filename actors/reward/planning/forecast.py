"""Forecast: the items that a plan must expect of an active batch (DistRS Algorithm 2).

Owns the history of a batch and how the next one is foreseen from it. Pure: the random numbers are passed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.actors.reward.planning.items import NO_WORKER, Floats, Items, Stage

GUESSED_SHARE = 0.25
"""Running time of a stage of which nothing is known: so much of its timeout."""
SHORTEST_S = 1e-6  # left of a running item: 0 would be a stage that it skips


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """A completed batch. arrivals_s: r_i, ascending, from its origin; times_s: s_ij, a row an item, 0 where
    it never reached a stage; an item that was killed has its timeout."""

    arrivals_s: Floats
    times_s: Floats

    def __post_init__(self) -> None:
        if not len(self.arrivals_s) or len(self.arrivals_s) != len(self.times_s):
            raise ValueError("a history has one item at least, and as many times as arrivals")


def pooled(histories: Sequence[BatchHistory]) -> BatchHistory:
    """Several completed batches as one of all their items, which a forecast scales to its batch."""
    if len(histories) == 1:
        return histories[0]
    arrivals_s = np.concatenate([one.arrivals_s for one in histories])
    order = np.argsort(arrivals_s, kind="stable")
    return BatchHistory(arrivals_s[order], np.concatenate([one.times_s for one in histories])[order])


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """An active batch, as the service sees it.

    Args:
        origin_s: from which its arrivals count (AT).
        expected: how many items it will have.
        arrived: how many of them have arrived.
        queued: of each stage, the number of items in its queue.
        running_s: of each stage, for how long each running item has run there.
    """

    origin_s: float
    expected: int
    arrived: int
    queued: Sequence[int]
    running_s: Sequence[Sequence[float]]


def unknown(expected: int, stages: Sequence[Stage]) -> BatchHistory:
    """The history of a job that has none: all items arrive at once and run for a quarter of each timeout."""
    guessed_s = [stage.timeout_s * GUESSED_SHARE for stage in stages]
    times_s = np.tile(np.asarray(guessed_s, np.float64), (max(expected, 1), 1))
    return BatchHistory(np.zeros(max(expected, 1)), times_s)


def forecast(
    batch: OpenBatch, history: BatchHistory, stages: Sequence[Stage], now_s: float, rng: random.Random
) -> Items:
    """The items that are still owed, queue or run, as one batch.

    Future items are those of the history that have not arrived at its time; where more are owed than that
    (arrivals came late), the latest ones arrive now. Queueing items have the times of a random earlier item
    from their stage on. Running items keep their worker, with what is left of a random earlier one that took
    longer than they did; without such a one, up to the timeout.
    """
    owed = max(batch.expected - batch.arrived, 0)
    arrivals_s, times_s = _future(batch, history, owed, now_s)
    parts = [(arrivals_s, times_s, np.full(len(arrivals_s), NO_WORKER, np.int64))]
    for stage in range(len(stages)):
        if waiting := batch.queued[stage]:
            drawn = history.times_s[_reaching(history, stage, waiting, rng)].copy()
            drawn[:, :stage] = 0.0
            drawn[:, stage] = np.where(
                drawn[:, stage] > 0, drawn[:, stage], stages[stage].timeout_s * GUESSED_SHARE
            )
            parts.append((np.full(waiting, now_s), drawn, np.full(waiting, NO_WORKER, np.int64)))
        if running := batch.running_s[stage]:
            left = np.array([_left(history, stages, stage, elapsed_s, rng) for elapsed_s in running])
            parts.append((np.full(len(running), now_s), left, np.full(len(running), stage, np.int64)))
    arrival_s = np.concatenate([part[0] for part in parts])
    return Items(
        np.zeros(len(arrival_s), np.int64),
        arrival_s,
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
    )


def _future(batch: OpenBatch, history: BatchHistory, owed: int, now_s: float) -> tuple[Floats, Floats]:
    """The last `owed` items of the history, scaled where the batch is larger than it."""
    if not owed:
        return np.empty(0), np.empty((0, history.times_s.shape[1]))
    size = len(history.arrivals_s)
    rows = np.arange(size) if batch.expected == size else (np.arange(batch.expected) * size) // batch.expected
    rows = rows[len(rows) - min(owed, len(rows)) :]
    return np.maximum(batch.origin_s + history.arrivals_s[rows], now_s), history.times_s[rows]


def _reaching(history: BatchHistory, stage: int, count: int, rng: random.Random) -> list[int]:
    """Random items that reached this stage; of all, where none did."""
    able = np.flatnonzero(history.times_s[:, stage] > 0)
    rows = able if len(able) else np.arange(len(history.times_s))
    return [int(rows[rng.randrange(len(rows))]) for _ in range(count)]


def _left(
    history: BatchHistory, stages: Sequence[Stage], stage: int, elapsed_s: float, rng: random.Random
) -> Floats:
    longer = np.flatnonzero(history.times_s[:, stage] > elapsed_s)
    left = np.zeros(len(stages))
    if len(longer):
        left[:] = history.times_s[longer[rng.randrange(len(longer))]]
        left[:stage] = 0.0
        left[stage] -= elapsed_s
    else:
        left[stage] = max(stages[stage].timeout_s - elapsed_s, 0.0)
    left[stage] = max(left[stage], SHORTEST_S)
    return left
