"""Exact jobs with rounds under faults of every process and host: the bits of the undisturbed run."""

from collections import Counter
from functools import cache

import pytest
from sim_kills import FAULTS, beset, steps_of, trained

from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

EXACT = (
    "job.steps=6",
    "job.exact=true",
    "task.heldout_problems=4",
    "rollout.prompts=6",
    "rollout.samples=4",
    "rollout.max_new_tokens=400",
    "engine.slots=8",
    "fleet.trace=",
    "rounds.mode=tail",
    "rounds.race=tokens",
    "rounds.prompts_factor=1.5",
)
LENGTHS = LengthLaw(median=40.0, sigma=1.0, correlation=0.6)
"""So long that requests are aborted, moved and resumed while they are decoded."""
FEW = range(3)
MANY = [pytest.param(range(at, at + 50), marks=pytest.mark.long) for at in range(0, 200, 50)]


def setup(seed: int) -> RunSetup:
    job_model = JobModel(model_shape("quickstart"), LENGTHS)
    return RunSetup(load("quickstart", list(EXACT)), seed=seed, job_model=job_model)


@cache
def calm() -> Outcome:
    """The undisturbed run."""
    return ended(SimCluster(setup(0)).run(), "undisturbed")


def ended(outcome: Outcome, name: str) -> Outcome:
    assert (outcome.ended, outcome.findings) == ("done", []), f"{name}: {outcome.reason}"
    assert audit(evidence(outcome)) == [], name
    return outcome


@pytest.mark.parametrize("seeds", [FEW, *MANY])
def test_exact_job_with_rounds_equals_calm_run_under_any_fault(seeds: range) -> None:
    expected = {number: step.root for number, step in steps_of(calm()).items()}
    hits = Counter[str]()
    for seed in seeds:
        outcome, hit = beset(setup(seed))
        hits += hit
        ended(outcome, f"seed {seed}")
        roots = {number: step.root for number, step in steps_of(outcome).items()}
        assert roots == expected, f"seed {seed}"
        assert trained(outcome) == trained(calm()), f"seed {seed}"
    assert hits.total() >= 2 * len(seeds), "too few faults: this shows nothing"
    if len(seeds) >= 50:
        assert hits.keys() == FAULTS.keys(), "a fault was never injected"
