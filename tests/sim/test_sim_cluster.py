"""Whole jobs on simulated clusters: outcome, invariants and repeatability."""

from gleaner.actors.protocol.instances import Dispatch
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.nodeagent.files import OVER_FILE
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import HEAD, RESERVED, RunSetup

DECODING_S = 0.006  # so long after its first request, an instance has made some of its tokens
SMALL = [
    "job.steps=3",
    "task.heldout_problems=8",
    "rollout.prompts=8",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.trace=",
]


def small(*more: str) -> Config:
    """The quickstart's settings for a job of three small steps, with three preemptible hosts that stay."""
    return load("quickstart", [*SMALL, *more])


def calm(seed: int) -> Outcome:
    return SimCluster(RunSetup(small(), seed=seed)).run()


def test_calm_job_ends_and_keeps_every_promise() -> None:
    outcome = calm(1)
    assert (outcome.ended, outcome.reason) == ("done", "")
    assert outcome.findings == []
    assert audit(evidence(outcome)) == []
    assert [one.step for one in outcome.checkpoints][-1] == 3


def test_history_is_determined_by_the_seed() -> None:
    first, again, other = calm(1), calm(1), calm(2)
    assert (first.trace_hash, first.turns, first.virtual_s) == (
        again.trace_hash,
        again.turns,
        again.virtual_s,
    )
    assert other.trace_hash != first.trace_hash


def test_host_killed_while_decoding_costs_no_token() -> None:
    cluster = SimCluster(RunSetup(small(), seed=1))
    breaking = FaultInjector(cluster)
    hit: list[bool] = []

    def wait_for_work(seen: ObservedMessage) -> None:
        host = seen.process.host.name
        if isinstance(seen.message, Dispatch) and seen.direction == "in" and host.startswith("spot"):
            cluster.unwatch(wait_for_work)
            cluster.loop.call_later(DECODING_S, lambda: hit.append(breaking.kill_host(host)))

    cluster.watch(wait_for_work)
    outcome = cluster.run()
    assert hit == [True]
    assert outcome.ended == "done"
    left = evidence(outcome)
    assert audit(left) == []
    assert left.counters is not None
    assert left.counters.requests_migrated > 0


def test_oversized_prompt_fails_job_at_once_with_its_setting() -> None:
    outcome = SimCluster(RunSetup(small("engine.max_prompt_tokens=8"), seed=1)).run()
    assert outcome.ended == "failed"
    assert "engine.max_prompt_tokens is 8" in outcome.reason
    assert outcome.virtual_s < 60


def test_every_host_marks_only_a_finished_job_as_over() -> None:
    cluster = SimCluster(RunSetup(small("job.steps=1"), seed=1))
    mark = f"/journal/{cluster.job.run_id}/{OVER_FILE}"

    def noted() -> set[str]:
        hosts = cluster.hosts.items()
        return {name for name, host in hosts if any(mark in path for path in host.disk.files.under("/"))}

    cluster.begin()
    while not cluster.advance(cluster.loop.now_s + 1.0):
        assert noted() == set()
    cluster.loop.run(cluster.loop.now_s + 5.0)
    found = noted()
    cluster.finish()
    assert {HEAD, RESERVED} <= found
