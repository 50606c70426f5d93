"""Adaptive timeouts: anchors, limits and the audit, for any times of tests."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.actors.reward.timeouts import AdaptiveTimeouts, limit_s
from gleaner.actors.reward.verifiers.grading import within
from gleaner.configs.schema import Timeouts

TESTS = 3
SECONDS = st.integers(0, 1000).map(lambda tenths: tenths / 10)
TIMES = st.tuples(SECONDS, SECONDS, SECONDS)
RIGHT = st.lists(st.tuples(st.sampled_from("abc"), TIMES), max_size=12)
ANY = st.builds(
    Timeouts,
    factor=st.floats(1.0, 10.0),
    min_s=st.floats(0.01, 5.0),
    max_s=st.floats(5.0, 100.0),
)


def made(share: float = 0.0, max_tests: int = 1000, seed: int = 1) -> AdaptiveTimeouts:
    chosen = Timeouts(adaptive=True, audit_share=share)
    return AdaptiveTimeouts(chosen, random.Random(seed), max_tests)


def fed(right: Sequence[tuple[str, tuple[float, ...]]]) -> AdaptiveTimeouts:
    timeouts = made()
    for problem, times_s in right:
        timeouts.observe(problem, CaseTimes(times_s))
    return timeouts


@settings(max_examples=20)
@given(ANY, SECONDS)
def test_limit_is_that_of_the_paper(chosen: Timeouts, anchor_s: float) -> None:
    limit = limit_s(chosen, anchor_s)
    assert limit == min(max(chosen.min_s, chosen.factor * anchor_s), chosen.max_s)
    assert limit <= limit_s(chosen, None) == chosen.max_s


@settings(max_examples=20)
@given(RIGHT)
def test_anchors_and_limits_only_grow(right: list[tuple[str, tuple[float, ...]]]) -> None:
    timeouts = made()
    before: dict[str, tuple[float, ...]] = {}
    for problem, times_s in right:
        timeouts.observe(problem, CaseTimes(times_s))
        now = dict(timeouts.anchors_s())
        assert all(new >= old for name in before for new, old in zip(now[name], before[name], strict=True))
        longest = [max(pair) for pair in zip(times_s, before.get(problem, times_s), strict=True)]
        assert all(kept >= one for kept, one in zip(now[problem], longest, strict=True))
        before = now


@settings(max_examples=20)
@given(RIGHT, st.randoms(use_true_random=False))
def test_order_of_right_responses_changes_no_anchor(
    right: list[tuple[str, tuple[float, ...]]], rng: random.Random
) -> None:
    shuffled = rng.sample(right, len(right))
    assert dict(fed(right).anchors_s()) == dict(fed(shuffled).anchors_s())


@settings(max_examples=20)
@given(RIGHT)
def test_right_response_is_within_the_limits_that_it_leaves(
    right: list[tuple[str, tuple[float, ...]]],
) -> None:
    timeouts = fed(right)
    for problem, times_s in right:
        limits = timeouts.limits(problem).of(TESTS)
        assert all(one <= limit or limit == 30.0 for one, limit in zip(times_s, limits, strict=True))


@settings(max_examples=20)
@given(RIGHT)
def test_restored_anchors_give_the_same_limits(right: list[tuple[str, tuple[float, ...]]]) -> None:
    before, after = fed(right), made()
    after.restore(dict(before.anchors_s()).items())
    assert list(after.anchors_s().items()) == list(before.anchors_s().items())
    assert [after.limits(name) for name in "abc"] == [before.limits(name) for name in "abc"]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 7)), max_size=25))
def test_tests_with_anchors_stay_within_their_number(used: list[tuple[int, int]]) -> None:
    timeouts = made(max_tests=20)
    for problem, count in used:
        timeouts.limits(str(problem))
        timeouts.observe(str(problem), CaseTimes((5.0,) * count))
        kept = timeouts.anchors_s()
        assert timeouts.tests == sum(map(len, kept.values())) <= 20
        assert list(kept)[-1] == str(problem), "the problem that was used last is kept"


def test_only_what_changes_a_limit_raises_an_anchor() -> None:
    timeouts = made()
    assert timeouts.limits("a") == CaseLimits(30.0)
    assert timeouts.observe("a", CaseTimes((0.1, 0.2))) is not None
    assert timeouts.limits("a") == CaseLimits(30.0, (2.0, 2.0))
    assert timeouts.observe("a", CaseTimes((0.9, 0.1))) is None, "2 s are the least"
    assert timeouts.observe("a", CaseTimes((4.0, 0.1))) is not None
    assert timeouts.limits("a") == CaseLimits(30.0, (6.0, 2.0))
    assert timeouts.observe("a", CaseTimes((25.0, 0.1))) is not None
    assert timeouts.limits("a") == CaseLimits(30.0, (30.0, 2.0))


def test_wrong_response_raises_no_anchor() -> None:
    timeouts = made()
    assert timeouts.observe("a", CaseTimes(cut=True)) is None
    assert (timeouts.tests, timeouts.cut, timeouts.would_have_passed) == (0, 1, 0)


def test_audited_right_response_is_counted_and_raises_the_anchor() -> None:
    timeouts = fed([("a", (1.0, 1.0))])
    timeouts.observe("a", CaseTimes(cut=True))
    assert timeouts.observe_audit("a", CaseTimes((0.5, 8.0))) is not None
    assert timeouts.observe_audit("a", CaseTimes()) is None
    assert (timeouts.cut, timeouts.audited, timeouts.would_have_passed) == (1, 2, 1)
    assert timeouts.limits("a").of(2) == [2.0, 12.0]


def test_audited_share_is_drawn_with_the_seed() -> None:
    def drawn(seed: int) -> list[bool]:
        timeouts = made(share=0.2, seed=seed)
        return [timeouts.audits() for _ in range(500)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 50 < sum(drawn(1)) < 150


def test_anchors_of_another_number_of_tests_are_replaced() -> None:
    timeouts = fed([("a", (5.0, 5.0))])
    assert timeouts.limits("a").of(3) == [30.0] * 3
    timeouts.observe("a", CaseTimes((4.0, 4.0, 4.0)))
    assert timeouts.limits("a").of(3) == [6.0] * 3
    assert timeouts.tests == 3


@pytest.mark.parametrize(
    ("used_s", "why", "expected"),
    [
        ([0.1, 0.1], "", CaseTimes((0.1, 0.1))),
        ([0.1, 2.5], "", CaseTimes(cut=True)),  # it got beyond its limit
        ([0.1, 0.1], "another output", CaseTimes()),
        ([0.1], "not run", CaseTimes()),
    ],
)
def test_times_are_of_programs_that_passed_all_tests(
    used_s: list[float], why: str, expected: CaseTimes
) -> None:
    limits = CaseLimits(30.0, (2.0, 2.0))
    ends, times = within(limits, [("ok", ""), ("ok", why)], used_s)
    assert times == expected
    assert (ends == [("ok", ""), ("ok", "")]) == (not why and not times.cut)


def test_longest_limit_is_no_adaptive_cut() -> None:
    for limits in (CaseLimits(30.0), CaseLimits(30.0, (30.0,))):
        _ends, times = within(limits, [("timeout", "it took too long")], [30.5])
        assert times == CaseTimes()
