"""Exact jobs on simulated clusters under faults.

Each step has the same weights as in the calm run.
"""

import pytest
from sim_kills import harried, steps_of

from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.run_setup import RunSetup

SETTINGS = [
    "job.exact=true",
    "job.steps=3",
    "task.heldout_problems=8",
    "rollout.prompts=10",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
]
DROPPING = [*SETTINGS, "job.steps=2", "rollout.drop_uniform=true"]
MICRO_BATCHES = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
SEEDS = 8


def test_exact_weights_equal_calm_run_after_any_kill() -> None:
    calm = steps_of(SimCluster(RunSetup(load("quickstart", SETTINGS), seed=0)).run())
    assert sorted(calm) == [1, 2, 3]
    kills = 0
    for seed in range(SEEDS):
        outcome, hit = harried(seed, SETTINGS)
        kills += hit
        assert (outcome.ended, outcome.findings) == ("done", []), f"seed {seed}: {outcome.reason}"
        assert audit(evidence(outcome)) == [], f"seed {seed}"
        for number, step in steps_of(outcome).items():
            assert step.root == calm[number].root, f"seed {seed}: other weights after step {number}"
            assert step.micro_batches == MICRO_BATCHES, f"seed {seed}"
    assert kills >= SEEDS, "too few faults: this shows nothing"


@pytest.mark.long
def test_exact_weights_match_when_uniform_groups_are_dropped() -> None:
    calm_run = SimCluster(RunSetup(load("quickstart", DROPPING), seed=0)).run()
    calm, kills = steps_of(calm_run), 0
    assert evidence(calm_run).counters.groups_dropped > 4, "nothing was dropped: this shows nothing"
    for seed in range(4):
        outcome, hit = harried(seed, DROPPING)
        kills += hit
        assert (outcome.ended, outcome.findings) == ("done", []), f"seed {seed}: {outcome.reason}"
        assert audit(evidence(outcome)) == [], f"seed {seed}"
        roots = {number: (step.root, step.micro_batches) for number, step in steps_of(outcome).items()}
        assert roots == {number: (step.root, step.micro_batches) for number, step in calm.items()}
    assert kills >= 4, "too few faults: this shows nothing"
