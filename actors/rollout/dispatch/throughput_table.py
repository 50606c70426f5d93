"""ThroughputTable: measured decode speed of instances (RLBoost 4.2.1, Algorithm 2).

Owns the sums that a worker measures, the table of one instance, the model that is fitted to it, and which
instances share a table. Pure: the caller measures the seconds.

A table has a bucket for each octave of requests decoded together and of their mean context. A bucket has
running sums of the last minute that an engine spent in it. The paper keeps throughput by batch size alone and
corrects it for the current context. A decode step takes a + b * rows + c * context (the weights are read
once, each row is computed, each token in the cache is read). This is linear, so the sums of a bucket are on
the model whatever their composition, and three buckets that differ are enough.

Tokens are those of messages; a table does not know what a token represents.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from gleaner.actors.protocol.throughput import NOTHING, EnginePace, Work

if TYPE_CHECKING:  # messages name these types; only a fit needs NumPy, whose import is slow
    import numpy as np
    from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, "NDArray[np.float64]")

LEAST_STEP_S = 1e-9
MEMORY_S = 60.0
"""Engine time that a bucket remembers: longer than a noisy moment, shorter than a long step."""
LEAST_BUCKETS, LEAST_SPREAD = 3, 4.0
"""A model is fitted to no fewer buckets, and the fullest must decode this many times the rows of the
emptiest: less does not show what a smaller batch would gain."""
LEAST_STEPS = 4.0
"""Decode steps below which a bucket is an accident of the scheduler."""
PLATEAU_SHARE = 0.7
"""A batch is at the plateau if one more request adds less than this share of its ideal gain. The ideal gain
is the tokens a second that it would add if it slowed no other. Below the plateau even half of the batch would
shorten steps by less than 15 %."""


MOST_WORK = 1e15
"""Upper limit of every measured value: weeks of nanoseconds. A larger value, or no number, is no
measurement."""


def plausible(work: Work) -> bool:
    """Whether an engine may have measured this: a time, decode steps, and no number below zero."""
    numbers = work.seconds, work.steps, work.tokens, work.attended, work.prefilled
    return all(0 <= number <= MOST_WORK for number in numbers) and work.seconds > 0 and work.steps > 0


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a decode step: `base_s` + rows * `row_s` + tokens in their caches * `context_s`."""

    base_s: float
    row_s: float
    context_s: float
    prefill_token_s: float = 0.0

    def step_s(self, rows: Numbers, context: Numbers) -> Numbers:
        """Seconds of one step; `context`: of all rows together."""
        return self.base_s + rows * self.row_s + context * self.context_s

    def tokens_s(self, rows: Numbers, context: Numbers) -> Numbers:
        """Tokens a second of all rows together."""
        return rows / (self.step_s(rows, context) + LEAST_STEP_S)

    def plateau(self, mean_context: float, most: int) -> int:
        """B: the smallest batch at which throughput is flat (`PLATEAU_SHARE`) at this mean context, from 1 to
        `most`."""
        each_s = self.row_s + mean_context * self.context_s
        fixed_s = self.base_s * (1.0 - PLATEAU_SHARE)
        if each_s * PLATEAU_SHARE * most <= fixed_s:
            return most
        return max(1, math.ceil(fixed_s / (PLATEAU_SHARE * each_s)))

    def speed(self, mean_context: float, most: int) -> float:
        """Tokens a second at the plateau."""
        rows = float(self.plateau(mean_context, most))
        return float(self.tokens_s(rows, rows * mean_context))


@dataclass(slots=True)
class ThroughputTable:
    """The table of one instance, or of all instances of one kind of hardware."""

    buckets: dict[tuple[int, int], Work] = field(default_factory=dict)
    mean_context: float = 0.0
    """Of the newest measurement."""
    _model: StepModel | None = None
    _fitted: bool = False

    def add(self, sums: Iterable[Work]) -> None:
        """Add a worker's new sums."""
        for new in sums:
            known = self.buckets.get(new.bucket, NOTHING)
            keep = max(0.0, min(1.0, (MEMORY_S - new.seconds) / known.seconds)) if known.seconds else 1.0
            self.buckets[new.bucket] = known.plus(new, keep)
            if new.tokens:
                self.mean_context = new.attended / new.tokens
            self._fitted = False

    @property
    def model(self) -> StepModel | None:
        """Fitted to the table; None while the table has too little data."""
        if not self._fitted:
            self._model, self._fitted = _fit(self.buckets), True
        return self._model


def _fit(buckets: dict[tuple[int, int], Work]) -> StepModel | None:
    decoded = [work for key, work in sorted(buckets.items()) if key[0] > 0 and work.steps >= LEAST_STEPS]
    rows = [work.tokens / work.steps for work in decoded]
    if len(decoded) < LEAST_BUCKETS or max(rows) < LEAST_SPREAD * min(rows):
        return None
    import numpy as np

    table = np.array([(work.steps, work.tokens, work.attended) for work in decoded])
    seconds = np.array([work.seconds for work in decoded])
    # Relative errors count: a bucket of short steps has as much weight as one of long steps.
    parts = _not_negative(table / seconds[:, None])
    model = StepModel(*parts)
    mixed = buckets.get((-1, -1))
    if mixed is None or not mixed.prefilled:
        return model
    decode_s = model.base_s * mixed.steps + model.row_s * mixed.tokens + model.context_s * mixed.attended
    return StepModel(*parts, prefill_token_s=max(0.0, mixed.seconds - decode_s) / mixed.prefilled)


def _not_negative(table: "NDArray[np.float64]") -> tuple[float, float, float]:
    """The least-squares solution of table * x = 1 among those without a negative part: of the seven choices
    of columns, the best one whose own solution is not negative."""
    import numpy as np

    best, least = (0.0, 0.0, 0.0), np.inf
    scale = np.maximum(np.abs(table).max(axis=0), 1e-12)
    for count in (3, 2, 1):
        for chosen in combinations(range(3), count):
            columns = table[:, chosen] / scale[list(chosen)]
            solution = np.linalg.lstsq(columns, np.ones(len(table)), rcond=1e-9)[0]
            wrong = float(((columns @ solution - 1.0) ** 2).sum())
            if (solution >= 0).all() and wrong < least:
                parts = np.zeros(3)
                parts[list(chosen)] = solution / scale[list(chosen)]
                best, least = (float(parts[0]), float(parts[1]), float(parts[2])), wrong
        if count == 3 and least < np.inf:
            break  # no choice of fewer columns is better than all of them
    return best


class Profiles:
    """The tables: one for each instance, and one for each kind of hardware, which replaces an instance's own
    table until that is full enough."""

    def __init__(self) -> None:
        self._own: dict[str, ThroughputTable] = {}
        self._kinds: dict[str, ThroughputTable] = {}

    def add(self, instance: str, kind: str, sums: list[Work]) -> None:
        """Add the sums of an instance's worker."""
        self._own.setdefault(instance, ThroughputTable()).add(sums)
        table = self._kinds.pop(kind, None) or ThroughputTable()
        table.add(sums)
        self._kinds[kind] = table  # the last one is that of the newest measurement

    def forget(self, instance: str) -> None:
        """Forget an instance that is gone; the next one of its name may run on other hardware."""
        self._own.pop(instance, None)

    def model(self, instance: str, kind: str) -> StepModel | None:
        """The model of an instance."""
        for profile in (self._own.get(instance), self._kinds.get(kind)):
            if profile is not None and profile.model is not None:
                return profile.model
        return None

    def of_kind(self, kind: str) -> StepModel | None:
        """The model of the hardware of this kind that was measured last; None while that has too little data:
        other hardware of the kind, or engines of another width, may be far from it."""
        known = [profile for name, profile in self._kinds.items() if name.split("/")[0] == kind]
        return known[-1].model if known else None

    def mean_context(self) -> float:
        """The present mean over the instances that have measured anything."""
        known = [profile.mean_context for profile in self._own.values() if profile.mean_context]
        return sum(known) / len(known) if known else 0.0


def instance_pace(model: StepModel) -> EnginePace:
    """The measured pace of an instance."""
    return EnginePace(
        step_s=model.base_s,
        row_s=model.row_s,
        context_s=model.context_s,
        prefill_token_s=model.prefill_token_s,
    )
