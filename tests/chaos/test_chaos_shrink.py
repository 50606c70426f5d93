"""Shrinking: the rest still fails, and no single fault of it can be dropped."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.chaos.shrink import shrink


@given(st.integers(1, 60), st.data())
def test_shrunk_set_fails_and_no_subset_one_smaller(count: int, data: st.DataObject) -> None:
    items = list(range(count))
    needed = data.draw(st.sets(st.sampled_from(items), max_size=5))

    def fails(kept: Sequence[int]) -> bool:
        return needed <= set(kept)

    shrunk = shrink(items, fails, max_questions=10_000)
    assert shrunk.minimal
    assert fails(shrunk.items)
    assert set(shrunk.items) == needed
    assert list(shrunk.items) == sorted(shrunk.items)


@given(st.integers(1, 9), st.data())
def test_shrinking_law_holds_for_failures_of_any_shape(count: int, data: st.DataObject) -> None:
    """For example with two faults that hide each other: more faults may fail less."""
    answers: dict[tuple[int, ...], bool] = {tuple(range(count)): True}

    def fails(kept: Sequence[int]) -> bool:
        return answers.setdefault(tuple(kept), data.draw(st.booleans()))

    shrunk = shrink(list(range(count)), fails, max_questions=10_000)
    assert shrunk.minimal
    assert fails(shrunk.items)
    for index in range(len(shrunk.items)):
        assert not fails(shrunk.items[:index] + shrunk.items[index + 1 :])


def test_no_set_is_tried_twice_and_single_cause_quickly() -> None:
    asked: list[tuple[int, ...]] = []

    def fails(kept: Sequence[int]) -> bool:
        asked.append(tuple(kept))
        return 37 in kept

    shrunk = shrink(range(64), fails)
    assert shrunk.items == (37,)
    assert len(asked) == len(set(asked)) == shrunk.questions
    assert shrunk.questions < 30


def test_exhausted_search_reports_it_and_its_result_fails() -> None:
    def fails(kept: Sequence[int]) -> bool:
        return {3, 17, 40, 41} <= set(kept)

    shrunk = shrink(range(50), fails, max_questions=12)
    assert not shrunk.minimal
    assert shrunk.questions == 12
    assert fails(shrunk.items)
    assert len(shrunk.items) < 50


def test_passing_schedule_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink([1, 2], lambda kept: False)


def test_run_failing_without_faults_shrinks_to_none() -> None:
    assert shrink([1, 2, 3], lambda kept: True).items == ()
