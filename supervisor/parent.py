"""Ties between a process and its parent: it dies with it, and may be adopted by it."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

PARENT_VARIABLE = "GLEANER_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; leave at once if it died already.

    Called first thing in a child. A process that was not started by a supervisor is left alone.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent:
        bind_to_parent(int(parent))


def bind_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent `parent` dies; leave at once if it died already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Within the block, descendants of this process whose parents end become its children (prctl(2),
    PR_SET_CHILD_SUBREAPER). Outside it they go to init, so that none of them waits here to be collected."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"prctl({option}) failed: errno {ctypes.get_errno()}")
