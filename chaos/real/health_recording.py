"""Testimony of the witness: owns its process and the pipe from it.

A witness that died is replaced.
"""

import contextlib
import os
import subprocess
import sys

import msgspec

from gleaner.chaos.real.cluster import Cluster
from gleaner.chaos.real.health_recorder import HealthRecord
from gleaner.chaos.real.node import tied_to_us

MAX_LINE_BYTES = 1 << 20
MAX_UNREAD_BYTES = 4 << 20
_decoder = msgspec.json.Decoder(HealthRecord)


class HealthRecording:
    """See the module. `count`: testimonies so far; `newest`: the last of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.count = 0
        self.newest = HealthRecord()

    def listen(self) -> None:
        """Read the new testimonies; never waits."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(process.stdout.fileno(), MAX_UNREAD_BYTES)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self.newest = _decoder.decode(line)
            self.count += 1
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"the recorder wrote more than {MAX_LINE_BYTES} bytes at a time")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> "subprocess.Popen[bytes]":
        self.close()
        self._rest = b""
        argv = [sys.executable, "-m", "gleaner.chaos.real.health_recorder", *self._cluster.access()]
        with (self._cluster.root / "logs" / "witness.err").open("ab") as errors:
            process = subprocess.Popen(
                self._cluster.driver.inside(argv),
                stdin=subprocess.PIPE,  # its end is the witness' end
                stdout=subprocess.PIPE,
                stderr=errors,
                env=tied_to_us(),
                start_new_session=True,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process
