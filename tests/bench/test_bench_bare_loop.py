"""The bare loop that the simulator is compared with."""

from bench.bare_loop import simulated_per_s


def test_bare_loop_gives_a_speed_when_its_actors_are_killed_and_frozen() -> None:
    assert all(simulated_per_s(20.0, seed) > 0 for seed in range(3))
