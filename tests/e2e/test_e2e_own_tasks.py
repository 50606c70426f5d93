"""A job on a user's own data, verifiers and function, as documented."""

from pathlib import Path

import pytest
from real_runs import RealRun

from gleaner.actors.training.history import Eval
from gleaner.rlctl.errors import OK

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "mixed" / "job.toml"
SMALL = (
    "job.steps=1", "rollout.prompts=8", "rollout.samples=2", "rollout.max_new_tokens=16",
    "fleet.n_prem_max=0", "model.warm_start.steps=0",
)  # fmt: skip


def test_job_trains_on_three_tasks_with_own_verifiers(tmp_path: Path) -> None:
    run = RealRun(tmp_path, EXAMPLE, SMALL)
    try:
        run.start()
        assert run.ends() == OK, run.story()
        assert run.left() == []
    finally:
        run.close()
    evals = [record for record in run.look() if isinstance(record, Eval)]
    assert [list(one.tasks) for one in evals] == [["math", "code", "brief"]] * 2
    assert all(one.tasks["brief"] is not None for one in evals)
    report = run.report
    assert report.verdicts is not None
    assert sum(report.verdicts.counts.values()) == 8 * 2 + 2 * 3
    assert report.verdicts.counts["no_answer"] >= 2, "random weights write no program"
    assert report.verdicts.scored
