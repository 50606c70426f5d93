"""Audit invariants: a whole run has no violations; each check finds its own."""

import zlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.actors.protocol.rollout import BatchLedger, RequestLedger
from gleaner.actors.reward.batch_limit import MOST_BATCHES
from gleaner.actors.reward.journal import BatchClosed, RewardSnapshot, VerdictGiven
from gleaner.actors.rollout.state.events import Counters
from gleaner.rlctl.audit.invariants import CheckpointSeen, Evidence, State, audit, lineage, states

STEPS = 3
REQUESTS = 4


def request(batch: str, index: int, version: int) -> RequestLedger:
    """Two spans: the request was migrated once, from an instance to its next incarnation."""
    tokens = bytes(range(40))
    spans = (
        Span(attempt=1, instance="a", incarnation=7, version=version, start=0, count=4),
        Span(attempt=2, instance="a", incarnation=9, version=version, start=4, count=6),
    )
    return RequestLedger(
        request=f"{batch}/{index}/0",
        count=10,
        crc=zlib.crc32(tokens) + index,
        spans=spans,
        score=1.0,
        status="ok",
    )


def ledger(batch: str, version: int) -> BatchLedger:
    requests = tuple(request(batch, index, version) for index in range(REQUESTS))
    return BatchLedger(batch=batch, version=version, requests=requests)


def trained(step: int) -> StepTrained:
    samples = tuple(
        TrainedSample(request=it.request, count=it.count, crc=it.crc)
        for it in ledger(f"step-{step}", step - 1).requests
    )
    return StepTrained(step=step, samples=samples, root=f"root {step}".encode())


def whole() -> Evidence:
    steps = range(1, STEPS + 1)
    ledgers = [
        ledger("eval-first", 0),
        *(ledger(f"step-{step}", step - 1) for step in steps),
        ledger("eval-last", 3),
    ]
    return Evidence(
        steps=STEPS,
        requests_per_step=REQUESTS,
        complete=True,
        ledgers=ledgers,
        trained=[trained(step) for step in steps],
        finished=list(steps),
        counters=Counters(tokens_collected=10 * REQUESTS * len(ledgers)),
        fences={"a": [7, 9]},
        checkpoints=[CheckpointSeen("step-000003", 3, trained(3).samples)],
    )


def with_request(evidence: Evidence, change: Callable[[RequestLedger], RequestLedger]) -> Evidence:
    """The evidence with the first request of step 2 changed."""
    ledgers = list(evidence.ledgers)
    changed = (change(ledgers[2].requests[0]), *ledgers[2].requests[1:])
    ledgers[2] = BatchLedger(batch=ledgers[2].batch, version=ledgers[2].version, requests=changed)
    return replace(evidence, ledgers=ledgers)


def with_spans(evidence: Evidence, **second: int) -> Evidence:
    """The evidence with the second span of that request changed."""
    return with_request(
        evidence,
        lambda it: msgspec.structs.replace(
            it, spans=(it.spans[0], msgspec.structs.replace(it.spans[1], **second))
        ),
    )


def with_trained(evidence: Evidence, samples: tuple[TrainedSample, ...]) -> Evidence:
    """The evidence with other samples in step 2."""
    events = [trained(1), StepTrained(step=2, samples=samples, root=b"other"), trained(3)]
    return replace(evidence, trained=events)


def broken(evidence: Evidence) -> set[str]:
    return {violation.invariant for violation in audit(evidence)}


def texts(evidence: Evidence) -> str:
    return "\n".join(map(str, audit(evidence)))


def test_complete_run_has_no_violations() -> None:
    assert audit(whole()) == []


def test_request_that_never_reached_the_trainer_is_found() -> None:
    found = texts(with_trained(whole(), trained(2).samples[1:]))
    assert "I1: step 2: step-2/0/0 never reached the trainer" in found


def test_request_trained_twice_in_a_step_is_found() -> None:
    samples = trained(2).samples
    found = texts(with_trained(whole(), (*samples, samples[0])))
    assert "I1: step 2: step-2/0/0 reached the trainer 2 times" in found


def test_request_of_another_step_is_found() -> None:
    found = texts(with_trained(whole(), (*trained(2).samples, trained(1).samples[0])))
    assert "step-1/0/0 was trained and is no request of the batch" in found
    assert "step-1/0/0 was trained in step 1 and again in step 2" in found


@pytest.mark.parametrize("change", [{"count": 9}, {"crc": 1}])
def test_trained_tokens_differing_from_collected_ones_are_found(change: dict[str, int]) -> None:
    first, *rest = trained(2).samples
    assert "I1" in broken(with_trained(whole(), (msgspec.structs.replace(first, **change), *rest)))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"start": 5}, "gap at token 4"),
        ({"start": 3}, "overlap at token 4"),
        ({"count": 5}, "end at token 9"),
    ],
)
def test_spans_that_do_not_join_are_found(change: dict[str, int], what: str) -> None:
    assert what in texts(with_spans(whole(), **change))


def test_batch_missing_from_every_journal_is_found() -> None:
    evidence = whole()
    without = [it for it in evidence.ledgers if it.batch != "step-2"]
    assert "its batch step-2 is in no journal" in texts(replace(evidence, ledgers=without))


def test_batch_with_too_few_requests_is_found() -> None:
    assert "holds 4 requests, expected 5" in texts(replace(whole(), requests_per_step=5))


def test_ledger_journaled_twice_counts_once_unless_it_differs() -> None:
    evidence = whole()
    assert audit(replace(evidence, ledgers=[*evidence.ledgers, evidence.ledgers[1]])) == []
    other = msgspec.structs.replace(evidence.ledgers[1], requests=evidence.ledgers[1].requests[1:])
    assert "I1" in broken(replace(evidence, ledgers=[*evidence.ledgers, other]))


def test_lost_and_duplicate_tokens_are_found() -> None:
    evidence = whole()
    assert evidence.counters is not None
    doubled = msgspec.structs.replace(evidence.counters, tokens_generated_twice=3)
    more = msgspec.structs.replace(evidence.counters, tokens_collected=10**6)
    assert broken(replace(evidence, tokens_lost=1)) == {"I2"}
    assert broken(replace(evidence, counters=doubled)) == {"I2"}
    assert broken(replace(evidence, counters=more)) == {"I2"}
    assert broken(replace(evidence, state_faults=["a ticket stands for nobody"])) == {"I2"}


def test_tokens_of_another_version_are_found() -> None:
    assert broken(with_spans(whole(), version=0)) == {"I3"}


def test_batch_of_another_version_is_found() -> None:
    evidence = whole()
    off = [ledger("step-2", 0) if it.batch == "step-2" else it for it in evidence.ledgers]
    assert broken(replace(evidence, ledgers=off)) == {"I3"}


@pytest.mark.parametrize("change", [{"incarnation": 5}, {"attempt": 1}])
def test_write_of_an_older_incarnation_is_found(change: dict[str, int]) -> None:
    assert broken(with_spans(whole(), **change)) == {"I4"}


def test_name_returned_to_an_older_incarnation_is_found() -> None:
    assert broken(replace(whole(), fences={"a": [7, 9, 8]})) == {"I4"}


def test_skipped_or_repeated_step_is_found() -> None:
    evidence = whole()
    assert "were skipped" in texts(replace(evidence, trained=[trained(1), trained(3)]))
    assert "it was done twice" in texts(replace(evidence, trained=[*evidence.trained, trained(3)]))
    assert "training reached step 2" in texts(replace(evidence, trained=evidence.trained[:2]))
    assert "step 2 was never recorded" in texts(replace(evidence, finished=[1, 3]))
    assert "step 2 is recorded 2 times" in texts(replace(evidence, finished=[1, 2, 2, 3]))


def test_steps_may_repeat_with_same_samples_after_host_loss() -> None:
    evidence = whole()
    again = [trained(1), trained(2), Rewound(step=1), trained(2), trained(3)]
    assert audit(replace(evidence, trained=again)) == []
    assert sorted(lineage(again)) == [1, 2, 3]
    other = StepTrained(step=2, samples=trained(2).samples[1:], root=b"r")
    again[1] = other
    assert "from other samples than before" in texts(replace(evidence, trained=again))


def test_damaged_foreign_or_missing_checkpoint_is_found() -> None:
    evidence = whole()
    damaged = CheckpointSeen("step-000003", 3, damage="model.safetensors is not what was sealed")
    foreign = CheckpointSeen("step-000003", 3, trained(2).samples)
    unknown = CheckpointSeen("step-000009", 9, trained(2).samples)
    assert "is not what was sealed" in texts(replace(evidence, checkpoints=[damaged]))
    assert "made from other samples" in texts(replace(evidence, checkpoints=[foreign]))
    assert "never trained" in texts(replace(evidence, checkpoints=[*evidence.checkpoints, unknown]))
    assert "no whole checkpoint of the last step" in texts(replace(evidence, checkpoints=[]))


def test_stopped_run_has_no_violation_so_far() -> None:
    evidence = whole()
    stopped = replace(
        evidence, complete=False, steps=9, finished=[1, 2, 3], checkpoints=list(evidence.checkpoints)
    )
    assert audit(stopped) == []


def test_missing_evidence_is_never_silently_passed() -> None:
    assert broken(replace(whole(), missing=[("I4", "no registry")])) == {"I4"}
    nothing = Evidence(steps=STEPS, requests_per_step=REQUESTS, complete=True)
    assert "I5" in broken(nothing)


def test_many_faults_of_a_kind_are_sampled_and_counted() -> None:
    found = texts(with_trained(whole(), ()))
    assert found.count("never reached the trainer") == 3
    assert "and 1 more of this kind" in found


def test_token_age_beyond_the_staleness_bound_is_found() -> None:
    def old(version: int) -> Evidence:
        return with_request(
            whole(),
            lambda it: msgspec.structs.replace(
                it, spans=tuple(msgspec.structs.replace(span, version=version) for span in it.spans)
            ),
        )

    assert broken(replace(old(0), staleness=1)) == set(), "step 2 starts from version 1"
    assert broken(old(0)) == {"I3"}
    assert broken(replace(old(2), staleness=1)) == {"I3"}, "newer than the step is wrong as well"


def test_single_request_may_have_newer_but_not_older_tokens() -> None:
    def single(least: int) -> Evidence:
        one = BatchLedger(
            batch="generate-x", version=2, min_version=least, requests=(request("generate-x", 0, 1),)
        )
        evidence = whole()
        counters = Counters(tokens_collected=10 * (REQUESTS * len(evidence.ledgers) + 1))
        return replace(evidence, ledgers=[*evidence.ledgers, one], counters=counters)

    assert broken(single(1)) == set()
    assert broken(single(2)) == {"I3"}


def test_missing_evidence_is_not_called_broken() -> None:
    without = replace(
        whole(), ledgers=[], missing=[("I1", "no journal holds the batches"), ("I2", "nor the tokens")]
    )
    found = states(audit(without))
    assert (found["I1"], found["I2"], found["I5"]) == (State.UNCHECKED, State.UNCHECKED, State.HOLDS)
    assert all(not violation.checked for violation in audit(without))
    lost = replace(whole(), trained=[], missing=[("I5", "no journal holds what was trained")])
    assert states(audit(lost))["I5"] is State.UNCHECKED


def test_proven_breach_is_broken_whatever_evidence_is_missing() -> None:
    found = replace(whole(), finished=[1, 1, 2], missing=[("I5", "half of it is gone")])
    assert states(audit(found))["I5"] is State.BROKEN
    assert "step 1 is recorded 2 times" in texts(found)
    assert "step 3 was never recorded" not in texts(found), "it may be in the missing half"


def test_unscored_request_is_not_due_and_must_not_train() -> None:
    unscored = with_request(
        whole(), lambda request: msgspec.structs.replace(request, score=None, status="lost")
    )
    found = texts(unscored)
    assert "I1: step 2: step-2/0/0 was trained and has no score: lost" in found
    assert "never reached" not in found
    without = with_trained(unscored, trained(2).samples[1:])
    assert "I1" not in texts(without)


# -- I7 --


def given(request: str = "step-2/0/0", batch: str = "step-2", score: float = 1.0) -> VerdictGiven:
    return VerdictGiven(request=request, batch=batch, score=score, status="ok")


def test_verdict_that_the_reward_proxy_has_twice_is_found() -> None:
    once = replace(whole(), rewards=[given(), given("step-2/1/0")])
    assert audit(once) == []
    found = texts(replace(whole(), rewards=[given(), given("step-2/1/0"), given()]))
    assert found == "I7: the reward proxy has two verdicts of step-2/0/0 of step-2"
    kept = RewardSnapshot(anchors_s={}, verdicts=(given(),))
    assert broken(replace(whole(), rewards=[kept, given()])) == {"I7"}
    over = [given(), BatchClosed(batch="step-2"), given()]
    assert audit(replace(whole(), rewards=over)) == [], "its batch was over: it is computed again"


def test_verdict_given_twice_is_found_beside_a_job_with_many_batches() -> None:
    many = [given(f"r{number}", f"many/step-{number}") for number in range(MOST_BATCHES + 1)]
    first, last = given("r", "few/step-1"), given("r0", "many/step-0")
    found = texts(replace(whole(), rewards=[first, *many, first, last]))
    assert "two verdicts of r of few/step-1" in found
    assert "two verdicts of r0" not in found, "the job's own oldest batch was forgotten"


def test_verdict_that_counts_with_another_score_is_found() -> None:
    found = texts(replace(whole(), rewards=[given(score=0.25)]))
    assert found == "I7: step-2/0/0 counts with the score 1.0, the reward proxy gave 0.25"


@pytest.mark.parametrize(("request_", "batch"), [("step-2/9/0", "step-2"), ("step-2/0/0", "step-9")])
def test_verdict_of_no_request_is_found_where_the_evidence_is_whole(request_: str, batch: str) -> None:
    evidence = replace(whole(), rewards=[given(request_, batch)])
    (found,) = audit(evidence)
    assert found.invariant == "I7"
    assert f"a verdict of {request_} of {batch}, which is no request of the run" in found.text
    gaps = replace(evidence, missing=[("I7", "a ledger is gone")])
    assert states(audit(gaps))["I7"] is State.UNCHECKED


@pytest.mark.parametrize(("score", "status"), [(0.5, "verifier_failed"), (float("nan"), "ok")])
def test_score_that_is_none_is_found(score: float, status: str) -> None:
    scored = with_request(whole(), lambda it: msgspec.structs.replace(it, score=score, status=status))
    assert f"I7: step-2/0/0 has the score {score}, with the status {status}" in texts(scored)
