"""A judge beside another verifier: weights, gate, statuses."""

from collections.abc import Sequence

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.judge.composed import WithJudge
from gleaner.actors.reward.verifiers.port import Trial

FOUR = Entry(question="2+2?", answer="4")


class Scripted:
    """A verifier with one judgement for each response, by its text."""

    def __init__(self, **found: Judgement) -> None:
        self.found, self.asked, self.state = found, list[str](), ""

    def open(self) -> None:
        self.state = "open"

    def close(self) -> None:
        self.state = "closed"

    def check(self, entry: Entry) -> str:
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        self.asked += [response for _, response in items]
        return [self.found[response] for _, response in items]


class Trying(Scripted):
    """One that shows something."""

    def try_one(self, entry: Entry, response: str) -> Trial:
        return Trial(judgement=self.found[response], printed=f"text of {response}")


OWN = Scripted(
    right=Judgement(1.0, parts={"tests": 3.0}, detail="3 of 3", cpu_s=0.5),
    wrong=Judgement(0.0),
    slow=Judgement(0.0, "timeout", "2 s"),
    lost=Judgement(0.0, "sandbox_failed"),
    unjudged=Judgement(1.0),
)
JUDGE = Scripted(
    right=Judgement(0.5, parts={"judge": 5.0}, detail="votes 5"),
    wrong=Judgement(1.0),
    slow=Judgement(1.0),
    lost=Judgement(1.0),
    unjudged=Judgement(0.0, "unavailable", "no judge"),
)


def test_judge_scores_only_what_reaches_the_gate() -> None:
    JUDGE.asked.clear()
    both = WithJudge(OWN, JUDGE, weight=0.25, gate=1.0)
    names = list(OWN.found)
    found = dict(zip(names, both.score_all([(FOUR, name) for name in names]), strict=True))
    assert JUDGE.asked == ["right", "unjudged"]
    assert found["right"] == Judgement(
        0.875, parts={"tests": 3.0, "own": 1.0, "judge": 5.0}, detail="3 of 3; votes 5", cpu_s=0.5
    )
    assert (found["wrong"].score, found["wrong"].parts) == (0.0, {"own": 0.0})
    assert (found["slow"], found["lost"]) == (OWN.found["slow"], OWN.found["lost"])
    assert found["unjudged"].status == "unavailable", "half of a score is none"


def test_without_a_gate_a_wrong_answer_is_judged() -> None:
    (found,) = WithJudge(OWN, JUDGE, weight=0.25, gate=0.0).score_all([(FOUR, "wrong")])
    assert found.score == pytest.approx(0.25)


def test_both_are_opened_closed_and_tried() -> None:
    own, judge = Trying(**OWN.found), Trying(**JUDGE.found)
    both = WithJudge(own, judge, weight=0.25, gate=1.0)
    both.open()
    assert (own.state, judge.state) == ("open", "open")
    assert both.try_one(FOUR, "right").printed == "text of right\ntext of right"
    assert both.try_one(FOUR, "wrong").printed == "text of wrong"
    both.close()
    assert (own.state, judge.state) == ("closed", "closed")
