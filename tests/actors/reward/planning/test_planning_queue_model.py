"""The queue model of reward stages, beside a plain one that is slow and easy to read."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.planning.items import Items
from gleaner.actors.reward.planning.queue_model import (
    Limits,
    Order,
    TimeoutCheck,
    most_at_once,
    outcome_of,
    ranks_of,
    satisfies,
)

STAGES = 2
SECONDS = st.integers(0, 12).map(float)  # whole numbers: ties happen, and no rounding


@st.composite
def some_items(draw: st.DrawFn, batches: int = 3, least: int = 1) -> Items:
    count = draw(st.integers(least, 14))
    times = draw(st.lists(st.tuples(SECONDS, SECONDS), min_size=count, max_size=count))
    arrivals = draw(st.lists(SECONDS, min_size=count, max_size=count))
    of_batch = draw(st.lists(st.integers(0, batches - 1), min_size=count, max_size=count))
    return Items(np.array(of_batch), np.array(arrivals), np.array(times).reshape(count, STAGES))


WORKERS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def plain_finish(items: Items, workers: tuple[int, ...], order: Order) -> list[float]:
    """Finish of each item, event by event."""
    ranks, free = ranks_of(items, order), list(workers)
    queues: list[list[tuple[int, int]]] = [[] for _ in workers]
    events = [(at, 1, row, row, 0) for row, at in enumerate(items.arrival_s.tolist())]  # 0 ended, 1 arrived
    by_arrival = {row: number for number, row in enumerate(np.argsort(items.arrival_s, kind="stable"))}
    events = [(at, 2, by_arrival[row], row, 0) for at, _, _, row, _ in events]
    heapq.heapify(events)
    finish = [math.nan] * len(items)
    while events:
        now, kind, _, item, stage = heapq.heappop(events)
        if kind == 0:
            free[stage] += 1
            if queues[stage]:
                _, other = heapq.heappop(queues[stage])
                free[stage] -= 1
                heapq.heappush(events, (now + items.times_s[other, stage], 0, other, other, stage))
            stage += 1
        while stage < len(workers) and items.times_s[item, stage] == 0:
            stage += 1
        if stage == len(workers):
            finish[item] = now
        elif kind == 0:
            heapq.heappush(events, (now, 1, item, item, stage))
        elif free[stage]:
            free[stage] -= 1
            heapq.heappush(events, (now + items.times_s[item, stage], 0, item, item, stage))
        else:
            heapq.heappush(queues[stage], (int(ranks[item]), item))
    return finish


@settings(max_examples=30)
@given(some_items(), WORKERS, st.sampled_from(Order))
def test_queue_model_agrees_with_a_plain_one(items: Items, workers: tuple[int, int], order: Order) -> None:
    assert outcome_of(items, workers, order).finish_s.tolist() == plain_finish(items, workers, order)


@given(some_items(batches=1), WORKERS)
def test_ebf_equals_fcfs_where_there_is_one_batch(items: Items, workers: tuple[int, int]) -> None:
    ebf, fcfs = (outcome_of(items, workers, order).finish_s.tolist() for order in (Order.EBF, Order.FCFS))
    assert ebf == fcfs


@given(some_items(), WORKERS, st.sampled_from(TimeoutCheck), st.integers(0, 8).map(float))
def test_satisfied_limits_hold_in_the_outcome(
    items: Items, workers: tuple[int, int], check: TimeoutCheck, max_delay_s: float
) -> None:
    kept = satisfies(items, workers, Limits(max_delay_s, [12.0, 12.0], check))
    outcome = outcome_of(items, workers)
    within = bool((outcome.delays_s <= max_delay_s).all())
    if check is TimeoutCheck.OFF:
        assert kept is within
    else:
        assert within or not kept


@given(some_items())
def test_nothing_queues_with_the_most_that_run_at_once(items: Items) -> None:
    most = most_at_once(items)
    outcome = outcome_of(items, [max(count, 1) for count in most])
    assert outcome.queued == 0
    assert outcome.finish_s.tolist() == items.unqueued_s().tolist()
    assert not outcome.delays_s.any()


@given(some_items(least=2))
def test_something_queues_with_one_worker_less_than_run_at_once(items: Items) -> None:
    most = most_at_once(items)
    for stage, count in enumerate(most):
        if count > 1:
            fewer = [max(int(each), 1) for each in most]
            fewer[stage] -= 1
            assert outcome_of(items, fewer).queued > 0


def test_stricter_reading_refuses_what_the_letter_lets_queue() -> None:
    # The second item begins to queue at 1 s: with its timeout of 7 s it would be complete at 8 s. It gets the
    # worker at 4 s only.
    items = Items(np.zeros(3, int), np.array([0.0, 1.0, 9.0]), np.array([[4.0], [3.0], [1.0]]))
    assert satisfies(items, [1], Limits(0.0, [7.0], TimeoutCheck.QUEUED))
    assert not satisfies(items, [1], Limits(0.0, [7.0], TimeoutCheck.STARTED))


def test_running_item_holds_its_worker_from_the_beginning() -> None:
    items = Items(np.zeros(2, int), np.array([0.0, 0.0]), np.array([[2.0], [5.0]]), np.array([-1, 0]))
    assert outcome_of(items, [1]).finish_s.tolist() == [7.0, 5.0]


def test_earlier_batch_leaves_first_though_it_arrived_later() -> None:
    # The worker is free at 4 s. The second item waits since 1 s; its batch is complete at 101 s, that of the
    # third at 4 s.
    items = Items(
        np.array([0, 0, 1, 0]), np.array([0.0, 1.0, 2.0, 100.0]), np.array([[4.0], [4.0], [2.0], [1.0]])
    )
    assert outcome_of(items, [1]).begun_s[:, 0].tolist() == [0.0, 6.0, 4.0, 100.0]
    assert outcome_of(items, [1], Order.FCFS).begun_s[:, 0].tolist() == [0.0, 4.0, 8.0, 100.0]


def test_delay_of_each_batch_has_its_own_limit() -> None:
    items = Items(np.array([0, 1]), np.array([0.0, 0.0]), np.array([[4.0], [4.0]]))
    assert satisfies(items, [1], Limits(np.array([0.0, 4.0]), [9.0], TimeoutCheck.OFF))
    assert not satisfies(items, [1], Limits(np.array([4.0, 3.0]), [9.0], TimeoutCheck.OFF))


def test_stage_with_items_and_no_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="stage 1 has items and no worker"):
        outcome_of(Items(np.zeros(1, int), np.zeros(1), np.ones((1, 2))), [1, 0])


@pytest.mark.parametrize(
    ("arrival", "time"), [(math.nan, 1.0), (0.0, math.inf), (0.0, -1.0)], ids=["nan", "endless", "negative"]
)
def test_items_with_impossible_times_are_refused(arrival: float, time: float) -> None:
    with pytest.raises(ValueError, match="times"):
        Items(np.zeros(1, int), np.array([arrival]), np.array([[time]]))


@settings(max_examples=20)
@given(some_items())
def test_items_that_skip_all_stages_end_as_they_arrive(items: Items) -> None:
    skipped = Items(items.batch, items.arrival_s, np.zeros_like(items.times_s))
    assert outcome_of(skipped, [0, 0]).finish_s.tolist() == items.arrival_s.tolist()
