"""`Usage` and ends of all descendant processes. Linux, by /proc."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S, LOOK_AGAIN_S = 10.0, 0.0005
"""A killed process needs a processor to end, longer with much memory and on a busy machine."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Present use of all descendants. resident_bytes counts pages that they share once for each; queued_s:
    the longest time that one of them was ready and had no processor; ready: one of them has a processor or
    waits for one."""

    cpu_s: float
    resident_bytes: int
    pids: list[int]
    queued_s: float = 0.0
    ready: bool = False


def usage() -> Usage:
    """Use of every process below this one."""
    cpu_s, resident, queued_s, ready, pids = 0.0, 0, 0.0, False, []
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
            cpu_s += sum(map(int, fields[11:15])) / TICKS  # utime, stime, and those of waited children
            resident += int(fields[21]) * PAGE_BYTES
            ready |= fields[0] == b"R"
            pids.append(pid)
            with open(f"/proc/{pid}/schedstat", "rb") as schedstat:  # absent without CONFIG_SCHED_INFO
                queued_s = max(queued_s, int(schedstat.read().split()[1]) / 1e9)
    return Usage(cpu_s, resident, pids, queued_s, ready)


def proportional_bytes(pids: list[int]) -> int:
    """Their memory, each shared page divided among those that share it. Slower than `usage`."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:"))
    return total


def below(pid: int) -> Iterator[int]:
    """The processes below `pid`, parents first."""
    found = [pid]
    while found:
        parent = found.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", "rb") as children:
                    for child in map(int, children.read().split()):
                        found.append(child)
                        yield child


def end_all(uid: int, patience_s: float = PATIENCE_S) -> bool:
    """End every process below this one and reap it; whether none is left. uid: the user that they run as and
    that nothing else does, 0 if there is no such user. This process must be their subreaper."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True  # the usual case: orphans would be our children
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        left = list(below(os.getpid()))
        if uid and left:
            _end_user(uid)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(LOOK_AGAIN_S)
    return False


def _end_user(uid: int) -> None:
    """kill(-1) as that user: one call reaches processes that fork faster than they are listed."""
    helper = os.fork()
    if helper == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(helper, 0)
