"""Hooks on the messages of simulated processes."""

from gleaner.actors.protocol.instances import Dispatch
from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.run_setup import RunSetup


def test_hook_that_fails_is_a_finding_and_the_process_goes_on() -> None:
    settings = ["job.steps=1", "rollout.prompts=4", "rollout.samples=2", "fleet.trace=", "fleet.n_prem_max=1"]
    cluster = SimCluster(RunSetup(load("quickstart", settings), seed=1, deadline_s=300.0))
    failed: list[str] = []

    def fail_once(seen: ObservedMessage) -> None:
        if isinstance(seen.message, Dispatch) and not failed:
            failed.append(seen.to)
            raise KeyError("planted")

    cluster.watch(fail_once)
    outcome = cluster.run()
    assert failed
    assert outcome.ended == "done"
    assert [(finding.process, finding.what, repr(finding.problem)) for finding in outcome.findings] == [
        ("world", "a hook on messages failed", "KeyError('planted')")
    ]
