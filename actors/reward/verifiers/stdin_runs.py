"""Tests with stdin of a model-written program, inside the sandbox: each in a child of its own.

Owns the kinds of results of a test, its files and its end. Does not own what the child becomes: Python with a
source (`program_runs`), or a command (`command_runs`).
"""

import math
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from gleaner.actors.reward.sandbox.confinement import OVERCOUNT
from gleaner.actors.reward.verifiers import watched_child
from gleaner.actors.reward.verifiers.watched_child import Ended

TEXT, VALUE, RAISED, EXITED, TIMEOUT, TOO_LONG = "text", "value", "raised", "exited", "timeout", "too long"
"""The result kinds of a test: the text of stdout, a value as JSON, or why there is neither."""
MAX_OUTPUT_BYTES = 2**20
"""Most output of one test."""
MAX_ERROR_BYTES = 2**16
"""Most that is read of stderr."""

Result = tuple[str, str, float]
"""The result of a test: its kind, the text, processor seconds."""


class StdinTests:
    """Tests with stdin. Input and output are files without a name, so that no test waits for a reader."""

    def __init__(self, *, watched: bool = False) -> None:
        """watched: each test is ended at once at its processor time; the caller called `block` of
        `watched_child`."""
        self._watched = watched
        self._given, self._out, self._err = (nameless_file(name) for name in ("given", "out", "err"))

    def run(self, program: Callable[[], NoReturn], given: bytes, test_s: float) -> Result:
        """One test, in a child that becomes `program`. test_s: its processor time."""
        status, cpu_s, late = self.child(program, given, test_s)
        if found := failure(status, cpu_s, 0.0 if late else test_s):
            return found
        if os.fstat(self._out).st_size > MAX_OUTPUT_BYTES:
            return TOO_LONG, f"more than {MAX_OUTPUT_BYTES} bytes of output", cpu_s
        written = self.output().decode("utf-8", "replace")
        if os.WEXITSTATUS(status):
            size = os.fstat(self._err).st_size
            last = os.pread(self._err, MAX_ERROR_BYTES, max(0, size - MAX_ERROR_BYTES))
            lines = last.decode("utf-8", "replace").strip().splitlines()
            return RAISED, (lines[-1] if lines else f"exit code {os.WEXITSTATUS(status)}")[:500], cpu_s
        return TEXT, written, cpu_s

    def child(self, program: Callable[[], NoReturn], given: bytes, test_s: float) -> Ended:
        """Have a child become `program`; its end."""
        for fd in (self._given, self._out, self._err):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        write_all(self._given, given)
        os.lseek(self._given, 0, os.SEEK_SET)
        pid = os.fork()
        if pid == 0:
            try:
                for place, fd in enumerate((self._given, self._out, self._err)):
                    os.dup2(fd, place)
                os.closerange(3, 64)
                watched_child.unblock()
                limit_processor(test_s)
                program()
            finally:
                os._exit(1)
        return watched_child.ended(pid, lambda _: test_s) if self._watched else wait_for(pid)

    def output(self) -> bytes:
        """The beginning of the last child's stdout."""
        return os.pread(self._out, MAX_OUTPUT_BYTES, 0)

    def errors(self) -> str:
        """The beginning of the last test's stderr."""
        return os.pread(self._err, MAX_ERROR_BYTES, 0).decode("utf-8", "replace").strip()


def limit_processor(test_s: float) -> None:
    """Move the limit of processor time ahead by so much, plus what the kernel may overcount on a busy
    machine. The use of a test is measured at its end."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + OVERCOUNT * test_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def wait_for(pid: int) -> Ended:
    """Wait for a child."""
    _pid, status, usage = os.wait4(pid, 0)
    return Ended(status, usage.ru_utime + usage.ru_stime, late=False)


def failure(status: int, cpu_s: float, test_s: float) -> Result | None:
    """Why a test has no output: too long, or a signal."""
    if cpu_s > test_s or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return TIMEOUT, "", cpu_s
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXFSZ:
            return TOO_LONG, "a file that is longer than its limit", cpu_s
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return EXITED, f"signal {number} ({name})", cpu_s
    return None


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def nameless_file(name: str) -> int:
    """The descriptor of a new file in the program's folder."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    return fd
