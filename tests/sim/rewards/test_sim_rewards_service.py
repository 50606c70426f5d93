"""The modelled reward service: what it counts, and what policies cost on one workload."""

import random

import numpy as np
import pytest

from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.planning.policies import (
    Autoscaler,
    Fixed,
    Ideal,
    Planned,
    ScalingPolicy,
    ZeroQueue,
)
from gleaner.actors.reward.planning.queue_model import TimeoutCheck
from gleaner.sim.rewards.service import Account, RewardService
from gleaner.sim.rewards.workload import Batch, CudaLaw, Workload, cuda_workload

MAX_DELAY_S = 5.0
SMALL = cuda_workload(2, 3, CudaLaw(items=200), seed=3)
CAPS = (400, 400)


def planned(check: TimeoutCheck = TimeoutCheck.QUEUED, workload: Workload = SMALL) -> Planned:
    return Planned(workload.stages, CAPS, MAX_DELAY_S, check, random.Random(1))


def every_policy() -> dict[str, ScalingPolicy]:
    calibration = [batches[0].history() for batches in SMALL.jobs.values()]
    return {
        "distrs": planned(),
        "history": planned(TimeoutCheck.OFF),
        "ideal": Ideal(SMALL.stages, CAPS, MAX_DELAY_S, TimeoutCheck.OFF, random.Random(1)),
        "shared": ZeroQueue(SMALL.stages, random.Random(1), dedicated=False),
        "dedicated": ZeroQueue(SMALL.stages, random.Random(1), dedicated=True),
        "peak": Fixed(calibration, peak=True),
        "mean": Fixed(calibration, peak=False),
        "hpa": Autoscaler(CAPS),
        "reactive": Autoscaler(CAPS, by_queue=True),
    }


@pytest.fixture(scope="module")
def accounts() -> dict[str, Account]:
    return {name: RewardService(SMALL, policy).run() for name, policy in every_policy().items()}


def test_every_measured_batch_ends_under_every_policy(accounts: dict[str, Account]) -> None:
    assert {name: len(account.delays_s) for name, account in accounts.items()} == dict.fromkeys(accounts, 4)


def test_workers_are_busy_for_no_longer_than_they_are_allocated(accounts: dict[str, Account]) -> None:
    for name, account in accounts.items():
        for allocated_s, busy_s in zip(account.allocated_s, account.busy_s, strict=True):
            assert 0 < busy_s <= allocated_s + 1e-6, name


@pytest.mark.parametrize("name", every_policy())
def test_all_running_time_is_accounted_for_without_a_skipped_batch(name: str) -> None:
    account = RewardService(SMALL, every_policy()[name], skipped=0).run()
    total_s = sum(batch.times_s.sum(axis=0) for batches in SMALL.jobs.values() for batch in batches)
    assert account.busy_s == pytest.approx(tuple(total_s))


def test_perfect_knowledge_keeps_the_delay(accounts: dict[str, Account]) -> None:
    assert max(accounts["ideal"].delays_s) <= MAX_DELAY_S


def test_plan_costs_less_than_zero_queues_of_each_job(accounts: dict[str, Account]) -> None:
    for stage in range(2):
        assert accounts["distrs"].allocated_s[stage] < accounts["dedicated"].allocated_s[stage]
        assert accounts["shared"].allocated_s[stage] <= accounts["dedicated"].allocated_s[stage]


def test_mean_number_of_workers_delays_batches(accounts: dict[str, Account]) -> None:
    assert np.mean(accounts["mean"].delays_s) > 5 * MAX_DELAY_S


def test_equal_seeds_give_equal_accounts() -> None:
    one, other = (RewardService(SMALL, planned()).run() for _ in range(2))
    assert one == other


def test_delay_moves_the_next_batch_of_its_job() -> None:
    stage = (Stage("run", 1.0, 10.0),)
    batch = Batch(5.0, np.zeros(4), np.full((4, 1), 2.0))
    workload = Workload(stage, {"a": [batch, batch, batch]})
    calibration = [Batch(0.0, np.zeros(1), np.full((1, 1), 2.0)).history()]
    account = RewardService(workload, Fixed(calibration, peak=True)).run()  # one worker for four at a time
    assert account.delays_s == (6.0, 6.0)
    assert account.busy_s == (16.0,)
    assert account.allocated_s == (26.0,)  # twice 5 s of pause and 8 s of work


def test_cuda_workload_has_the_published_shape() -> None:
    workload = cuda_workload(1, 2, CudaLaw(), seed=1)
    batch = workload.jobs["job-1"][1]
    assert len(batch.arrivals_s) == 2048
    assert batch.earliest_s() > 600
    assert np.histogram(batch.arrivals_s, bins=np.arange(0, 700, 10))[0].max() > 180
    assert batch.arrivals_s.min() > 0.4 * batch.arrivals_s.max()  # half of the time nothing arrives
    compiled = batch.times_s[:, 0][batch.times_s[:, 0] > 0]
    assert 45 < np.median(compiled) < 55
    assert np.mean(batch.times_s[:, 1] == 60.0) == pytest.approx(0.02 * 0.72, abs=0.008)


@pytest.mark.parametrize(("jobs", "batches"), [(0, 1), (1, 0)])
def test_workload_without_a_batch_is_refused(jobs: int, batches: int) -> None:
    with pytest.raises(ValueError, match="one job and one batch"):
        cuda_workload(jobs, batches, CudaLaw(), seed=1)


def test_zero_queues_use_no_worker_beyond_what_runs_at_once() -> None:
    batch = Batch(0.0, np.array([0.0, 1.0]), np.full((2, 1), 4.0))
    workload = Workload((Stage("run", 1.0, 10.0),), {"a": [batch, batch], "b": [batch, batch]})
    for dedicated in (False, True):
        account = RewardService(workload, ZeroQueue(workload.stages, random.Random(1), dedicated)).run()
        assert account.most == (4,)
        assert account.busy_s == (16.0,)
        assert account.allocated_s == (20.0,)  # four for the 5 s of the second batches
