"""Two processes die at the same moment: neither finds the other when it comes back."""

import pytest
from conftest import MakeRun

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(420)]

PAIRS = [
    (("rollout", ""), ("trainer", "")),
    (("engine", ""), ("rollout", "")),
    (("transfer", "reserved-1"), ("trainer", "")),
    (("reward", ""), ("rollout", "")),
]


def test_a_run_ends_whole_when_processes_die_in_pairs(make_run: MakeRun) -> None:
    run = make_run("job.steps=9")
    run.start()
    run.wait(lambda: run.steps(), "the first step")
    for pair in PAIRS:
        run.until_tokens_flow(200)
        victims = [run.one(kind, node) for kind, node in pair]
        step = run.steps()[-1]
        for victim in victims:
            victim.kill()
        run.until_step_after(step, f"after the end of {victims}")
    run.ends_whole()
