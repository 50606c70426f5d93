"""Laws of `NoticePolicy`: which notices hold, which are taken back, and when the host acts."""

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


def policy_after(looks: list[tuple[str, Finding, float]]) -> tuple[NoticePolicy, float]:
    policy, now_s = NoticePolicy(), 0.0
    for channel, finding, pause_s in looks:
        now_s += pause_s
        policy.observe(channel, finding, now_s)
    return policy, now_s


@given(LOOKS)
def test_empty_looks_take_any_notice_back(
    looks: list[tuple[str, Finding, float]],
) -> None:
    policy, now_s = policy_after(looks)
    for channel in ("one", "two"):
        for _ in range(TAKEN_BACK_LOOKS):
            policy.observe(channel, NOTHING, now_s)
    assert policy.verdict(now_s) == STAYS
    assert not policy.standing


@given(LOOKS, NOTICES, st.floats(0.0, 1e6))
def test_notice_holds_until_a_contrary_look(
    looks: list[tuple[str, Finding, float]], notice: Finding, silence_s: float
) -> None:
    policy, now_s = policy_after(looks)
    policy.observe("one", Finding("notice", "going", "new", max(0.0, notice.left_s)), now_s)
    ends_s = policy.standing["one"].ends_s
    later = policy.verdict(max(now_s, ends_s - LEAD_S) + silence_s)
    assert later.kind == "notice"
    assert later.ends_s <= ends_s


@given(st.floats(0.0, LEAD_S), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20))
def test_repeated_notice_never_ends_later(left_s: float, pauses: list[float]) -> None:
    policy, now_s = NoticePolicy(), 0.0
    policy.observe("one", Finding("notice", "going", "a", left_s), now_s)
    for pause_s in pauses:  # as from a cloud that answers "in 30 s" to every look
        before_s = policy.verdict(now_s).ends_s
        now_s += pause_s
        policy.observe("one", Finding("notice", "going", "a", left_s), now_s)
        assert policy.verdict(now_s).ends_s <= before_s == left_s


@given(LOOKS)
def test_earliest_notice_counts_and_none_acts_early(
    looks: list[tuple[str, Finding, float]],
) -> None:
    policy, now_s = policy_after(looks)
    verdict = policy.verdict(now_s)
    ends = [one.ends_s for one in policy.standing.values() if one.kind == "notice"]
    if verdict.kind == "notice":
        assert verdict.ends_s == min(ends)
        assert verdict.ends_s - now_s <= LEAD_S
    else:
        assert all(end_s - now_s > LEAD_S for end_s in ends)
        assert verdict.ends_s == math.inf


@given(st.floats(LEAD_S + 1.0, 1e4))
def test_host_works_until_its_end_is_near(left_s: float) -> None:
    policy = NoticePolicy()
    policy.observe("one", Finding("notice", "reboot", "a", left_s), 0.0)
    assert policy.verdict(0.0) == STAYS
    assert policy.verdict(left_s - LEAD_S + 0.001).kind == "notice"


def test_single_empty_look_takes_nothing_back() -> None:
    policy = NoticePolicy()
    policy.observe("one", Finding("notice", "going", "a", 60.0), 0.0)
    assert not policy.unsure("one")
    policy.observe("one", NOTHING, 1.0)
    assert policy.unsure("one")
    assert policy.verdict(1.0).kind == "notice"
    policy.observe("one", Finding("notice", "going", "a", 58.0), 2.0)
    policy.observe("one", NOTHING, 3.0)
    assert policy.verdict(3.0).kind == "notice", "the two looks were not in a row"
    policy.observe("one", NOTHING, 4.0)
    assert policy.verdict(4.0) == STAYS
    assert not policy.unsure("one")


def test_notice_that_is_long_over_is_ignored() -> None:
    policy = NoticePolicy()
    policy.observe("one", Finding("notice", "terminate", "old", -STALE_S - 1.0), 0.0)
    assert policy.verdict(0.0) == STAYS
    policy.observe("one", Finding("notice", "terminate", "old", -STALE_S + 30.0), 1.0)
    assert policy.verdict(1.0) == STAYS, "the same notice, after a change of the clock"
    policy.observe("one", Finding("notice", "terminate", "new", -1.0), 2.0)
    assert policy.verdict(2.0).ends_s == 2.0


def test_hint_yields_to_a_notice_and_returns_after_it() -> None:
    policy = NoticePolicy()
    policy.observe("one", Finding("hint", "rebalance"), 0.0)
    assert policy.verdict(0.0).kind == "hint"
    policy.observe("two", Finding("notice", "terminate", "a", 100.0), 1.0)
    assert policy.verdict(1.0).why == "terminate"
    policy.observe("two", NOTHING, 2.0)
    policy.observe("two", NOTHING, 3.0)
    assert policy.verdict(3.0).why == "rebalance"
