"""Algorithm 1: the fewest workers that keep the tolerated delay."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.planning.items import Items, Stage
from gleaner.actors.reward.planning.queue_model import Limits, TimeoutCheck, outcome_of, satisfies
from gleaner.actors.reward.planning.search import limits_of, plan
from tests.actors.reward.planning.test_planning_queue_model import some_items

ONE = [Stage("run", 1.0, 12.0)]
TWO = [Stage("compile", 1.0, 12.0), Stage("run", 10.0, 12.0)]
CHECKS = st.sampled_from(TimeoutCheck)
CAPS = st.integers(1, 5)
EITHER = Items(np.zeros(4, int), np.zeros(4), np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 2.0], [3.0, 3.0]]))
"""Three and one workers do them, or two and two."""
DELAYS = st.integers(0, 8).map(float)


@given(some_items(), CHECKS, DELAYS)
def test_plan_satisfies_its_own_simulation(items: Items, check: TimeoutCheck, max_delay_s: float) -> None:
    limits = limits_of(TWO, max_delay_s, check)
    found = plan(items, TWO, [len(items)] * 2, limits)
    assert found.kept
    assert satisfies(items, found.workers, limits)
    assert outcome_of(items, found.workers).delays_s.max() <= max_delay_s


@given(some_items(), CHECKS, DELAYS)
def test_plan_of_one_stage_equals_the_fewest_of_all_numbers(
    items: Items, check: TimeoutCheck, max_delay_s: float
) -> None:
    one = Items(items.batch, items.arrival_s, items.times_s[:, :1])
    limits = limits_of(ONE, max_delay_s, check)
    fewest = next(count for count in itertools.count() if _able(one, [count], limits))
    assert plan(one, ONE, [len(one)], limits).workers == (fewest,)


@settings(max_examples=60)
@given(some_items(), CHECKS, DELAYS)
def test_plan_gives_the_dearest_stage_its_fewest_first(
    items: Items, check: TimeoutCheck, max_delay_s: float
) -> None:
    limits, cap = limits_of(TWO, max_delay_s, check), len(items)
    found = plan(items, TWO, [cap, cap], limits).workers
    if found[1] > 1:
        assert not _able(items, [cap if items.times_s[:, 0].any() else 0, found[1] - 1], limits)
    if found[0] > 1:
        assert not _able(items, [found[0] - 1, found[1]], limits)


@settings(max_examples=60)
@given(some_items(), CHECKS, DELAYS, st.permutations([1.0, 10.0]), st.tuples(CAPS, CAPS))
@example(EITHER, TimeoutCheck.OFF, 3.0, [1.0, 10.0], (5, 5))
@example(EITHER, TimeoutCheck.OFF, 3.0, [10.0, 1.0], (5, 5))
def test_plan_of_two_stages_equals_the_first_of_all_pairs(
    items: Items, check: TimeoutCheck, max_delay_s: float, costs: list[float], caps: tuple[int, int]
) -> None:
    """The fewest of the dearest stage with the most of the other one, then the fewest of that."""
    stages = [Stage(str(number), cost, 12.0) for number, cost in enumerate(costs)]
    limits = limits_of(stages, max_delay_s, check)
    needed = [bool(items.times_s[:, stage].any()) for stage in range(2)]
    most = [min(cap, len(items)) if needs else 0 for cap, needs in zip(caps, needed, strict=True)]
    pairs = itertools.product(*(range(count + 1) for count in most))
    able = {pair for pair in pairs if _able(items, list(pair), limits)}
    found = plan(items, stages, caps, limits)
    if tuple(most) not in able:
        assert (found.workers, found.kept) == (tuple(most), False)
        return
    dearest = costs.index(max(costs))
    assert found.kept
    assert found.workers[dearest] in _fewest(able, dearest, other=most[1 - dearest])
    assert found.workers[1 - dearest] in _fewest(able, 1 - dearest, other=found.workers[dearest])


def _fewest(able: set[tuple[int, ...]], stage: int, other: int) -> list[int]:
    """The numbers of workers of a stage that pass, while one fewer does not. There is one, unless a further
    worker makes a batch late (it changes the order in which the next stage gets the items): a binary search
    finds any of them then."""
    passing = {pair[stage] for pair in able if pair[1 - stage] == other}
    return [count for count in sorted(passing) if count - 1 not in passing]


def _able(items: Items, workers: list[int], limits: Limits) -> bool:
    short = [not count and items.times_s[:, stage].any() for stage, count in enumerate(workers)]
    return not any(short) and satisfies(items, workers, limits)


class TestFigure9:
    """Five items of one stage, no delay tolerated: history foresees that two workers do (a), a longer item 2
    delays the batch (b), and with regard to timeouts there are three (c)."""

    stages = (Stage("run", 1.0, 8.5),)
    arrivals_s = np.array([0.0, 1.0, 2.0, 4.0, 7.0])
    foreseen = Items(np.zeros(5, int), arrivals_s, np.array([[4.0], [4.0], [3.0], [2.0], [3.0]]))
    real = Items(np.zeros(5, int), arrivals_s, np.array([[4.0], [4.0], [7.0], [2.0], [3.0]]))

    def test_history_alone_foresees_two_workers(self) -> None:
        found = plan(self.foreseen, self.stages, [5], limits_of(self.stages, 0.0, TimeoutCheck.OFF))
        assert found.workers == (2,)

    def test_two_workers_delay_the_batch_with_a_longer_item(self) -> None:
        limits = limits_of(self.stages, 0.0, TimeoutCheck.OFF)
        assert not satisfies(self.real, [2], limits)
        assert satisfies(self.real, [3], limits)

    def test_timeout_check_foresees_three_workers(self) -> None:
        found = plan(self.foreseen, self.stages, [5], limits_of(self.stages, 0.0))
        assert found.workers == (3,)


def test_plan_is_all_there_may_be_where_that_is_too_few() -> None:
    items = Items(np.zeros(4, int), np.zeros(4), np.full((4, 1), 3.0))
    found = plan(items, ONE, [2], limits_of(ONE, 1.0))
    assert (found.workers, found.kept) == ((2,), False)


def test_running_items_keep_their_workers() -> None:
    items = Items(np.zeros(3, int), np.zeros(3), np.array([[1.0], [1.0], [9.0]]), np.array([0, 0, 0]))
    assert plan(items, ONE, [1], limits_of(ONE, 9.0)).workers == (3,)


def test_stage_without_items_gets_no_worker() -> None:
    items = Items(np.zeros(2, int), np.zeros(2), np.array([[3.0, 0.0], [3.0, 0.0]]))
    assert plan(items, TWO, [2, 2], limits_of(TWO, 0.0)).workers == (2, 0)
    none = Items(np.empty(0, int), np.empty(0), np.empty((0, 2)))
    assert plan(none, TWO, [2, 2], limits_of(TWO, 0.0)).workers == (0, 0)


def test_stage_with_items_that_may_have_no_worker_is_refused() -> None:
    items = Items(np.zeros(1, int), np.zeros(1), np.ones((1, 1)))
    with pytest.raises(ValueError, match="stage run: it has items, and may have no worker"):
        plan(items, ONE, [0], limits_of(ONE, 0.0))


@pytest.mark.parametrize(("cost", "timeout_s"), [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0)])
def test_stage_with_impossible_numbers_is_refused(cost: float, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        Stage("run", cost, timeout_s)
