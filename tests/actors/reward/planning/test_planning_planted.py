"""Laws of planning and of shares are awake: each planted bug fails a test that states the law it breaks.

Each starts an interpreter of its own, so they are for the night.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gleaner.chaos.mutate import Edit

HERE = Path(__file__).parent
PYTEST = ("-p", "no:cacheprovider", "--no-header")
PLANTER = """
import sys
from gleaner.chaos.mutate import Edit, plant
plant([Edit(*sys.argv[1:4])])
import pytest
sys.exit(pytest.main(sys.argv[4:]))
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and the test that must fail with it."""

    name: str
    edit: Edit
    test: str


PLANTED = (
    Planted(
        "EBF key ignored in the queue",
        Edit(
            "gleaner.actors.reward.planning.queues",
            "estimate_s = complete_s.get(name, last)",
            "estimate_s = last",
        ),
        "test_planning_queues.py::test_estimate_that_moves_changes_the_next_pick",
    ),
    Planted(
        "EBF key ignored in the queue model",
        Edit(
            "gleaner.actors.reward.planning.queue_model",
            "items.earliest_s()[items.batch] if len(items) else items.arrival_s)",
            "items.arrival_s)",
        ),
        "test_planning_queue_model.py::test_earlier_batch_leaves_first_though_it_arrived_later",
    ),
    Planted(
        "timeout check dropped",
        Edit(
            "gleaner.actors.reward.planning.queue_model",
            "        _CHECKS[limits.check],\n",
            "        0,\n",
        ),
        "test_planning_search.py::TestFigure9::test_timeout_check_foresees_three_workers",
    ),
    Planted(
        "share of a job ignored",
        Edit("gleaner.actors.reward.assignment.jobs", "if lowest < workers * ahead / weights", "if False"),
        "../assignment/test_reward_jobs.py::test_busy_workers_are_shared_by_weight_as_they_get_free",
    ),
    Planted(
        "sick job goes on",
        Edit(
            "gleaner.actors.reward.settlement",
            "            if verdict.status == LOST:\n                self._lost(",
            "            if False:\n                self._lost(",
        ),
        "../assignment/test_reward_jobs.py::test_job_that_ends_workers_is_stopped_and_the_other_goes_on",
    ),
)


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bug_fails_the_test_of_its_law(planted: Planted) -> None:
    edit = planted.edit
    test = f"{HERE}/{planted.test}"
    done = subprocess.run(
        [sys.executable, "-c", PLANTER, edit.module, edit.old, edit.new, *PYTEST, test],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert re.search(r"^E +(AssertionError: )?assert", done.stdout, re.MULTILINE)  # and no other error
