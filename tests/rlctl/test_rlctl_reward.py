"""`rlctl reward try`: the score of one response with its reasons.

The exit code shows the cause of a missing score.
"""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.actors.reward.verifiers import http_rewards
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, UNSCORED, USAGE

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_reward"
FUNCTION = """
def score(response, answer):
    if response == "raises":
        raise ValueError("no")
    if response == "reads":
        return len(open("/etc/passwd").read())
    if response == "hangs":
        while True:
            pass
    print("\\x1b[31mseen\\x1b[0m")
    return {"score": float(answer in response), "length": len(response)}
"""
JOB = """
[[task]]
name = "sums"
data = "problems.jsonl"

[reward.function]
call = "{module}:score"
deadline_s = 0.5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rewards_tried.py").write_text(FUNCTION)
    (tmp_path / "job.toml").write_text(JOB.replace("{module}", "rewards_tried"))
    rows = [json.dumps({"prompt": f"{one}+{one}?", "answer": str(2 * one)}) for one in range(1, 21)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    (tmp_path / "problem.json").write_text('{"prompt": "2+2?", "answer": "4"}')
    (tmp_path / "answer.txt").write_text("It is 4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


Trying = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trying(folder: Path, capsys: pytest.CaptureFixture[str]) -> Trying:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["reward", "try", *words])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_response_is_shown_with_score_parts_times_isolation(trying: Trying) -> None:
    code, out, _ = trying("problem.json", "answer.txt", "--config", "job.toml")
    assert code == OK
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert lines["score"] == "1 (ok)"
    assert lines["parts"] == "length 7", "a last line break is left out"
    assert lines["verifier"] == "python, task sums"
    assert lines["isolation"] in ("namespaces", "landlock")
    assert lines["times"].startswith("start ")
    assert lines["problem"] == "2+2?"
    assert lines["printed"] == "\\x1b[31mseen\\x1b[0m", "none of it controls the terminal"


def test_json_has_every_field(trying: Trying) -> None:
    code, out, _ = trying("problem.json", "answer.txt", "--config", "job.toml", "--json")
    found = json.loads(out)
    assert code == OK
    assert (found["score"], found["status"], found["parts"]) == (1.0, "ok", {"length": 7.0})
    assert found["start_s"] > 0
    assert found["cpu_s"] > 0


@pytest.mark.parametrize(
    ("response", "code", "status", "words"),
    [
        ("wrong", OK, "ok", ""),
        ("hangs", OK, "timeout", "processor time"),
        ("raises", UNSCORED, "verifier_failed", "ValueError: no (rewards_tried.py:4)"),
        ("reads", UNSCORED, "verifier_failed", "/etc/passwd"),
    ],
)
def test_exit_code_shows_whether_there_is_a_score(
    trying: Trying, folder: Path, response: str, code: int, status: str, words: str
) -> None:
    (folder / "answer.txt").write_text(response)
    ended, out, _ = trying("problem.json", "answer.txt", "--config", "job.toml", "--json")
    found = json.loads(out)
    assert (ended, found["status"]) == (code, status)
    assert found["score"] == (0.0 if code == OK else None)
    assert words in found["detail"]
    assert ("/etc/passwd" in " ".join(found["refused"])) is (response == "reads")


def test_standard_input_is_the_response_to_a_problem(trying: Trying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"any")))
    code, out, _ = trying("-", "--config", "job.toml", "--index", "0", "--split", "heldout", "--json")
    assert code == OK
    assert json.loads(out)["task"] == "sums"


def test_verifier_runs_without_settings(trying: Trying, folder: Path) -> None:
    words = ["problem.json", "answer.txt", "--verifier", "python", "--param", "call=rewards_tried:score"]
    assert trying(*words)[0] == OK
    code, out, _ = trying("answer.txt", "--config", "quickstart", "--index", "0", "--json")
    found = json.loads(out)
    assert (code, found["verifier"], found["read"]) == (OK, "reasoning-gym", "It is 4")


def test_executed_program_is_shown(trying: Trying, folder: Path) -> None:
    tests = [{"input": "3\n", "output": "6"}, {"input": "4\n", "output": "9"}]
    (folder / "problem.json").write_text(json.dumps({"prompt": "double it", "tests": tests}))
    (folder / "answer.txt").write_text("Here:\n```python\nprint(2 * int(input()))\n```\nDone.")
    code, out, _ = trying(
        "problem.json", "answer.txt", "--verifier", "code", "--param", "score=share", "--json"
    )
    found = json.loads(out)
    assert (code, found["score"], found["parts"]) == (OK, 0.5, {"passed": 1.0, "tests": 2.0})
    assert found["read"] == "print(2 * int(input()))\n"
    assert "test 2 of 2" in found["detail"]


def test_unavailable_service_gives_no_score(trying: Trying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_rewards, "MAX_TRIES", 1)
    code, out, _ = trying(
        "problem.json", "answer.txt", "--verifier", "http", "--param", "url=http://127.0.0.1:9/x", "--json"
    )
    found = json.loads(out)
    assert (code, found["status"], found["score"]) == (UNSCORED, "unavailable", None)
    assert found["isolation"].startswith("none")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["problem.json", "answer.txt"], "give --config CONFIG or --verifier NAME"),
        (["answer.txt", "--config", "job.toml"], "expected PROBLEM and RESPONSE, got 1 files"),
        (["-", "-", "--config", "job.toml"], "standard input is one text"),
        (["a.json", "answer.txt", "--config", "job.toml"], "a.json: cannot be read"),
        (["answer.txt", "answer.txt", "--config", "job.toml"], "answer.txt: no JSON"),
        (["problem.json", "answer.txt", "--config", "no.toml"], "no.toml: no such file"),
        (["problem.json", "answer.txt", "--config", "job.toml", "--task", "x"], "no task is named 'x'"),
        (["problem.json", "answer.txt", "--verifier", "pyton"], "did you mean python?"),
        (["problem.json", "answer.txt", "--verifier", "python"], "reward.function.call is empty"),
        (["problem.json", "answer.txt", "--verifier", "python", "--param", "x"], "expected NAME=VALUE"),
        (["answer.txt", "--verifier", "python", "--index", "0"], "--index needs --config"),
        (["answer.txt", "--config", "job.toml", "--index", "-1"], "indices begin at 0"),
        (
            ["problem.json", "answer.txt", "--config", "job.toml", "--param", "call=nothing_here:score"],
            "No module named 'nothing_here'",
        ),
    ],
)
def test_invalid_try_is_refused_with_the_reason(trying: Trying, words: list[str], why: str) -> None:
    code, out, err = trying(*words)
    assert (code, out) == (USAGE, "")
    assert why in err


def test_non_text_response_is_refused(trying: Trying, folder: Path) -> None:
    (folder / "answer.txt").write_bytes(b"\xff\xfe\x00")
    code, _, err = trying("problem.json", "answer.txt", "--config", "job.toml")
    assert code == USAGE
    assert "expected UTF-8 text, got other bytes at offset 0" in err


def test_example_scores_each_of_its_problems(trying: Trying, folder: Path) -> None:
    for line in (EXAMPLE / "problems.jsonl").read_text().splitlines()[:3]:
        (folder / "problem.json").write_text(line)
        (folder / "answer.txt").write_text(f"So it is {json.loads(line)['answer']}")
        code, out, _ = trying("problem.json", "answer.txt", "--config", str(EXAMPLE / "job.toml"), "--json")
        assert (code, json.loads(out)["parts"]["right"]) == (OK, 1.0)


def test_example_settings_pass_their_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(EXAMPLE / "job.toml"), "--solutions", "--json"]) == OK, capsys.readouterr().out


def test_rlctl_check_finds_a_function_that_cannot_be_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "job.toml", "--json"]) == OK
    (folder / "job.toml").write_text(JOB.replace("{module}", "nothing_here"))
    capsys.readouterr()
    for words in (["check", "job.toml", "--json"], ["check", "job.toml", "--json", "--solutions"]):
        assert main(words) == USAGE
        (problem,) = json.loads(capsys.readouterr().out)["settings"]
        assert problem.startswith("task sums: reward.function: nothing_here:score: it cannot be imported")


def test_rlctl_run_refuses_unimportable_function_before_creating_anything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.toml").write_text(JOB.replace("{module}", "nothing_here"))
    assert main(["run", "job.toml"]) == USAGE
    assert "No module named 'nothing_here'" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_rlctl_check_finds_problem_numbers_beyond_the_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.toml").write_text(
        JOB.replace("{module}", "rewards_tried").replace("data =", "heldout_problems = 9\ndata =")
    )
    assert main(["check", "job.toml", "--json"]) == USAGE
    assert "heldout_problems: expected at most 2" in json.loads(capsys.readouterr().out)["settings"][0]


def test_help_imports_nothing_slow(tmp_path: Path) -> None:
    program = """
import sys
from gleaner.rlctl.__main__ import main
try:
    main(["reward", "try", "--help"])
except SystemExit:
    pass
slow = {"msgspec", "rich", "torch", "aiohttp", "numpy", "reasoning_gym", "zmq"} & set(sys.modules)
sys.exit(f"imported: {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rlctl reward try problem.json" in done.stdout
