"""Ends a child process at its limit of processor time, inside the sandbox.

The kernel's own limit is in whole seconds and counts too much on a busy machine, so here the child's clock is
read, at least every `LOOK_S`. The caller blocks SIGCHLD before it forks (`block`), and its child calls
`unblock`. Descriptors of processes would do too; the sandbox refuses them.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

LOOK_S = 0.05
LEAST_S = 0.001
_SCHEDULED = 2
"""Of the clocks of a process: nanoseconds that it had a processor (clock_getcpuclockid(3))."""


class Ended(NamedTuple):
    """A child's end: its status, processor seconds with those of its own children, and whether it was ended
    here."""

    status: int
    cpu_s: float
    late: bool


def block() -> None:
    """Keep SIGCHLD for `ended`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])


def unblock() -> None:
    """In a child: have signals as usual."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def clock() -> Callable[[], float]:
    """Processor seconds of this process and its children that have ended. The model's code may replace what a
    module holds."""
    own, usage, children = time.process_time, resource.getrusage, resource.RUSAGE_CHILDREN

    def used_s() -> float:
        spent = usage(children)
        return own() + spent.ru_utime + spent.ru_stime

    return used_s


def ended(pid: int, may_use: Callable[[float], float]) -> Ended:
    """Wait for a child's end. may_use: how much processor time it may have used when it has used so much;
    beyond that it is killed."""
    late = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return Ended(status, usage.ru_utime + usage.ru_stime, late)
        used_s = _used_s(pid)
        left_s = may_use(used_s) - used_s
        if left_s <= 0:
            late = True
            with contextlib.suppress(PermissionError):  # an old kernel: the limit of the whole ends it
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], LOOK_S if late else min(LOOK_S, max(left_s, LEAST_S)))


def _used_s(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:  # it ended this moment
        return 0.0
