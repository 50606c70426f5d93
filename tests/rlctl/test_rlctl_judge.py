"""`rlctl check` and `rlctl reward try` with a judge."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, UNSCORED, USAGE

sys.path.append(str(Path(__file__).parents[1] / "actors" / "reward" / "verifiers"))
from judge_services import answers, grades
from reward_services import Service, service

JOB = """
[[task]]
name = "sums"
data = "problems.jsonl"
verifier = "judge"

[reward.judge]
url = "URL"
model = "m"
rubric = "rubric.txt"
attempts = 1
"""
Calling = Callable[..., tuple[int, str, str]]


@pytest.fixture
def served() -> Iterator[Service]:
    with service() as found:
        yield found


@pytest.fixture
def calling(
    tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Calling:
    url = served.url.replace("/score", "/v1")
    (tmp_path / "job.toml").write_text(JOB.replace("URL", url))
    (tmp_path / "rewards_beside.py").write_text("def score(response): return 1.0")
    (tmp_path / "rubric.txt").write_text("Right is 10.")
    rows = [json.dumps({"prompt": f"{one}+{one}?", "answer": str(2 * one)}) for one in range(1, 21)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    (tmp_path / "problem.json").write_text('{"prompt": "2+2?", "answer": "4"}')
    (tmp_path / "answer.txt").write_text("It is 4\n")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main([word.replace("URL", url) for word in words])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_trial_shows_text_votes_calls_and_waits(calling: Calling, served: Service) -> None:
    served.answers = [grades(7)]
    code, out, _ = calling("reward", "try", "problem.json", "answer.txt", "--config", "job.toml")
    assert code == OK
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert (lines["score"], lines["parts"]) == ("0.7 (ok)", "judge 7")
    assert lines["detail"].startswith("votes 7; 1 calls, waited 0.00 s")
    assert lines["isolation"].startswith("none")
    assert lines["printed"] == "vote 1: 7, 1 calls, waited 0.00 s"
    assert '"reason": "ok", "score": 7' in out


def test_trial_needs_no_settings(calling: Calling, served: Service) -> None:
    served.answers = [answers("Great!")]
    params = ["url=URL", "model=m", "rubric=rubric.txt", "attempts=2"]
    words = [word for one in params for word in ("--param", one)]
    code, out, _ = calling(
        "reward", "try", "problem.json", "answer.txt", "--verifier", "judge", *words, "--json"
    )
    found = json.loads(out)
    assert (code, found["status"], found["score"]) == (UNSCORED, "verifier_failed", None)
    assert "Great!" in found["printed"]


def test_trial_joins_the_judge_with_the_own_verifier(calling: Calling, served: Service) -> None:
    served.answers = [grades(5)]
    words = ["reward", "try", "problem.json", "answer.txt", "--config", "job.toml", "--json"]
    settings = ["task.verifier=python", "reward.function.call=rewards_beside:score"]
    settings += ["task.judge.weight=0.5", "task.judge.gate=1"]
    beside = [word for one in settings for word in ("--set", one)]
    code, out, _ = calling(*words, *beside)
    found = json.loads(out)
    assert (code, found["score"], found["parts"]) == (OK, 0.75, {"own": 1.0, "judge": 5.0})


def test_check_needs_a_rubric_and_a_key(calling: Calling, tmp_path: Path) -> None:
    assert calling("check", "job.toml")[0] == OK
    code, out, _ = calling("check", "job.toml", "--json", "--set", "reward.judge.key_env=NO_SUCH_KEY")
    assert code == USAGE
    assert "task sums: reward.judge.key_env: the reward worker has no variable NO_SUCH_KEY" in out
    (tmp_path / "rubric.txt").unlink()
    beside = ["--set", "task.verifier=math", "--set", "task.judge.weight=0.5"]
    for sets in ([], beside):
        code, out, _ = calling("check", "job.toml", "--json", *sets)
        (problem,) = json.loads(out)["settings"]
        assert code == USAGE
        assert problem.startswith("task sums: reward.judge.rubric: ")
        assert problem.endswith("rubric.txt: No such file or directory: name a text file")


def test_check_refuses_a_judge_without_a_model(calling: Calling) -> None:
    code, _, err = calling("check", "job.toml", "--set", "reward.judge.model=")
    assert code == USAGE
    assert "job.toml: reward.judge.model: is empty: set it to the model's name" in err
    code, _, err = calling("check", "job.toml", "--set", "task.params.votes=99")
    assert code == USAGE
    assert err.count("task sums: reward.judge: Expected `int` <= 15") == 1


def test_check_leaves_reference_solutions_to_other_verifiers(calling: Calling, served: Service) -> None:
    assert calling("check", "job.toml", "--solutions")[0] == OK
    assert not served.calls
