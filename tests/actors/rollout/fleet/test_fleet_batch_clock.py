"""BatchClock: the times for Algorithm 1, worked out by hand, and their laws."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.fleet.batch_clock import BatchClock


def remote(clock: BatchClock, name: str, from_s: float, *until_s: float) -> None:
    """An instance has one request for each end, from `from_s` on."""
    clock.dispatched(from_s, name, len(until_s), preemptible=True)
    for end_s in until_s:
        clock.returned(end_s, name)


def test_remote_wait_lasts_from_last_responses_to_end() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 2)
    clock.dispatched(5.0, "a", 2, preemptible=True)
    clock.dispatched(5.0, "b", 1, preemptible=True)
    clock.returned(60.0, "b")
    clock.returned(50.0, "a")
    clock.returned(80.0, "a")
    clock.end(100.0)
    assert clock.figures(400.0).remote_wait_s == (20.0 + 40.0) / 2  # at any later time


def test_lost_instance_has_work_but_no_wait() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 2)
    remote(clock, "a", 10.0, 90.0)
    remote(clock, "b", 10.0, 30.0)
    clock.left("b")
    clock.present(30.0, 1)
    clock.end(100.0)
    figures = clock.figures(100.0)
    assert figures.remote_wait_s == 10.0
    assert figures.mean_prem == (2 * 30.0 + 1 * 70.0) / 100.0
    assert figures.remote_s * figures.mean_prem == 80.0 + 20.0


def test_instance_without_requests_has_no_wait() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 2)
    remote(clock, "a", 10.0, 90.0)
    clock.end(100.0)
    assert clock.figures(100.0).remote_wait_s == 10.0


def test_reserved_instances_are_not_remote() -> None:
    clock = BatchClock(0.0)
    clock.dispatched(1.0, "reserved/engine", 2, preemptible=False)
    clock.returned(20.0, "reserved/engine")
    clock.returned(35.0, "reserved/engine")
    clock.end(50.0)
    figures = clock.figures(50.0)
    assert (figures.remote_s, figures.remote_wait_s, figures.mean_prem) == (0.0, 0.0, 0.0)
    assert (figures.rolled_s, figures.remote_start_s, figures.step_s) == (35.0, 0.0, 50.0)


def test_late_instance_pulls_weights_from_its_arrival() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 0)
    clock.present(40.0, 1)
    clock.present(45.0, 2)
    remote(clock, "a", 52.0, 60.0)
    assert clock.figures(100.0).remote_start_s == 12.0


def test_instance_is_present_while_it_pulls_weights() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 3)
    clock.present(7.0, 3)  # they report the version that they serve
    clock.end(100.0)
    assert clock.figures(100.0).mean_prem == 3.0


def test_pauses_between_requests_are_no_generation_time() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 1)
    remote(clock, "a", 10.0, 20.0)
    remote(clock, "a", 60.0, 90.0)
    clock.end(100.0)
    figures = clock.figures(100.0)
    assert (figures.remote_s, figures.remote_wait_s, figures.remote_start_s) == (40.0, 10.0, 10.0)


def test_events_after_the_end_change_nothing() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 1)
    remote(clock, "a", 10.0, 20.0)
    clock.end(50.0)
    before = clock.figures(50.0)
    clock.end(70.0)
    clock.present(80.0, 5)
    remote(clock, "b", 80.0, 90.0)
    clock.left("a")
    assert clock.figures(500.0) == before


steps = st.lists(
    st.tuples(st.sampled_from("pdrle"), st.sampled_from("abc"), st.integers(0, 4), st.floats(0, 50)),
    max_size=60,
)


@given(steps)
def test_times_are_neither_negative_nor_longer_than_step(
    moves: list[tuple[str, str, int, float]],
) -> None:
    clock, now = BatchClock(0.0), 0.0
    for what, name, count, passes_s in moves:
        now += passes_s
        match what:
            case "p":
                clock.present(now, count)
            case "d":
                clock.dispatched(now, name, count, preemptible=name != "c")
            case "r":
                clock.returned(now, name)
            case "l":
                clock.left(name)
            case _:
                clock.end(now)
    figures = clock.figures(now + 1.0)
    slack = 1.0 + 1e-9
    assert 0 <= figures.rolled_s <= figures.step_s * slack
    assert 0 <= figures.remote_wait_s <= figures.step_s * slack
    assert 0 <= figures.remote_start_s <= figures.step_s * slack
    assert 0 <= figures.mean_prem <= 4 * slack
    assert 0 <= figures.remote_s * figures.mean_prem <= 60 * figures.step_s * slack
