"""Simulated jobs with rounds that are stopped in their middle and submitted again with other settings."""

import pytest
from msgspec import structs
from test_sim_rounds import SMALL, calm, rounds_of, trained

from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import JobEnded
from gleaner.actors.training.records import Step
from gleaner.configs.load import dump, load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.client import job_done
from gleaner.sim.cluster import SimCluster
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup
from gleaner.supervisor import ActorSystem, Done

TAIL = [*SMALL, "rounds.mode=tail"]
LOOK_S = 0.05  # shorter than a step


def resumed(before: list[str], after: list[str], steps: int) -> Outcome:
    """A job with the settings `before` until so many steps are on record, then with `after` to its end."""
    cluster = SimCluster(RunSetup(load("quickstart", before), seed=0))
    cluster.begin()
    while sum(isinstance(record, Step) for record in cluster.history) < steps:
        assert not cluster.advance(cluster.loop.now_s + LOOK_S), "over before it was stopped"

    async def stop(system: ActorSystem) -> None:
        ended = JobEnded(ok=False, reason="stopped on request")
        await system.ask(SCHEDULER, ended, deadline_s=5.0, expect=Done)

    cluster.call("stop", stop)
    assert cluster.advance(cluster.setting.deadline_s)
    assert sum(isinstance(record, Step) for record in cluster.history) < cluster.setting.config.job.steps
    cluster.ended = None
    job = structs.replace(cluster.job, config=dump(load("quickstart", after)))

    async def again(system: ActorSystem) -> None:
        cluster.ended = await job_done(system, job)
        cluster.loop.stop()

    cluster.call("again", again)
    cluster.advance(cluster.setting.deadline_s)
    return cluster.finish()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rounds.prompts_factor=1.5", "rounds.prompts_factor=2"),
        ("rounds.prompts_factor=2", "rounds.prompts_factor=1.25"),
        ("rounds.samples_factor=1.5", "rounds.samples_factor=1"),
    ],
)
def test_job_with_rounds_ends_with_its_invariants_when_resumed_with_other_factors(
    before: str, after: str
) -> None:
    outcome = resumed([*TAIL, "job.steps=9", before], [*TAIL, "job.steps=9", after], steps=2)
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    rounds = rounds_of(outcome)
    assert [one.step for one in rounds] == list(range(1, 10))
    assert (rounds[-1].deferred, rounds[-1].queued) == (0, 0), "a draw is lost at the end"
    if "prompts" in before:
        assert len({one.launched for one in rounds if one.round == "short"}) == 2, "the factor never changed"
        assert trained(outcome) == trained(calm([*SMALL, "job.steps=9"]))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(TAIL, SMALL, "expected tail"), (SMALL, TAIL, "expected off")],
    ids=["tail-off", "off-tail"],
)
def test_job_fails_with_the_setting_when_resumed_with_another_mode(
    before: list[str], after: list[str], expected: str
) -> None:
    """`rlctl resume` refuses this first; the draws of one mode are never read as those of another one."""
    outcome = resumed([*before, "job.steps=9"], [*after, "job.steps=9"], steps=2)
    assert outcome.ended == "failed"
    assert f"rounds.mode: {expected}, as the journal of this run has it" in outcome.reason
