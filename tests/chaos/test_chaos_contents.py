"""The checks of contents, on a hand-written history.

The whole history has no violation; each change of it is reported by its check.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.instances import Dispatch
from gleaner.actors.protocol.rollout import Groups
from gleaner.actors.rollout.state.events import GroupsAdded, GroupsDropped, GroupsKept, Scored
from gleaner.actors.training.draw_events import Drawn, Returned
from gleaner.actors.training.draw_snapshots import ProblemsDrawn
from gleaner.actors.training.job_journal import JobSnapshot
from gleaner.actors.training.records import Eval
from gleaner.chaos.invariants.facts import Fact, RunEnd, VerifierAnswered
from gleaner.chaos.invariants.group_selection import uniform
from gleaner.chaos.invariants.recorded_figures import FiguresOfSamples
from gleaner.chaos.invariants.sample_contents import first_difference
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.trained_weights import advantages
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Message
from tests.chaos.content_story import (
    ADVANTAGE,
    CONTROLLER,
    answered,
    changed,
    commit,
    evaluated,
    judged,
    logprobs_of,
    prompts,
    record,
    recorded,
    replace_wanted,
    story,
    weights,
)

Change = Callable[[Any], Message]


def with_work(**fields: object) -> Change:
    """A dispatch whose second request has these fields."""
    return lambda message: replace(message, work=[message.work[0], replace(message.work[1], **fields)])


def with_sample(**fields: object) -> Change:
    """Groups whose first sample has these fields."""

    def change(message: Groups) -> Groups:
        first, *rest = message.groups
        samples = (replace(first.samples[0], **fields), *first.samples[1:])
        return replace(message, groups=[replace(first, samples=samples), *rest])

    return change


def with_group(**fields: object) -> Change:
    """Groups whose first group has these fields."""
    return lambda message: replace(
        message, groups=[replace(message.groups[0], **fields), *message.groups[1:]]
    )


def with_prompts(*groups: int) -> Change:
    return lambda message: replace(message, prompts=prompts(*groups))


def with_fields(**fields: object) -> Change:
    return lambda message: replace(message, **fields)


def test_whole_history_breaks_no_check() -> None:
    assert judged(story(), history=[record()]) == []


BROKEN: list[tuple[str, str, type[Message], int, Change]] = [
    ("dispatches", "temperature 1.0, submitted was 0.5", Dispatch, 0, with_work(temperature=1.0)),
    ("dispatches", "a prompt of 1 tokens, submitted were 2", Dispatch, 1, with_work(prompt=b"\1\0\0\0")),
    ("dispatches", "seed 3, submitted was 10", Dispatch, 0, with_work(seed=3)),
    ("dispatches", "limit 9, submitted was 3", Dispatch, 0, with_work(max_new_tokens=9)),
    ("contents", "not the one of problem 0 of train", Groups, 0, with_group(prompt=b"\2\0\0\0\7\0\0\0")),
    ("contents", "log-prob at position 0", Groups, 0, with_sample(logprobs=bytes(12))),
    ("contents", "log-prob at position 2", Groups, 0, with_sample(logprobs=logprobs_of(1, 2) + bytes(4))),
    ("contents", "the score 0.0, true is 1.0", Groups, 0, with_sample(score=0.0)),
    ("contents", "without a sample", Groups, 0, with_group(samples=())),
    ("contents", "its samples are", Groups, 0, with_sample(request="step-1/0/1")),
    ("verdicts", "was scored 0.0; its response to problem 0 of train", Scored, 0, with_fields(score=0.0)),
    ("draws", "has problem 4, the next one in turn is 2", Drawn, 1, with_fields(indices=(4,), cursor=5)),
    ("draws", "has problems [1] more than once", Drawn, 1, with_fields(indices=(1,))),
    ("draws", "as one that was given back, and it was not", Drawn, 1, with_fields(returned=1)),
    ("draws", "more were drawn from group 1 on", Drawn, 1, with_fields(first=1)),
    ("draws", "has problem 1 of train, drawn was 2", GroupsAdded, 0, with_prompts(1)),
    ("draws", "temperature 1.0, the job's is 0.5", BatchSubmitted, 0, with_fields(temperature=1.0)),
    ("draws", "a version 1, the job's is 0", BatchSubmitted, 0, with_fields(version=1)),
    ("draws", "[1, 2] were drawn for step-1, and never submitted", BatchSubmitted, 0, with_prompts(0)),
    (
        "selection",
        "groups [1] of step-1 were dropped as surplus",
        GroupsDropped,
        0,
        with_fields(why="surplus"),
    ),
    ("selection", "group 0 of step-1 was dropped as uniform", GroupsDropped, 0, with_fields(groups=(0,))),
    ("selection", "group 1 of step-1 counts, its scores are equal", GroupsKept, 0, with_fields(groups=(1,))),
    ("selection", "not all of its samples have their verdicts", GroupsKept, 0, with_fields(groups=(2,))),
    ("selection", "3 of its groups may count, it begins with 2", GroupsAdded, 0, with_prompts(2, 2)),
    ("selection", "group 2 of step-1 was handed out", GroupsKept, 1, with_fields(groups=())),
    ("updates", "was trained on 1 groups 0, 2 are wanted", StepTrained, 0, lambda _: recorded(groups=(0,))),
    ("updates", "missing ['step-1/2/1']", StepTrained, 0, lambda _: recorded(missing="step-1/2/1")),
    ("updates", "samples of its groups 2 0 gives", StepTrained, 0, lambda _: recorded(groups=(2, 0))),
]


@pytest.mark.parametrize(("check", "text", "kind", "number", "change"), BROKEN)
def test_changed_message_is_reported_by_its_check(
    check: str, text: str, kind: type[Message], number: int, change: Change
) -> None:
    found = judged(changed(kind, change, number))
    assert any(one.check == check and text in one.text for one in found), [str(one) for one in found]


@pytest.mark.parametrize("after", [b"others", weights(0.5**-0.5), weights(0.0)])
def test_weights_of_other_advantages_are_reported(after: bytes) -> None:
    (found,) = judged(story(), after)
    assert found.check == "updates"
    assert "update 1 with the 4 samples of its groups 0 2 gives" in found.text


def test_weights_follow_each_other_and_a_rewind_goes_back() -> None:
    again = commit(recorded(), stream="training/state")
    assert judged([*story(), again]) == [], "recorded again by the next life of the trainer"


@pytest.mark.parametrize("other", [record(reward=0.4), record(tokens=11), record(grad_norm=0.25)])
def test_false_figure_of_a_step_is_reported(other: Any) -> None:
    (found,) = judged(story(), history=[other])
    assert found.check == "history"
    assert "expected was" in found.text


def test_seconds_of_a_step_are_from_the_record_before() -> None:
    second = replace(record(), step=2, t_s=10.0)
    assert judged(story(), history=[record(), second]) == []
    texts = [one.text for one in judged(story(), history=[record(training_s=1.5), replace(second, t_s=11.0)])]
    assert texts == [
        "the history has for step 1 1.0 s, of which 1.5 s are accounted",
        "the history has for step 2 1.0 s, since the step before are 2.0 s",
    ]


def test_missing_record_of_an_evaluation_is_reported() -> None:
    check = FiguresOfSamples(Shadow(), replace_wanted(steps=2, eval_every=1))
    steps = [replace(record(), step=step, t_s=float(step)) for step in (1, 2)]
    evals = [
        Eval(t_s=1.0, step=step, when=when, reward=None, problems=0)  # type: ignore[arg-type]  # one of the three
        for step, when in ((0, "first"), (1, "during"), (2, "last"))
    ]
    evidence = Evidence(steps=2, requests_per_step=4, complete=True)

    def found(*history: Any) -> list[str]:
        return list(check.end(evidence, RunEnd(ended=True, virtual_s=9.0, deadline_s=99.0, history=history)))

    assert found(*steps, *evals) == []
    (missing,) = found(*steps, evals[0], evals[2])
    assert missing.endswith("'evaluation first', 'evaluation step-1', 'evaluation last']")
    assert len(found(steps[0], *evals)) == 1


def test_false_figure_of_an_evaluation_is_reported() -> None:
    facts, evaluation = evaluated()
    truth = replace_wanted(heldout=2)
    assert judged(facts, history=[evaluation], truth=truth) == []
    for other in (replace(evaluation, reward=0.25), replace(evaluation, variance=0.5)):
        (found,) = judged(facts, history=[other], truth=truth)
        assert found.check == "history"
        assert "for the evaluation 'first'" in found.text


def test_evaluation_of_another_version_is_reported() -> None:
    facts, _ = evaluated(version=1)
    found = judged(facts, truth=replace_wanted(heldout=2))
    assert "eval-first was submitted with a version 1, the job's is 0" in [one.text for one in found]


def test_answer_with_other_logprobs_is_reported() -> None:
    assert judged(answered(logprobs_of(7)[4:])) == []
    (found,) = judged(answered(logprobs_of(7)[:-4]))
    assert (found.check, found.text) == (
        "contents",
        "x was answered with a log-prob at position 1 that no engine computed for it",
    )


def test_score_without_a_verifier_is_reported() -> None:
    facts: list[Fact] = [fact for fact in story() if not isinstance(fact, VerifierAnswered)]
    found = judged(facts)
    assert {one.check for one in found} == {"verdicts"}
    assert "no verifier scored its response to problem 0 of train, 3 tokens" in found[0].text


def of_problems(**fields: object) -> Fact:
    """A snapshot behind a draw of two problems of which the second was given back, with these fields of its
    draws changed."""
    draws = replace(ProblemsDrawn(cursor=2, waiting=(1,), batches={}, settled=()), **fields)
    event = JobSnapshot(recorded=((1, 1),), evals=(), boot=1, draws=draws)
    return replace(commit(event, stream=CONTROLLER), snapshot=True)


@pytest.mark.parametrize(
    ("fact", "texts"),
    [
        (of_problems(), []),
        (of_problems(cursor=1), ["a snapshot has 1 new problems, 2 were drawn"]),
        (of_problems(waiting=()), ["a snapshot has problems [] given back, [1] wait"]),
    ],
)
def test_snapshot_without_a_part_of_the_problems_is_reported(fact: Fact, texts: list[str]) -> None:
    drawn = Drawn(batch="step-1", first=0, indices=(0, 1), returned=0, cursor=2)
    aborted = commit(GroupsDropped(batch="step-1", groups=(1,), why="surplus"))
    back = Returned(batch="step-1", indices=(1,))
    journal = [commit(drawn, stream=CONTROLLER), aborted, commit(back, stream=CONTROLLER), fact]
    assert [one.text for one in judged(journal)] == texts


def test_problems_of_aborted_groups_must_come_back() -> None:
    aborted = commit(GroupsDropped(batch="step-1", groups=(1,), why="surplus"))
    drawn = [
        commit(Drawn(batch="step-1", first=0, indices=(0, 1), returned=0, cursor=2), stream=CONTROLLER),
        aborted,
    ]
    back = commit(Returned(batch="step-1", indices=(1,)), stream=CONTROLLER)
    false = commit(Returned(batch="step-1", indices=(0,)), stream=CONTROLLER)
    after = commit(Drawn(batch="step-2", first=0, indices=(1, 2), returned=1, cursor=3), stream=CONTROLLER)
    other = commit(Drawn(batch="step-2", first=0, indices=(2, 3), returned=0, cursor=4), stream=CONTROLLER)
    end = story()[-1]
    assert judged([*drawn, back, end, after]) == []
    texts = [[one.text for one in judged([*drawn, *rest])] for rest in ([false], [end], [back, other])]
    assert texts == [
        ["step-1 gave back problems [0], aborted or unused were [1]"],
        ["step-1 is over, and the problems of its aborted groups [1] are not back"],
        ["step-2 has new problems, and [1] were given back and wait"],
    ]


def test_advantages_are_in_deviations_of_a_sample() -> None:
    assert advantages([1.0, 0.0]) == [ADVANTAGE, -ADVANTAGE]
    assert advantages([0.3, 0.3, 0.3]) == [0.0, 0.0, 0.0]


def test_group_without_two_scores_is_uniform() -> None:
    assert uniform([1.0, None, 1.0])
    assert uniform([None, None])
    assert not uniform([1.0, 0.0, None])


def test_first_difference_is_by_bits() -> None:
    assert first_difference(bytes(8), bytes(4) + b"\0\0\0\x80") == 1
    assert first_difference(bytes(8), bytes(4)) == 1
