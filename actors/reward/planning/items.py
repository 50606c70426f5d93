"""Stages and items: what a reward service computes, as columns.

An item is one reward computation: it passes through the stages of its pipeline in order and skips those in
which it has no time (DistRS section 4: a failed compilation is not executed). Owns these types; no policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NO_WORKER = -1


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline.

    Args:
        name: of the stage; a column of a trace has it.
        cost: of one worker for one second, in any unit that all stages share (cores, dollars).
        timeout_s: T_j; an item is ended after so long in this stage, by the stage's own limit.
    """

    name: str
    cost: float = 1.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a stage needs a name")
        if not 0 < self.cost < np.inf:
            raise ValueError(f"stage {self.name}: cost: expected more than 0, got {self.cost:g}")
        if not 0 < self.timeout_s < np.inf:
            raise ValueError(f"stage {self.name}: timeout_s: expected more than 0, got {self.timeout_s:g}")


@dataclass(frozen=True, slots=True)
class Items:
    """Items of some batches, a row an item.

    Args:
        batch: number of the batch of each, from 0; int64 of shape (n,).
        arrival_s: when each arrives at the service, seconds of any clock; float64 of shape (n,).
        times_s: running time of each in each stage, float64 of shape (n, stages); 0: it skips that stage.
        on_worker: stage in which a worker has it already when the simulation begins (its time there is what
            is left); NO_WORKER for the rest. int64 of shape (n,).
    """

    batch: Ints
    arrival_s: Floats
    times_s: Floats
    on_worker: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        count = len(self.batch)
        if not len(self.on_worker):
            object.__setattr__(self, "on_worker", np.full(count, NO_WORKER, np.int64))
        if self.times_s.ndim != 2 or not count == len(self.arrival_s) == len(self.times_s) == len(
            self.on_worker
        ):
            raise ValueError(f"columns of {count} items differ in length")
        if not (np.isfinite(self.arrival_s).all() and np.isfinite(self.times_s).all()):
            raise ValueError("times of items are finite numbers of seconds")
        if count and (self.times_s.min() < 0 or self.batch.min() < 0):
            raise ValueError("running times and numbers of batches are not negative")

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def batches(self) -> int:
        """How many batches: 1 + the highest number."""
        return int(self.batch.max()) + 1 if len(self) else 0

    def unqueued_s(self) -> Floats:
        """t_i of DistRS eq. 1: when each item is complete if none ever queues. Added stage by stage, as the
        queue model does, so that the two agree to the last bit."""
        complete_s = self.arrival_s.copy()
        for stage in range(self.times_s.shape[1]):
            complete_s += self.times_s[:, stage]
        return complete_s

    def earliest_s(self) -> Floats:
        """T of each batch, eq. 2: its earliest completion; -inf for a batch without items."""
        earliest = np.full(self.batches, -np.inf)
        np.maximum.at(earliest, self.batch, self.unqueued_s())
        return earliest


def joined(parts: Sequence[Items], stages: int) -> Items:
    """Items of several batches, the batches of each part renumbered behind those of the parts before it."""
    first, shifted = 0, []
    for part in parts:
        shifted.append(part.batch + first)
        first += max(part.batches, 1)
    if not parts:
        return Items(np.empty(0, np.int64), np.empty(0), np.empty((0, stages)))
    return Items(
        np.concatenate(shifted),
        np.concatenate([part.arrival_s for part in parts]),
        np.concatenate([part.times_s for part in parts]),
        np.concatenate([part.on_worker for part in parts]),
    )
