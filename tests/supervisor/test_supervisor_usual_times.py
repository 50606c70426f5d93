"""When repeated work is late: by what was measured, above a floor."""

from supervisor.context import FIRST_OFFLOAD_LATE_S, OFFLOAD_LATE_S
from supervisor.usual_times import MANY_TIMES, MAX_KINDS, REMEMBERED, UsualTimes


def test_the_first_deadline_holds_until_something_is_measured_and_the_floor_always() -> None:
    usual = UsualTimes(first_s=600.0, floor_s=120.0)
    assert usual.late_s("step") == 600.0
    usual.took(2.0, "step")
    assert usual.late_s("step") == 120.0
    assert usual.late_s("other") == 600.0


def test_the_deadline_follows_the_longest_of_the_last_ones() -> None:
    usual = UsualTimes(first_s=600.0, floor_s=120.0)
    usual.took(500.0)
    assert usual.late_s() == MANY_TIMES * 500.0
    for _ in range(REMEMBERED):
        usual.took(100.0)
    assert usual.late_s() == MANY_TIMES * 100.0, "the long one is forgotten"


def test_kinds_are_bounded() -> None:
    usual = UsualTimes(first_s=600.0, floor_s=1.0)
    for number in range(MAX_KINDS + 10):
        usual.took(2.0, str(number))
    assert usual.late_s(str(MAX_KINDS + 5)) == 600.0


def test_work_that_was_never_measured_has_more_time_than_what_was() -> None:
    assert FIRST_OFFLOAD_LATE_S > OFFLOAD_LATE_S
