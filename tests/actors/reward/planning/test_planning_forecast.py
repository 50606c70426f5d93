"""Algorithm 2: what is foreseen of an active batch."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.planning.forecast import BatchHistory, OpenBatch, forecast, unknown
from gleaner.actors.reward.planning.items import Stage

STAGES = [Stage("compile", 1.0, 100.0), Stage("run", 10.0, 40.0)]
HISTORY = BatchHistory(np.array([0.0, 10.0, 20.0, 30.0]), np.array([[5.0, 1], [6, 2], [7, 0], [8, 30]]))


def seen(**changes: object) -> OpenBatch:
    usual: dict[str, object] = {
        "origin_s": 100.0, "expected": 4, "arrived": 0, "queued": [0, 0], "running_s": [[], []]
    }  # fmt: skip
    return OpenBatch(**(usual | changes))  # type: ignore[arg-type]


def test_batch_that_has_not_begun_is_its_history() -> None:
    items = forecast(seen(), HISTORY, STAGES, 90.0, random.Random(1))
    assert items.arrival_s.tolist() == [100.0, 110.0, 120.0, 130.0]
    assert items.times_s.tolist() == HISTORY.times_s.tolist()


def test_late_arrivals_move_and_are_not_dropped() -> None:
    items = forecast(seen(), HISTORY, STAGES, 125.0, random.Random(1))
    assert items.arrival_s.tolist() == [125.0, 125.0, 125.0, 130.0]


def test_items_that_have_arrived_are_owed_no_more() -> None:
    items = forecast(seen(arrived=3), HISTORY, STAGES, 121.0, random.Random(1))
    assert items.arrival_s.tolist() == [130.0]
    assert items.times_s.tolist() == [[8.0, 30.0]]


def test_larger_batch_stretches_its_history() -> None:
    items = forecast(seen(expected=8), HISTORY, STAGES, 0.0, random.Random(1))
    assert items.arrival_s.tolist() == [100.0, 100, 110, 110, 120, 120, 130, 130]


@given(st.integers(0, 9), st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_every_open_item_is_foreseen_once(
    arrived: int, queued: int, running: int, rng: random.Random
) -> None:
    batch = seen(expected=9, arrived=arrived, queued=[queued, 1], running_s=[[2.0] * running, [99.0]])
    items = forecast(batch, HISTORY, STAGES, 105.0, rng)
    assert len(items) == (9 - arrived) + queued + 1 + running + 1
    assert (items.on_worker == 0).sum() == running
    assert (items.on_worker == 1).sum() == 1
    assert (items.arrival_s >= 105.0).all()
    assert not items.times_s[items.on_worker == 1, 0].any()


def test_running_item_has_what_is_left_of_a_longer_one() -> None:
    items = forecast(seen(arrived=4, running_s=[[7.5], []]), HISTORY, STAGES, 130.0, random.Random(1))
    assert items.times_s.tolist() == [[0.5, 30.0]]  # of the one that took 8 s


def test_running_item_beyond_all_history_runs_to_its_timeout() -> None:
    items = forecast(seen(arrived=4, running_s=[[], [31.0]]), HISTORY, STAGES, 130.0, random.Random(1))
    assert items.times_s.tolist() == [[0.0, 9.0]]


def test_queued_item_has_times_from_its_stage_on() -> None:
    items = forecast(seen(arrived=4, queued=[0, 3]), HISTORY, STAGES, 130.0, random.Random(1))
    assert not items.times_s[:, 0].any()
    assert set(items.times_s[:, 1].tolist()) <= {1.0, 2.0, 30.0}  # of those that reached the stage


def test_equal_seeds_foresee_equal_items() -> None:
    batch = seen(arrived=2, queued=[3, 2], running_s=[[1.0, 2.0], [3.0]])
    one, other = (forecast(batch, HISTORY, STAGES, 130.0, random.Random(7)) for _ in range(2))
    assert one.times_s.tolist() == other.times_s.tolist()


def test_unknown_batch_arrives_at_once() -> None:
    guessed = unknown(3, STAGES)
    assert guessed.arrivals_s.tolist() == [0.0, 0.0, 0.0]
    assert guessed.times_s.tolist() == [[25.0, 10.0]] * 3


def test_empty_history_is_refused() -> None:
    with pytest.raises(ValueError, match="one item at least"):
        BatchHistory(np.empty(0), np.empty((0, 2)))
