"""The times of a batch that Algorithm 1 asks for, worked out by hand, and the laws that they obey."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.fleet.batch_clock import BatchClock


def remote(clock: BatchClock, name: str, from_s: float, *until_s: float) -> None:
    """An instance has as many requests as there are ends, from a moment on."""
    clock.dispatched(from_s, name, len(until_s), preemptible=True)
    for end_s in until_s:
        clock.returned(end_s, name)


def test_remote_wait_is_from_each_instances_last_response_to_the_steps_end() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 2)
    clock.dispatched(5.0, "a", 2, preemptible=True)
    clock.dispatched(5.0, "b", 1, preemptible=True)
    clock.returned(60.0, "b")
    clock.returned(50.0, "a")
    clock.returned(80.0, "a")
    clock.end(100.0)
    assert clock.figures(400.0).remote_wait_s == (20.0 + 40.0) / 2  # whenever somebody asks


def test_an_instance_that_is_gone_waits_for_no_end_and_its_work_counts() -> None:
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


def test_an_instance_that_never_got_a_request_waits_for_nothing() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 2)
    remote(clock, "a", 10.0, 90.0)
    clock.end(100.0)
    assert clock.figures(100.0).remote_wait_s == 10.0


def test_the_reserved_instances_are_no_remote_ones_but_their_responses_are_responses() -> None:
    clock = BatchClock(0.0)
    clock.dispatched(1.0, "reserved/engine", 2, preemptible=False)
    clock.returned(20.0, "reserved/engine")
    clock.returned(35.0, "reserved/engine")
    clock.end(50.0)
    figures = clock.figures(50.0)
    assert (figures.remote_s, figures.remote_wait_s, figures.mean_prem) == (0.0, 0.0, 0.0)
    assert (figures.rolled_s, figures.remote_start_s, figures.step_s) == (35.0, 0.0, 50.0)


def test_an_instance_that_comes_late_pulls_its_weights_from_then_on() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 0)
    clock.present(40.0, 1)
    clock.present(45.0, 2)
    remote(clock, "a", 52.0, 60.0)
    assert clock.figures(100.0).remote_start_s == 12.0


def test_while_weights_are_pulled_an_instance_is_there_so_that_a_quiet_step_is_undisturbed() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 3)
    clock.present(7.0, 3)  # they say what they serve
    clock.end(100.0)
    assert clock.figures(100.0).mean_prem == 3.0


def test_pauses_between_two_requests_are_no_generating() -> None:
    clock = BatchClock(0.0)
    clock.present(0.0, 1)
    remote(clock, "a", 10.0, 20.0)
    remote(clock, "a", 60.0, 90.0)
    clock.end(100.0)
    figures = clock.figures(100.0)
    assert (figures.remote_s, figures.remote_wait_s, figures.remote_start_s) == (40.0, 10.0, 10.0)


def test_what_comes_after_the_end_changes_nothing() -> None:
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
def test_whatever_happens_times_are_neither_negative_nor_longer_than_the_step(
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
