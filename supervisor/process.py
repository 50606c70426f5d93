"""Child processes of a supervisor: marked by their parent, watched by pidfd.

They are killed with their parent. A child that runs our code calls `die_with_parent` first thing, so that no
orphan keeps a GPU. The pidfd reports an exit at once and cannot be confused by a reused pid.
"""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.parent import PARENT_VARIABLE, die_with_parent
from gleaner.supervisor.watch.health import Health
from gleaner.supervisor.watch.turn_clock import timeout_in_turns

HEARTBEAT_VARIABLE = "GLEANER_HEARTBEAT"  # a `health.Parent`
MAX_OUTPUT_BYTES = 4 << 20
"""Beyond this size, a child's printed output is moved to `….old` when it starts again; its own log rotates by
itself."""
MAX_SAID_BYTES = 2048
"""Limit of a child's last line in the cause of its end."""
TOO_SLOW = "it did not stop within its time"
UTIME, STIME = 11, 12  # in /proc/PID/stat, behind the name: proc(5)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_AT_WORK = re.compile(r"[^A-SU-Ya-z]*(?:DEBUG|INFO)\b")
"""A debug or info record of a log: its level is the first word, behind a time at most."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Specification of a child process. Its standard output and error go to `output`."""

    argv: Sequence[str]
    output: Path
    env: Mapping[str, str] = field(default_factory=dict)
    hopeless: frozenset[int] = frozenset()
    """Exit codes with which the child reports that another start would end the same way."""
    health: Health | None = None
    """The heartbeats that are expected of it; None for a program that sends none."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """As `env`, but variables that this process's environment has keep their values."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended: an exit code, or the signal that killed it. `said` is the last line that it
    printed and that is no debug or info record of a log: its own explanation of its end."""

    code: int | None
    signal: int | None
    said: str = ""
    hint: str = ""
    """Further facts about a signal: a core dump, the kernel out of memory, our own order."""

    @property
    def abnormal(self) -> bool:
        """Anything but exit code 0."""
        return self.code != 0

    @property
    def cause(self) -> str:
        """`exit 3: its last line`, or `SIGKILL`, or `SIGSEGV (core dumped)`."""
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"{name} ({self.hint})" if self.hint else name
        return f"exit {self.code}: {self.said}" if self.said and self.code else f"exit {self.code}"


class ChildProcess:
    """A running child. `on_exit` is called once, on the loop. `forks` forks it, where it can; otherwise it is
    executed."""

    def __init__(
        self, spec: ProcessSpec, on_exit: Callable[[ProcessExit], None], forks: ForkServer | None = None
    ) -> None:
        spec.output.parent.mkdir(parents=True, exist_ok=True)
        if spec.output.exists() and spec.output.stat().st_size > MAX_OUTPUT_BYTES:
            spec.output.replace(spec.output.with_suffix(".old"))
        env = {**spec.defaults, **os.environ, **spec.env, PARENT_VARIABLE: str(os.getpid())}
        self._output = spec.output
        with spec.output.open("ab") as output:
            self._said_from = output.tell()
            self._popen, self.pid = _start(list(spec.argv), env, output.fileno(), forks)
        self.exit: ProcessExit | None = None
        self._on_exit = on_exit
        self._ended = asyncio.Event()
        self._killed_for = ""  # why we killed it
        self._oom_kills = oom_kills()
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        dumped = _dumped_core(self._pidfd)
        code = self._exit_code()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        if code < 0:
            self.exit = ProcessExit(None, -code, "", self._hint(-code, dumped))
        else:
            self.exit = ProcessExit(code, None, self._last_line())
        self._ended.set()
        self._on_exit(self.exit)

    def _exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._popen is not None:
            return self._popen.poll()
        ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _hint(self, number: int, dumped: bool) -> str:
        if dumped:
            return "core dumped"
        if number == signal.SIGKILL and self._killed_for:
            return self._killed_for
        if number == signal.SIGKILL and oom_kills() > self._oom_kills:
            return "the kernel killed for memory meanwhile"
        return ""

    def _last_line(self) -> str:
        """The last line that this life of the child printed; "" for none."""
        try:
            with self._output.open("rb") as output:
                end = output.seek(0, os.SEEK_END)
                output.seek(max(self._said_from, end - MAX_SAID_BYTES))
                lines = output.read(MAX_SAID_BYTES).decode(errors="replace").split("\n")
        except OSError:
            return ""
        return last_words(lines)

    def send_signal(self, number: int) -> None:
        """Signal the child if it still lives (never another process of the same number)."""
        if self.exit is None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    async def wait(self) -> ProcessExit:
        """Wait until it has ended."""
        await self._ended.wait()
        assert self.exit is not None
        return self.exit

    async def stop(self, timeout_s: float) -> ProcessExit:
        """SIGTERM, then SIGKILL after `timeout_s`; at once if that is 0."""
        if timeout_s > 0:
            self.send_signal(signal.SIGTERM)
            try:
                async with timeout_in_turns(timeout_s):
                    return await self.wait()
            except TimeoutError:
                self.kill(TOO_SLOW)
        self.kill()
        return await self.wait()

    def kill(self, why: str = "") -> None:
        """SIGKILL; `why` goes into the cause of its end. The first reason counts."""
        self._killed_for = self._killed_for or why
        self.send_signal(signal.SIGKILL)

    def cpu_s(self) -> float:
        """Processor seconds of all its threads so far, in steps of 10 ms; 0 once it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_S


def _start(
    argv: list[str], env: Mapping[str, str], output: int, forks: ForkServer | None
) -> "tuple[subprocess.Popen[bytes] | None, int]":
    """Start a child in a process group of its own: Ctrl-C is for the foreground group, and a child ends when
    its parent orders it. A child that was forked has no `Popen`. Raises OSError."""
    if forks is not None and (pid := forks.start(argv, env, output)) is not None:
        return None, pid
    popen = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, process_group=0
    )
    return popen, popen.pid


def last_words(lines: Sequence[str]) -> str:
    """The last printed line that may explain why a process ended: not a debug or info record of its log. ""
    for none."""
    nonempty = (line.strip() for line in reversed(lines))
    return next((line for line in nonempty if line and not _AT_WORK.match(line)), "")


def _dumped_core(pidfd: int) -> bool:
    try:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # collected already
        return False
    return ended is not None and ended.si_code == os.CLD_DUMPED


def oom_kills(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of this process's control group (cgroup v2) the kernel has killed for memory; 0
    where it does not report that. One that is counted while a child dies of SIGKILL is most likely that
    child."""
    try:
        group = next(line[3:].strip() for line in own.read_text().splitlines() if line.startswith("0::"))
        events = (cgroups / group.lstrip("/") / "memory.events").read_text()
        return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


__all__ = [
    "HEARTBEAT_VARIABLE",
    "PARENT_VARIABLE",
    "TOO_SLOW",
    "ChildProcess",
    "ProcessExit",
    "ProcessSpec",
    "die_with_parent",
    "last_words",
    "oom_kills",
]
