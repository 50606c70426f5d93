"""`rlctl check` and `rlctl reward try` with a judge on instances, or beside the job's engine."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.nodeagent import model_discovery
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, USAGE

sys.path.append(str(Path(__file__).parents[1] / "actors" / "reward" / "verifiers"))
from judge_services import grades
from reward_services import service

from tests.gateway.judge_model import make_judge

TASK = """
[[task]]
name = "sums"
data = "problems.jsonl"
verifier = "judge"

[reward.judge]
rubric_text = "Right is 10."
"""
INSTANCES = TASK + 'place = "instances"\nmodel = "m"\n'
COLOCATED = TASK + 'place = "colocated"\n[reward.judge.colocated]\nmodel_path = "judge"\n'
Calling = Callable[..., tuple[int, str]]


@pytest.fixture
def calling(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Calling:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv(model_discovery.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("problems.jsonl").write_text("".join(f'{{"prompt": "{one}+1?"}}\n' for one in range(20)))
    Path("answer.txt").write_text("It is 4")

    def call(job: str, *words: str) -> tuple[int, str]:
        Path("job.toml").write_text(job)
        code = main(list(words))
        output = capsys.readouterr()
        return code, output.out + output.err

    return call


def test_judge_on_instances_is_found_by_its_model(calling: Calling) -> None:
    code, text = calling(INSTANCES, "check", "job.toml")
    assert (code, "no gateway on this host serves 'm', they serve none" in text) == (USAGE, True)
    trial = ("reward", "try", "answer.txt", "--config", "job.toml", "--index", "0")
    assert calling(INSTANCES, *trial)[0] == USAGE
    with service() as served:
        served.answers = [grades(7)]
        model_discovery.publish(served.url.removesuffix("/score"), "m")
        code, text = calling(INSTANCES, *trial)
        assert (code, "0.7 (ok)" in text) == (OK, True), text
        code, text = calling(INSTANCES, "check", "job.toml")
        assert code == OK, text
    model_discovery.withdraw()
    code, text = calling(INSTANCES, "reward", "serve", "job.toml")
    assert (code, "no gateway on this host serves 'm'" in text) == (USAGE, True)


def test_colocated_judge_that_cannot_be_served_is_refused(calling: Calling, tmp_path: Path) -> None:
    code, text = calling(COLOCATED + "reserve_mb = 100\n", "check", "job.toml")
    assert code == USAGE
    assert "reward.judge.colocated.model_path: " in text
    make_judge(tmp_path / "judge", 20, num_hidden_layers=4)
    code, text = calling(COLOCATED + "reserve_mb = 1\n", "check", "job.toml")
    assert code == USAGE
    assert "reward.judge.colocated.reserve_mb: a pass needs" in text
    needed_mb = int(text.split("it fits with ")[1].split()[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f'reserve_mb = {needed_mb}\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n'
        code, text = calling(COLOCATED + listen, "check", "job.toml")
        assert (code, "Address already in use: choose another address" in text) == (USAGE, True), text
    code, text = calling(COLOCATED + listen, "check", "job.toml")
    assert code == OK, text
