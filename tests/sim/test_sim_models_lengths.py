"""Lengths of responses: bounds, mean, tail and correlation follow the stated law."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.sim.models.lengths import RLBOOST_14B, LengthLaw

laws = st.builds(
    LengthLaw,
    median=st.floats(10, 20_000),
    sigma=st.floats(0, 2),
    correlation=st.floats(0, 1),
)
numbers = st.integers(0, 2**63 - 1)


@given(laws, numbers, numbers, st.integers(1, 40_000))
def test_length_is_bounded_and_never_changes(law: LengthLaw, seed: int, prompt: int, limit: int) -> None:
    length = law.length(seed, prompt, limit)
    assert 1 <= length <= limit
    assert law.length(seed, prompt, limit) == length


@given(laws, numbers, numbers, st.integers(1, 20_000), st.integers(1, 20_000))
def test_smaller_limit_truncates_the_same_response(
    law: LengthLaw, seed: int, prompt: int, limit: int, less: int
) -> None:
    limit, less = max(limit, less), min(limit, less)
    assert law.length(seed, prompt, less) == min(law.length(seed, prompt, limit), less)


@settings(max_examples=12, deadline=None)
@given(
    st.builds(
        LengthLaw, median=st.floats(200, 6000), sigma=st.floats(0.1, 1.2), correlation=st.floats(0, 0.9)
    ),
    st.integers(0, 2**40),
)
def test_mean_and_share_at_limit_are_as_specified(law: LengthLaw, start: int) -> None:
    limit, count = 8192, 3000
    lengths = [law.length(start + i, start + 7 * i, limit) for i in range(count)]
    error = np.std(lengths) / math.sqrt(count)
    assert abs(np.mean(lengths) - law.mean(limit)) < 4.5 * error + 1
    share = np.mean([length == limit for length in lengths])
    stated = law.share_at_limit(limit)
    assert abs(share - stated) < 4.5 * math.sqrt(stated * (1 - stated) / count) + 2 / count


@settings(max_examples=12, deadline=None)
@given(st.floats(0, 1), st.integers(0, 2**40))
def test_log_lengths_in_a_group_correlate_as_specified(correlation: float, start: int) -> None:
    law, groups = LengthLaw(median=1e6, sigma=0.7, correlation=correlation), 1500
    pairs = np.log(
        [[law.length(start + 2 * g + s, start + g, 10**12) for s in (0, 1)] for g in range(groups)]
    )
    found = float(np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1])
    assert abs(found - correlation) < 4.5 * (1 - correlation**2) / math.sqrt(groups) + 0.01


def test_length_tail_is_long() -> None:
    lengths = sorted(RLBOOST_14B.length(i, i // 8, 14_336) for i in range(8192))
    assert lengths[-1] == 14_336
    assert lengths[len(lengths) // 2] < 0.45 * lengths[-1]


def test_scaling_a_law_scales_its_lengths() -> None:
    fine, coarse = RLBOOST_14B, RLBOOST_14B.scaled(1 / 32)
    for number in range(200):
        assert abs(coarse.length(number, 5, 448) - fine.length(number, 5, 14_336) / 32) <= 0.52
