"""Laws of the failure detector, for any history of beats."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.supervisor.watch.detector import MAX_PHI, WINDOW, Detector, Patience, Verdict

BEAT_S = 0.5
PATIENCE = Patience.within(5.0, beat_s=BEAT_S)
HISTORY = st.lists(st.floats(0.001, 4.0), max_size=2 * WINDOW)
SILENCE = st.floats(0.0, 20.0)


def after(intervals: Sequence[float]) -> tuple[Detector, float]:
    """A detector that has seen beats at these intervals, and the time of the last one."""
    now = 1000.0
    detector = Detector(PATIENCE, now)
    for interval in intervals:
        now += interval
        detector.beat(now)
    return detector, now


@given(HISTORY, SILENCE, SILENCE)
def test_suspicion_never_falls_while_the_silence_lasts(
    history: list[float], one: float, other: float
) -> None:
    detector, now = after(history)
    sooner, later = sorted((one, other))
    assert 0 <= detector.suspicion(now + sooner) <= detector.suspicion(now + later) <= MAX_PHI
    order = [Verdict.ALIVE, Verdict.SUSPECT, Verdict.DEAD]
    assert order.index(detector.verdict(now + sooner)) <= order.index(detector.verdict(now + later))


@given(HISTORY, SILENCE)
def test_beat_clears_all_suspicion(history: list[float], silence: float) -> None:
    detector, now = after(history)
    before = detector.suspicion(now + silence)
    detector.beat(now + silence)
    assert detector.suspicion(now + silence) <= max(before, detector.phi(0.0))
    assert detector.verdict(now + silence) is Verdict.ALIVE


@given(HISTORY, st.floats(0.0, PATIENCE.pause_s))
def test_silence_within_the_acceptable_pause_is_no_death(history: list[float], silence: float) -> None:
    detector, now = after(history)
    assert detector.verdict(now + silence) is not Verdict.DEAD


@given(HISTORY, st.floats(PATIENCE.hard_s + 1e-6, 1e6))
def test_silence_of_the_hard_bound_is_death(history: list[float], silence: float) -> None:
    detector, now = after(history)
    assert detector.verdict(now + silence) is Verdict.DEAD


@given(HISTORY, SILENCE)
def test_silence_is_death_when_the_remaining_time_passed(history: list[float], silence: float) -> None:
    detector, now = after(history)
    left_s = detector.left_s(now + silence)
    assert left_s == pytest.approx(max(PATIENCE.hard_s - silence, 0.0))
    assert detector.verdict(now + silence + left_s + 1e-6) is Verdict.DEAD


@given(HISTORY, SILENCE, st.floats(0.0, 100.0))
def test_pause_of_the_watcher_changes_no_verdict(
    history: list[float], silence: float, stalled: float
) -> None:
    detector, now = after(history)
    before = detector.verdict(now + silence)
    detector.excuse(stalled)
    later = now + silence + stalled
    assert abs(detector.silence_s(later) - silence) < 1e-6
    if abs(silence - PATIENCE.pause_s) > 1e-3 and abs(silence - PATIENCE.hard_s) > 1e-3:
        order = [Verdict.ALIVE, Verdict.SUSPECT, Verdict.DEAD]
        assert abs(order.index(detector.verdict(later)) - order.index(before)) <= 1


def test_regular_peer_is_suspected_sooner_than_irregular_one() -> None:
    regular, now = after([0.5] * 60)
    stuttering, then = after([0.3, 1.1, 0.2, 0.9, 0.4, 1.2] * 10)
    assert regular.verdict(now + 1.3) is Verdict.SUSPECT
    assert stuttering.verdict(then + 1.3) is Verdict.ALIVE


def test_regular_peer_is_dead_before_hard_bound_irregular_at_it() -> None:
    regular, now = after([0.5] * 60)
    stuttering, then = after([0.1, 1.9] * 50)
    assert regular.verdict(now + 4.4) is Verdict.DEAD
    assert stuttering.verdict(then + 4.4) is not Verdict.DEAD
    assert stuttering.verdict(then + PATIENCE.hard_s) is Verdict.DEAD


def test_one_long_freeze_does_not_hide_the_next() -> None:
    detector, now = after([0.5] * 60)
    frozen = now + 4.0
    assert detector.verdict(frozen) is Verdict.SUSPECT
    detector.beat(frozen)
    assert detector.verdict(frozen + 3.0) is Verdict.SUSPECT


def test_peer_without_any_sign_is_dead_at_hard_bound() -> None:
    detector, now = after([])
    assert detector.verdict(now + 0.6) is Verdict.ALIVE
    assert detector.verdict(now + PATIENCE.hard_s) is Verdict.DEAD


@given(st.floats(0.01, 100.0), st.floats(0.01, 0.999))
def test_watcher_polling_once_per_beat_keeps_the_bound(bound_s: float, share: float) -> None:
    beat_s = bound_s * share
    patience = Patience.within(bound_s, beat_s)
    assert patience.pause_s < patience.hard_s < bound_s
    if beat_s <= bound_s / 3:
        assert patience.hard_s + beat_s <= bound_s * 1.000001


@pytest.mark.parametrize(("beat_s", "pause_s", "hard_s"), [(0, 1, 2), (1, 2, 2), (3, 1, 2), (1, -1, 2)])
def test_contradictory_patience_is_refused(beat_s: float, pause_s: float, hard_s: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < beat_s"):
        Patience(beat_s, pause_s, hard_s)
