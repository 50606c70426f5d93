"""Work during a slowness takes longer, and has its usual pace as soon as the slowness is over."""

import pytest

from gleaner.sim.meter import Meter
from gleaner.sim.models.clock import PacedClock
from gleaner.sim.slowness import Slowness


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slowness = Slowness(lambda: self.now_s)


def test_work_takes_its_usual_time_without_slowness() -> None:
    assert Time().slowness.takes_s(3.0) == 3.0


def test_work_that_ends_within_the_slowness_takes_all_of_the_factor() -> None:
    time = Time()
    time.slowness.begin(4.0, 20.0)
    assert time.slowness.takes_s(5.0) == 20.0
    assert time.slowness.factor == 4.0


def test_work_has_its_usual_pace_when_the_slowness_ends_meanwhile() -> None:
    time = Time()
    time.slowness.begin(10.0, 20.0)
    assert time.slowness.takes_s(5.0) == 20.0 + 3.0  # in 20 s it does 2 s of its work
    time.now_s = 20.0
    assert time.slowness.takes_s(5.0) == 5.0
    assert time.slowness.factor == 1.0


def test_work_that_begins_later_is_slow_for_what_is_left() -> None:
    time = Time()
    time.slowness.begin(10.0, 20.0)
    assert time.slowness.takes_s(5.0, after_s=10.0) == 10.0 + 4.0
    assert time.slowness.takes_s(5.0, after_s=30.0) == 5.0


def test_work_beside_counts_only_while_it_is_slow() -> None:
    time = Time()
    time.slowness.begin(1.0, 8.0)
    assert time.slowness.takes_s(2.0, more_s=14.0) == 8.0 + 1.0  # half of it is done in the 8 s


def test_pieces_of_one_work_follow_one_another_through_the_end_of_the_slowness() -> None:
    time, meter = Time(), Meter()
    clock = PacedClock(meter, time.slowness)
    time.slowness.begin(10.0, 20.0)
    meter.begin()
    clock.spend(1.0)
    clock.spend(4.0)
    assert meter.end().seconds == pytest.approx(23.0)
