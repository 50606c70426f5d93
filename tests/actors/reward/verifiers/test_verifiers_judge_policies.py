"""Policies of a judge's calls: rate limits, backoff, replicas."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.verifiers.judge.backoff import Backoff
from gleaner.actors.reward.verifiers.judge.rate_limits import BURST_S, MINUTE_S, RateLimits
from gleaner.actors.reward.verifiers.judge.replicas import LONGEST_AVOIDED_S, Replicas

CALLS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 3), st.integers(0, 400)), max_size=20)
"""Of each: seconds since the one before, calls, tokens."""


@settings(max_examples=40)
@given(CALLS, st.integers(1, 600), st.integers(1, 60_000))
def test_no_span_of_time_uses_more_than_the_limits(
    asked: list[tuple[float, int, int]], calls_limit: int, tokens_limit: int
) -> None:
    limits, now_s = RateLimits(calls_limit, tokens_limit, 0.0), 0.0
    used: list[tuple[float, int, int]] = []
    for gap_s, calls, tokens in asked:
        now_s += gap_s
        wait_s = limits.reserve(calls, tokens, now_s, now_s + 1e9)
        assert wait_s is not None
        used.append((now_s + wait_s, calls, tokens))
    times = [at_s for at_s, _, _ in used]
    assert times == pytest.approx(sorted(times)), "the first in is the first out"
    for begin in range(len(used)):
        for end in range(begin, len(used)):
            span_s = used[end][0] - used[begin][0]
            for column, limit in ((1, calls_limit), (2, tokens_limit)):
                amount = sum(one[column] for one in used[begin + 1 : end + 1])
                most = max(limit * BURST_S / MINUTE_S, 1.0)
                assert amount <= most + limit * span_s / MINUTE_S + 1e-6


@settings(max_examples=40)
@given(st.integers(1, 600), st.integers(1, 50))
def test_calls_at_the_limit_never_wait(per_minute: int, count: int) -> None:
    limits = RateLimits(per_minute, 0, 0.0)
    waits = [
        limits.reserve(1, 10**6, number * MINUTE_S / per_minute, float("inf")) for number in range(count)
    ]
    assert waits == pytest.approx([0.0] * count, abs=1e-6)


@settings(max_examples=40)
@given(st.integers(1, 100), st.integers(1, 100), st.floats(0.1, 30))
def test_refused_reservation_uses_nothing(calls: int, tokens: int, by_s: float) -> None:
    limits = RateLimits(60, 60, 0.0)
    if limits.reserve(calls, tokens, 0.0, by_s) is None:
        assert limits.reserve(1, 1, 0.0, 0.0) == 0.0
        assert max(calls, tokens) > by_s


def test_unused_tokens_are_given_back() -> None:
    limits = RateLimits(0, 600, 0.0)
    assert limits.reserve(1, 610, 0.0, 100.0) == 60.0
    limits.correct(-500, 60.0)
    assert limits.reserve(1, 10, 60.0, 60.0) == 0.0


@settings(max_examples=40)
@given(st.integers(0, 12), st.floats(0, 100), st.floats(0, 100), st.integers(0, 999))
def test_backoff_respects_server_deadline_and_attempts(
    failed: int, after_s: float, left_s: float, seed: int
) -> None:
    backoff = Backoff(attempts=10, first_s=0.5, longest_s=20.0)
    wait_s = backoff.wait_s(failed, after_s, left_s, random.Random(seed))
    if failed >= 10:
        assert wait_s is None
    elif wait_s is not None:
        assert after_s <= wait_s < left_s
        assert wait_s <= max(after_s + 0.5, 40.0)
        assert wait_s >= (min(0.5 * 2 ** (failed - 1), 20.0) if failed else 0.0)
    else:
        assert left_s <= max(after_s + 0.5, 2 * min(0.5 * 2 ** (failed - 1), 20.0))


def test_calls_that_failed_together_return_apart() -> None:
    backoff = Backoff(attempts=4)
    waits = {backoff.wait_s(1, 5.0, 60.0, random.Random(seed)) for seed in range(20)}
    assert len(waits) == 20


EVENTS = st.lists(
    st.tuples(st.sampled_from(["open", "fail", "answer"]), st.floats(0, 3), st.floats(0, 9)), max_size=30
)


@settings(max_examples=40)
@given(EVENTS, st.integers(1, 4))
def test_pick_is_never_worse_than_another_replica(events: list[tuple[str, float, float]], count: int) -> None:
    urls = [f"http://{number}/v1" for number in range(count)]
    replicas, now_s = Replicas(urls), 0.0
    open_calls = dict.fromkeys(urls, 0)
    for kind, gap_s, after_s in events:
        now_s += gap_s
        url = replicas.pick(now_s)
        assert replicas.closed_s(url, now_s) == min(replicas.closed_s(one, now_s) for one in urls)
        spare = replicas.spare(now_s, busy=url)
        assert spare is None or (spare != url and replicas.closed_s(spare, now_s) == 0)
        if kind == "open":
            replicas.opened(url)
            open_calls[url] += 1
        elif kind == "fail":
            replicas.failed(url, now_s, after_s)
        else:
            replicas.answered(url)
    later_s = now_s + LONGEST_AVOIDED_S + 10
    assert open_calls[replicas.pick(later_s)] == min(open_calls.values()), "no server is avoided for ever"


def test_repetition_goes_to_another_replica() -> None:
    replicas = Replicas(["a", "b"])
    assert replicas.pick(0.0) == "a"
    replicas.failed("a", 0.0)
    assert replicas.pick(0.0, failed="a") == "b"
    replicas.failed("b", 0.0, after_s=9.0)
    assert replicas.pick(0.1, failed="b") == "a", "one that asked for time gets it"
    assert Replicas(["a"]).pick(0.0, failed="a") == "a"


def test_ended_calls_count_no_more() -> None:
    replicas = Replicas(["a", "b"])
    for url in ("a", "b"):
        replicas.opened(url)
    replicas.closed("b")
    assert replicas.pick(0.0) == "b"


def test_calls_that_fail_together_are_one_outage() -> None:
    replicas = Replicas(["a", "b"])
    for _ in range(64):
        replicas.failed("a", 0.0)
    assert replicas.spare(0.6, busy="b") == "a"
