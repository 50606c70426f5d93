"""The pace of engines: the line is found, from what honest engines show and in spite of what others do."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.rollout.pace import MAX_INSTANCES, Look, Paces


def decode(paces: Paces, name: str, step_s: float, context_s: float, engines: int, rounds: int) -> None:
    """An instance of so many engines decodes 40 requests on each of them, from 100 tokens in the cache on."""
    now, frames, rows, each = 0.0, 0, 0, 100
    for _ in range(rounds):
        paces.look(name, "preemptible", engines, Look(frames, rows, now, 40 * engines, each))
        for _ in range(50):
            now += step_s + context_s * each * 40
            frames, rows, each = frames + engines, rows + 40 * engines, each + 1


@pytest.mark.parametrize("engines", [1, 4])
def test_the_line_of_an_engine_is_found_whatever_number_of_them_is_in_an_instance(engines: int) -> None:
    paces = Paces()
    decode(paces, "a", 0.007, 3e-8, engines, rounds=30)
    pace = paces.of("preemptible")
    assert pace is not None
    assert pace.step_s == pytest.approx(0.007, rel=0.01)
    assert pace.context_s == pytest.approx(3e-8, rel=0.01)
    assert paces.of("reserved") is None


def test_the_time_in_which_an_instance_had_nothing_to_do_is_no_decoding() -> None:
    paces = Paces()
    decode(paces, "a", 0.007, 0.0, 1, rounds=10)
    paces.look("a", "preemptible", 1, Look(450, 450 * 40, 9.0, 0, 0.0))
    paces.look("a", "preemptible", 1, Look(450, 450 * 40, 9.0, 40, 100.0))
    paces.look("a", "preemptible", 1, Look(451, 451 * 40, 500.0, 40, 100.0))
    paces.look("a", "preemptible", 1, Look(551, 551 * 40, 500.7, 40, 100.0))
    pace = paces.of("preemptible")
    assert pace is not None
    assert pace.step_s == pytest.approx(0.007)


def test_engines_that_were_replaced_by_slower_ones_are_forgotten() -> None:
    paces = Paces()
    decode(paces, "fast", 0.005, 0.0, 1, rounds=10)
    for number in range(8):
        paces.batch_ended()
        decode(paces, f"slow-{number}", 0.01, 0.0, 1, rounds=10)
    pace = paces.of("preemptible")
    assert pace is not None
    assert pace.step_s == pytest.approx(0.01, rel=0.02)


looks = st.builds(
    Look,
    frames=st.integers(0, 50),
    rows=st.integers(0, 5000),
    frame_s=st.floats(0, 100),
    live=st.integers(0, 64),
    context=st.floats(0, 10**6),
)


@given(st.lists(st.tuples(st.sampled_from("abc"), looks), max_size=40))
def test_whatever_is_seen_a_pace_is_a_finite_number_that_does_not_fall(seen: list[tuple[str, Look]]) -> None:
    paces = Paces()
    for name, look in seen:
        paces.look(name, "reserved", 1, look)
    pace = paces.of("reserved")
    if pace is not None:
        assert 0 <= pace.context_s < 1e9
        assert -1e-9 <= pace.step_s < 1e9


def test_instances_that_come_and_go_for_ever_are_not_kept_for_ever() -> None:
    paces, rng = Paces(), random.Random(1)
    for number in range(MAX_INSTANCES + 50):
        paces.look(f"spot-{number}", "preemptible", 1, Look(9, rng.randrange(99), 1.0, 3, 10.0))
    assert len(paces._looks) <= MAX_INSTANCES
