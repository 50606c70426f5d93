"""A judge that jobs share: its model of a GPU, and that sharing uses it more."""

import numpy as np
import pytest

from bench.evaluation.rollpacker.wide_tail import Engines
from bench.reward import judge_share
from gleaner.sim.models.engine_cost import EngineCost

COST = EngineCost(row_s=0.01, prefill_token_s=0.001)


def test_responses_end_in_the_order_of_their_lengths() -> None:
    lengths = np.array([30.0, 10.0, 20.0, 20.0])
    ends = judge_share.ends_s(Engines(EngineCost(row_s=0.01), 2), lengths)
    assert ends[1] < ends[2] == ends[3] < ends[0]
    assert ends[1] == pytest.approx(10 * 2 * 0.01)  # two requests on each engine


def test_judge_reads_and_writes_each_item_and_rests_between() -> None:
    found = judge_share.judge(COST, np.array([0.0, 100.0]), np.array([50.0, 100.0]), 10)
    assert found.done_s == pytest.approx([0.05 + 0.1, 100.0 + 0.1 + 0.1])
    assert found.busy == pytest.approx(np.array([[0.0, 0.15], [100.0, 100.2]]))
    assert found.row_s == pytest.approx(0.35)


def test_items_that_come_together_share_the_judge() -> None:
    found = judge_share.judge(COST, np.zeros(3), np.full(3, 50.0), 10)
    assert found.done_s == pytest.approx([3 * 0.05 + 10 * 3 * 0.01] * 3)
    assert len(found.busy) == 1


@pytest.mark.long
def test_shared_judge_is_used_more_and_answers_later() -> None:
    alone, shared = (judge_share.use(1, jobs, 8, 128) for jobs in (1, 4))
    assert 2 * alone.busy < shared.busy < 1
    assert alone.requests < shared.requests
    assert alone.delay_s <= shared.delay_s < 2 * alone.delay_s
    fewer = judge_share.use(1, 1, 1, 128)
    assert fewer.busy > alone.busy
    assert fewer.late_s > alone.late_s
