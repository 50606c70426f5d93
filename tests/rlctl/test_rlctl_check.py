"""`rlctl check`, and the problem numbers that `rlctl run` puts into settings."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.verdicts import LOST, Judgement
from gleaner.actors.reward.verifiers import registry
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, USAGE
from gleaner.rlctl.problem_counts import MOST_HELDOUT, counted
from tests.actors.reward.plain_prompts import checkpoint


class Adds:
    """A verifier of sums."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        return [
            Judgement(0.0, LOST, "it is gone")
            if output == "gone"
            else Judgement(float(output == entry.answer))
            for entry, output in items
        ]

    def check(self, entry: Entry) -> str:
        return "" if isinstance(entry.answer, str) else "answer: expected a text"


@pytest.fixture(autouse=True)
def adds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where a run's folder would be made
    monkeypatch.setitem(registry.VERIFIERS, "adds", lambda _: Adds())


def row(number: int, **more: object) -> dict[str, object]:
    return {"prompt": f"What is {number} + 1?", "answer": str(number + 1), **more}


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: Sequence[object], settings: str = "") -> Path:
        lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
        (tmp_path / "sums.jsonl").write_text("\n".join(lines))
        file = tmp_path / "job.toml"
        file.write_text(f"[[task]]\nname = 'sums'\ndata = 'sums.jsonl'\nverifier = 'adds'\n{settings}")
        return file

    return write


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_valid_data_passes(job: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, output = checked(capsys, str(job([row(n) for n in range(50)])))
    assert (code, output["settings"]) == (OK, [])
    (task,) = output["tasks"]
    assert (task["rows"], task["train"], task["heldout"], task["found"]) == (50, 45, 5, 0)


def test_every_bad_row_is_listed_with_its_line(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(0), "", {"text": 3}, "{oops", row(1, answer=7), {"prompt": [{"role": "x", "content": "y"}]}]
    code, output = checked(capsys, str(job(rows)))
    assert code == USAGE
    found = {one["place"].rpartition(" ")[2]: one["text"] for one in output["tasks"][0]["findings"]}
    assert found.keys() == {"3", "4", "5", "6"}
    assert "it has no prompt" in found["3"]
    assert "no JSON" in found["4"]
    assert found["5"] == "answer: expected a text"
    assert "role: expected one of" in found["6"]


def test_long_prompts_are_found_with_a_tokenizer(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = checkpoint(tmp_path)
    rows = [row(n) for n in range(20)] + [{"prompt": "What is 1 ? " * 400, "answer": "1"}]
    code, output = checked(capsys, str(job(rows)), "--model", str(model))
    assert code == USAGE
    (finding,) = output["tasks"][0]["findings"]
    assert finding["place"].endswith("line 21")
    assert "engine.max_prompt_tokens is" in finding["text"]
    assert output["tasks"][0]["longest_tokens"] > 400


def test_failing_reference_solutions_are_found(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(n) for n in range(20)]
    rows[3] = row(3, info={"solution": "4"})
    rows[4] = row(4, info={"solution": "9"})
    rows[5] = row(5, info={"solution": "gone"})
    code, output = checked(capsys, str(job(rows)), "--solutions")
    assert code == USAGE
    assert output["tasks"][0]["solutions"] == 3
    texts = [one["text"] for one in output["tasks"][0]["findings"]]
    assert texts == [
        "its reference solution scores 0",
        "its reference solution was not scored: lost: it is gone",
    ]


def test_reference_program_needs_no_fence_and_names_failing_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = [{"call": "f", "args": [n], "expected": 2 * n} for n in range(3)]
    programs = ["def f(n):\n    return 2 * n", "def f(n):\n    return n * n"] * 5
    rows = [{"prompt": f"{n}?", "tests": tests, "solution": one} for n, one in enumerate(programs)]
    rows = [{**one, "info": {"solution": one.pop("solution")}} for one in rows]
    (tmp_path / "code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "job.toml").write_text("[[task]]\nname = 'c'\ndata = 'code.jsonl'\nverifier = 'code'\n")
    _, output = checked(capsys, str(tmp_path / "job.toml"), "--solutions")
    texts = [one["text"] for one in output["tasks"][0]["findings"]]
    assert texts == ["its reference solution scores 0: test 2 of 3: another value: '1'"] * 5


def test_sample_of_reference_solutions_is_spread_over_the_file(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(n, reference=str(n + 1) if n % 5 else "none") for n in range(20)]
    file = str(job(rows))
    code, output = checked(capsys, file, "--verify-reference", "--sample", "4")
    (task,) = output["tasks"]
    assert (code, task["solutions"], task["found"]) == (USAGE, 4, 4)
    lines = [one["place"].rpartition(" ")[2] for one in task["findings"]]
    assert lines == ["1", "6", "11", "16"]
    _, output = checked(capsys, file, "--verify-reference", "--sample", "99")
    assert output["tasks"][0]["solutions"] == 20
    assert main(["check", file, "--sample", "4"]) == USAGE
    assert main(["check", file, "--verify-reference", "--sample", "0"]) == USAGE


def test_reference_with_the_score_of_a_failure_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = [{"input": "1", "output": "1"}]
    rows = [{"prompt": f"{n}?", "tests": tests, "solution": "raise SystemExit(3)"} for n in range(9)]
    (tmp_path / "code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = "[[task]]\nname = 'c'\ndata = 'code.jsonl'\nverifier = 'code'\n[reward.scores]\ncrashed = 1.0"
    (tmp_path / "job.toml").write_text(settings)
    words = (str(tmp_path / "job.toml"), "--verify-reference", "--sample", "1")
    code, output = checked(capsys, *words)
    (finding,) = output["tasks"][0]["findings"]
    assert (code, output["tasks"][0]["solutions"]) == (USAGE, 1)
    assert finding["text"].startswith("its reference solution scores 1 (crashed): test 1 of 1: it raised")


def test_missing_compiler_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = [{"input": "", "output": "1"}]
    rows = [{"prompt": f"{n}?", "tests": tests, "reference": "1"} for n in range(9)]
    (tmp_path / "code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "job.toml").write_text(
        "[[task]]\nname = 'tiny'\ndata = 'code.jsonl'\nverifier = 'code'\n[reward]\ndeadline_s = 12\n"
        "[task.params]\nlanguage = 'tiny'\nsource = 'a.tiny'\ncompile = ['no-such-cc', '{output}']\n"
    )
    code, output = checked(capsys, str(tmp_path / "job.toml"), "--verify-reference")
    assert code == USAGE
    words = "no-such-cc is not installed here; install it, or name another command"
    assert output["settings"] == [f"task tiny: verifier code: {words}"]
    assert (output["tasks"][0]["solutions"], output["tasks"][0]["found"]) == (0, 0)


def test_held_out_prompts_that_are_trained_on_are_found(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps(row(3)) + "\n" + json.dumps(row(99)))
    code, output = checked(capsys, str(job([row(n) for n in range(9)], "heldout_data = 'held.jsonl'")))
    assert code == USAGE
    assert [one["text"] for one in output["tasks"][0]["findings"]] == [
        "held out and trained on: 'What is 3 + 1?'"
    ]


def test_table_names_the_rows(job: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(job([row(0), {"text": 3}]))]) == USAGE
    output = capsys.readouterr().out
    assert "sums.jsonl: line 2: it has no prompt" in output
    assert "trained on" in output


def test_problem_numbers_are_those_of_the_data(job: Callable[..., Path]) -> None:
    file = job([row(n) for n in range(200)])
    found = counted(load(file)).task[0]
    assert (found.train_problems, found.heldout_problems) == (180, 20)
    assert counted(counted(load(file))) == counted(load(file)), "a resume has the same"
    few = counted(load(file, ["task.train_problems=30", "task.heldout_problems=4"])).task[0]
    assert (few.train_problems, few.heldout_problems) == (30, 4)
    assert MOST_HELDOUT >= 20
    assert counted(Config()) == Config()


@pytest.mark.parametrize(
    ("setting", "output"),
    [
        ("task.train_problems=181", "train_problems: expected at most 180"),
        ("task.heldout_problems=21", "heldout_problems: expected at most 20"),
    ],
)
def test_more_problems_than_available_are_refused(
    job: Callable[..., Path], setting: str, output: str
) -> None:
    with pytest.raises(BadTask, match=output):
        counted(load(job([row(n) for n in range(200)]), [setting]))


def test_run_with_a_bad_row_ends_before_it_starts(
    job: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = job([row(n) for n in range(30)] + ["{oops"])
    assert main(["run", str(file), "--runs-dir", str(tmp_path / "runs")]) == USAGE
    assert "sums.jsonl: line 31: no JSON" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*"))
