"""The trusted end of a sandbox: starts it, has programs run in it, reads what they write, up to a limit.

Owns the zygote's process, its socket and its folder. A sandbox is replaced after `MAX_PROGRAMS`, or when it
failed; a failure of its own is an outcome with the status SANDBOX_FAILED, which never scores.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict

from actors.reward.sandbox import folders, program, shells, wire
from actors.reward.sandbox.confinement import Confinement
from actors.reward.sandbox.detection import Host
from actors.reward.sandbox.port import STARVED, Isolation, Limits, Outcome, Status, Work

MAX_PROGRAMS = 1000
START_S = 60.0
LATE_S = 10.0
"""Beyond the longest time of a program: then the zygote itself does not answer."""
STDOUT, STDERR, RESULT = 0, 1, 2


class SandboxFailed(RuntimeError):
    """A sandbox could not be started or does not answer; the text says why and what to do."""


class HostSandbox:
    """A `Sandbox` on this machine.

    prepare: what is done once, for every program: modules to import, and functions ("module:name") to call,
    with an argument that JSON has. readable: more paths that programs may read. path: folders to import from.
    """

    def __init__(
        self,
        host: Host,
        prepare: Sequence[str | tuple[str, object]] = (),
        *,
        readable: Sequence[str] = (),
        path: Sequence[str] = (),
        max_programs: int = MAX_PROGRAMS,
    ) -> None:
        self._host, self._most = host, max_programs
        self._prepare = [one if isinstance(one, tuple) else (one, None) for one in prepare]
        self._confinement: Confinement | None = None
        self._readable, self._path = shells.readable([*readable, *path]), list(path)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._tmp, self._held = "", -1
        self._programs = 0

    @property
    def isolation(self) -> Isolation:
        return self._host.isolation

    def start(self) -> None:
        """Start the zygote and wait until its imports are done. Raises SandboxFailed."""
        self.close()
        outer, inner = socket.socketpair()
        try:
            if self.isolation is Isolation.LANDLOCK:
                self._tmp, self._held = folders.make()
            self._process = shells.start(self.isolation, self._host.bwrap, self._readable, inner)
        except OSError as error:
            outer.close()
            self.close()
            raise SandboxFailed(f"the sandbox could not be started: {error}") from error
        finally:
            inner.close()
        self._channel, self._programs = outer, 0
        how = self._confinement = self._confinement or self._host.confinement(self._readable)
        set_up: wire.Json = {
            "isolation": self.isolation.value,
            "confinement": asdict(how),
            "prepare": self._prepare,
            "path": self._path,
            "tmp": self._tmp,
        }
        outer.settimeout(START_S)
        try:
            wire.send(outer, set_up)
            first, _, _ = wire.receive(outer)
        except (OSError, EOFError, ValueError) as error:
            words = self._last_words()
            self.close()
            raise SandboxFailed(f"the sandbox did not start: {words or error}") from error
        if "failed" in first:
            self.close()
            raise SandboxFailed(f"the sandbox did not start: {first['failed']}")
        outer.settimeout(None)

    def run(self, work: Work) -> Outcome:
        """See `Sandbox`."""
        try:
            if self._channel is None or self._programs >= self._most:
                self.start()
            self._programs += 1
            outcome = self._run(work)
        except (SandboxFailed, OSError, EOFError, ValueError) as error:
            self.close()
            return Outcome(status=Status.SANDBOX_FAILED, detail=str(error))
        if outcome.status is Status.SANDBOX_FAILED:
            self.close()
        return outcome

    def close(self) -> None:
        """See `Sandbox`."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process = None
        if self._tmp:
            folders.remove(self._tmp, self._held)
            self._tmp = ""

    def _run(self, work: Work) -> Outcome:
        channel = self._channel
        assert channel is not None
        pipes = [os.pipe() for _ in range(3)]
        writes = tuple(write for _, write in pipes)
        try:
            head: wire.Json = {"function": work.function, "limits": asdict(work.limits)}
            wire.send(channel, head, work.payload, writes)
        finally:
            for write in writes:
                os.close(write)
        reads = [read for read, _ in pipes]
        try:
            return _Reading(channel, reads, work.limits).outcome()
        finally:
            for read in reads:
                os.close(read)

    def _last_words(self) -> str:
        if self._process is None or self._process.stderr is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.stderr.read(2000).decode("utf-8", "replace").strip()[-500:]


class _Reading:
    """The pipes of one program and the zygote's report."""

    def __init__(self, channel: socket.socket, reads: list[int], limits: Limits) -> None:
        self._channel, self._limits = channel, limits
        self._reads = dict(zip(reads, (STDOUT, STDERR, RESULT), strict=True))
        self._most = {
            STDOUT: limits.output_bytes,
            STDERR: limits.output_bytes,
            RESULT: limits.result_bytes + program.PREFIX.size,
        }
        self._parts = [bytearray(), bytearray(), bytearray()]
        self._flooded = False

    def outcome(self) -> Outcome:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            for read in self._reads:
                os.set_blocking(read, False)
                selector.register(read, selectors.EVENT_READ)
            until_s = time.monotonic() + STARVED * self._limits.wall_s + LATE_S
            while True:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise SandboxFailed("the sandbox does not answer")
                events = [key.fileobj for key, _ in selector.select(left_s)]
                for event in events:
                    if isinstance(event, int) and not self._take(event):
                        selector.unregister(event)
                if self._channel in events:
                    report, _, _ = wire.receive(self._channel)
                    for read in self._reads:  # what came before the end; no orphan is waited for
                        while self._take(read):
                            pass
                    return self._judge(report)

    def _take(self, read: int) -> bool:
        """Read what there is; whether more may come."""
        kind = self._reads[read]
        try:
            part = os.read(read, 2**16)
        except BlockingIOError:
            return False
        kept = self._parts[kind]
        room = self._most[kind] - len(kept)
        kept += part[:room]
        if len(part) > room and not self._flooded:
            self._flooded = True
            wire.send(self._channel, {"end": "output"})
        return bool(part)

    def _judge(self, report: wire.Json) -> Outcome:
        status, detail, result = self._verdict(report)
        return Outcome(
            status=status,
            result=result if status is Status.OK else b"",
            stdout=bytes(self._parts[STDOUT]),
            stderr=bytes(self._parts[STDERR]),
            cpu_s=float(str(report.get("cpu_s", 0.0))),
            wall_s=float(str(report.get("wall_s", 0.0))),
            peak_bytes=int(str(report.get("peak_bytes", 0))),
            detail=detail,
        )

    def _verdict(self, report: wire.Json) -> tuple[Status, str, bytes]:
        limits, why = self._limits, str(report.get("why", ""))
        if why == "starved":
            return Status.SANDBOX_FAILED, f"no processor for it within {report['wall_s']} s", b""
        if "failed" in report:
            return Status.SANDBOX_FAILED, str(report["failed"]), b""
        if self._flooded:
            return Status.OUTPUT, f"more than {limits.output_bytes} bytes of output", b""
        reasons = {
            "wall": (Status.TIMEOUT, f"still running after {limits.wall_s:g} s"),
            "cpu": (Status.TIMEOUT, f"more than {limits.cpu_s:g} s of processor time"),
            "memory": (Status.MEMORY, f"more than {limits.memory_bytes} bytes of memory"),
            "processes": (Status.CRASHED, f"more than {limits.processes} processes and threads"),
            "tmp": (Status.OUTPUT, f"more than {limits.tmp_bytes} bytes or {limits.tmp_files} files in /tmp"),
        }
        if why in reasons:
            return (*reasons[why], b"")
        status = int(str(report["status"]))
        if os.WIFSIGNALED(status):
            return (*_by_signal(os.WTERMSIG(status), float(str(report["cpu_s"])), limits), b"")
        code = os.WEXITSTATUS(status)
        if code == program.NO_MEMORY:
            return Status.MEMORY, "MemoryError", b""
        if code == program.TOO_LONG:
            return Status.OUTPUT, f"a result of more than {limits.result_bytes} bytes", b""
        result = bytes(self._parts[RESULT])
        if code == 0 and len(result) >= program.PREFIX.size:
            (size,) = program.PREFIX.unpack_from(result)
            if size == len(result) - program.PREFIX.size:
                return Status.OK, "", result[program.PREFIX.size :]
        return Status.CRASHED, self._last_line() or f"it ended with exit code {code} and no result", b""

    def _last_line(self) -> str:
        lines = self._parts[STDERR].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""


def _by_signal(number: int, cpu_s: float, limits: Limits) -> tuple[Status, str]:
    if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= limits.cpu_s):
        return Status.TIMEOUT, f"more than {limits.cpu_s:g} s of processor time"
    if number == signal.SIGSYS:
        return Status.FORBIDDEN, "a system call that ends a program"
    if number == signal.SIGXFSZ:
        return Status.OUTPUT, f"a file of more than {limits.file_bytes} bytes"
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    return Status.CRASHED, f"signal {number} ({name})"
