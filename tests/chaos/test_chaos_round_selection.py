"""Uniform groups of jobs with rounds: what the checks report of short and of long rounds."""

from array import array
from collections.abc import Sequence

import pytest
from content_story import LENGTH, TRUTH, SmallTruth, commit, prompts

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.rollout.state.events import GroupsDropped, GroupsKept
from gleaner.chaos.invariants.group_selection import SelectedByScores
from gleaner.chaos.invariants.races import ShortestCount
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.truth import Wanted, WantedRounds
from gleaner.supervisor import Message

VARIED, EQUAL, OPEN = [1.0, 0.0], [1.0, 1.0], [None, None]
ROUNDS = WantedRounds(prompts=3, samples=2, own_seeds=True, by_tokens=True, drain=True)


def reported(race: str, groups: Sequence[Sequence[float | None]], event: Message) -> list[str]:
    """What the checks report of an event in a batch of groups whose verdicts are these so far."""
    wanted = Wanted(problems=10, prompts=2, samples=2, drop_uniform=True, max_refills=1, rounds=ROUNDS)
    truth, shadow = SmallTruth(wanted=wanted), Shadow()
    batch = BatchSubmitted(
        batch="step-1", version=0, prompts=prompts(*range(len(groups))), max_new_tokens=LENGTH,
        wanted=2, most=4, race="tokens" if race else "", drop_uniform=True,
    )  # fmt: skip
    checks = [ShortestCount(shadow, truth), SelectedByScores(shadow, truth)]
    for check in checks:
        list(check.see(commit(batch)))
    list(shadow.apply(batch))
    for group, scores in enumerate(groups):
        for sample, score in enumerate(scores):
            request = shadow.requests[f"step-1/{group}/{sample}"]
            request.score, request.judged, request.finished = score, score is not None, score is not None
            request.tokens = array("I", [int(score or 0)] + [0] * (LENGTH - 1))
    assert TRUTH.score("train", 0, array("I", [1, 0, 0]).tobytes()) == 1.0
    return [text for check in checks for text in check.see(commit(event))]


@pytest.mark.parametrize("race", ["tokens", ""])
def test_true_decisions_are_not_reported(race: str) -> None:
    groups = [VARIED, EQUAL, OPEN]
    assert reported(race, groups, GroupsKept(batch="step-1", groups=(0,))) == []
    assert reported(race, groups, GroupsDropped(batch="step-1", groups=(1,), why="uniform")) == []


@pytest.mark.parametrize("race", ["tokens", ""])
def test_uniform_group_that_counts_is_reported(race: str) -> None:
    found = reported(race, [EQUAL, VARIED, OPEN], GroupsKept(batch="step-1", groups=(0,)))
    assert any("its scores are equal" in text for text in found)


@pytest.mark.parametrize("race", ["tokens", ""])
def test_group_without_verdicts_is_neither_dropped_nor_kept(race: str) -> None:
    dropped = reported(race, [VARIED, OPEN], GroupsDropped(batch="step-1", groups=(1,), why="uniform"))
    assert any("group 1 of step-1 was dropped as uniform" in text for text in dropped)
    kept = reported(race, [VARIED, OPEN], GroupsKept(batch="step-1", groups=(1,)))
    assert any("not all of its samples have their verdicts" in text for text in kept)
