"""Rules for the width of engines: RollPacker's as printed, and the one by prediction."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.cluster.step_model import Machines, Work
from gleaner.actors.cluster.width_model import REDUCES_S, pace_at, paces_of, round_times
from gleaner.actors.cluster.widths import (
    LEAST_SHARE,
    RISE,
    ROUNDS,
    KindWidth,
    fitting,
    published,
    shortest,
)
from gleaner.actors.protocol.throughput import EnginePace

WIDTHS = [1, 2, 4, 8]
REQUESTS = 1000
PACE = EnginePace(
    step_s=0.02, context_s=1e-7, row_s=1e-5, slots=256, cache_tokens=100_000, weight_tokens=90_000
)
widths = st.sets(st.sampled_from(WIDTHS), min_size=1).map(sorted)


def after(start: int, rounds: list[int]) -> list[int]:
    """The width after each round of one kind."""
    known, found = KindWidth(width=start), []
    for retracted in rounds:
        known = published(known, retracted, REQUESTS, WIDTHS)
        found.append(known.width)
    return found


@given(widths, st.integers(1, 16), st.integers(1, 16))
def test_fitting_width_is_the_widest_up_to_the_wanted_one_that_cuts_the_devices(
    allowed: list[int], wanted: int, devices: int
) -> None:
    found = fitting(allowed, wanted, devices)
    there = [width for width in allowed if devices % width == 0]
    if not there:
        assert found == 0
    elif any(width <= wanted for width in there):
        assert found == max(width for width in there if width <= wanted)
    else:
        assert found == min(there)


def test_published_rule_doubles_when_retractions_rise() -> None:
    assert after(1, [100, 105]) == [1, 1], "1.05 times the mean is no rise"
    assert after(1, [100, 106]) == [1, 2]
    assert after(1, [100, 100, 100, 100, 104, 107]) == [1, 1, 1, 1, 1, 2], "the last four count"
    assert after(8, [100, 200]) == [8, 8], "there is none wider"


def test_published_rule_ignores_a_rise_when_few_requests_are_concerned() -> None:
    assert after(1, [0, 10]) == [1, 1]
    assert after(1, [0, 11]) == [1, 2]


def test_published_rule_halves_when_four_rounds_have_no_retraction() -> None:
    assert after(4, [0, 0, 0, 0]) == [4, 4, 4, 2]
    assert after(4, [0, 0, 0, 1, 0, 0, 0, 0]) == [4, 4, 4, 4, 4, 4, 4, 2]
    assert after(1, [0] * 8) == [1] * 8


@given(st.sampled_from(WIDTHS), st.lists(st.integers(0, 300), max_size=30))
def test_published_rule_follows_its_definition_over_any_history(start: int, rounds: list[int]) -> None:
    """Against the definition, which looks at the whole history each time."""
    width, since = start, 0
    for number, retracted in enumerate(rounds):
        earlier = rounds[since:number][-ROUNDS:]
        window = rounds[since : number + 1]
        rises = bool(earlier) and retracted > RISE * sum(earlier) / len(earlier)
        if rises and retracted > LEAST_SHARE * REQUESTS and width < 8:
            width, since = 2 * width, number + 1
        elif len(window) >= ROUNDS and not any(window[-ROUNDS:]) and width > 1:
            width, since = width // 2, number + 1
        assert after(start, rounds[: number + 1])[-1] == width


@given(st.sampled_from(WIDTHS), st.lists(st.integers(0, 300), max_size=40))
def test_published_rule_keeps_a_doubling_for_four_rounds(start: int, rounds: list[int]) -> None:
    found = [start, *after(start, rounds)]
    for at in range(1, len(found)):
        if found[at] > found[at - 1]:
            assert all(width >= found[at] for width in found[at : at + ROUNDS])


def test_shortest_width_is_taken_when_it_gains_more_than_the_relaunch() -> None:
    for times in product((90.0, 97.0, 99.0, 100.0, 120.0), repeat=3):
        rounds_s = dict(zip((1, 2, 4), times, strict=True))
        for now, count, relaunch_s in product((1, 2, 4), (1.0, 4.0), (0.0, 20.0)):
            found = shortest(now, rounds_s, count, relaunch_s)
            if found != now:
                assert rounds_s[found] == min(times)
                assert (rounds_s[now] - rounds_s[found]) * count > relaunch_s
            else:
                gain_s = rounds_s[now] - min(times)
                assert gain_s * count <= relaunch_s or gain_s <= 0.02 * rounds_s[now]


def test_shortest_width_stays_when_nothing_is_predicted() -> None:
    assert shortest(2, {}, 4.0, 60.0) == 2
    assert shortest(1, {2: 10.0, 4: 9.0}, 4.0, 60.0) == 4, "the present width does not fit any more"


@given(st.sampled_from(WIDTHS), st.sampled_from(WIDTHS))
def test_pace_at_another_width_and_back_is_the_same(width: int, wanted: int) -> None:
    there = pace_at(PACE, width, wanted)
    if there is None:
        return
    back = pace_at(there, wanted, width)
    assert back is not None
    assert abs(back.step_s - PACE.step_s) < 1e-9
    assert abs(back.context_s - PACE.context_s) < 1e-15
    assert abs(back.cache_tokens - PACE.cache_tokens) <= max(width, wanted)


def test_wider_engine_has_the_cache_of_its_devices_without_the_weights_once() -> None:
    there = pace_at(PACE, 1, 2)
    assert there is not None
    assert there.cache_tokens == 2 * (100_000 + 90_000) - 90_000
    weights_s = 90_000 * 1e-7
    assert abs(there.step_s - (0.02 - weights_s + REDUCES_S + weights_s / 2)) < 1e-12


def test_narrower_engine_has_no_pace_when_weights_fill_its_devices() -> None:
    small = EnginePace(step_s=0.02, context_s=1e-7, cache_tokens=10_000, weight_tokens=90_000)
    assert pace_at(small, 2, 1) is None
    assert list(paces_of({2: small}, [1, 2, 4])) == [2, 4]


def test_measured_pace_is_preferred_when_the_width_was_run() -> None:
    slow = EnginePace(step_s=0.5, context_s=1e-7, cache_tokens=280_000, weight_tokens=90_000)
    assert paces_of({1: PACE, 2: slow}, [1, 2])[2] == slow


def test_predicted_round_prefers_wide_engines_when_caches_are_short() -> None:
    lengths = [[8000] * 4 for _ in range(16)]
    work = Work(lengths, groups=64, samples=8, prompt_tokens=100.0, train_token_s=1e-6, update_s=1.0)
    machines = Machines(PACE, PACE, engines=1.0, instance_engines=4.0, start_s=0.0)
    rounds_s = round_times(work, machines, paces_of({1: PACE}, [1, 2, 4]), devices=4, instances=2)
    assert min(rounds_s, key=rounds_s.__getitem__) > 1
    roomy = EnginePace(step_s=0.02, context_s=1e-7, row_s=1e-5, slots=512)
    few = Work([[300] * 4 for _ in range(16)], 64, 8, 100.0, 1e-6, 1.0)
    narrow_s = round_times(few, machines, paces_of({1: roomy}, [1, 2, 4]), devices=4, instances=2)
    assert narrow_s[1] < rounds_s[1]
