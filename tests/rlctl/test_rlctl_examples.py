"""The examples of the documentation: their reference solutions score 1."""

import json
from pathlib import Path
from typing import Any

import pytest

from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, USAGE

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where a run's folder would be made


def solved(capsys: pytest.CaptureFixture[str], job: Path) -> tuple[int, dict[str, Any]]:
    try:
        detect("auto")
    except NoSandbox as problem:
        pytest.skip(str(problem))
    code = main(["check", str(job), "--solutions", "--json"])
    return code, {task["task"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}


def test_every_solution_of_the_mixed_example_scores_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, tasks = solved(capsys, EXAMPLES / "mixed" / "job.toml")
    assert code == OK, tasks
    assert {name: task["solutions"] for name, task in tasks.items()} == {"math": 5, "code": 4, "brief": 4}


def test_wrong_test_of_an_example_is_found_with_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for file in (EXAMPLES / "mixed").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_text(file.read_text().replace('"output": "9"', '"output": "8"'))
    code, tasks = solved(capsys, tmp_path / "job.toml")
    assert code == USAGE
    (finding,) = tasks["code"]["findings"]
    assert finding["place"].endswith("code.jsonl: line 4")
    assert finding["text"] == "its reference solution scores 0: test 1 of 1: another output: '9\\n'"
