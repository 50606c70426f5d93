"""Rounds in whole simulated jobs: what is trained, with and without faults."""

from collections import Counter
from itertools import pairwise

import pytest
from sim_kills import harried, steps_of, trained

from gleaner.actors.cluster import seeding_model
from gleaner.actors.protocol.instances import RequestsKept
from gleaner.actors.protocol.rollout import SubmitBatch
from gleaner.actors.training.records import Eval, Round
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.message_hooks import Hook, ObservedMessage
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SMALL = [
    "job.steps=6",
    "task.heldout_problems=4",
    "rollout.prompts=6",
    "rollout.samples=4",
    "engine.slots=8",
    "fleet.trace=",
]
TAIL = [*SMALL, "rounds.mode=tail", "rounds.prompts_factor=1.5"]
EXACT = [*TAIL, "job.exact=true"]
FEW = range(3)
MANY = [pytest.param(range(at, at + 50), marks=pytest.mark.long) for at in range(0, 200, 50)]


def calm(settings: list[str], seed: int = 0, hook: Hook | None = None) -> Outcome:
    """A run without faults. hook: gets every message of it."""
    cluster = SimCluster(RunSetup(load("quickstart", settings), seed=seed))
    if hook is not None:
        cluster.watch(hook)
    outcome = cluster.run()
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    return outcome


def rounds_of(outcome: Outcome) -> list[Round]:
    return [one for one in outcome.history if isinstance(one, Round)]


def test_rounds_train_the_samples_of_the_plain_job_bit_for_bit() -> None:
    plain, tail = calm(SMALL), calm(TAIL)
    assert [one.round for one in rounds_of(tail)] == ["short", "short", "long"] * 2
    assert sum(one.deferred for one in rounds_of(tail)) == 12, "nothing was deferred: this shows nothing"
    assert trained(tail) == trained(plain)


@pytest.mark.parametrize("setting", ["rounds.seeds=new", "rounds.samples_factor=1.5"])
def test_new_seeds_and_surplus_samples_train_shorter_responses(setting: str) -> None:
    plain, tail = trained(calm(SMALL)), trained(calm([*TAIL, setting]))
    assert plain.total() == tail.total()
    assert plain != tail
    assert _mean(tail) < _mean(plain)


def _mean(samples: Counter[tuple[int, int]]) -> float:
    return sum(tokens * times for (tokens, _), times in samples.items()) / samples.total()


@pytest.mark.parametrize("seeds", [FEW, *MANY], ids=str)
def test_exact_job_with_rounds_equals_calm_run_after_any_kill(seeds: range) -> None:
    expected, kills = steps_of(calm(EXACT)), 0
    for seed in seeds:
        outcome, hit = harried(seed, EXACT)
        kills += hit
        assert (outcome.ended, outcome.findings) == ("done", []), f"seed {seed}: {outcome.reason}"
        assert audit(evidence(outcome)) == [], f"seed {seed}"
        for number, step in steps_of(outcome).items():
            assert step.root == expected[number].root, f"seed {seed}: other weights after step {number}"
    assert kills >= len(seeds), "too few faults: this shows nothing"


@pytest.mark.long
@pytest.mark.parametrize("more", ["rounds.samples_factor=1.5", "rollout.drop_uniform=true"])
def test_exact_job_with_every_race_equals_calm_run_after_any_kill(more: str) -> None:
    expected = steps_of(calm([*EXACT, more]))
    for seed in range(8):
        outcome, _ = harried(seed, [*EXACT, more])
        assert (outcome.ended, outcome.findings) == ("done", []), f"seed {seed}: {outcome.reason}"
        assert audit(evidence(outcome)) == [], f"seed {seed}"
        roots = {number: step.root for number, step in steps_of(outcome).items()}
        assert roots == {number: step.root for number, step in expected.items()}, f"seed {seed}"


def test_preset_of_the_paper_runs_with_its_own_rules() -> None:
    outcome = calm([*SMALL, "rounds.preset=rollpacker"])
    assert {one.round for one in rounds_of(outcome)} == {"short", "long"}
    assert any(one.aborted_tokens for one in rounds_of(outcome))


def test_rounds_compose_with_tokens_of_older_weights() -> None:
    outcome = calm([*TAIL, "rollout.staleness=2"])
    assert {one.round for one in rounds_of(outcome)} == {"short", "long"}
    assert trained(outcome) == trained(calm(SMALL))


@pytest.mark.parametrize("seed", range(3))
def test_rounds_compose_with_requests_that_stay_while_weights_change(seed: int) -> None:
    longer = ["job.steps=9", "engine.slots=1"]  # so slow that requests run when new weights come
    kept = list[int]()

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, RequestsKept) and seen.direction == "in":
            kept.append(len(seen.message.tickets))

    outcome = calm([*TAIL, *longer, "rollout.staleness=2", "engine.in_flight=kept"], seed, look)
    assert sum(kept) >= 10, "too few requests stayed: this shows nothing"
    assert [one.round for one in rounds_of(outcome)] == ["short"] * 4 + ["long"] * 5
    assert trained(outcome) == trained(calm([*SMALL, *longer]))


def test_evaluations_of_a_job_with_rounds_are_whole_when_steps_are_short() -> None:
    more = ["job.eval_every=1", "task.heldout_problems=8"]  # more problems than a short round counts
    submitted = dict[str, SubmitBatch]()

    def look(seen: ObservedMessage) -> None:
        if isinstance(seen.message, SubmitBatch):
            submitted[seen.message.batch.batch] = seen.message

    plain, tail = calm([*SMALL, *more]), calm([*TAIL, *more], hook=look)
    assert submitted["step-1"].batch.race, "no step was short: this shows nothing"
    evaluations = [one.batch for name, one in submitted.items() if name.startswith("eval-")]
    assert len(evaluations) == 7
    for batch in evaluations:
        assert (batch.race, batch.wanted, batch.counted) == ("", 0, 0), batch.batch
        assert [(one.split, one.index, len(one.seeds)) for one in batch.prompts] == [
            ("heldout", index, 1) for index in range(8)
        ], batch.batch
    assert evaluations_of(tail) == evaluations_of(plain)
    assert {problems for _, _, _, problems in evaluations_of(tail)} == {8}


@pytest.mark.parametrize("seed", range(3))
def test_evaluations_of_a_job_with_rounds_are_whole_under_kills(seed: int) -> None:
    more = ["job.eval_every=1", "task.heldout_problems=8"]
    outcome, kills = harried(seed, [*TAIL, *more])
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert kills, "no fault: this shows nothing"
    assert evaluations_of(outcome) == evaluations_of(calm([*SMALL, *more]))


def evaluations_of(outcome: Outcome) -> list[tuple[str, int, float | None, int]]:
    """When, after which step, the mean reward and the problems that have a score."""
    return [
        (one.when, one.step, one.reward, one.problems) for one in outcome.history if isinstance(one, Eval)
    ]


@pytest.mark.parametrize(("mode", "seed"), [("tail", 2), ("auto", 0)])
def test_surplus_by_prediction_trains_the_samples_of_the_plain_job_under_kills(
    mode: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With seeds in which the plans choose more than one surplus."""
    monkeypatch.setattr(seeding_model, "LEAST_STEP_S", 0.0)
    settings = ["job.steps=9", f"rounds.mode={mode}", "rounds.prompts_plan=model"]
    outcome, kills = harried(seed, [*TAIL, *settings])
    assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
    assert audit(evidence(outcome)) == []
    assert trained(outcome) == trained(calm([*SMALL, "job.steps=9"]))
    launched = {one.launched for one in rounds_of(outcome) if one.round == "short"}
    assert kills >= 3, "too few faults: this shows nothing"
    assert len(launched) > 1, "the surplus never changed: this shows nothing"


def test_exact_job_that_holds_long_problems_equals_calm_run_after_any_kill() -> None:
    few = [*EXACT, "job.steps=9", "task.train_problems=12", "rounds.history=true"]
    calm_run = calm(few)
    expected, kills = steps_of(calm_run), 0
    assert trained(calm_run) == trained(calm([*SMALL, "job.steps=9", "task.train_problems=12"]))
    queued = [
        one.queued - before.queued for before, one in pairwise(rounds_of(calm_run)) if one.round == "short"
    ]
    assert max(queued) > 3, "nothing was held: this shows nothing"
    for seed in range(3):
        outcome, hit = harried(seed, few)
        kills += hit
        assert (outcome.ended, outcome.findings) == ("done", []), f"seed {seed}: {outcome.reason}"
        assert audit(evidence(outcome)) == [], f"seed {seed}"
        assert {number: step.root for number, step in steps_of(outcome).items()} == {
            number: step.root for number, step in expected.items()
        }
    assert kills >= 3, "too few faults: this shows nothing"
