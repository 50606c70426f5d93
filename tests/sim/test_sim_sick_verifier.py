"""A failing verifier in whole simulated jobs.

A failure is not a score. The job waits for the verifier, and ends if the verifier stays sick.
"""

from dataclasses import replace

from gleaner.actors.protocol.cluster import UNSCORED
from gleaner.actors.protocol.reward import Verdict
from gleaner.actors.training.records import Eval, Record, Sample, Step, Verifier
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.report.model import report_of
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.scorer import Fault
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
TEXT = "ValueError: this verifier scores nothing"


def cluster(*sets: str, seed: int = 3, raises: float = 0.0) -> SimCluster:
    made = RunSetup(load("quickstart", [*SMALL, *sets]), seed=seed)
    scorer = replace(made.job_model.scorer, chances=((Fault.RAISE, raises),))
    return SimCluster(replace(made, job_model=replace(made.job_model, scorer=scorer)))


def of(kind: type[Record], outcome: Outcome) -> list[Record]:
    return [record for record in outcome.history if isinstance(record, kind)]


def test_job_with_failing_verifier_ends_within_a_minute() -> None:
    sick = cluster()
    sick.scorer_faults.standing = Fault.RAISE
    outcome = sick.run()
    assert sick.ended is not None
    assert (outcome.ended, sick.ended.cause) == ("failed", UNSCORED)
    assert TEXT in outcome.reason
    assert "verifier_failed" in outcome.reason
    assert "reward.sick_s" in outcome.reason
    assert of(Step, outcome) == []
    assert of(Eval, outcome) == []
    (reports,) = of(Verifier, outcome)
    assert isinstance(reports, Verifier)
    assert reports.sick
    assert TEXT in reports.why
    looks = [record for record in of(Sample, outcome) if isinstance(record, Sample)]
    first_s = next(look.t_s for look in looks if look.verdicts or look.asked_again)
    assert outcome.history[-1].t_s - first_s < 60.0
    report = report_of(outcome.history, None)
    assert report.verdicts is not None
    assert report.verdicts.counts.keys() == {"verifier_failed"}
    assert report.verdicts.failure == TEXT
    assert report.outcome is not None
    assert report.outcome.sentence.startswith("no sample was scored: verifier_failed ")
    assert TEXT in report.outcome.sentence


def test_small_job_with_hanging_verifier_ends() -> None:
    sick = cluster("rollout.prompts=4", "rollout.samples=2", "task.heldout_problems=1")
    sick.scorer_faults.standing = Fault.HANG
    outcome = sick.run()
    assert outcome.ended == "failed"
    assert "no answer within 8 s" in outcome.reason
    assert of(Step, outcome) == []


def test_job_scores_every_sample_after_verifier_recovers() -> None:
    healed = cluster()
    healed.scorer_faults.standing = Fault.RAISE

    def heal() -> None:
        healed.scorer_faults.standing = None

    def fall_ill() -> None:
        healed.scorer_faults.standing = Fault.RAISE

    healed.loop.call_at(30.0, heal)
    healed.loop.call_at(35.0, fall_ill)
    healed.loop.call_at(45.0, heal)
    outcome = healed.run()
    assert outcome.ended == "done"
    assert audit(evidence(outcome)) == []
    reports = [record.sick for record in of(Verifier, outcome) if isinstance(record, Verifier)]
    assert reports[:2] == [True, False]
    assert reports[-1] is False
    steps = [record for record in of(Step, outcome) if isinstance(record, Step)]
    assert [step.samples for step in steps] == [32] * 4
    assert [step.unscored for step in steps] == [0] * 4


def test_unscored_sample_is_dropped_and_job_continues() -> None:
    outcome = cluster("reward.attempts=1", "rollout.sample_retries=0", raises=0.25).run()
    assert outcome.ended == "done"
    assert audit(evidence(outcome)) == []
    steps = [record for record in of(Step, outcome) if isinstance(record, Step)]
    assert sum(step.unscored for step in steps) > 0
    assert all(step.samples + step.unscored == 32 for step in steps)
    evals = [record for record in of(Eval, outcome) if isinstance(record, Eval)]
    assert min(record.problems for record in evals) < 8
    assert all(record.reward is not None for record in evals)


def test_run_without_scores_reports_it_when_job_ends_otherwise() -> None:
    sick = cluster("reward.sick_share=1")
    sick.scorer_faults.standing = Fault.RAISE
    outcome = sick.run()
    assert outcome.ended == "done"
    assert audit(evidence(outcome)) == []
    steps = [record for record in of(Step, outcome) if isinstance(record, Step)]
    assert [(step.reward, step.samples, step.tokens) for step in steps] == [(None, 0, 0)] * 4
    assert [record.reward for record in of(Eval, outcome) if isinstance(record, Eval)] == [None, None]
    report = report_of(outcome.history, None)
    assert report.verdicts is not None
    assert not report.verdicts.scored
    assert report.outcome is not None
    assert not report.outcome.reached


def test_killed_manager_finds_its_verifier_sick_again() -> None:
    sick = cluster()
    sick.scorer_faults.standing = Fault.RAISE
    killed: list[float] = []

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, Verdict) and not killed:
            killed.append(sick.loop.now_s + 10.0)
            sick.loop.call_at(killed[0], lambda: FaultInjector(sick).kill_process("head", "rollout"))

    sick.watch(look)
    outcome = sick.run()
    assert sick.ended is not None
    assert (outcome.ended, sick.ended.cause) == ("failed", UNSCORED)
    assert outcome.virtual_s > killed[0] + 30.0, "the time starts again"
    assert of(Step, outcome) == []


def test_job_waits_for_verifier_at_least_one_verdict_time() -> None:
    slow = cluster("reward.deadline_s=30", "reward.sick_s=1")
    slow.scorer_faults.standing = Fault.CRASH
    slow.loop.call_at(60.0, lambda: setattr(slow.scorer_faults, "standing", None))
    outcome = slow.run()
    assert outcome.ended == "done"
    reports = [record.sick for record in of(Verifier, outcome) if isinstance(record, Verifier)]
    assert reports[:2] == [True, False]
