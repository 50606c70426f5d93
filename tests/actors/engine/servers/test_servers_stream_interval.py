"""StreamInterval: how many tokens a server sends at once, by its speed."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.servers.stream_interval import MOST, NEWS_S, StreamInterval


def after(token_s: float, times: int = 4000, tokens: int = 1) -> StreamInterval:
    pace = StreamInterval()
    for _ in range(times):
        pace.observe(tokens, tokens * token_s)
    return pace


def test_unknown_server_sends_each_token() -> None:
    assert StreamInterval().interval == 1


@given(st.floats(0.0, 10.0), st.integers(1, 64))
def test_tokens_are_gathered_within_the_news_delay(token_s: float, tokens: int) -> None:
    interval = after(token_s, tokens=tokens).interval
    assert 1 <= interval <= MOST
    assert interval == 1 or (interval - 0.5) * token_s <= NEWS_S * 1.01


def test_slower_server_sends_each_token_again() -> None:
    pace = after(NEWS_S / 8)
    assert pace.interval == 8
    for _ in range(4000):
        pace.observe(1, 2 * NEWS_S)
    assert pace.interval == 1


def test_extremely_fast_server_gathers_the_most() -> None:
    assert after(0.0).interval == MOST
