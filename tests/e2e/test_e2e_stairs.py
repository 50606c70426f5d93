"""Stairs on real processes: the trainer's gang trains while half of the engine's threads roll out."""

import pytest
from real_runs import MakeRun

from gleaner.actors.training.records import Step

pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.realprocess, pytest.mark.timeout(600)]


def test_gang_trains_while_half_of_the_engine_rolls_out(make_run: MakeRun) -> None:
    run = make_run(
        "job.steps=3",
        "seeding.stairs=paper",
        "training.backend=fsdp2",
        "training.processes=2",
        "training.micro_batch_groups=1",
        "engine.threads=2",
        "fleet.n_prem_max=0",
        "fleet.trace=",
        "fleet.await_instance=false",
    )
    run.start()
    run.ends_whole()
    assert run.steps() == [1, 2, 3]
    taken = [one for one in run.records if isinstance(one, Step) and one.stair_s is not None]
    assert taken, "no stair was taken: this shows nothing"
    for step in taken:
        assert 0 < step.half_s <= step.training_s
