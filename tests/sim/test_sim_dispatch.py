"""Dispatch latency on the critical path of simulated steps.

No response waits for a slot while an instance has free slots for it.
"""

import pytest

from gleaner.actors.rollout.dispatch.placement import Balancer, Instance
from gleaner.actors.training.records import StepPath
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.run_setup import RunSetup

SETS = ["job.steps=3", "job.eval_every=0", "task.heldout_problems=8", "fleet.trace=", "engine.slots=256"]
ROUND_TRIP_S = 0.05
"""From a dispatch until its first token arrives: 40 ms."""


def places_s(*sets: str) -> list[float]:
    """How long the last response of each step waited for a slot."""
    outcome = SimCluster(RunSetup(load("quickstart", [*SETS, *sets]), seed=5)).run()
    assert outcome.ended == "done", outcome.reason
    found = [record.stages["place"] for record in outcome.history if isinstance(record, StepPath)]
    assert len(found) == 3
    return found


@pytest.mark.parametrize("instances", [0, 3])
def test_instance_with_free_slots_gets_work_within_round_trip(instances: int) -> None:
    assert max(places_s(f"fleet.n_prem_max={instances}")) < 2 * ROUND_TRIP_S


def test_pending_limit_alone_keeps_free_slots_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: pending requests count as waiting, whatever slots are free."""

    def capacity(self: Balancer, instance: Instance, each: float) -> int:
        return max(0, self._threshold(instance) - instance.pending)

    monkeypatch.setattr(Balancer, "_room", capacity)
    assert min(places_s("fleet.n_prem_max=0")) > 10 * ROUND_TRIP_S
