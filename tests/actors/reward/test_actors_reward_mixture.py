"""Mixture of a job's tasks: any stretch of problems has each task's share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.mixture import Mixture

shares = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6)


@given(shares, st.integers(0, 500), st.integers(1, 64))
def test_mixture_holds_shares_in_any_stretch(weights: list[float], first: int, count: int) -> None:
    mixture = Mixture(weights)
    tasks = [mixture.place(index)[0] for index in range(first, first + count)]
    for task, weight in enumerate(weights):
        assert abs(tasks.count(task) - count * weight / sum(weights)) <= len(weights)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_count_shares_name_each_problem_once(counts: list[int]) -> None:
    mixture = Mixture([float(count) for count in counts])
    places = [mixture.place(index) for index in range(sum(counts))]
    assert sorted(places) == [(task, n) for task, count in enumerate(counts) for n in range(count)]


@given(shares, st.permutations(range(40)))
def test_place_is_independent_of_the_order_of_calls(weights: list[float], order: list[int]) -> None:
    asked, other = Mixture(weights), Mixture(weights)
    assert {index: asked.place(index) for index in order} == {i: other.place(i) for i in range(40)}


def test_zero_shares_and_negative_indices_are_refused() -> None:
    for bad in ([], [0.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="numbers above 0"):
            Mixture(bad)
    with pytest.raises(ValueError, match="begin at 0"):
        Mixture([1.0]).place(-1)
