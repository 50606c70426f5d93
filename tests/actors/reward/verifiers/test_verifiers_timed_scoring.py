"""Time limit for a batch of responses; a response that was not reached is no wrong answer."""

from collections.abc import Callable

from gleaner.actors.reward.verdicts import OURS, Judgement
from gleaner.actors.reward.verifiers import timed_scoring


def passing(each_s: float) -> tuple[Callable[[], float], Callable[[int], Judgement]]:
    """A clock, and a judge that takes `each_s` per response."""
    now_s = 0.0

    def judge(item: int) -> Judgement:
        nonlocal now_s
        now_s += each_s
        return Judgement(float(item))

    return lambda: now_s, judge


def test_responses_beyond_the_time_are_not_judged() -> None:
    clock, judge = passing(each_s=1.0)
    found = timed_scoring.judged(range(6), judge, 2.0, clock)
    assert [one.score for one in found[:4]] == [0.0, 1.0, 2.0, 3.0]
    assert found[4:] == [timed_scoring.NOT_REACHED] * 2
    assert timed_scoring.NOT_REACHED.status in OURS


def test_first_response_is_always_judged() -> None:
    clock, judge = passing(each_s=100.0)
    assert timed_scoring.judged([7], judge, 1.0, clock) == [Judgement(7.0)]
    assert timed_scoring.judged([7, 8], judge, 1.0, clock)[1] == timed_scoring.NOT_REACHED


def test_quick_responses_are_all_judged() -> None:
    clock, judge = passing(each_s=0.001)
    assert [one.score for one in timed_scoring.judged(range(32), judge, 2.0, clock)] == [
        float(n) for n in range(32)
    ]
