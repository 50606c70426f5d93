"""Cost of a command: time, processor time of all its processes, and memory.

Owns the measuring of one command. This process adopts the command's orphans, so that their time counts too.
"""

import ctypes
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMORY_S = 1.0
"""Between two polls of the memory: each costs some milliseconds of the machine."""
FIRST_S = 0.1
"""Between two checks whether the first step is done."""
LIMIT_S = 1200.0
"""A command that takes longer is killed."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one command. first_step_s: from its start to the end of its first step. peak_mib: the largest
    sum of its processes' proportional memory; processes: their number then."""

    wall_s: float
    first_step_s: float
    cpu_s: float
    peak_mib: float
    processes: int


class CommandFailed(Exception):
    """The command's exit code was not 0; the text has its last lines."""


class _Watch(threading.Thread):
    """Polls a command until it is stopped."""

    def __init__(self, first_done: Callable[[], bool]) -> None:
        super().__init__(name="watch", daemon=True)
        self._first_done = first_done
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self.first_step_s = float("nan")
        self.peak_mib, self.processes = 0.0, 0

    def run(self) -> None:
        looked_s = self._began_s
        while not self._over.wait(FIRST_S):
            now_s = time.monotonic()
            if self.first_step_s != self.first_step_s and self._first_done():
                self.first_step_s = now_s - self._began_s
            if now_s - looked_s >= MEMORY_S:
                looked_s = now_s
                self._look()

    def _look(self) -> None:
        sizes = []
        for child in psutil.Process().children(recursive=True):
            try:
                sizes.append(child.memory_full_info().pss)
            except psutil.Error:
                continue
        if sum(sizes) / 2**20 > self.peak_mib:
            self.peak_mib, self.processes = sum(sizes) / 2**20, len(sizes)

    def stop(self) -> None:
        self._over.set()
        self.join()


def measure(argv: Sequence[str], output: Path, first_done: Callable[[], bool]) -> Cost:
    """Run it to its end, with its output in `output`. first_done: whether its first step is over. Raises
    CommandFailed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before_s, began_s = _children_s(), time.monotonic()
    watch = _Watch(first_done)
    with output.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment()
        )
        watch.start()
        try:
            code = process.wait(LIMIT_S)
            wall_s = time.monotonic() - began_s
        finally:
            watch.stop()
            process.kill()
            process.wait()
    _reap()
    if code:
        tail = output.read_text(errors="replace")[-2000:]
        raise CommandFailed(f"{' '.join(argv[:4])} ended with {code}:\n{tail}")
    cpu_s = _children_s() - before_s
    return Cost(wall_s, watch.first_step_s, cpu_s, watch.peak_mib, watch.processes)


def environment() -> dict[str, str]:
    """Environment of every measured command: Python keeps compiled files, unless it is forbidden."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_s() -> float:
    """Processor seconds of all children that ended and were waited for, with their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap() -> None:
    """Wait for adopted orphans."""
    for child in psutil.Process().children():
        child.wait(LIMIT_S)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
