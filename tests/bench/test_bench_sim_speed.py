"""The cost of a simulated instance does not grow with the cluster.

The test counts callbacks: seconds would measure the machine.
"""

from pathlib import Path

import pytest

from bench.sim_speed import Speed, measure, rlboost
from bench.sim_speed_figure import NAME, Point, write

GROWS_BY = 1.2
MOST_PER_S = 350
"""The most callbacks a second of eight instances and their surroundings.

It was 253, and it was 1,364 while every process sent heartbeats whether or not it sent other messages.
"""


def cluster_of(instances: int) -> Speed:
    """A part of RLBoost's first step: every instance has its weights, and decodes."""
    return measure("growth", rlboost(instances, boot_s=1.0), instances, from_s=100.0, window_s=20.0)


@pytest.mark.long
def test_instance_costs_no_more_callbacks_in_larger_cluster() -> None:
    small, large = cluster_of(8), cluster_of(32)
    assert large.turns > 1.5 * small.turns, "there are four times as many instances, and they do something"
    assert small.turns <= MOST_PER_S * small.virtual_s
    assert large.instance_turns <= GROWS_BY * small.instance_turns


def test_speed_curve_is_drawn(tmp_path: Path) -> None:
    file = write([Point(8, 300.0, 0.4, 50.0), Point(32, 70.0, 0.5, 51.0)], 300.0, 8, tmp_path)
    assert file == tmp_path / NAME
    assert file.stat().st_size > 1000
