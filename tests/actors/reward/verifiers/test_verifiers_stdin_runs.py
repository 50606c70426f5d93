"""How a test of a program ended, from its status and its processor time."""

import signal

import pytest

from gleaner.actors.reward.verifiers.stdin_runs import EXITED, TIMEOUT, failure


@pytest.mark.parametrize(
    ("status", "cpu_s", "expected"),
    [
        (0, 0.5, None),
        (1 << 8, 1.0, None),  # an exit code is judged elsewhere
        (0, 1.5, (TIMEOUT, "", 1.5)),
        (signal.SIGKILL, 1.5, (TIMEOUT, "", 1.5)),
        (signal.SIGXCPU, 0.9, (TIMEOUT, "", 0.9)),  # the kernel counted more than was measured
        (signal.SIGKILL, 0.5, (EXITED, "signal 9 (SIGKILL)", 0.5)),
    ],
)
def test_program_is_late_when_its_own_time_or_the_kernel_shows_it(
    status: int, cpu_s: float, expected: tuple[str, str, float] | None
) -> None:
    assert failure(status, cpu_s, test_s=1.0) == expected
