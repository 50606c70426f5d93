import pytest

from nodeagent.process_arguments import SPINS, threading


def test_threads_of_a_child_sleep_soon_when_they_wait_for_each_other() -> None:
    assert threading(2, {"HOME": "/root"}) == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "GOMP_SPINCOUNT": str(SPINS),
    }


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "100"}])
def test_how_threads_wait_is_left_to_a_user_that_sets_it(given: dict[str, str]) -> None:
    assert "GOMP_SPINCOUNT" not in threading(2, given)
