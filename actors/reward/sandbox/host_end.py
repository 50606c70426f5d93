"""`HostSandbox`: trusted end of a sandbox, which starts it and runs programs.

It reads their output up to a limit.

Owns the zygote's process, its socket and its folder. A sandbox is replaced after `MAX_PROGRAMS`, or when it
failed; a failure of its own is an outcome with the status SANDBOX_FAILED, which never scores.
"""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import IO

from gleaner.actors.reward.sandbox import folders, shells, wire
from gleaner.actors.reward.sandbox.confinement import Confinement
from gleaner.actors.reward.sandbox.detection import Host
from gleaner.actors.reward.sandbox.port import Isolation, Outcome, Status, Work
from gleaner.actors.reward.sandbox.program_pipes import RunningProgram, SandboxFailed

MAX_PROGRAMS = 1000
START_S = 60.0
MAX_ASKED = 1000
"""Payloads for one program that stays."""


class HostSandbox:
    """A `Sandbox` on this machine.

    prepare: work that is done once for all programs: modules to import, and functions ("module:name") to
    call, with an argument that JSON has. readable: more paths that programs may read. path: folders to import
    from. devices: of GPUs that programs may use (`gpus`).
    """

    def __init__(
        self,
        host: Host,
        prepare: Sequence[str | tuple[str, object]] = (),
        *,
        readable: Sequence[str] = (),
        path: Sequence[str] = (),
        devices: Sequence[str] = (),
        max_programs: int = MAX_PROGRAMS,
    ) -> None:
        self._host, self._most = host, max_programs
        self._devices = list(devices)
        self._prepare = [one if isinstance(one, tuple) else (one, None) for one in prepare]
        self._confinement: Confinement | None = None
        self._readable, self._path = shells.readable([*readable, *path]), list(path)
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._channel: socket.socket | None = None
        self._tmp, self._held = "", -1
        self._programs = 0
        self._staying: RunningProgram | None = None

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
            # a file, as a pipe that is not read could fill while it prepares
            stderr = self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the sandbox
            self._process = shells.start(
                self.isolation, self._host.bwrap, self._readable, inner, stderr, self._devices
            )
        except OSError as error:
            outer.close()
            self.close()
            raise SandboxFailed(f"the sandbox could not be started: {error}") from error
        finally:
            inner.close()
        self._channel, self._programs = outer, 0
        how = self._confinement = self._confinement or replace(
            self._host.confinement(self._readable), devices=self._devices
        )
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
            self._end_staying()
            outcome = self._run(self._ready(work))
        except (SandboxFailed, OSError, EOFError, ValueError) as error:
            self.close()
            return Outcome(status=Status.SANDBOX_FAILED, detail=str(error))
        if outcome.status is Status.SANDBOX_FAILED:
            self.close()
        return outcome

    def ask(self, work: Work) -> Outcome:
        """Have a program that stays (`Work.each_s`) do `work.payload`; it is started anew where the last one
        ended, was another one, or did `MAX_ASKED`. Raises nothing."""
        try:
            staying = self._staying
            if staying is None or staying.asked >= MAX_ASKED or staying.work.function != work.function:
                self._end_staying()
                work = self._ready(work)
                assert self._channel is not None
                staying = self._staying = RunningProgram(self._channel, work)
            outcome = staying.ask(work.payload)
        except (SandboxFailed, OSError, EOFError, ValueError) as error:
            self.close()
            return Outcome(status=Status.SANDBOX_FAILED, detail=str(error))
        if outcome.status is not Status.OK:
            staying.close()
            self._staying = None
        if outcome.status is Status.SANDBOX_FAILED:
            self.close()
        return outcome

    def _ready(self, work: Work) -> Work:
        """Be ready for one more program."""
        if self._channel is None or self._programs >= self._most:
            self.start()
        self._programs += 1
        return work

    def _end_staying(self) -> None:
        if self._staying is not None:
            staying, self._staying = self._staying, None
            staying.close()
            staying.finish_closed()

    def close(self) -> None:
        """See `Sandbox`."""
        if self._staying is not None:
            self._staying.close()
            self._staying = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if self._tmp:
            folders.remove(self._tmp, self._held)
            self._tmp = ""

    def _run(self, work: Work) -> Outcome:
        channel = self._channel
        assert channel is not None
        running = RunningProgram(channel, work)
        try:
            return running.finish()
        finally:
            running.close()

    def _last_words(self) -> str:
        if self._process is None or self._stderr is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stderr.seek(-min(2000, self._stderr.seek(0, os.SEEK_END)), os.SEEK_END)
        return self._stderr.read().decode("utf-8", "replace").strip()[-500:]
