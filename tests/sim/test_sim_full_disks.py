"""Full disks under starting processes.

The processes wait for space, and a failure during that time is still reported.
"""

from pathlib import Path

import pytest
from whole_system import SMALL

from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.host_services import SimHostServices
from gleaner.sim.run_setup import RunSetup


@pytest.mark.parametrize(("host", "kind"), [("head", "rollout"), ("reserved-1", "trainer")])
def test_process_killed_on_full_disk_waits_for_space(host: str, kind: str) -> None:
    cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    fired: list[bool] = []
    breaking.at(3.0, lambda: fired.append(breaking.fill_disk(host)))
    breaking.at(3.5, lambda: fired.append(breaking.kill_process(host, kind)))
    breaking.at(30.0, lambda: breaking.empty_disk(host))
    outcome = cluster.run()
    assert fired == [True, True]
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.findings == []
    assert audit(evidence(outcome)) == []
    waited = [(at_s, text) for at_s, process, text in outcome.printed if process == f"{host}/{kind}"]
    assert len(waited) == 1  # once, not at every poll
    assert "no space is left" in waited[0][1]


def test_process_waits_for_space_to_write_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk gets full between the process's first look at it and the file with its address."""
    cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    prepare = SimHostServices.prepare
    filled: list[bool] = []

    def prepare_and_fill(services: SimHostServices, state_dir: Path) -> None:
        prepare(services, state_dir)
        process = cluster.hosts["head"].find("rollout")
        if process is not None and process.pid == services.machine.pid and cluster.loop.now_s > 3.0:
            filled.append(breaking.fill_disk("head"))

    monkeypatch.setattr(SimHostServices, "prepare", prepare_and_fill)
    breaking.at(3.5, lambda: breaking.kill_process("head", "rollout"))
    breaking.at(30.0, lambda: breaking.empty_disk("head"))
    outcome = cluster.run()
    assert filled == [True]
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.findings == []
    waited = [text for _, process, text in outcome.printed if process == "head/rollout"]
    assert len(waited) == 1
    assert "rollout.json cannot be written: no space is left" in waited[0]


def test_repeated_child_failures_end_job_despite_full_disk() -> None:
    cluster = SimCluster(RunSetup(load("quickstart", SMALL), seed=5, deadline_s=200.0))
    breaking = FaultInjector(cluster)
    breaking.at(3.0, lambda: breaking.fill_disk("head"))
    for number in range(20):
        breaking.at(4.0 + number, lambda: breaking.kill_process("head", "reward"))
    breaking.at(30.0, lambda: breaking.empty_disk("head"))
    outcome = cluster.run()
    assert outcome.ended == "failed"
    assert "the limit of 5 restarts" in outcome.reason
    assert 30.0 < outcome.virtual_s < 60.0
