"""`Zygote`: process inside a sandbox that forks a child for each program.

It has all modules imported.

It runs one program at a time, watches what all its processes use together, ends them at a limit, and reports.
It is trusted: it never reads a program's output. Started by `shells` with its socket as argument 1; the first
frame is its set-up, each frame after it is work.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, NoReturn, cast

from gleaner.actors.reward.sandbox import descendants, folders, namespaces, program, syscalls, wire
from gleaner.actors.reward.sandbox.confinement import Confinement, Confiner, set_environment
from gleaner.actors.reward.sandbox.port import STARVED, Isolation, Limits, Work

LOOK_S = 0.05
"""Period in which the use of a program's processes is added up; their use within a period is bounded for
each.
"""


class Zygote:
    """See the module docstring."""

    def __init__(self, channel: socket.socket, isolation: Isolation, how: Confinement, tmp: str) -> None:
        self._channel, self._isolation, self._how, self._tmp = channel, isolation, how, tmp
        self._prepare()

    def _prepare(self) -> None:
        """Have a folder for programs, and what confines them to it."""
        stays = self._isolation is Isolation.LANDLOCK
        self._folder = f"{self._tmp}/program" if stays else namespaces.TMP
        if stays:
            os.mkdir(self._folder, 0o700)
            if self._how.uid:
                os.chown(self._folder, self._how.uid, self._how.uid)
        self._confiner = Confiner(self._how, self._folder, stays=stays)
        set_environment(self._folder)

    def serve(self) -> None:
        """Run programs until the host closes the socket."""
        with contextlib.suppress(wire.SocketClosed):
            while True:
                head, payload, fds = wire.receive(self._channel)
                if "function" not in head:
                    continue  # the end of a program that has ended by itself meanwhile
                limits = Limits(**cast("dict[str, float]", head["limits"]))  # type: ignore[arg-type]
                each_s = float(str(head["each_s"]))
                work = Work(function=str(head["function"]), payload=payload, limits=limits, each_s=each_s)
                wire.send(self._channel, self._run(work, fds))

    def _run(self, work: Work, fds: list[int]) -> wire.Json:
        try:
            return self._attempt(work, fds)
        except OSError as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        finally:
            _close(fds)

    def _attempt(self, work: Work, fds: list[int]) -> wire.Json:
        confined, ready = os.pipe()
        ended, ends = os.pipe()
        start = program.Start.of(work, self._confiner)

        def become() -> NoReturn:
            program.become(start, self._confiner, fds, ready)

        try:
            try:
                pid = self._start(work, become, ends)
            finally:
                _close([*fds, ready, ends])
                fds.clear()
            tmp = self._folder if self._isolation is Isolation.LANDLOCK else ""
            report = _Run(self._channel, self._how, work.limits, _Started(pid, confined, ended), tmp).to_end()
        finally:
            _close([confined, ended])
        if tmp and not folders.emptied(tmp):
            report["failed"] = "what it left in its folder could not be removed"  # the next one would find it
        return report

    def _start(self, work: Work, become: Callable[[], NoReturn], ends: int) -> int:
        if self._isolation is Isolation.NAMESPACES:
            own_proc = bool(self._how.devices)  # a GPU's driver library reads its own maps there
            return namespaces.start(become, work.limits, ends, self._how.uid, own_proc=own_proc)
        pid = syscalls.fork()
        if pid == 0:
            become()
        return pid


class _Started(NamedTuple):
    """A program that was started. confined: it writes there when it is confined. ended: our reaper writes
    there how it ended."""

    pid: int
    confined: int
    ended: int


class _Run:
    """One program, from its start to its report. tmp: its folder, "" if the kernel limits that."""

    def __init__(
        self, channel: socket.socket, how: Confinement, limits: Limits, started: _Started, tmp: str
    ) -> None:
        self._channel, self._how, self._limits, self._pid = channel, how, limits, started.pid
        self._confined, self._ended, self._tmp = started.confined, started.ended, tmp
        self._began_s = self._runs_s = time.monotonic()
        self._starting, self._over = True, False
        self._cpu_s, self._queued_s, self._before_s, self._peak = 0.0, 0.0, 0.0, 0
        self._looked_s, self._short_s = self._began_s, 0.0

    def to_end(self) -> wire.Json:
        """Wait for its end, or end it at a limit; the report."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        why = self._watch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        status = self._reap()
        none_left = descendants.end_all(self._how.uid)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        report: wire.Json = {
            "why": why,
            "status": status,
            "cpu_s": max(self._cpu_s, used_s),
            "wall_s": time.monotonic() - self._began_s,
            "peak_bytes": self._peak,
        }
        result_bytes = self._said()
        if result_bytes != program.CONFINED:
            report["failed"] = (
                result_bytes.decode("utf-8", "replace") or "the program's process ended at its start"
            )
        elif not none_left:
            report["failed"] = "its processes could not be ended"
        return report

    def _watch(self) -> str:
        """Why the program must be ended; "" if it ended by itself."""
        poll = select.poll()
        pidfd = os.pidfd_open(self._pid)
        marks = [self._confined] if self._tmp else [self._confined, self._ended]
        try:
            for descriptor in (pidfd, self._channel.fileno(), *marks):
                poll.register(descriptor, select.POLLIN)
            while True:
                ready = dict(poll.poll(1000 * min(LOOK_S, max(self._left_s(), 0.0))))
                if pidfd in ready:
                    return ""
                if self._channel.fileno() in ready:
                    wire.receive(self._channel)  # the host requests its end; raises if the host is gone
                    return "asked"
                for mark in ready:
                    self._passed(mark)
                    poll.unregister(mark)
                if not ready and (why := self._over_limit()):
                    return why
        finally:
            os.close(pidfd)

    def _passed(self, mark: int) -> None:
        """The wall clock counts neither how long the kernel takes to make the namespaces of a program, nor to
        remove them: on a busy machine both wait for locks of all programs, longer than many programs run."""
        if mark == self._confined:
            self._starting, self._runs_s, self._before_s = False, time.monotonic(), self._queued_s
        else:
            self._over = True

    def _left_s(self) -> float:
        """Of its wall time, as it was counted at the last look."""
        if self._starting or self._over:
            return LOOK_S
        ran_s = time.monotonic() - self._runs_s - (self._queued_s - self._before_s)
        return self._limits.wall_s - ran_s

    def _over_limit(self) -> str:
        limits, now = self._limits, descendants.usage()
        self._count_waits(now)
        if now.cpu_s > limits.cpu_s:
            return "cpu"
        if time.monotonic() - self._began_s > STARVED * limits.wall_s:
            return "starved"
        if self._left_s() <= 0:  # after a look: this process may have had no processor either
            return "wall"
        if len(now.pids) > limits.processes + namespaces.REAPERS:
            return "processes"
        resident = now.resident_bytes
        if resident > limits.memory_bytes:
            resident = descendants.proportional_bytes(now.pids)
        self._peak = max(self._peak, resident)
        if resident > limits.memory_bytes:
            return "memory"
        if self._tmp and _too_large(self._tmp, limits):
            return "tmp"
        return ""

    def _count_waits(self, now: descendants.Usage) -> None:
        """Note for how long it had no processor: from the kernel for one process that still exists, or by
        sampling for short-lived ones."""
        looked_s, cpu_s = time.monotonic(), max(self._cpu_s, now.cpu_s)
        if now.ready:
            self._short_s += looked_s - self._looked_s - (cpu_s - self._cpu_s)
        self._looked_s, self._cpu_s = looked_s, cpu_s
        self._queued_s = max(self._queued_s, now.queued_s, self._short_s)

    def _reap(self) -> int:
        _pid, status = os.waitpid(self._pid, 0)
        if self._tmp:
            return status
        packed = os.read(self._ended, namespaces.ENDED.size)
        if len(packed) < namespaces.ENDED.size:
            return signal.SIGKILL
        status, cpu_s = namespaces.ENDED.unpack(packed)
        self._cpu_s = max(self._cpu_s, cpu_s)
        return int(status)

    def _said(self) -> bytes:
        os.set_blocking(self._confined, False)
        try:
            return os.read(self._confined, 500)
        except BlockingIOError:
            return b""


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _too_large(folder: str, limits: Limits) -> bool:
    """Whether a folder holds more than it may; walks no further than that takes."""
    total = count = 0
    left = [folder]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                count += 1
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                if total > limits.tmp_bytes or count > limits.tmp_files:
                    return True
    return False


def main(descriptor: int) -> None:
    """Entry point of the process."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    head, _, _ = wire.receive(channel)
    sys.path[:0] = cast("list[str]", head["path"])
    try:
        for name, argument in cast("list[tuple[str, object]]", head["prepare"]):
            if ":" in name:
                cast("Callable[[object], object]", program.find(name))(argument)
            else:
                import_module(name)
    except BaseException as error:  # noqa: BLE001  # a function of the user's; the host reports it
        wire.send(channel, {"failed": f"{name}: {type(error).__name__}: {error}"[:500]})
        return
    how = Confinement(**cast("dict[str, object]", head["confinement"]))  # type: ignore[arg-type]
    zygote = Zygote(channel, Isolation(str(head["isolation"])), how, str(head["tmp"]))
    gc.collect()
    gc.freeze()
    gc.disable()
    wire.send(channel, {"ready": os.getpid()})
    zygote.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
