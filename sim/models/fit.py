"""Fits of the models' constants to a run's measurements, with their errors.

Owns the regression, and the reading of steps from a history's records. Pure.

A decode step is linear in its rows and their context, a prefill in its tokens, a training step in its
micro-batches and tokens; so each fit is linear, without negative coefficients. It makes the ratios between
predicted and measured small, on a logarithmic scale: a short step counts as much as a long one, twice too
long as much as twice too short, and a step that something else held up for seconds has little effect. Errors
are of steps that were held back: every fourth one is predicted and not fitted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.training.records import AnyRecord, Sample, Step
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.training_cost import TrainingCost

HELD_BACK = 4  # every fourth measurement is kept for the error
LEAST_MEASUREMENTS = 8
LEAST_LENGTHS = 32
LOWER_SHARES = (0.1, 0.2, 0.3, 0.4)
"""Quantiles from which the spread of lengths is read: below the median, where no limit cuts."""
ALIKE = 1e-9  # variance of logarithms below which all lengths are the same, but for rounding
ROUNDS = 30  # of reweighing; it settles within ten
LEAST_RATIO = 0.02  # of an error that still counts less than others: below it all are equal


class TooLittle(ValueError):
    """Not enough measurements to fit anything; the text has their number."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One measured step of an engine: requests decoded (a mean, if it is of several steps), their context in
    tokens, tokens prefilled before."""

    seconds: float
    rows: float
    context: float = 0.0
    prefilled: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One measured step of a trainer: time of forward, backward and optimizer; what went in."""

    seconds: float
    tokens: int
    micro_batches: int = 1


@dataclass(frozen=True, slots=True)
class FitError:
    """Error of the predictions of held-back measurements, as shares of the measured values.

    median, p90: of the absolute errors. bias: of all seconds together, above 0 if predictions are too long.
    """

    median: float
    p90: float
    bias: float
    fitted: int
    held_back: int

    def __str__(self) -> str:
        return (
            f"median error {self.median:.1%}, 90th percentile {self.p90:.1%}, bias {self.bias:+.1%} over "
            f"{self.held_back} steps held back from {self.fitted} fitted"
        )


def fit_engine(steps: Sequence[EngineStep]) -> tuple[EngineCost, FitError]:
    """The engine that explains the steps. Bytes that are read once a step, weights or not, are one constant.
    A coefficient that the steps cannot distinguish from none is 0. Raises `TooLittle`."""
    columns = [
        [float(step.rows > 0), step.rows, step.context, float(step.prefilled > 0), step.prefilled]
        for step in steps
    ]
    found, error = _fit(columns, [step.seconds for step in steps])
    return (
        EngineCost(
            step_s=found[0],
            row_s=found[1],
            context_read_s=found[2],
            prefill_s=found[3],
            prefill_token_s=found[4],
        ),
        error,
    )


def fit_training(steps: Sequence[TrainingStep], start: TrainingCost) -> tuple[TrainingCost, FitError]:
    """`start` with the constants that explain the steps: of a token, of a micro-batch, of a step. The costs
    of micro-batches and of steps can be separated only if the number of micro-batches varies. Raises
    `TooLittle`."""
    varies = len({step.micro_batches for step in steps}) > 1
    columns = [[1.0, step.tokens, step.micro_batches if varies else 0.0] for step in steps]
    found, error = _fit(columns, [step.seconds for step in steps])
    cost = replace(start, step_s=found[0], token_s=found[1], pair_s=0.0, micro_batch_s=found[2])
    return cost, error


def engine_steps(records: Iterable[AnyRecord]) -> list[EngineStep]:
    """Mean decode steps of an instance, from a history's looks at the fleet: with n requests on each of k
    serving instances a step took n / (tokens per second of one instance). Left out are looks at which nothing
    was decoded, or requests waited for a slot that just became free: they carry no information."""
    looks = [record for record in records if isinstance(record, Sample)]
    steps = []
    for before, look in pairwise(looks):
        steady = before.serving == look.serving > 0 and before.executing > 0 and look.executing > 0
        if steady and look.tokens_per_s > 0:
            rows = (before.executing + look.executing) / 2 / look.serving
            if rows >= 1:
                steps.append(EngineStep(rows * look.serving / look.tokens_per_s, rows))
    return steps


def training_steps(
    records: Iterable[AnyRecord], micro_batches: int = 1, *, prompt_tokens: float = 0.0
) -> list[TrainingStep]:
    """The training part of each step of a history. The history has neither the number of micro-batches nor
    the length of prompts: prompt_tokens, of each sample, are trained on beside its response."""
    return [
        TrainingStep(record.training_s, record.tokens + round(record.samples * prompt_tokens), micro_batches)
        for record in records
        if isinstance(record, Step) and record.training_s > 0
    ]


def fit_lengths(groups: Iterable[Sequence[int]], limit: int) -> LengthLaw:
    """The law of responses of these lengths, by group. Of a response that the limit cut it is only known that
    it is long: median and sigma are read off the lower half, the correlation from all. Raises `TooLittle`,
    also where more than half were cut."""
    logs = [np.log(np.maximum(np.array(group, float), 1.0)) for group in groups if group]
    every = np.concatenate(logs) if logs else np.zeros(0)
    if len(every) < LEAST_LENGTHS:
        raise TooLittle(
            f"{len(every)} responses are too few to fit their lengths, {LEAST_LENGTHS} are needed: run longer"
        )
    middle = float(np.median(every))
    if middle >= math.log(limit):
        raise TooLittle(f"more than half of the responses end at the limit of {limit} tokens: raise it")
    spreads = [
        (middle - float(np.quantile(every, share))) / -NormalDist().inv_cdf(share) for share in LOWER_SHARES
    ]
    return LengthLaw(
        median=max(1.0, math.exp(middle)), sigma=sum(spreads) / len(spreads), correlation=_within_groups(logs)
    )


def _within_groups(groups: Sequence[NDArray[np.float64]]) -> float:
    """The correlation of two of a group, 0 to 1."""
    every = np.concatenate(groups)
    mean, variance = float(every.mean()), float(every.var())
    pairs, products = 0, 0.0
    for group in groups:
        off = group - mean
        pairs += len(off) * (len(off) - 1)
        products += float(off.sum()) ** 2 - float((off**2).sum())
    if not pairs or variance < ALIKE:
        return 0.0
    return min(max(products / pairs / variance, 0.0), 1.0)


def _fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], FitError]:
    if len(seconds) < LEAST_MEASUREMENTS:
        raise TooLittle(
            f"{len(seconds)} measurements are too few to fit, {LEAST_MEASUREMENTS} are needed: run longer"
        )
    table, times = np.array(columns, float), np.array(seconds, float)
    held = np.arange(len(times)) % HELD_BACK == HELD_BACK - 1
    found = _least_ratios(table[~held], times[~held])
    off = table[held] @ found / times[held] - 1.0
    total = float((table[held] @ found).sum() / times[held].sum()) - 1.0
    error = FitError(
        median=float(np.median(np.abs(off))),
        p90=float(np.quantile(np.abs(off), 0.9)),
        bias=total,
        fitted=int((~held).sum()),
        held_back=int(held.sum()),
    )
    return [float(value) for value in found], error


def _least_ratios(table: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients that make the sum of |log(predicted / measured)| small: iterated least squares, each
    iteration weighted by the residuals of the last one."""
    weights = 1.0 / times
    found = np.zeros(table.shape[1])
    for _ in range(ROUNDS):
        found = _not_negative(table * weights[:, None], times * weights)
        predicted = np.maximum(table @ found, 1e-9 * times)
        ratios = np.maximum(np.abs(np.log(predicted / times)), LEAST_RATIO)
        weights = 1.0 / np.sqrt(predicted * times * ratios)
    return found


def _not_negative(table: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative coefficients: the most negative one is left out, until none is.

    It does not always find the best such solution, as Lawson and Hanson's method does. For the handful of
    columns here, which do not oppose each other, the result is the same, and the code is no more than a page.
    """
    scale = np.abs(table).max(axis=0)
    used = [column for column in range(table.shape[1]) if scale[column] > 0]
    found = np.zeros(table.shape[1])
    while used:
        part = np.linalg.lstsq(table[:, used] / scale[used], goal, rcond=None)[0]
        if part.min() >= 0:
            found[used] = part / scale[used]
            return found
        del used[int(part.argmin())]
    return found
