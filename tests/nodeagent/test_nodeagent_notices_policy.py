"""Laws of what is made of what clouds say: what stands, what is taken back, when it is acted upon."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gleaner.nodeagent.notices.policy import (
    LEAD_S,
    NOTHING,
    STALE_S,
    STAYS,
    TAKEN_BACK_LOOKS,
    Finding,
    NoticePolicy,
)

CHANNELS = st.sampled_from(["one", "two"])
NOTICES = st.builds(
    Finding,
    kind=st.just("notice"),
    why=st.just("going"),
    id=st.sampled_from(["a", "b"]),
    left_s=st.floats(-2 * STALE_S, 2 * LEAD_S),
)
HINTS = st.just(Finding("hint", "maybe"))
FINDINGS = st.one_of(NOTICES, HINTS, st.just(NOTHING))
LOOKS = st.lists(st.tuples(CHANNELS, FINDINGS, st.floats(0.0, 60.0)), max_size=30)


def told(looks: list[tuple[str, Finding, float]]) -> tuple[NoticePolicy, float]:
    policy, now_s = NoticePolicy(), 0.0
    for channel, finding, pause_s in looks:
        now_s += pause_s
        policy.heard(channel, finding, now_s)
    return policy, now_s


@given(LOOKS)
def test_whatever_was_said_enough_looks_that_find_nothing_take_it_back(
    looks: list[tuple[str, Finding, float]],
) -> None:
    policy, now_s = told(looks)
    for channel in ("one", "two"):
        for _ in range(TAKEN_BACK_LOOKS):
            policy.heard(channel, NOTHING, now_s)
    assert policy.verdict(now_s) == STAYS
    assert not policy.standing


@given(LOOKS, NOTICES, st.floats(0.0, 1e6))
def test_a_notice_stands_while_nobody_says_otherwise(
    looks: list[tuple[str, Finding, float]], notice: Finding, silence_s: float
) -> None:
    policy, now_s = told(looks)
    policy.heard("one", Finding("notice", "going", "new", max(0.0, notice.left_s)), now_s)
    ends_s = policy.standing["one"].ends_s
    later = policy.verdict(max(now_s, ends_s - LEAD_S) + silence_s)
    assert later.kind == "notice"
    assert later.ends_s <= ends_s


@given(st.floats(0.0, LEAD_S), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20))
def test_the_end_of_a_notice_never_moves_away_by_being_seen_again(left_s: float, pauses: list[float]) -> None:
    policy, now_s = NoticePolicy(), 0.0
    policy.heard("one", Finding("notice", "going", "a", left_s), now_s)
    for pause_s in pauses:  # as of a cloud that says "in 30 s" whenever it is asked
        before_s = policy.verdict(now_s).ends_s
        now_s += pause_s
        policy.heard("one", Finding("notice", "going", "a", left_s), now_s)
        assert policy.verdict(now_s).ends_s <= before_s == left_s


@given(LOOKS)
def test_of_notices_the_one_that_ends_first_counts_and_none_is_acted_upon_early(
    looks: list[tuple[str, Finding, float]],
) -> None:
    policy, now_s = told(looks)
    verdict = policy.verdict(now_s)
    ends = [one.ends_s for one in policy.standing.values() if one.kind == "notice"]
    if verdict.kind == "notice":
        assert verdict.ends_s == min(ends)
        assert verdict.ends_s - now_s <= LEAD_S
    else:
        assert all(end_s - now_s > LEAD_S for end_s in ends)
        assert verdict.ends_s == math.inf


@given(st.floats(LEAD_S + 1.0, 1e4))
def test_a_host_works_on_until_its_end_is_near(left_s: float) -> None:
    policy = NoticePolicy()
    policy.heard("one", Finding("notice", "reboot", "a", left_s), 0.0)
    assert policy.verdict(0.0) == STAYS
    assert policy.verdict(left_s - LEAD_S + 0.001).kind == "notice"


def test_one_look_that_finds_nothing_takes_nothing_back_and_asks_for_another_soon() -> None:
    policy = NoticePolicy()
    policy.heard("one", Finding("notice", "going", "a", 60.0), 0.0)
    assert not policy.unsure("one")
    policy.heard("one", NOTHING, 1.0)
    assert policy.unsure("one")
    assert policy.verdict(1.0).kind == "notice"
    policy.heard("one", Finding("notice", "going", "a", 58.0), 2.0)
    policy.heard("one", NOTHING, 3.0)
    assert policy.verdict(3.0).kind == "notice", "the two looks were not in a row"
    policy.heard("one", NOTHING, 4.0)
    assert policy.verdict(4.0) == STAYS
    assert not policy.unsure("one")


def test_a_notice_that_was_over_long_before_it_was_first_seen_came_to_nothing() -> None:
    policy = NoticePolicy()
    policy.heard("one", Finding("notice", "terminate", "old", -STALE_S - 1.0), 0.0)
    assert policy.verdict(0.0) == STAYS
    policy.heard("one", Finding("notice", "terminate", "old", -STALE_S + 30.0), 1.0)
    assert policy.verdict(1.0) == STAYS, "the same one, by a clock that was set"
    policy.heard("one", Finding("notice", "terminate", "new", -1.0), 2.0)
    assert policy.verdict(2.0).ends_s == 2.0


def test_a_hint_gives_way_to_a_notice_and_is_back_when_that_is_taken_back() -> None:
    policy = NoticePolicy()
    policy.heard("one", Finding("hint", "rebalance"), 0.0)
    assert policy.verdict(0.0).kind == "hint"
    policy.heard("two", Finding("notice", "terminate", "a", 100.0), 1.0)
    assert policy.verdict(1.0).why == "terminate"
    policy.heard("two", NOTHING, 2.0)
    policy.heard("two", NOTHING, 3.0)
    assert policy.verdict(3.0).why == "rebalance"
