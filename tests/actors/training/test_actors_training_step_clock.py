"""`StepClock`: each second of a step is counted once, under one cause, across failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.training.attempt_times import AttemptTimes
from gleaner.actors.training.step_clock import StepClock, StepSeconds

PARTS = StepSeconds(seeding_s=2.0, waiting_s=1.0, training_s=4.0, weights_s=0.5)


def test_step_without_a_death_has_no_recovery() -> None:
    clock = StepClock(100.0)
    clock.lap("evaluation", 103.0)
    clock.lap("other", 104.0)
    clock.attempt(PARTS, 112.0, again=False)
    spent = clock.end(112.5)
    assert spent == StepSeconds(
        seeding_s=2.0, waiting_s=1.0, training_s=4.0, weights_s=0.5, evaluation_s=3.0, other_s=2.0
    )
    assert spent.step_s == 12.5


def test_discarded_attempt_is_recovery() -> None:
    clock = StepClock(0.0)
    clock.lap("other", 1.0)
    clock.attempt(PARTS, 20.0, again=True)  # 11.5 s of them before the attempt that took 7.5 s
    spent = clock.end(20.0)
    assert (spent.recovery_s, spent.other_s, spent.training_s) == (11.5, 1.0, 4.0)


def test_manager_absence_is_deducted_from_its_lap() -> None:
    clock = StepClock(0.0)
    clock.lap("evaluation", 5.0, away_s=2.0)
    assert clock.end(5.0) == StepSeconds(evaluation_s=3.0, recovery_s=2.0)


def test_repeated_pass_is_recovery_whole() -> None:
    clock = StepClock(0.0)
    clock.lap("evaluation", 5.0)
    clock.attempt(PARTS, 13.0, again=False)
    clock.void(14.0)
    clock.attempt(PARTS, 21.5, again=False)
    assert clock.end(21.5) == StepSeconds(
        seeding_s=2.0, waiting_s=1.0, training_s=4.0, weights_s=0.5, recovery_s=14.0
    )


def test_attempt_that_outlives_its_controller_is_cut() -> None:
    """The clock of the run stopped with the head, and the trainer waited for the head."""
    clock = StepClock(10.0)
    clock.lap("recovery", 12.0)
    clock.attempt(StepSeconds(seeding_s=1.0, waiting_s=60.0, training_s=3.0), 16.0, again=False)
    spent = clock.end(16.0)
    assert spent.step_s == pytest.approx(6.0)
    assert (spent.seeding_s, spent.training_s, spent.recovery_s) == (1.0, 3.0, 0.0)
    assert spent.waiting_s == pytest.approx(2.0)


def test_next_step_starts_where_this_one_ended() -> None:
    clock = StepClock(0.0)
    clock.lap("other", 4.0)
    clock.end(5.0)
    clock.lap("other", 7.0)
    assert clock.end(7.0).step_s == 2.0


seconds = st.floats(0.0, 1e4)
laps = st.tuples(st.sampled_from(["recovery", "evaluation", "other"]), seconds, seconds)
attempts = st.tuples(
    st.just("attempt"), seconds, st.tuples(seconds, seconds, seconds, seconds), st.booleans()
)
voids = st.tuples(st.just("void"), seconds)


@given(st.lists(st.one_of(laps, attempts, voids), max_size=12), seconds)
def test_parts_are_not_negative_and_sum_to_the_step(made: list[tuple], last_s: float) -> None:
    now_s = 50.0
    clock = StepClock(now_s)
    for what, lap_s, *more in made:
        now_s += lap_s
        if what == "attempt":
            seeding_s, waiting_s, training_s, weights_s = more[0]
            parts = StepSeconds(
                seeding_s=seeding_s, waiting_s=waiting_s, training_s=training_s, weights_s=weights_s
            )
            clock.attempt(parts, now_s, again=more[1])
        elif what == "void":
            clock.void(now_s)
        else:
            clock.lap(what, now_s, away_s=more[0])
    now_s += last_s
    spent = clock.end(now_s)
    assert spent.step_s == pytest.approx(now_s - 50.0, abs=1e-6)
    assert all(getattr(spent, name) >= 0 for name in StepSeconds.__slots__)


def test_manager_absence_counts_while_waiting_not_while_computing() -> None:
    now_s, away_s = 0.0, 0.0
    times = AttemptTimes(lambda: now_s, lambda: away_s)
    now_s, away_s = 5.0, 2.0
    assert times.lap("waiting") == 5.0
    now_s, away_s = 9.0, 5.0
    times.lap("training")
    now_s = 10.0
    times.lap("seeding")
    assert times.spent == StepSeconds(waiting_s=3.0, recovery_s=2.0, training_s=4.0, seeding_s=1.0)
