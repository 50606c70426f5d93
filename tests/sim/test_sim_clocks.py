"""Host clocks that jump.

Incarnations come from the clocks, and nothing else may depend on them.
"""

import pytest
from whole_system import SMALL

from gleaner.actors.training.records import Restart
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.run_setup import RunSetup


@pytest.mark.parametrize("host", ["head", "reserved-1"])
def test_agent_restarted_after_clock_jump_continues_the_job(host: str) -> None:
    """The job's journal has seen newer incarnations than the clock would give."""
    cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=5, deadline_s=120.0))
    breaking = FaultInjector(cluster)
    fired: list[bool] = []
    breaking.at(3.0, lambda: fired.append(breaking.clock_jump(host, -3600.0)))
    breaking.at(3.2, lambda: fired.append(breaking.kill_process(host, "agent")))
    outcome = cluster.run()
    assert fired == [True, True]
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.findings == []
    assert audit(evidence(outcome)) == []


def test_restarted_processes_exceed_their_fence_after_clock_jump() -> None:
    """None of the restarts fails because of the jump, and none counts towards the restart intensity."""
    cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=5, deadline_s=120.0))
    breaking = FaultInjector(cluster)
    fired: list[bool] = []
    breaking.at(6.0, lambda: fired.append(breaking.clock_jump("reserved-1", -7200.0)))
    breaking.at(6.2, lambda: fired.append(breaking.kill_process("reserved-1", "agent")))
    outcome = cluster.run()
    assert fired == [True, True]
    assert (outcome.ended, outcome.reason) == ("done", "")
    failed = [record.cause for record in outcome.history if isinstance(record, Restart)]
    assert not [cause for cause in failed if "did not start" in cause]
    assert audit(evidence(outcome)) == []
