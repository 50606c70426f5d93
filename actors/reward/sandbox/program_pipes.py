"""`RunningProgram`: one program at the trusted end, with its pipes and its end.

Its pipes are read up to a limit, and its end has a name.

Owns the descriptors of one program. Does not own the zygote, which reports its end through `channel`.
"""

import contextlib
import os
import select
import signal
import socket
import time

from gleaner.actors.reward.sandbox import program, wire
from gleaner.actors.reward.sandbox.port import STARVED, Limits, Outcome, Status, Work

LATE_S = 10.0
"""Beyond the longest time of a program: then the zygote itself does not answer."""
STDOUT, STDERR, RESULT = 0, 1, 2


class SandboxFailed(RuntimeError):
    """A sandbox could not be started or does not answer; the text gives the reason and the remedy."""


class RunningProgram:
    """One program, from its start on. Always `close` it. Calls raise SandboxFailed, OSError and EOFError
    where the zygote is gone."""

    def __init__(self, channel: socket.socket, work: Work) -> None:
        self.work = work
        self.asked = 0
        self._channel = channel
        self._result, theirs = socket.socketpair()
        pipes = [os.pipe(), os.pipe()]
        try:
            wire.send_work(channel, work, (pipes[0][1], pipes[1][1], theirs.fileno()))
        finally:
            theirs.close()
            for _, write in pipes:
                os.close(write)
        self._pipes = [read for read, _ in pipes]
        self._kinds = dict(zip([*self._pipes, self._result.fileno()], (STDOUT, STDERR, RESULT), strict=True))
        for read in self._kinds:
            os.set_blocking(read, False)
        self._open = set(self._kinds)
        self._parts = [bytearray(), bytearray(), bytearray()]
        limits = work.limits
        self._most = [limits.output_bytes, limits.output_bytes, limits.result_bytes + program.PREFIX.size]
        self._flooded = self._late = False

    def finish(self) -> Outcome:
        """Wait for its end."""
        found = self._until(time.monotonic() + STARVED * self.work.limits.wall_s + LATE_S, b"", frame=False)
        if found is None:
            raise SandboxFailed("the sandbox does not answer")
        return found

    def ask(self, payload: bytes) -> Outcome:
        """The function's result for `payload`, in a program that stays. Any status but OK is the program's
        end.
        """
        self.asked += 1
        whole = program.PREFIX.pack(len(payload)) + payload
        found = self._until(time.monotonic() + 2 * STARVED * self.work.each_s, whole, frame=True)
        if found is None:
            self._late = True
            wire.send(self._channel, {"end": "late"})
            found = self._until(time.monotonic() + LATE_S, b"", frame=False)
        if found is None:
            raise SandboxFailed("the sandbox does not answer")
        return found

    def close(self) -> None:
        """Close its descriptors. A program that stays ends then."""
        self._result.close()
        for read in self._pipes:
            os.close(read)
        self._pipes = []

    def finish_closed(self) -> None:
        """Wait for the report of a program that stays, after `close`."""
        self._open.clear()
        if self._until(time.monotonic() + LATE_S, b"", frame=False) is None:
            raise SandboxFailed("the sandbox does not answer")

    def _until(self, until_s: float, unsent: bytes, *, frame: bool) -> Outcome | None:
        """Read what it writes until its end is reported or, with `frame`, a result is whole; None if neither
        arrives in time."""
        result, channel = max(self._kinds, key=self._kinds.__getitem__), self._channel.fileno()
        while (left_s := until_s - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(channel, select.POLLIN)
            for read in self._open:
                poll.register(read, select.POLLIN | (select.POLLOUT if unsent and read == result else 0))
            ready = dict(poll.poll(1000 * left_s))
            if unsent and ready.get(result, 0) & select.POLLOUT:
                with contextlib.suppress(OSError):  # it has ended: the report gives the reason
                    unsent = unsent[self._result.send(unsent) :]
            for read in self._open & ready.keys():
                if ready[read] & ~select.POLLOUT and not self._take(read):
                    self._open.discard(read)
            if frame and (whole := self._frame()) is not None:
                return Outcome(status=Status.OK, result=whole)
            if channel in ready:
                report, _, _ = wire.receive(self._channel)
                for read in self._open:  # output from before the end; orphans are not waited for
                    while self._take(read):
                        pass
                return self._judge(report)
        return None

    def _take(self, read: int) -> bool:
        """Read the available output; whether more may follow."""
        kind = self._kinds[read]
        try:
            part = os.read(read, 2**16)
        except (BlockingIOError, ConnectionResetError):
            return False
        kept = self._parts[kind]
        room = self._most[kind] - len(kept)
        kept += part[:room]
        if len(part) > room and not self._flooded:
            self._flooded = True
            wire.send(self._channel, {"end": "output"})
        return bool(part)

    def _frame(self) -> bytes | None:
        """A whole result, taken out."""
        kept = self._parts[RESULT]
        if len(kept) < program.PREFIX.size:
            return None
        (size,) = program.PREFIX.unpack_from(kept)
        if len(kept) < program.PREFIX.size + size:
            return None
        whole = bytes(kept[program.PREFIX.size : program.PREFIX.size + size])
        del kept[: program.PREFIX.size + size]
        return whole

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
            limited=self._flooded or self._late or bool(report.get("why")),
        )

    def _verdict(self, report: wire.Json) -> tuple[Status, str, bytes]:
        limits, why = self.work.limits, str(report.get("why", ""))
        if why == "starved":
            return Status.OVERLOADED, f"no processor for it within {report['wall_s']} s", b""
        if "failed" in report:
            return Status.SANDBOX_FAILED, str(report["failed"]), b""
        if self._late:
            return Status.TIMEOUT, f"no result within {self.work.each_s:g} s of processor time", b""
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
