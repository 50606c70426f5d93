"""The figures of reward planning: the plain planner plans as ours, and the section has every figure."""

import numpy as np
import pytest

from bench.reward.plain_planner import plain_plan
from bench.reward.planning import MAX_DELAY_S, Sample, cells, fewest, to_plan, two_batches
from gleaner.actors.reward.planning.queue_model import Order
from gleaner.actors.reward.planning.search import limits_of, plan
from gleaner.sim.rewards.workload import CUDA_STAGES, CudaLaw


@pytest.mark.long
def test_plain_planner_plans_as_ours() -> None:
    for seed in (1, 2):
        items = to_plan(160, seed)
        ours = plan(items, CUDA_STAGES, [160, 160], limits_of(CUDA_STAGES, MAX_DELAY_S))
        assert plain_plan(items, CUDA_STAGES, [160, 160], MAX_DELAY_S) == ours.workers
        assert len(np.unique(items.batch)) == 8


@pytest.mark.long
def test_base_policy_saves_nothing_beside_itself() -> None:
    found = cells(1, 2, CudaLaw(items=64), [1], ("zero-queue-dedicated", "distrs"))
    assert found["zero-queue-dedicated"].gpu.values == [1.0]
    assert found["distrs"].gpu.values[0] > 1.0


def test_earliest_batch_first_needs_fewer_gpus_than_arrival_order() -> None:
    ebf, fcfs = fewest(1, Order.EBF), fewest(1, Order.FCFS)
    assert ebf < fcfs
    assert two_batches(1, ebf, Order.EBF) <= MAX_DELAY_S < two_batches(1, ebf - 1, Order.EBF)


def test_sample_shows_an_interval_only_for_several_seeds() -> None:
    assert str(Sample([2.0])) == "2.00"
    assert str(Sample([1.0, 3.0])) == "2.00 ± 1.96"
