"""An engine that was launched with another width: it passes its trial, or the host goes back."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.nodeagent.launch import Launch
from gleaner.nodeagent.width_trial import WidthTrial

TRIAL_S = 100.0


def trial(devices: int = 4, wanted: int = 1) -> WidthTrial:
    return WidthTrial([1, 2, 4], devices, wanted, TRIAL_S)


def test_engine_is_relaunched_on_trial_when_another_width_is_planned() -> None:
    one = trial()
    assert one.launch == Launch(1)
    assert not one.ordered(1, 0.0)
    assert not one.ordered(0, 0.0), "no width was planned"
    assert one.ordered(2, 5.0)
    assert one.launch == Launch(2, trial=True)
    assert one.look(runs=True, now_s=5.0 + TRIAL_S - 1) == "waits"
    assert one.look(runs=True, now_s=5.0 + TRIAL_S) == "passed"
    assert (one.launch, one.on_trial) == (Launch(2), False)


def test_host_goes_back_when_the_engine_ended_twice_and_refuses_that_width() -> None:
    one = trial()
    one.ordered(4, 0.0)
    assert one.look(runs=False, now_s=10.0) == "again"
    assert one.launch == Launch(4, trial=True)
    assert one.look(runs=True, now_s=10.0 + TRIAL_S - 1) == "waits", "the second launch has its own time"
    assert one.look(runs=False, now_s=20.0) == "back"
    assert (one.launch, one.on_trial) == (Launch(1), False)
    assert not one.ordered(4, 30.0)
    assert one.ordered(2, 40.0), "another width is tried"


def test_host_goes_back_to_the_last_width_that_passed() -> None:
    one = trial()
    one.ordered(2, 0.0)
    one.look(runs=True, now_s=TRIAL_S)
    one.ordered(4, 2 * TRIAL_S)
    one.look(runs=False, now_s=2 * TRIAL_S + 1)
    assert one.look(runs=False, now_s=2 * TRIAL_S + 2) == "back"
    assert one.width == 2


def test_return_to_the_good_width_is_no_trial() -> None:
    one = trial()
    one.ordered(2, 0.0)
    assert one.ordered(1, 1.0)
    assert (one.launch, one.on_trial) == (Launch(1), False)


def test_host_has_the_width_that_suits_its_devices() -> None:
    assert trial(devices=2, wanted=4).width == 2
    assert trial(devices=1, wanted=4).width == 1
    assert WidthTrial([2, 4], 3, 2, TRIAL_S).width == 0


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 4]), st.booleans(), st.floats(0.1, 200.0)), max_size=30))
def test_width_is_always_one_that_is_allowed_and_no_trial_is_endless(
    story: list[tuple[int, bool, float]],
) -> None:
    one, now_s, failures = trial(), 0.0, dict.fromkeys((1, 2, 4), 0)
    for wanted, runs, passes_s in story:
        one.ordered(wanted, now_s)
        now_s += passes_s
        assert one.width in (1, 2, 4)
        if one.on_trial:
            width = one.width
            verdict = one.look(runs=runs, now_s=now_s)
            failures[width] += verdict == "back"
            assert failures[width] <= 1, "a width that failed twice was launched again"
