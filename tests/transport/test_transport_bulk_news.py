"""News: calls from a thread to its loop, complete, in order, with few wake-ups."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport import bulk_news
from gleaner.transport.bulk_news import News


class Loop:
    """A loop that runs its scheduled calls when the test requests it."""

    def __init__(self) -> None:
        self.woken = 0
        self.soon: deque[Callable[[], None]] = deque()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.woken += 1
        self.soon.append(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append((delay_s, callback))

    def turn(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def pass_time(self) -> None:
        due, self.later = self.later, []
        for _, callback in due:
            callback()
        self.turn()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def fail() -> None:
    raise LookupError("of the caller")


def test_many_calls_wake_the_loop_once_within_milliseconds(loop) -> None:
    news, calls = News(loop, fail), []
    for number in range(100):
        news.tell(lambda number=number: calls.append(number))
        loop.turn() if number == 0 else None
        if number % 10 == 9:
            loop.pass_time()
    assert calls == list(range(100))
    assert loop.woken == 1
    assert [delay_s for delay_s, _ in loop.later] == [bulk_news.LOOK_S]
    assert bulk_news.LOOK_S <= 0.005, "a relay passes on its news"


def test_first_call_after_a_silence_runs_at_once(loop) -> None:
    news, calls = News(loop, fail), []
    for number in range(3):
        news.tell(lambda number=number: calls.append(number))
        loop.turn()
        assert calls == list(range(number + 1))
        loop.pass_time()
        loop.pass_time()
        assert not loop.later, "the loop is not woken without news"
    assert loop.woken == 3


@given(st.lists(st.sampled_from(["tell", "turn", "pass"])))
def test_nothing_is_lost_or_reordered(steps: list[str]) -> None:
    loop, calls, count = Loop(), [], 0
    news = News(loop, fail)
    for step in steps:
        if step == "tell":
            news.tell(lambda number=count: calls.append(number))
            count += 1
        else:
            loop.turn() if step == "turn" else loop.pass_time()
        assert calls == list(range(len(calls)))
    loop.turn()
    loop.pass_time()
    assert calls == list(range(count))


def test_failing_callback_is_the_last_one(loop) -> None:
    calls: list[str] = []
    news = News(loop, lambda: calls.append("failed"))
    news.tell(lambda: calls.append("before"))
    news.tell(fail)
    news.tell(lambda: calls.append("after"))
    loop.turn()
    news.tell(lambda: calls.append("later"))
    loop.pass_time()
    assert calls == ["before", "failed"]
    assert isinstance(news.failed, LookupError)


async def test_calls_made_while_the_loop_drains_all_arrive(eventually) -> None:
    calls: list[int] = []
    news = News(asyncio.get_running_loop(), fail)

    def talk() -> None:
        for number in range(20_000):
            news.tell(partial(calls.append, number))

    await asyncio.to_thread(talk)
    await eventually(lambda: calls == list(range(20_000)))
