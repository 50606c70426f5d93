"""A test of a program: its limit of processor time, and how it ended, from its status and that time."""

import os
import resource
import signal

import pytest

from gleaner.actors.reward.sandbox.confinement import OVERCOUNT
from gleaner.actors.reward.verifiers.stdin_runs import EXITED, TIMEOUT, failure, limit_processor


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


def soft_limit_s(test_s: float, hard_s: int) -> int:
    """The soft limit of processor time, in a process of its own, before a test that may take `test_s`."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (hard_s, hard_s))
            limit_processor(test_s)
            os.write(write, str(resource.getrlimit(resource.RLIMIT_CPU)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as limits:
        soft, hard = map(int, limits.read().strip("()").split(","))
    os.waitpid(pid, 0)
    assert hard == hard_s, "which nothing can raise again"
    return soft


def test_program_is_ended_by_the_kernel_soon_after_its_time() -> None:
    assert 60.0 * OVERCOUNT < soft_limit_s(60.0, 1_000_000) <= 60.0 * OVERCOUNT + 3
    assert soft_limit_s(1_000.0, 200) == 200, "a test cannot have more than its program"
