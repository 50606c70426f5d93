"""Resume: `rlctl run` is killed in the middle of a step, with its whole run.

`rlctl resume` continues the run.
"""

from collections import Counter

import pytest
from real_runs import SHORT, MakeRun, RealRun

from gleaner.actors.protocol.cluster import StepTrained
from gleaner.chaos.invariants import broken
from gleaner.rlctl.audit.run_files import gather

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

STEPS = 7
FLOWING = 200


def kill_in_the_middle_of_a_step(run: RealRun) -> None:
    run.until_tokens_flow(FLOWING)
    run.kill_rlctl()
    run.wait_until_all_died()
    assert broken(run.run, complete=False) == []


def test_killed_run_resumes_and_does_every_step_once(make_run: MakeRun) -> None:
    run = make_run(f"job.steps={STEPS}", SHORT)
    run.start()
    run.wait(lambda: len(run.steps()) >= 2, "two steps")
    for _ in range(2):
        kill_in_the_middle_of_a_step(run)
        done, collected = len(run.steps()), run.tokens()
        run.resume()
        run.until_step_after(done, "after the resume")
        assert run.tokens() > collected, "the resumed run counts on"
    run.ends_whole()

    assert run.steps() == list(range(1, STEPS + 1))
    trained = gather(run.run.path, run.run.config(), complete=True).trained
    assert all(isinstance(event, StepTrained) for event in trained), "nothing in memory was lost"
    assert Counter(event.step for event in trained) == Counter(range(1, STEPS + 1))
    assert run.report.resumes == 2
    assert run.report.reward.first is not None
    assert run.report.reward.last is not None


@pytest.mark.long
def test_run_resumes_from_checkpoint_when_host_lost_memory(make_run: MakeRun) -> None:
    run = make_run("job.steps=4")
    run.start()
    run.wait(lambda: len(run.steps()) >= 2, "two steps")
    kill_in_the_middle_of_a_step(run)
    run.forget_memory()
    run.resume()
    run.ends_whole()
    assert run.steps() == [1, 2, 3, 4]
