"""Gateways of a host: announced with their model while they run, found by jobs with a judge."""

import json
from pathlib import Path

import pytest

from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config, Judge
from gleaner.nodeagent import model_discovery
from gleaner.nodeagent.model_discovery import NoModel, serving, with_judge

ENDED = 2**22 + 1
"""A process id that Linux never gives."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv(model_discovery.VARIABLE, raising=False)
    return tmp_path / "state"


def judged(**own: object) -> Config:
    judge = {"place": "instances", "model": "judge-7b", "rubric_text": "Right is 10.", **own}
    task = {"name": "sums", "data": "sums.jsonl", "verifier": "judge"}
    return from_tree({"task": task, "reward": {"judge": judge}}, "test")


def found(config: Config) -> Judge:
    return with_judge(config).reward.judge


def test_gateway_is_found_by_its_model_while_it_serves(state: Path) -> None:
    with pytest.raises(NoModel, match=r"no gateway on this host serves 'judge-7b', they serve none: start"):
        found(judged())
    model_discovery.publish("http://127.0.0.1:1", "other")
    with pytest.raises(NoModel, match="they serve other"):
        found(judged())
    model_discovery.publish("http://127.0.0.1:2", "judge-7b")
    judge = found(judged(replicas=["http://far/v1"]))
    assert (judge.url, judge.replicas) == ("http://127.0.0.1:2/v1", ["http://far/v1"])
    model_discovery.withdraw()
    with pytest.raises(NoModel):
        found(judged())


def test_gateways_of_one_model_are_replicas_and_ended_ones_are_removed(state: Path) -> None:
    model_discovery.publish("http://127.0.0.1:2", "judge-7b")
    folder = state / "models"
    (folder / "1.json").write_text(json.dumps({"url": "http://127.0.0.1:3", "model": "judge-7b", "pid": 1}))
    ended = folder / f"{ENDED}.json"
    ended.write_text(json.dumps({"url": "http://127.0.0.1:4", "model": "judge-7b", "pid": ENDED}))
    (folder / "broken.json").write_text("{")
    assert sorted(serving()) == [("http://127.0.0.1:2", "judge-7b"), ("http://127.0.0.1:3", "judge-7b")]
    judge = found(judged())
    assert {judge.url, *judge.replicas} == {"http://127.0.0.1:2/v1", "http://127.0.0.1:3/v1"}
    assert not ended.exists()


def test_named_gateways_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model_discovery.publish("http://127.0.0.1:2", "judge-7b")
    monkeypatch.setenv(model_discovery.VARIABLE, "http://a:1, http://b:2/")
    judge = found(judged())
    assert (judge.url, judge.replicas) == ("http://a:1/v1", ["http://b:2/v1"])
    assert found(judged(url="http://mine/v1")).url == "http://mine/v1"


def test_settings_without_such_a_judge_are_left_as_they_are() -> None:
    own = judged(place="url", url="http://mine/v1")
    unused = from_tree({"reward": {"judge": {"place": "instances", "model": "judge-7b"}}}, "test")
    assert with_judge(own) is own
    assert with_judge(unused) is unused
