"""A judge that this gateway serves: a random model, whose text has no score."""

import json
from pathlib import Path

import pytest
from gateway_runs import Processes, get, healthy
from small_model import MakeModel

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verifiers.judge.verifier import JudgeVerifier
from gleaner.actors.reward.verifiers.port import Trial, VerifierSpec

pytestmark = [pytest.mark.realprocess, pytest.mark.long, pytest.mark.timeout(600)]

ENTRY = Entry(question="2+2?", answer="4")


def serve(processes: Processes, model: Path) -> str:
    """An engine, and a gateway in front of it: its URL."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    processes.start("engine", "engine", "serve", "--model", str(model), "--listen", "127.0.0.1:0")
    processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", "--engine-url", processes.url("engine"))
    url = processes.url("gateway")
    processes.wait(lambda: healthy(url), "the engine to be in use")
    return url


def tried(url: str, **params: object) -> Trial:
    """One response, graded twice at most."""
    name = get(f"{url}/v1/models")["data"][0]["id"]
    common = {"url": f"{url}/v1", "model": name, "rubric_text": "Right is 10.", "attempts": 2}
    spec = VerifierSpec(name="judge", task="sums", params={**common, "max_tokens": 24, **params})
    verifier = JudgeVerifier(spec)
    try:
        return verifier.try_one(ENTRY, "It is 4.")
    finally:
        verifier.close()


def test_gateway_serves_a_judge_whose_garbage_is_no_score(
    processes: Processes, make_model: MakeModel
) -> None:
    url = serve(processes, make_model("judge", 3))
    first, again = tried(url), tried(url)
    assert first.judgement.status == "verifier_failed"
    assert "2 calls" in first.judgement.detail
    assert "was cut: raise reward.judge.max_tokens" in first.printed
    texts = [one.printed.rpartition("max_tokens\n")[2] for one in (first, again)]
    assert texts[0] == texts[1] != "", "a repeated call asks the same"
    refused = tried(url, json_schema=True)
    assert (refused.judgement.status, "answered 400" in refused.judgement.detail) == ("verifier_failed", True)
    missing = tried(url, model="no-such-model")
    assert missing.judgement.status == "verifier_failed"
