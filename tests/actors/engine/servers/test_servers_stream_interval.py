"""How finely a server is to tell its tokens, by how fast it makes them."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.servers.stream_interval import MOST, NEWS_S, StreamPace


def after(token_s: float, times: int = 4000, tokens: int = 1) -> StreamPace:
    pace = StreamPace()
    for _ in range(times):
        pace.told(tokens, tokens * token_s)
    return pace


def test_a_server_of_which_nothing_is_known_tells_each_token() -> None:
    assert StreamPace().interval == 1


@given(st.floats(0.0, 10.0), st.integers(1, 64))
def test_tokens_are_gathered_for_no_longer_than_news_waits_anyway(token_s: float, tokens: int) -> None:
    interval = after(token_s, tokens=tokens).interval
    assert 1 <= interval <= MOST
    assert interval == 1 or (interval - 0.5) * token_s <= NEWS_S * 1.01


def test_a_fast_server_gathers_and_one_that_becomes_slow_tells_each_token_again() -> None:
    pace = after(NEWS_S / 8)
    assert pace.interval == 8
    for _ in range(4000):
        pace.told(1, 2 * NEWS_S)
    assert pace.interval == 1


def test_one_that_makes_them_faster_than_any_clock_gathers_the_most() -> None:
    assert after(0.0).interval == MOST
