"""Samples of a step: a sample without a score is in no gradient and in no mean."""

from array import array

import pytest

from gleaner.actors.protocol.batches import Span
from gleaner.actors.protocol.rollout import GroupOut, SampleOut
from gleaner.actors.training.advantages import group_advantages
from gleaner.actors.training.staleness import Staleness
from gleaner.actors.training.step_samples import StepContents, samples_of


def group(number: int, *scores: float | None) -> GroupOut:
    samples = tuple(
        SampleOut(
            request=f"step-1/{number}/{index}",
            tokens=array("I", [index + 1]).tobytes(),
            logprobs=array("f", [-1.0]).tobytes(),
            score=score,
            spans=(Span(attempt=1, instance="spot", incarnation=1, version=0, start=0, count=1),),
        )
        for index, score in enumerate(scores)
    )
    return GroupOut(group=number, prompt=array("I", [7]).tobytes(), samples=samples)


def test_advantages_use_the_scored_samples_of_a_group() -> None:
    samples = samples_of([group(0, 1.0, None, 0.0, 0.5)])
    assert [sample.response.tolist() for sample in samples] == [[1], [3], [4]]
    assert [sample.advantage for sample in samples] == pytest.approx(group_advantages([1.0, 0.0, 0.5]))


def test_group_with_fewer_than_two_scores_gives_no_gradient() -> None:
    assert samples_of([group(0, None, 1.0, None), group(1, None, None)]) == []


def test_unscored_samples_are_in_no_mean_or_count() -> None:
    done = StepContents(Staleness(0, 0))
    done.add([group(0, 1.0, None), group(1, 0.5, 0.0)])
    assert done.scores == [1.0, 0.5, 0.0]
    assert done.reward == 0.5
    assert done.unscored == 1
    assert [sample.request for sample in done.samples] == ["step-1/0/0", "step-1/1/0", "step-1/1/1"]


def test_step_without_a_scored_sample_has_no_reward() -> None:
    done = StepContents(Staleness(0, 0))
    done.add([group(0, None, None)])
    assert done.reward is None
    assert done.samples == []
