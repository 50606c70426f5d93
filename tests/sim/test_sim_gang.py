"""A trainer of several processes on a simulated cluster.

Production's supervision runs over modelled ranks.
"""

import pytest

from gleaner.actors.protocol.rollout import TakeGroups
from gleaner.actors.training.history import Restart
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.run_setup import RunSetup

SETTINGS = [
    "job.steps=3",
    "task.heldout_problems=8",
    "rollout.prompts=8",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
    "fleet.n_prem_max=1",
    "training.backend=fsdp2",
    "training.processes=3",
]
GANG = ("rank-1", "rank-2", "trainer")


@pytest.mark.parametrize("victim", GANG)
def test_all_gang_processes_restart_when_one_is_killed(victim: str) -> None:
    cluster = SimCluster(RunSetup(load("quickstart", SETTINGS), seed=1))
    breaking = FaultInjector(cluster)
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def pids() -> dict[str, int]:
        found = {kind: breaking.process("reserved-1", kind) for kind in GANG}
        return {kind: process.pid for kind, process in found.items() if process is not None}

    def strike() -> None:
        before.update(pids())
        breaking.kill_process("reserved-1", victim)
        cluster.loop.call_later(1.0, lambda: after.update(pids()))

    asked: list[ObservedMessage] = []

    def in_a_step(seen: ObservedMessage) -> None:
        if isinstance(seen.message, TakeGroups) and seen.direction == "in":
            asked.append(seen)
        if len(asked) == 3:
            cluster.unwatch(in_a_step)
            cluster.loop.call_later(0.0, strike)

    cluster.watch(in_a_step)
    outcome = cluster.run()
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert before.keys() == after.keys() == set(GANG)
    assert not set(before.values()) & set(after.values()), "no process of the old gang is left"
    causes = {one.actor: one.cause for one in outcome.history if isinstance(one, Restart)}
    others = {f"reserved-1/{kind}": f"with {victim}: SIGKILL" for kind in GANG if kind != victim}
    assert {f"reserved-1/{victim}": "SIGKILL", **others}.items() <= causes.items()
    assert audit(evidence(outcome)) == []
    assert [one.step for one in outcome.checkpoints][-1] == 3
