"""The figures of the modelled workload: its shape, and orders of two batches."""

import numpy as np

from bench.reward.planning import TWO
from bench.reward.workload_figures import orders, shape, shapes
from gleaner.sim.rewards.workload import Batch


def test_shape_counts_what_the_batch_has() -> None:
    times_s = np.array([[50.0, 3.0], [50.0, 0.0], [50.0, 60.0]])
    found = shape(Batch(0.0, np.array([1.0, 2.0, 31.0]), times_s))
    assert found["T, s"] == 141.0
    assert found["arrivals in 10 s at the peak"] == 2.0
    assert found["time without arrivals, %"] == 100.0 * 13 / 15
    assert found["critical item runs into its timeout, %"] == 100.0
    assert round(found["items that reach the GPU, %"]) == 67


def test_workload_has_the_shape_of_the_paper() -> None:
    found = shapes([1, 2])
    assert min(found["T, s"].values) > 600.0
    assert min(found["arrivals in 10 s at the peak"].values) > 180.0
    assert all(40.0 < share < 60.0 for share in found["time without arrivals, %"].values)


def test_order_of_arrival_needs_more_gpus_than_the_order_of_batches() -> None:
    ebf, fcfs, ratio = orders([1], TWO)
    assert ratio.values == [fcfs.values[0] / ebf.values[0]]
    assert ratio.values[0] > 1.0
