"""Lengths with a hard share: shares, means and persistence are as stated, and tokens do not depend on it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.tails import TailedLaw

LIMIT = 8192
LAW = TailedLaw(500.0, 0.7, 0.5, hard=0.1, persistence=0.9, stray=0.01, away=LengthLaw(8000.0, 0.3, 0.0))
numbers = st.integers(0, 2**63 - 1)


@given(numbers, numbers, st.integers(1, 40_000))
def test_law_without_shares_is_the_log_normal_one(seed: int, prompt: int, limit: int) -> None:
    plain = LengthLaw(500.0, 0.7, 0.5)
    assert TailedLaw(500.0, 0.7, 0.5).length(seed, prompt, limit) == plain.length(seed, prompt, limit)


@given(numbers, numbers)
def test_response_has_the_length_of_one_of_the_two_laws(seed: int, prompt: int) -> None:
    base = LengthLaw(LAW.median, LAW.sigma, LAW.correlation)
    law = LAW.away if LAW.runs_away(seed, prompt) else base
    assert LAW.length(seed, prompt, LIMIT) == law.length(seed, prompt, LIMIT)


@settings(max_examples=10, deadline=None)
@given(
    st.floats(0, 0.5),
    st.floats(0.2, 1),
    st.floats(0, 0.1),
    st.integers(0, 2**40),
)
def test_mean_and_share_at_limit_are_as_stated(
    hard: float, persistence: float, stray: float, start: int
) -> None:
    away = LengthLaw(8000.0, 0.3, 0.0)
    law = TailedLaw(500.0, 0.7, 0.5, hard=hard, persistence=persistence, stray=stray, away=away)
    count = 4000  # each of its own prompt: independent
    lengths = [law.length(start + i, start + 7 * i, LIMIT) for i in range(count)]
    error = np.std(lengths) / math.sqrt(count)
    assert abs(np.mean(lengths) - law.mean(LIMIT)) < 4.5 * error + 1
    share = np.mean([length == LIMIT for length in lengths])
    stated = law.share_at_limit(LIMIT)
    assert abs(share - stated) < 4.5 * math.sqrt(stated * (1 - stated) / count) + 2 / count


def test_hard_prompt_is_hard_each_time() -> None:
    prompts = range(3000)
    hard = [prompt for prompt in prompts if LAW.is_hard(prompt)]
    assert abs(len(hard) / len(prompts) - LAW.hard) < 4.5 * math.sqrt(0.09 / len(prompts))
    for first in (0, 10**6):  # two times that a problem is drawn, with other seeds
        away = {p: sum(LAW.runs_away(first + 8 * p + s, p) for s in range(8)) for p in prompts}
        of_hard = sum(away[p] for p in hard) / (8 * len(hard))
        of_others = sum(away[p] for p in prompts if p not in set(hard)) / (8 * (len(prompts) - len(hard)))
        assert abs(of_hard - LAW.persistence) < 4.5 * math.sqrt(0.09 / (8 * len(hard)))
        assert abs(of_others - LAW.stray) < 4.5 * math.sqrt(0.01 / (8 * 2700))


def test_scaling_keeps_who_runs_away() -> None:
    coarse = LAW.scaled(1 / 32)
    for number in range(500):
        fine = LAW.length(number, number // 8, LIMIT)
        assert abs(coarse.length(number, number // 8, LIMIT // 32) - fine / 32) <= 0.52 or fine < 32


@pytest.mark.parametrize("name", ["hard", "persistence", "stray"])
def test_share_outside_zero_to_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a share from 0 to 1, got 1.5"):
        TailedLaw(500.0, 0.7, 0.5, **{name: 1.5})
