"""Two processes that die at the same moment: neither finds the other again.

The job runs one step ahead of its trainer, and a client asks its instances for a single response meanwhile.
"""

import asyncio
from array import array

import pytest
from real_runs import OPEN_ENDED, MakeRun, RealRun

from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.training.history import Step
from gleaner.rlctl.client import connect_to_run

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

PAIRS = [
    (("rollout", ""), ("trainer", "")),
    (("engine", ""), ("rollout", "")),
    (("transfer", "reserved-1"), ("trainer", "")),
    (("reward", ""), ("rollout", "")),
]
AHEAD = ("rollout.staleness=1", "training.importance=truncated")
SINGLE = Generate(
    id="one",
    prompt=array("I", [5, 6, 7]).tobytes(),
    max_new_tokens=24,
    temperature=1.0,
    seed=3,
    min_version=1,
    wait_s=30.0,
    deadline_s=60.0,
)


def generated(run: RealRun) -> Generated:
    """The response of the job's instances to the single request."""

    async def ask() -> Generated:
        async with connect_to_run(run.run) as cluster:
            answer = await cluster.generate(SINGLE)
        assert isinstance(answer, Generated), answer
        return answer

    return asyncio.run(ask())


def test_run_ahead_keeps_promises_when_pairs_die(make_run: MakeRun) -> None:
    run = make_run(OPEN_ENDED, *AHEAD)
    run.start()
    run.wait(lambda: run.steps(), "the first step")
    first = generated(run)
    for pair in PAIRS:
        run.until_tokens_flow(200)
        victims = [run.one(kind, node) for kind, node in pair]
        step = run.steps()[-1]
        for victim in victims:
            victim.kill()
        if pair == PAIRS[0]:
            assert generated(run) == first, "its manager died, and it is the same request"
        run.until_step_after(step, f"after the end of {victims}")
    run.until_step_after(max(run.steps()[-1], 6), "after the last pair")
    run.stops_whole()
    assert first.tokens
    assert first.version_start is not None
    assert first.version_start >= 1
    ages = [record.staleness_max for record in run.look() if isinstance(record, Step)]
    assert ages.count(1) > 4
    assert max(ages) == 1
