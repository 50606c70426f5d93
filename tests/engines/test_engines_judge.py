"""Judge on real SGLang servers: a model with random weights that a grammar makes answer in JSON has a score.

The servers are asked directly and behind the gateway. Without a grammar such a model writes no verdict, which
is a failure of ours and no score.
"""

import pytest
from talking import Talking

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import OK, VERIFIER_FAILED
from gleaner.actors.reward.verifiers.judge.verifier import JudgeVerifier
from gleaner.actors.reward.verifiers.port import Trial, VerifierSpec

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(1200)]

SCALE = (1.0, 5.0)


def tried(url: str, model: str, **params: object) -> Trial:
    """One response, graded."""
    common = {"url": f"{url}/v1", "model": model, "rubric_text": "Right is 5.", "scale": list(SCALE)}
    given = {**common, "max_tokens": 256, "attempts": 8, "deadline_s": 120.0, **params}
    verifier = JudgeVerifier(VerifierSpec(name="judge", task="sums", params=given))
    try:
        return verifier.try_one(Entry(question="2+2?", answer="4"), "It is 4.")
    finally:
        verifier.close()


def test_judge_with_a_grammar_has_a_score_within_its_scale(talking: Talking) -> None:
    for url in (talking.servers[0].url, talking.url):
        found = tried(url, talking.model, json_schema=True)
        assert found.judgement.status == OK, found
        assert SCALE[0] <= found.judgement.parts["judge"] <= SCALE[1]
        assert 0.0 <= found.judgement.score <= 1.0


def test_judge_without_a_grammar_has_no_score(talking: Talking) -> None:
    for url in (talking.servers[0].url, talking.url):
        found = tried(url, talking.model, max_tokens=24, attempts=2)
        assert found.judgement.status == VERIFIER_FAILED, found
