"""Workload: the items of a reward service, by job and batch.

Owns their form, and the laws of the workload of DistRS section 6 (CUDA code: compile, then run).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.actors.reward.planning.forecast import BatchHistory
from gleaner.actors.reward.planning.items import Floats, Stage


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a job. gap_s: from the completion of the one before it to its origin; arrivals_s: from its
    origin, ascending; times_s: running time of each item in each stage, 0 where it is skipped."""

    gap_s: float
    arrivals_s: Floats
    times_s: Floats

    def history(self) -> BatchHistory:
        """As the next batch is foreseen from it."""
        return BatchHistory(self.arrivals_s, self.times_s)

    def earliest_s(self) -> float:
        """T, from its origin."""
        complete_s = self.arrivals_s.copy()
        for stage in range(self.times_s.shape[1]):
            complete_s += self.times_s[:, stage]
        return float(complete_s.max())


@dataclass(frozen=True, slots=True)
class Workload:
    """The batches of each job, in order, and the stages of all."""

    stages: Sequence[Stage]
    jobs: Mapping[str, Sequence[Batch]]

    @property
    def items(self) -> int:
        """Of all batches."""
        return sum(len(batch.arrivals_s) for batches in self.jobs.values() for batch in batches)


@dataclass(frozen=True, slots=True)
class CudaLaw:
    """Laws of DistRS's CUDA service (its sections 3 and 6): what the paper gives, and what it does not.

    Given: 2,048 items a batch, iterations beyond 600 s, arrivals in about half of one, more than 180 in 10 s
    at the peak, a long tail, compilations of about 50 s (timeout 120 s), runs of a few seconds (timeout
    60 s), items that fail before a stage. Assumed: the forms of the distributions, the failures' shares, and

    Args:
        items: of a batch.
        runaways: share of runs that take their whole timeout.
        stagger_s: jobs begin within so long.
        train_s: from a batch's completion to the next one's origin.
        drift: standard deviation of the step from one batch's pace to the next one's.
    """

    items: int = 2048
    runaways: float = 0.02
    stagger_s: float = 600.0
    train_s: float = 120.0
    drift: float = 0.01


CUDA_STAGES = (Stage("compile", 1.0, 120.0), Stage("run", 10.0, 60.0))
LONGEST_S = 640.0  # of a response: its limit of tokens
FAILS_TO_GENERATE, FAILS_TO_COMPILE = 0.1, 0.2


def cuda_workload(jobs: int, batches: int, law: CudaLaw, seed: int) -> Workload:
    """So many jobs of that service. The batches of one job are alike, and drift slowly."""
    if jobs < 1 or batches < 1:
        raise ValueError("a workload has one job and one batch at least")
    made: dict[str, list[Batch]] = {}
    for job in range(jobs):
        rng = np.random.default_rng([seed, job])
        pace = 1.0
        made[f"job-{job + 1}"] = of_job = []
        for number in range(batches):
            gap_s = law.train_s if number else float(rng.uniform(0.0, law.stagger_s)) if jobs > 1 else 0.0
            pace *= math.exp(float(rng.normal(0.0, law.drift)))
            of_job.append(_cuda_batch(rng, law, gap_s, pace))
    return Workload(CUDA_STAGES, made)


def _cuda_batch(rng: np.random.Generator, law: CudaLaw, gap_s: float, pace: float) -> Batch:
    arrivals_s = np.sort(np.minimum(pace * (280.0 + 60.0 * rng.lognormal(0.0, 0.8, law.items)), LONGEST_S))
    compile_s = np.clip(rng.normal(50.0, 8.0, law.items), 5.0, CUDA_STAGES[0].timeout_s)
    run_s = np.clip(rng.lognormal(math.log(3.0), 0.6, law.items), 0.1, CUDA_STAGES[1].timeout_s)
    run_s[rng.random(law.items) < law.runaways] = CUDA_STAGES[1].timeout_s
    fails = rng.random(law.items)
    compile_s[fails < FAILS_TO_GENERATE] = 0.0
    run_s[(compile_s == 0.0) | (fails < FAILS_TO_GENERATE + FAILS_TO_COMPILE)] = 0.0
    return Batch(gap_s, arrivals_s, np.stack([compile_s, run_s], axis=1))
