"""Processes of a run on this machine, and signals to exactly one of them.

Owns the mapping from a host and a kind of process to a pid. A process belongs to a run by the mark in its
environment, which every descendant of the run's head inherits; its command line gives its kind. Signals are
bound to the process that was found: a pid that was reused meanwhile is left alone.
"""

import contextlib
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

from gleaner.rlctl.head import remains
from gleaner.rlctl.runs import RunDir

AGENT = "agent"
SCORER = "scorer"
FORKS = "forks"
GONE_S = 5.0  # for killed processes to be gone; milliseconds on a quiet machine
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Proc:
    """A process of a host. kind: agent, rollout, reward, trainer, transfer, engine, scorer, forks (the fork
    server of its node agent)."""

    node: str
    kind: str
    process: psutil.Process

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self.process.pid)

    def __str__(self) -> str:
        return f"{self.node}/{self.kind} (pid {self.pid})"

    def alive(self) -> bool:
        """Whether it runs; one that ended and was not collected does not."""
        return is_alive(self.process)

    def stopped(self) -> bool:
        """Whether it is stopped by a SIGSTOP."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(self.process.status() == psutil.STATUS_STOPPED)
        return False

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises psutil.NoSuchProcess where it has ended."""
        self.process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """All its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(self.process.children(recursive=True))
        return []


def processes(run: RunDir) -> list[Proc]:
    """Every living process of a run whose command line gives its kind."""
    found = []
    for process in remains(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            proc = identify(process, process.cmdline())
            if proc is not None:
                found.append(proc)
    return sorted(found, key=lambda proc: (proc.node, proc.kind, proc.pid))


def find(run: RunDir, kind: str, node: str = "") -> list[Proc]:
    """The processes of a kind, on one host or (node: "") on any."""
    return [proc for proc in processes(run) if proc.kind == kind and node in ("", proc.node)]


def identify(process: psutil.Process, argv: Sequence[str]) -> Proc | None:
    """The kind and host in a command line: `-m gleaner.nodeagent start --name N`, `-m
    gleaner.nodeagent.process KIND --node N`."""
    for module, word, flag in (
        ("gleaner.nodeagent", "start", "--name"),
        ("gleaner.nodeagent.process", "", "--node"),
    ):
        if module not in argv or flag not in argv[:-1]:
            continue
        kind = argv[argv.index(module) + 1]
        return Proc(argv[argv.index(flag) + 1], AGENT if kind == word else kind, process)
    if "gleaner.actors.reward.worker" in argv:
        return Proc("head", SCORER, process)
    if "gleaner.supervisor.fork_server" in argv and (parent := process.parent()) is not None:
        owner = identify(parent, parent.cmdline())
        return Proc(owner.node, FORKS, process) if owner is not None else None
    return None


def is_alive(process: psutil.Process) -> bool:
    """Whether this very process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def end_now(pids: Iterable[int]) -> int:
    """SIGKILL, and wait until they are gone, a moment at most; return their number. A zombie has closed its
    files."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            found.append(process)
    until_s = time.monotonic() + GONE_S
    while any(map(is_alive, found)) and time.monotonic() < until_s:  # `wait` would take exit codes from Popen
        time.sleep(POLL_S)
    return len(found)
