"""Runs whose verifier is broken: each ends with the verifier's text and an exit code of its own, in time, and
nothing is trained on scores that nobody gave."""

from pathlib import Path

import pytest
from real_runs import MakeRun

from actors.training.history import Eval, Step, Verifier
from rlctl.errors import UNSCORED

pytestmark = [
    pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(1200),
]  # fmt: skip

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


@pytest.mark.parametrize("deed", DEEDS)
def test_a_run_whose_verifier_is_broken_ends_with_its_text(
    deed: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BROKEN))
    monkeypatch.setenv("BROKEN_VERIFIER", deed)
    run = make_run(*TIGHT)
    run.start()
    assert run.ends() == UNSCORED, run.story()
    said = run.output.read_text(errors="replace")
    (error,) = [line for line in said.splitlines() if line.startswith("error: the job failed")]
    assert DEEDS[deed] in error
    assert "no sample was scored: " in said
    records = run.look()
    told = [record for record in records if isinstance(record, Verifier)]
    assert told[-1].sick
    assert DEEDS[deed] in told[-1].why
    assert records[-1].t_s - told[-1].t_s < 60.0, "it was told to wait for 5 s"
    assert not any(isinstance(record, Step | Eval) for record in records)
    assert run.report.verdicts is not None
    assert not run.report.verdicts.scored
    assert run.report.verdicts.failure == told[-1].why.rpartition("): ")[2]
    assert run.left() == []
