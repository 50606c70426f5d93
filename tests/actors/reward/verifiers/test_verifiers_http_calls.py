"""Calls of services: when to come back."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward.verifiers.http_calls import (
    LONGEST_REST_S,
    HttpAnswer,
    Unavailable,
    accepted,
    retry_after_s,
)
from gleaner.actors.reward.verifiers.http_wires import BadAnswer

NOW_S = 1_790_000_000.0


@given(st.integers(0, 10**30))
def test_retry_after_seconds_are_read_up_to_the_limit(seconds: int) -> None:
    assert retry_after_s(f" {seconds} ", NOW_S) == min(seconds, LONGEST_REST_S)


@given(st.integers(-10_000, 10_000))
def test_retry_after_date_is_read_against_the_clock(ahead_s: int) -> None:
    date = formatdate(NOW_S + ahead_s, usegmt=True)
    assert retry_after_s(date, NOW_S) == min(max(ahead_s, 0), LONGEST_REST_S)


@given(st.text(max_size=40))
def test_retry_after_of_any_text_is_within_limits(text: str) -> None:
    assert 0.0 <= retry_after_s(text, NOW_S) <= LONGEST_REST_S


@pytest.mark.parametrize(
    "text", ["", "-5", "1.5", "NaN", "inf", "\u0663", "Thu, 99 Foo 2026 00:00:00 GMT", "soon"]
)
def test_retry_after_that_is_neither_counts_as_none(text: str) -> None:
    assert retry_after_s(text, NOW_S) == 0.0


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_status_of_an_overloaded_service_is_no_answer(status: int) -> None:
    with pytest.raises(Unavailable, match=f"answered {status}") as caught:
        accepted(HttpAnswer(status, "3", b"busy"), 0.0)
    assert caught.value.after_s == 3.0


@pytest.mark.parametrize("status", [201, 302, 400, 401, 404])
def test_other_status_is_a_bad_answer_without_the_key(status: int) -> None:
    with pytest.raises(BadAnswer, match=f"answered {status}") as caught:
        accepted(HttpAnswer(status, "", b"no key-7"), 0.0, "Bearer key-7")
    assert "key-7" not in str(caught.value)


def test_body_of_an_answer_is_accepted() -> None:
    assert accepted(HttpAnswer(200, "", b"{}"), 0.0) == b"{}"
