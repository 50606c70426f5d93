"""A fleet whose engines never serve, or serve late.

As its settings require, the job reports it, waits or fails.
"""

from dataclasses import replace

from gleaner.actors.cluster.provider import LOOK_S
from gleaner.actors.protocol.cluster import UNSERVED
from gleaner.actors.protocol.instances import Dispatch
from gleaner.actors.training.records import FirstInstance, Node, Phase, Record, Restart, Step
from gleaner.configs.load import load
from gleaner.configs.trace import parse
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SMALL = [
    "job.steps=4",
    "task.heldout_problems=8",
    "rollout.prompts=8",
    "rollout.samples=4",
    "engine.slots=4",
    "fleet.n_prem_max=2",
    "fleet.trace=",
]
DIES = "the server ended (exit 1): No module named 'sglang'"
LACKS = "engine.environment /srv/sglang: no such folder"


def setting(*sets: str, dies: str = "", lacks: tuple[str, ...] = ()) -> RunSetup:
    made = RunSetup(load("quickstart", [*SMALL, *sets]), seed=3)
    return replace(made, job_model=replace(made.job_model, engine_dies=dies, unmet=lacks))


def ran(*sets: str, dies: str = "", lacks: tuple[str, ...] = ()) -> tuple[Outcome, str]:
    """How the job ended, and the machine-readable name of the cause."""
    cluster = SimCluster(setting(*sets, dies=dies, lacks=lacks))
    outcome = cluster.run()
    assert cluster.ended is not None
    return outcome, cluster.ended.cause


def of(kind: type[Record], outcome: Outcome) -> list[Record]:
    return [record for record in outcome.history if isinstance(record, kind)]


def test_job_with_failing_engines_reports_cause_and_trains_alone() -> None:
    # By then engines have ended, and steps are left.
    outcome, cause = ran("fleet.first_instance_s=1.5", "job.steps=8", dies=DIES)
    assert (outcome.ended, cause) == ("done", "")
    assert audit(evidence(outcome)) == []
    (first,) = of(FirstInstance, outcome)
    assert isinstance(first, FirstInstance)
    assert not first.served
    assert 1.5 <= first.waited_s < 3.0
    assert "2 preemptible hosts are up, engines failed" in first.why
    assert DIES in first.why
    assert len(of(Step, outcome)) == 8


def test_job_requiring_an_instance_fails_with_a_cause() -> None:
    outcome, cause = ran(
        "fleet.first_instance_s=3", "fleet.require_instance=true", "job.steps=2000", dies=DIES
    )
    assert (outcome.ended, cause) == ("failed", UNSERVED)
    assert "no preemptible instance has served for 3 s" in outcome.reason
    assert DIES in outcome.reason
    assert "fleet.require_instance" in outcome.reason
    assert outcome.virtual_s < 60.0


def test_job_reports_its_first_serving_instance_once() -> None:
    outcome, _ = ran("fleet.require_instance=true")
    assert outcome.ended == "done"
    (first,) = of(FirstInstance, outcome)
    assert isinstance(first, FirstInstance)
    assert first.served
    assert first.why == ""


def test_host_unfit_for_its_engine_is_named_and_idle() -> None:
    outcome, _ = ran("fleet.first_instance_s=1", lacks=(LACKS,))
    assert outcome.ended == "done"
    unfit = [record for record in of(Node, outcome) if isinstance(record, Node) and record.event == "unfit"]
    assert sorted(record.node for record in unfit) == ["spot-1", "spot-2"]
    assert {record.cause for record in unfit} == {LACKS}
    assert of(Restart, outcome) == []
    assert not any(isinstance(record, Node) and record.event == "killed" for record in outcome.history), (
        "the hosts stay for the next job"
    )
    (first,) = of(FirstInstance, outcome)
    assert isinstance(first, FirstInstance)
    assert LACKS in first.why


def test_job_awaiting_an_instance_starts_steps_and_trace_together() -> None:
    kill_s = 1.0
    made = setting("fleet.await_instance=true", "fleet.trace=events", "job.steps=7")
    slow = replace(
        made,
        trace=parse(f"t_seconds,event,instance_id\n0,add,spot-1\n{kill_s},remove,spot-1\n", "events"),
        paces=replace(made.paces, boot_s=15.0),
        one_machine=True,
    )
    cluster = SimCluster(slow)
    worked: list[float] = []

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, Dispatch) and seen.process.host.name == "spot-1":
            worked.append(cluster.loop.now_s)

    cluster.watch(look)
    outcome = cluster.run()
    assert outcome.ended == "done"
    (first,) = of(FirstInstance, outcome)
    assert isinstance(first, FirstInstance)
    assert first.served
    assert first.waited_s > 5.0, "the hosts came late"
    assert all(step.t_s > first.t_s for step in of(Step, outcome))
    (killed,) = [node for node in of(Node, outcome) if isinstance(node, Node) and node.event == "killed"]
    assert killed.t_s >= first.t_s + kill_s - LOOK_S, "the clock of the trace starts with the instance"
    assert worked, "the killed instances had served"


def test_job_awaiting_an_instance_continues_alone_without_one() -> None:
    outcome, _ = ran("fleet.await_instance=true", "fleet.first_instance_s=20", dies=DIES)
    assert outcome.ended == "done"
    (first,) = of(FirstInstance, outcome)
    assert isinstance(first, FirstInstance)
    assert not first.served
    assert all(step.t_s > first.t_s for step in of(Step, outcome))
    assert len(of(Step, outcome)) == 4


def test_phases_of_a_job_are_recorded_in_order() -> None:
    outcome, _ = ran("fleet.await_instance=true")
    phases = [record.phase for record in of(Phase, outcome) if isinstance(record, Phase)]
    assert phases == ["trainer", "evaluation", "instance", "steps", "evaluation", "checkpoint"]
