"""Runs with a broken verifier: each ends in time, with the verifier's text.

The exit code is a separate one, and nothing is trained on scores that no verifier gave.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import MakeRun, RealRun

from gleaner.actors.training.history import Eval, Step, Verifier
from gleaner.rlctl.errors import UNSCORED

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(1200)]

BROKEN = Path(__file__).with_name("broken_verifiers")
TIGHT = (
    "task.heldout_problems=8", "rollout.prompts=4", "rollout.max_new_tokens=16", "reward.deadline_s=0.5",
    "reward.function.deadline_s=0.5", "reward.sick_s=5", "fleet.n_prem_max=0", "fleet.trace=",
)  # fmt: skip
DEEDS = {
    "raises": "ValueError: this verifier is broken",
    "nan": "ValueError: the score is nan",
    "hangs": "no answer within 2 s",
    "ends": "exit code 7",
}


@pytest.mark.long
@pytest.mark.parametrize("deed", DEEDS)
def test_run_with_broken_verifier_ends_with_its_text(
    deed: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BROKEN))
    monkeypatch.setenv("BROKEN_VERIFIER", deed)
    run = make_run(*TIGHT)
    run.start()
    assert run.ends() == UNSCORED, run.story()
    output = run.output.read_text(errors="replace")
    (error,) = [line for line in output.splitlines() if line.startswith("error: the job failed")]
    assert DEEDS[deed] in error
    assert "no sample was scored: " in output
    records = run.look()
    reports = [record for record in records if isinstance(record, Verifier)]
    assert reports[-1].sick
    assert DEEDS[deed] in reports[-1].why
    assert records[-1].t_s - reports[-1].t_s < 60.0, "it should wait for 5 s"
    assert not any(isinstance(record, Step | Eval) for record in records)
    assert run.report.verdicts is not None
    assert not run.report.verdicts.scored
    assert run.report.verdicts.failure == reports[-1].why.rpartition("): ")[2]
    assert run.left() == []


OWN = """
[job]
name = "own"
steps = 2

[[task]]
name = "words"
data = "words.jsonl"
heldout_problems = 4

[rollout]
prompts = 4
samples = 2
max_new_tokens = 16

[fleet]
n_prem_max = 0

[reward]
deadline_s = 1.0            # the job waits 12 times as long for a sick verifier: a verdict may take that long
sick_s = 5.0

[reward.function]
call = "own_reward:score"
deadline_s = 0.5
"""
FUNCTIONS = {
    "raises": ("raise ValueError('this function is broken')", "verifier_failed", "this function is broken"),
    "nan": ("return float('nan')", "verifier_failed", "nan"),
    "hangs": ("while True: pass", "timeout", ""),
}
LONG = ("nan", "hangs")


@pytest.fixture
def own(tmp_path: Path, model_dir: Path, request: pytest.FixtureRequest) -> Iterator[RealRun]:
    """A run of problems that are scored by a function with this body."""
    (tmp_path / "own.toml").write_text(OWN)
    rows = [{"prompt": f"spell {word}", "answer": word} for word in ("abc", "bcd", "cde", "def") * 12]
    for number, row in enumerate(rows):
        row["prompt"] += "x" * number
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own_reward.py").write_text(f"def score(response, answer):\n    {request.param}\n")
    run = RealRun(tmp_path, tmp_path / "own.toml", [f"model.path={model_dir}"])
    yield run
    run.close()


@pytest.mark.parametrize(
    ("own", "status", "text"),
    [
        pytest.param(*found, id=name, marks=[pytest.mark.long] if name in LONG else [])
        for name, found in FUNCTIONS.items()
    ],
    indirect=["own"],
)
def test_run_with_broken_function_ends_with_its_text(own: RealRun, status: str, text: str) -> None:
    own.start()
    assert own.ends() == UNSCORED, own.story()
    output = own.output.read_text(errors="replace")
    (error,) = [line for line in output.splitlines() if line.startswith("error: the job failed")]
    assert f"({status} " in error
    assert text in error
    assert f"no sample was scored: {status} " in output
    assert not any(isinstance(record, Step | Eval) for record in own.look())
    assert own.left() == []
