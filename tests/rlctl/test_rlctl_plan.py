"""`rlctl plan --rewards`: numbers of reward workers under each policy."""

import json
from pathlib import Path

import pytest

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import OK, USAGE
from gleaner.rlctl.reward_plan import POLICIES
from gleaner.rlctl.reward_trace import write_trace
from gleaner.sim.rewards.workload import CudaLaw, cuda_workload


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    write_trace(cuda_workload(2, 3, CudaLaw(items=60), seed=2), file)
    return file


def test_every_policy_has_a_row_the_cheapest_first(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rewards", str(trace), "--stage", "compile:1:120", "--stage", "run:10:60"]) == OK
    out = capsys.readouterr().out
    assert "360 items, 2 jobs" in out
    rows = [line.split() for line in out.splitlines() if line.split()[0] in POLICIES]
    assert {row[0] for row in rows} == set(POLICIES)
    costs = [float(row[1]) for row in rows]
    assert costs == sorted(costs)
    for name, words in POLICIES.items():
        assert f"{name}: {words}" in out


def test_json_has_what_the_table_has(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--rewards", str(trace), "--policy", "distrs", "--policy", "zero-queue", "--json"]
    assert main([*command, "--stage", "run:10:60"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert (found["items"], found["jobs"], found["max_delay_s"]) == (360, 2, 5.0)
    distrs, zero = found["policies"]
    assert [distrs["policy"], zero["policy"]] == ["distrs", "zero-queue"]
    hours = {use["stage"]: use["worker_hours"] for use in distrs["stages"]}
    assert distrs["cost"] == pytest.approx(hours["compile"] + 10 * hours["run"])
    assert distrs["cost"] < zero["cost"]
    assert distrs["batches"] == 4
    assert distrs["plans"] >= 8  # as each batch begins and ends


def test_plans_that_need_more_workers_than_allowed_are_shown(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--rewards", str(trace), "--policy", "distrs"]
    assert main([*command, "--max-workers", "2"]) == OK
    assert "plans need more workers than --max-workers" in capsys.readouterr().out
    assert main(command) == OK
    assert "more workers" not in capsys.readouterr().out


def test_modelled_workload_can_be_written_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cuda.csv"
    command = [
        "plan",
        "--rewards",
        "cuda",
        "--jobs",
        "1",
        "--batches",
        "2",
        "--policy",
        "zero-queue",
        "--json",
    ]
    assert main([*command, "--write-trace", str(file)]) == OK
    written = json.loads(capsys.readouterr().out)
    assert main(["plan", "--rewards", str(file), "--policy", "zero-queue", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["items"] == written["items"] == 2 * 2048


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--policy", "best"], "--policy best: there are distrs"),
        (["--stage", "run"], "--stage run: expected NAME:COST:TIMEOUT"),
        (["--stage", "run:x:1"], "could not convert"),
        (["--stage", "run:0:1"], "stage run: cost: expected more than 0"),
        (["--stage", "judge:1:1"], "no column for stage judge"),
        (["--max-delay", "-1"], "--max-delay: expected seconds from 0"),
        (["--max-delay", "nan"], "--max-delay: expected seconds from 0"),
        (["--max-workers", "-1"], "--max-workers: expected a number from 1"),
        (["--write-trace", "/nowhere/at/all.csv"], "/nowhere/at/all.csv: No such file"),
    ],
)
def test_bad_option_is_refused_by_name(
    words: list[str], error: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--rewards", str(trace), *words]) == USAGE
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["cuda", "--stage", "run:1:1"], "--stage: cuda has its own stages"),
        (["cuda", "--batches", "1"], "expected 1 job and 2 batches"),
        (["cuda", "--runaways", "2"], "--runaways: expected a share"),
        (["no-such.csv"], "no-such.csv: No such file"),
    ],
)
def test_bad_workload_is_refused(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rewards", *words]) == USAGE
    assert error in capsys.readouterr().err


def test_trace_of_one_batch_has_no_history_and_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("job,batch,arrival_s,run\na,0,0,5\n")
    assert main(["plan", "--rewards", str(file)]) == USAGE
    assert "no job has two batches" in capsys.readouterr().err
